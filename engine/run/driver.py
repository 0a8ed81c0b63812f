"""From a spec to a report: plan, run, have what came out read, write."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from dpaudit.actors.audited.leftover_processes import ending_leftovers
from dpaudit.actors.audited.signals import signals_interrupt
from dpaudit.actors.backend import Backend, Deadlines, InProcess
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, Listener, read_events
from dpaudit.actors.schedule import RunOutcome, run_units
from dpaudit.actors.storage.places import Scratch
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Unit, use_recorded_code, user_code_by_label
from dpaudit.consent import Consent, apply_consent, current_consent, require_network
from dpaudit.engine.exits import behind
from dpaudit.engine.planning.plan import Plan, make_plan, planning_announcement
from dpaudit.engine.reading.bounds_checksum import checksum_note
from dpaudit.engine.reading.joint import joint_verdict
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.run_report import RepeatedUnit, Report
from dpaudit.engine.report.bounds_file import write_bounds
from dpaudit.engine.request.audit_spec import Audit, AuditSpec, slug
from dpaudit.engine.request.loading import load_spec, spec_in
from dpaudit.engine.run.policy import Policy
from dpaudit.engine.run.run_folder import (
    Record,
    checkpoints_of,
    consent_for,
    held,
    opened,
    place_of,
    read_spec,
    run_folder,
)
from dpaudit.errors import RunError
from dpaudit.given import argument


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
        output: The run folder, a path or a URI (`s3://bucket/runs/mine`). One that holds finished units of the same
            work is continued. Left out: `runs/<name>`.
        listeners: Told of every event while it happens, instead of the progress on standard error.
        seed: Overrides the spec's seed.
        quiet: Show no progress.
    Returns: The report; the same content is in the run folder.
    Raises: SpecError and DataError for bad input; RunError when the run cannot go on; what is finished is kept.
    """
    began = time.monotonic()
    whole = AuditSpec((spec,), name=spec.name) if isinstance(spec, Audit) else spec
    asked = whole if isinstance(whole, AuditSpec) else load_spec(whole)
    if seed is not None:
        asked = dataclasses.replace(asked, seed=seed)
    place = place_of(output) if output is not None else run_folder(asked)
    with told(listeners, quiet=quiet) as listening:
        if planning := planning_announcement(asked):
            EventStream(*listening).emit(Event(EventKind.STAGE, detail=planning))
        return timed_from(began, run_plan(make_plan(asked), place, listening))


def timed_from(began: float, report: Report) -> Report:
    """Return the report with the wall time since `began`, on the clock of `time.monotonic`."""
    return dataclasses.replace(report, seconds=time.monotonic() - began)


def resume(
    folder: str | Path,
    *,
    fresh: bool = False,
    allow_code: bool = False,
    allow_network: bool = False,
    allow_files: bool = False,
    listeners: Sequence[Listener] = (),
    quiet: bool = False,
) -> Report:
    """Goes on with a run: only what is missing is run.

    Args:
        folder: The run folder, a path or a URI.
        fresh: Run anew what was finished by other code, on other data or by another spec, beside what is there.
        allow_code: Whether the spec may have code imported and run though this user did not write it.
        allow_network: Whether it may have requests sent, and values of environment variables with them, likewise.
        allow_files: Whether it may name files and folders outside of the run folder, likewise.
        listeners: As in `audit`.
        quiet: Show no progress.
    Raises: SpecError when it is no run folder, or somebody else's that asks for more than is allowed; RunError when
        what is finished would not be used, and not `fresh`.
    """
    place = place_of(folder)
    fresh = argument("fresh", fresh, bool)
    asked = Consent(allow_code, allow_network, allow_files)
    with told(listeners, quiet=quiet) as listening, opened(place, listening) as here:
        spec = read_spec(here)
        with apply_consent(consent_for(spec, asked)):
            plan = dataclasses.replace(make_plan(spec_in(spec)), isolated=current_consent().spec is not None)
            require_network(plan.spec, plan.price)
            return _run_here(plan, here, place, listening, fresh=fresh)


@contextlib.contextmanager
def told(listeners: Sequence[Listener], *, quiet: bool) -> Iterator[Sequence[Listener]]:
    """Who is told of a run's events: the listeners, or the progress on standard error where there are none."""
    listeners = argument("listeners", listeners, tuple[Listener, ...])
    quiet = argument("quiet", quiet, bool)
    if quiet or listeners:
        yield listeners
        return
    from dpaudit.engine.report.progress import TerminalProgress, terminal

    with _terminal() as stream, TerminalProgress(terminal(stream)) as progress:
        yield [progress]


@contextlib.contextmanager
def _terminal() -> Iterator[IO[str]]:
    """Standard error as it is now: a unit that runs in this process has what it prints caught."""
    own = behind(sys.stderr)
    try:
        number = os.dup(own.fileno())
    except (OSError, ValueError, AttributeError):  # a notebook's
        yield own
        return
    with open(number, "w", encoding=own.encoding, errors="backslashreplace", buffering=1) as terminal:
        yield terminal


