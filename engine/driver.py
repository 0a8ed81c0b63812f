"""From a spec to a report: plan, run, gather, estimate, write."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from dpaudit.actors.backend import Backend, InProcess
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, Listener, read_events
from dpaudit.actors.schedule import Outcome, run_units
from dpaudit.actors.store import UnitStore
from dpaudit.actors.unit import Resources, as_of, code_version, own_code
from dpaudit.claims import claim_under
from dpaudit.engine.data.in_memory import keep
from dpaudit.engine.findings.score_table import metrics_of
from dpaudit.engine.findings.shift import shift_control
from dpaudit.engine.findings.stopping import Watch, spare_of, watches
from dpaudit.engine.findings.tally_table import tallies_of
from dpaudit.engine.games.fits import Reading
from dpaudit.engine.plan import Plan, PlannedAudit, make_plan
from dpaudit.engine.report.page import write_page
from dpaudit.engine.report.progress import TerminalProgress
from dpaudit.engine.report.report import AuditResult, Failure, Report, versions
from dpaudit.engine.spec.audit_spec import Audit, AuditSpec, slug
from dpaudit.engine.spec.build import describe
from dpaudit.engine.spec.loading import load_spec
from dpaudit.errors import SpecError
from dpaudit.estimators.bound import Bound


def audit(
    spec: AuditSpec | Audit | str | Path | Mapping[str, Any],
    *,
    output: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    seed: int | None = None,
    quiet: bool = False,
) -> Report:
    """Runs the audits of a spec and reports what they show.

    Args:
        spec: A spec, one `Audit`, the path of a YAML file, or a mapping like its content.
        output: The run folder. One that holds finished units of the same work is continued. Left out:
            `runs/<name>`.
        listeners: Told of every event while it happens, instead of the progress on standard error.
        seed: Overrides the spec's seed.
        quiet: Show no progress.
    Returns: The report; the same content is in the run folder.
    Raises: SpecError and DataError for bad input; RunError when the run cannot go on; what is finished is kept.
    """
    made = _spec(spec)
    if seed is not None:
        made = AuditSpec(made.audits, made.name, seed, made.confidence, made.run)
    folder = Path(output) if output is not None else run_folder(made)
    if quiet or listeners:
        return run_plan(make_plan(made), folder, listeners)
    with TerminalProgress(Console(stderr=True)) as progress:
        return run_plan(make_plan(made), folder, [progress])


def run_folder(spec: AuditSpec) -> Path:
    """Where a run goes when nothing else is said."""
    return Path("runs") / slug(spec.name)


def run_plan(plan: Plan, folder: Path, listeners: Sequence[Listener] = ()) -> Report:
    """Runs what is not finished yet of a plan, and writes the run folder's files."""
    began = time.monotonic()
    _prepare(folder, plan)
    store = UnitStore(folder / "units")
    log = EventLog(folder / "events.jsonl")
    events = EventStream(log, *listeners)
    try:
        events.emit(Event(EventKind.STAGE, detail=f"running {len(plan.units)} units"))
        outcome = _run(plan, store, events, folder)
        events.emit(Event(EventKind.STAGE, detail="estimating"))
        report = _report(plan, outcome, store, folder, began)
        events.emit(Event(EventKind.FINISHED, seconds=time.monotonic() - began))
    except KeyboardInterrupt:
        events.emit(Event(EventKind.INTERRUPTED))
        raise
    finally:
        log.close()
    return report


def report_again(folder: Path) -> Report:
    """Estimates and writes the report of a run folder anew from its finished units; nothing runs.

    Raises: SpecError when it is no run folder.
    """
    with as_of(*_recorded_code(folder)):
        plan = make_plan(read_spec(folder))
    store = UnitStore(folder / "units")
    finished = store.finished(unit.key for unit in plan.units)
    failed = store.failures() | {
        key: f"its file failed its check: {why}; `dpaudit resume` runs it again" for key, why in store.damaged.items()
    }
    spare = spare_of(plan, watches(plan, store))
    spared = spare(finished, failed.keys()) if spare else frozenset()
    outcome = Outcome(
        frozenset(finished),
        {
            unit.key: failed.get(unit.key, "not run yet")
            for unit in plan.units
            if unit.key not in finished and (unit.key in failed or unit.key not in spared)
        },
        0,
        frozenset(spared - finished - failed.keys()),
        store.made(finished),
        dict(store.damaged),
    )
    return _report(plan, outcome, store, folder, time.monotonic())


