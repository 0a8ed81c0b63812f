"""From a spec to a report: plan, run, have what came out read, write."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from dpaudit.actors.backend import Backend, InProcess
from dpaudit.actors.deadlines import Deadlines
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, Listener, read_events
from dpaudit.actors.schedule import Outcome, run_units
from dpaudit.actors.signals import signals_interrupt
from dpaudit.actors.store import UnitStore
from dpaudit.actors.unit import Resources, as_of, code_version, own_code
from dpaudit.engine.data.in_memory import keep
from dpaudit.engine.findings.gather import gather
from dpaudit.engine.findings.run_report import Repeat, Report
from dpaudit.engine.findings.stopping import sequential_readers, spare_of
from dpaudit.engine.findings.versions import versions
from dpaudit.engine.plan import Plan, make_plan
from dpaudit.engine.report.bounds_file import bounds_json, bounds_table
from dpaudit.engine.report.page import write_page
from dpaudit.engine.report.progress import TerminalProgress
from dpaudit.engine.report.whole import write_whole
from dpaudit.engine.spec.audit_spec import Audit, AuditSpec, slug
from dpaudit.engine.spec.loading import load_spec
from dpaudit.errors import SpecError


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
    checked_spec = _spec(spec)
    if seed is not None:
        checked_spec = dataclasses.replace(checked_spec, seed=seed)
    folder = Path(output) if output is not None else run_folder(checked_spec)
    if quiet or listeners:
        return run_plan(make_plan(checked_spec), folder, listeners)
    with TerminalProgress(Console(stderr=True)) as progress:
        return run_plan(make_plan(checked_spec), folder, [progress])


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
        with signals_interrupt():
            events.emit(Event(EventKind.STAGE, detail=f"running {len(plan.units)} units"))
            outcome = _run(plan, store, events, folder)
            events.emit(Event(EventKind.STAGE, detail="estimating"))
            report = _report(plan, outcome, store, folder, began)
            events.emit(Event(EventKind.FINISHED, seconds=time.monotonic() - began))
    except KeyboardInterrupt as err:
        events.emit(Event(EventKind.INTERRUPTED, detail=str(err)))
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
    spare = spare_of(plan, sequential_readers(plan, store))
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
    happened = list(read_events(folder / "events.jsonl"))
    keys = {unit.key for unit in plan.units}
    repeated = {
        event.unit: Repeat(event.label, event.detail)
        for event in happened
        if event.kind is EventKind.UNIT_REPEATED and event.unit in keys
    }
    report = Report(
        name=plan.spec.name,
        results=gather(plan, outcome, store, folder),
        seed=plan.spec.seed,
        confidence=plan.spec.confidence,
        seconds=time.monotonic() - began,
        executed=outcome.ran,
        units=len(plan.units),
        reused=outcome.reused,
        damaged=tuple(f"units/{key}.parquet: {why}" for key, why in sorted(outcome.damaged.items())),
        unseen=tuple(sorted({why for code in own_code(plan.units).values() for why in code.unseen})),
        folder=str(folder),
        spec=plan.spec.to_yaml(),
        versions=versions(),
        events=dict(Counter(event.kind.value for event in happened)),
        repeated=tuple(repeated.values()),
    )
    write_report(report, folder, draw=plan.spec.run.figures)
    return report


def write_report(report: Report, folder: Path, *, draw: bool = True) -> None:
    """`bounds.json`, `bounds.parquet`, the figures and `report.html`, each written whole and then renamed."""
    write_whole(folder / "bounds.json", lambda path: path.write_text(bounds_json(report), encoding="utf-8"))
    write_whole(folder / "bounds.parquet", lambda path: pq.write_table(bounds_table(report), path))
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
    write_whole(folder / "spec.yaml", lambda path: path.write_text(plan.spec.to_yaml(), encoding="utf-8"))
    own = {label: code.digest for label, code in own_code(plan.units).items()}
    table = plan.table().replace_schema_metadata({"code_version": code_version(), "own_code": json.dumps(own)})
    write_whole(folder / "plan.parquet", lambda path: pq.write_table(table, path))


def _run(plan: Plan, store: UnitStore, events: EventStream, folder: Path) -> Outcome:
    finished = store.finished(unit.key for unit in plan.units)
    spare = spare_of(plan, sequential_readers(plan, store))
    spared = spare(finished, frozenset()) if spare else frozenset()
    missing = {unit.key for unit in plan.units} - finished - spared
    with _backend(plan, len(missing), events, (folder / "checkpoints").absolute()) as backend:
        return run_units(plan.units, backend, store, events, spare=spare, repeats=plan.spec.run.repeats)


@contextlib.contextmanager
def _backend(plan: Plan, missing: int, events: EventStream, scratch: Path) -> Iterator[Backend]:
    run = plan.spec.run
    deadlines = Deadlines(run.time_limit_s)
    if run.runner == "in-process" or not missing:
        yield InProcess(dict(plan.shared), scratch, events, deadlines)
        return
    from dpaudit.cluster.session import ray_session

    with ray_session(run.address):
        from dpaudit.actors.pool import RayPool

        resources = Resources(run.cpus_per_worker, run.gpus_per_worker)
        pool = RayPool(
            dict(plan.shared),
            resources=resources,
            workers=run.workers,
            events=events,
            most=missing,
            scratch=scratch,
            deadlines=deadlines,
        )
        try:
            yield pool
        finally:
            pool.close()