def run_plan(plan: Plan, place: str | Path, listeners: Sequence[Listener] = ()) -> Report:
    """Runs what is not finished yet of a plan, and writes the run folder's files.

    Raises: RunError when another driver holds the folder, or it cannot be written; SpecError when it is no run folder.
    """
    with opened(place, listeners) as folder:
        return _run_here(plan, folder, place, listeners, fresh=True)


def _run_here(plan: Plan, folder: Path, place: str | Path, listeners: Sequence[Listener], *, fresh: bool) -> Report:
    began = time.monotonic()
    with held(folder):
        changes = _written_plan(plan, folder, place, fresh=fresh)
        store = UnitStore(folder / "units")
        with contextlib.closing(EventLog(folder / "events.jsonl")) as log:
            events = EventStream(log, *listeners)
            try:
                with signals_interrupt():
                    for said in (*changes, f"running {len(plan.units)} units"):
                        events.emit(Event(EventKind.STAGE, detail=said))
                    outcome = run_missing(plan, store, events, checkpoints_of(place), began)
                    events.emit(Event(EventKind.STAGE, detail="estimating"))
                    report = _report(plan, outcome, store, folder, place, began)
                    reached = ", ".join(dict.fromkeys(str(one.verdict) for one in report.answers))
                    events.emit(Event(EventKind.STAGE, detail=f"{reached}; writing the report"))
                    note = _written(report, folder, plan)
                    events.emit(Event(EventKind.FINISHED, seconds=time.monotonic() - began, detail=note))
                    return timed_from(began, report)
            except KeyboardInterrupt as err:
                events.emit(Event(EventKind.INTERRUPTED, detail=str(err)))
                raise


def _written_plan(plan: Plan, folder: Path, place: str | Path, *, fresh: bool) -> tuple[str, ...]:
    """Writes a plan into its folder; says what was there before, where that was another one."""
    record, before = Record.of(plan), Record.read(folder)
    differs = "; ".join(before.differences(record)) if before else ""
    if before and differs:
        finished = len(UnitStore(folder / "units").finished(before.keys - record.keys))
        if finished and not fresh:
            raise RunError(
                f"{finished} finished units of {place} are not those of this run: {differs}; `dpaudit report {place}` "
                f"reads them as they are, `dpaudit resume {place} --fresh` runs anew beside them"
            )
        differs += f": what was found before is in {Record.set_aside(folder)}/"
    record.write(plan, folder)
    return (differs,) if differs else ()


def report_again(folder: str | Path, *, allow_code: bool = False, allow_files: bool = False) -> Report:
    """Estimates and writes the report of a run folder anew from its finished units; nothing runs.

    Args:
        folder: The run folder, a path or a URI.
        allow_code: Whether the spec may have code imported though this user did not write it.
        allow_files: Whether it may name files and folders outside of the run folder, likewise.
    Raises: SpecError when it is no run folder, or somebody else's that asks for more than is allowed; RunError when its
        data or spec are others now: nothing is written then.
    """
    place = place_of(folder)
    asked = Consent(code=allow_code, files=allow_files)
    with opened(place) as here:
        spec = read_spec(here)
        with apply_consent(consent_for(spec, asked)):
            record = Record.required(here, place)
            _require_same(record.spec_differs(spec), place)  # before anything that the spec names is imported
            with use_recorded_code(record.version, record.own):
                plan = make_plan(spec_in(spec))
                _require_same(record.differences(Record.of(plan)), place)
            # The log is opened before anything is written: a folder whose log is no file of its own is left as it is.
            with held(here), contextlib.closing(EventLog(here / "events.jsonl")) as log:
                report = _report_of_finished(plan, here, place)
                log(Event(EventKind.REPORTED, detail=_written(report, here, plan)))
                return report


def _require_same(differs: Sequence[str], place: str | Path) -> None:
    if differs:
        raise RunError(
            f"{place} holds results of something else: {'; '.join(differs)}; nothing was written; put back what was "
            f"there, or `dpaudit resume {place} --fresh` runs anew beside them"
        )


def _report_of_finished(plan: Plan, folder: Path, place: str | Path) -> Report:
    store = UnitStore(folder / "units")
    finished = store.finished(unit.key for unit in plan.units)
    failed = store.failures() | {
        key: f"its file failed its check: {why}; `dpaudit resume` runs it again" for key, why in store.damaged.items()
    }
    policy = Policy(plan, store)  # nothing is begun any more
    spared = policy.spared(finished, failed.keys()) | policy.held(finished, failed.keys())
    missing = {unit.key: failed.get(unit.key, "not run yet") for unit in plan.units if unit.key not in finished}
    outcome = RunOutcome(
        frozenset(finished),
        {key: why for key, why in missing.items() if key in failed or key not in spared},
        0,
        frozenset(spared - finished - failed.keys()),
        store.provenance(finished),
        dict(store.damaged),
    )
    return _report(plan, outcome, store, folder, place, time.monotonic())