def _report(plan: Plan, outcome: Outcome, store: UnitStore, folder: Path, began: float) -> Report:
    watching = watches(plan, store)
    for watch in watching.values():
        watch.advance(outcome.finished, store.failures().keys() & outcome.failed.keys())
    _gather_scores(plan, outcome, store, folder, watching)
    counted = Counter(event.kind.value for event in read_events(folder / "events.jsonl"))
    report = Report(
        name=plan.spec.name,
        results=tuple(_estimate(entry, plan, outcome, store, watching.get(entry.audit.name)) for entry in plan.audits),
        seed=plan.spec.seed,
        confidence=plan.spec.confidence,
        seconds=time.monotonic() - began,
        ran=outcome.ran,
        units=len(plan.units),
        reused=outcome.reused,
        damaged=tuple(f"units/{key}.parquet: {why}" for key, why in sorted(outcome.damaged.items())),
        unseen=tuple(sorted({why for code in own_code(plan.units).values() for why in code.unseen})),
        folder=str(folder),
        spec=plan.spec.to_yaml(),
        versions=versions(),
        events=dict(counted),
    )
    write_report(report, folder, draw=plan.spec.run.figures)
    return report


def write_report(report: Report, folder: Path, *, draw: bool = True) -> None:
    """`bounds.json`, `bounds.parquet`, the figures and `report.html`, each written whole and then renamed."""
    _write(folder / "bounds.json", report.to_json())
    write_page(report, folder, draw=draw)


def read_spec(folder: Path) -> AuditSpec:
    """The spec a run folder was made from.

    Raises: SpecError when it is no run folder.
    """
    if not (folder / "spec.yaml").exists():
        raise SpecError(
            f"{folder} must be a run folder (with spec.yaml in it); `dpaudit run SPEC --output DIR` makes one"
        )
    return load_spec(folder / "spec.yaml")


def _recorded_code(folder: Path) -> tuple[str | None, Mapping[str, str]]:
    """The code version a run folder's units were made with, and the digests of the user's code, by label."""
    if not (folder / "plan.parquet").exists():
        return None, {}
    metadata = pq.read_schema(folder / "plan.parquet").metadata or {}
    version = metadata[b"code_version"].decode() if b"code_version" in metadata else None
    return version, json.loads(metadata.get(b"own_code", b"{}"))


def _spec(spec: AuditSpec | Audit | str | Path | Mapping[str, Any]) -> AuditSpec:
    if isinstance(spec, AuditSpec):
        return spec
    return AuditSpec((spec,), name=spec.name) if isinstance(spec, Audit) else load_spec(spec)


def _prepare(folder: Path, plan: Plan) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in plan.spec.audits:
        keep(entry.data, folder)
    _write(folder / "spec.yaml", plan.spec.to_yaml())
    own = {label: code.digest for label, code in own_code(plan.units).items()}
    table = plan.table().replace_schema_metadata({"code_version": code_version(), "own_code": json.dumps(own)})
    pq.write_table(table, folder / ".plan.parquet")
    os.replace(folder / ".plan.parquet", folder / "plan.parquet")


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _run(plan: Plan, store: UnitStore, events: EventStream, folder: Path) -> Outcome:
    finished = store.finished(unit.key for unit in plan.units)
    spare = spare_of(plan, watches(plan, store))
    spared = spare(finished, frozenset()) if spare else frozenset()
    missing = {unit.key for unit in plan.units} - finished - spared
    with _backend(plan, len(missing), events, (folder / "checkpoints").absolute()) as backend:
        return run_units(plan.units, backend, store, events, spare=spare)


@contextlib.contextmanager
def _backend(plan: Plan, missing: int, events: EventStream, scratch: Path) -> Iterator[Backend]:
    run = plan.spec.run
    if run.runner == "in-process" or not missing:
        yield InProcess(dict(plan.shared), scratch)
        return
    from dpaudit.cluster.session import ray_session

    with ray_session(run.address):
        from dpaudit.actors.pool import RayPool

        resources = Resources(run.cpus_per_worker, run.gpus_per_worker)
        pool = RayPool(
            dict(plan.shared), resources=resources, workers=run.workers, events=events, most=missing, scratch=scratch
        )
        try:
            yield pool
        finally:
            pool.close()


def _gather_scores(plan: Plan, outcome: Outcome, store: UnitStore, folder: Path, watching: Mapping[str, Watch]) -> None:
    """`scores/<audit>/<part>.parquet` in the order of the plan: the same files whoever ran the units."""
    for entry in plan.audits:
        target = folder / "scores" / slug(entry.audit.name)
        shutil.rmtree(target, ignore_errors=True)
        watch = watching.get(entry.audit.name)
        for number, key in enumerate(entry.game.scores[: len(watch.tallies)] if watch else entry.game.scores):
            if key in outcome.finished:
                target.mkdir(parents=True, exist_ok=True)
                _link(Path(store.path(key)), target / f"{number:05d}.parquet")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)  # the same bytes under a second name: no copy
    except OSError:
        shutil.copyfile(source, target)


def _estimate(entry: PlannedAudit, plan: Plan, outcome: Outcome, store: UnitStore, watch: Watch | None) -> AuditResult:
    audit_of = entry.audit
    keys = {unit.key for unit in entry.game.units} | set(entry.tallies) | set(entry.controls)
    labels = {unit.key: unit.label for unit in plan.units}
    failures = tuple(
        Failure(labels[key], key, error.strip().splitlines()[-1])
        for key, error in outcome.failed.items()
        if key in keys
    )
    counted = watch.tallies if watch else [key for key in entry.tallies if key in outcome.finished]
    tallies = tallies_of(store.read(key) for key in counted)
    # A replay that failed is a bound of 0: one for each that was planned and is not there.
    lost = entry.game.replays - len(tallies) if entry.game.reading is Reading.PER_REPLAY and tallies else 0
    held_out = [tallies_of([store.read(key)]) for key in entry.controls if key in outcome.finished]
    metrics = [metrics_of(store.read(key)) for key in entry.game.trainings if key in outcome.finished]
    return AuditResult(
        name=audit_of.name,
        mechanism=in_words(audit_of.mechanism),
        game="; ".join(
            f"{kind} {in_words(part)}"
            for kind, part in (
                ("game", audit_of.game),
                ("attack", audit_of.attack),
                ("proxy", audit_of.proxy),
                ("estimator", audit_of.estimator),
            )
            if part is not None
        ),
        claimed=audit_of.promised(),
        compared=claim_under(audit_of.promised(), audit_of.game.fits.relation),
        bound=_bound(entry, tallies, lost),
        metrics={name: float(np.mean([one[name] for one in metrics])) for name in (metrics[0] if metrics else {})},
        rows=dict(entry.rows),
        data=entry.data_name,
        units=(len(keys & outcome.finished), len(keys)),
        observational=entry.game.observational,
        assumes=audit_of.game.fits.assumes,
        failures=failures,
        curve=_curve(audit_of, tallies, lost),
        control=shift_control(audit_of.estimator, tallies, held_out, lost=lost) if tallies else None,
        control_lost=len(held_out) < len(entry.controls),
        stopped=watch.stopped(outcome.finished) if watch else None,
    )


def _curve(audit_of: Audit, tallies: list[Any], lost: int) -> Mapping[str, Any]:
    """The estimator's columns; beside epsilon against delta, what the claim's curve says of it."""
    if not tallies:
        return {}
    estimator = audit_of.estimator
    curve = dict(estimator.curve(tallies, lost=lost) if lost else estimator.curve(tallies))
    claim = claim_under(audit_of.promised(), audit_of.game.fits.relation).claim
    if "delta" in curve and not claim.is_point:
        curve["promised_at_delta"] = np.array([claim.curve.epsilon(float(delta)) for delta in curve["delta"]])
    return curve


def _bound(entry: PlannedAudit, tallies: list[Any], lost: int) -> Bound | None:
    """The bound with what failed counted against it; None when nothing is left to bound, or too much is missing."""
    estimator = entry.audit.estimator
    if not tallies or (entry.game.reading is Reading.TOGETHER and len(tallies) < len(entry.tallies)):
        return None
    bound: Bound = estimator.bound(tallies, lost=lost) if lost else estimator.bound(tallies)
    return bound


def in_words(value: Any) -> str:
    """A part of an audit as `name(field=value, ...)`, defaults left out."""
    words = describe(value)
    return _call(words) if isinstance(words, Mapping) else str(words)


def _call(words: Mapping[str, Any]) -> str:
    fields = ", ".join(
        f"{key}={_call(value) if isinstance(value, Mapping) else value}"
        for key, value in words.items()
        if key != "name"
    )
    name = words.get("name", "")
    return f"{name}({fields})" if fields else str(name)