def _report(plan: Plan, outcome: RunOutcome, store: UnitStore, folder: Path, place: str | Path, began: float) -> Report:
    happened: Counter[str] = Counter()
    keys = {unit.key for unit in plan.units}
    repeated, remarked = {}, defaultdict[str, dict[str, None]](dict)
    for event in read_events(folder / "events.jsonl"):
        happened[event.kind.value] += 1
        if event.kind is EventKind.UNIT_REPEATED and event.unit in keys:
            repeated[event.unit] = RepeatedUnit(event.label, event.detail)
        if event.kind is EventKind.UNIT_REMARKED and event.unit in keys:
            remarked[event.detail][event.label] = None
    results = Policy(plan, store).results(outcome, folder)
    together, sweep, summary = plan.spec.together, plan.spec.sweep, None
    if sweep is not None:
        from dpaudit.engine.reading.sweep_summary import sweep_summary  # of sweeps alone

        summary = sweep_summary(sweep, results, plan.spec.confidence, folder)
    remarks = [
        f"{said} ({first}{f' and {len(others)} more' if others else ''})" for said, (first, *others) in remarked.items()
    ]
    planned = {entry.audit.name: entry.confirms for entry in plan.audits}
    return Report(
        name=plan.spec.name,
        results=results,
        joint=None
        if together is None
        else joint_verdict(plan.spec.name, together, results, planned, plan.spec.confidence),
        sweep=summary,
        seed=plan.spec.seed,
        confidence=plan.spec.confidence,
        seconds=time.monotonic() - began,
        executed=outcome.ran,
        units=len(plan.units),
        skipped=len(outcome.skipped),
        reused=outcome.reused,
        damaged=tuple(f"units/{key}.parquet: {why}" for key, why in sorted(outcome.damaged.items())),
        unseen=tuple(sorted({why for code in user_code_by_label(plan.units).values() for why in code.unseen})),
        folder=str(place),
        spec=plan.spec.to_yaml(),
        versions=versions(),
        events=dict(happened),
        repeated=tuple(repeated.values()),
        remarks=tuple(remarks),
    )


def _written(report: Report, folder: Path, plan: Plan) -> str:
    """Write what was found, for machines, the figures and `report.html`; return what an event says of it."""
    from dpaudit.engine.report.page import write_page  # only where a folder is written

    note = checksum_note(write_bounds(report, folder))
    write_page(report, folder, draw=plan.spec.run.figures)
    forget_renamed(folder, plan.spec, report.results)
    return note


def run_missing(
    plan: Plan, store: UnitStore, events: EventStream, scratch: Scratch, began: float, budget_s: float | None = None
) -> RunOutcome:
    """Runs the units of a plan that are not finished yet."""
    finished = store.finished(unit.key for unit in plan.units)
    policy = Policy(plan, store, lambda: time.monotonic() - began, budget_s)
    spared = policy.spared(finished, frozenset())
    missing = [unit for unit in plan.units if unit.key not in finished and unit.key not in spared]
    with backend_for(plan, missing, events, scratch, store) as backend:
        repeats = plan.spec.run.repeats
        outcome = run_units(plan.units, backend, store, events, skip=policy.spared, repeats=repeats, defer=policy.held)
        if looks := policy.after_violations(outcome.finished, outcome.failed.keys()):
            needs = {need for look in looks for need in look.needs}  # finished: what they gave is read, not made
            run_units([*(unit for unit in plan.units if unit.key in needs), *looks], backend, store, events)
        return outcome


@contextlib.contextmanager
def backend_for(
    plan: Plan, missing: Sequence[Unit], events: EventStream, scratch: Scratch, store: UnitStore
) -> Iterator[Backend]:
    """Where the units of a plan run, for the length of a `with` block."""
    deadlines = Deadlines(plan.spec.run.time_limit_s)
    # Of folders that somebody else made, nothing runs in this process.
    here = plan.spec.run.settled_runner() == "in-process" and not plan.isolated
    with ending_leftovers():
        if here or not missing:
            with contextlib.closing(InProcess(dict(plan.shared), scratch, events, deadlines)) as backend:
                yield backend
            return
        from dpaudit.engine.run.runners import backend_elsewhere

        with backend_elsewhere(plan, missing, events, scratch, deadlines, store) as elsewhere:
            yield elsewhere


PACKAGES = ("dpaudit", "ray", "torch", "numpy", "scipy", "catboost", "scikit-learn", "pyarrow", "numba")


def versions() -> dict[str, str]:
    """Python, the platform, and those of `PACKAGES` that are installed."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def forget_renamed(folder: Path, spec: AuditSpec, results: Sequence[AuditResult]) -> None:
    """Takes away score folders of audits that the spec has no more; the units they show stay."""
    current = {slug(name) for name in (*(audit.name for audit in spec.audits), *(found.name for found in results))}
    with contextlib.suppress(FileNotFoundError):
        for entry in (folder / "scores").iterdir():
            if entry.name not in current and entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
