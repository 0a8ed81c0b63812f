"""Run an audit from its spec to its report: plan, run the missing units, read the results, write the run folder."""

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

from dpaudit.actors.audited.signals import ending_leftovers, signals_interrupt
from dpaudit.actors.backend import Backend, Deadlines, InProcess
from dpaudit.actors.events import Event, EventKind, EventLog, EventStream, Listener, read_events
from dpaudit.actors.schedule import RunOutcome, run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Unit, use_recorded_code, user_code_by_label
from dpaudit.consent import Consent, apply_consent, current_consent, require_network
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.run_report import RepeatedUnit, Report, joint_verdict
from dpaudit.engine.answer.stated_values import checksum_note
from dpaudit.engine.exits import original_stream
from dpaudit.engine.planning.plan import Plan, make_plan, planning_announcement
from dpaudit.engine.request.audit_spec import Audit, AuditSpec, slug
from dpaudit.engine.request.loading import load_spec, spec_from_file
from dpaudit.engine.run.policy import Policy
from dpaudit.engine.run.registration import require_registered, write_receipt
from dpaudit.engine.run.run_folder import (
    OtherPlanError,
    PlanRecord,
    checkpoints_of,
    consent_for,
    default_run_folder,
    locked_folder,
    open_run_folder,
    place_of,
    read_spec,
    require_unchanged,
)
from dpaudit.errors import FormerNameError, RunError, SpecError, root_cause
from dpaudit.field_checks import checked_argument
from dpaudit.plain_files import Scratch


def audit(
    spec: AuditSpec | Audit | str | Path | Mapping[str, Any],
    *,
    output: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    seed: int | None = None,
    quiet: bool = False,
) -> Report:
    """Run the audits of a spec and return the report.

    Args:
        spec: A spec, one `Audit`, the path of a YAML file, or a mapping like its content.
        output: The run folder, a path or a URI (`s3://bucket/runs/mine`). If it has finished units of the same work,
            they are reused. Default: `runs/<name>`.
        listeners: Called with every event, instead of the progress display on standard error.
        seed: Overrides the spec's seed.
        quiet: Show no progress.
    Returns: The report, which the run folder contains too.
    Raises: SpecError and DataError for bad input; RunError if the run fails. Finished units are kept.
    """
    began = time.monotonic()
    source = AuditSpec((spec,), name=spec.name) if isinstance(spec, Audit) else spec
    requested_spec = source if isinstance(source, AuditSpec) else load_spec(source)
    if seed is not None:
        requested_spec = dataclasses.replace(requested_spec, seed=seed)
    place = place_of(output) if output is not None else default_run_folder(requested_spec)
    with event_listeners(listeners, quiet=quiet) as listening:
        if planning := planning_announcement(requested_spec):
            EventStream(*listening).emit(Event(EventKind.STAGE, detail=planning))
        return with_wall_time(began, run_plan(make_plan(requested_spec), place, listening))


def with_wall_time(began: float, report: Report) -> Report:
    """Return the report with the wall time since `began`, a value of `time.monotonic`."""
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
    """Resume a run: run its missing units only.

    The `allow_` options matter only for a spec that this user did not write.

    Args:
        folder: The run folder, a path or a URI.
        fresh: Rerun units that were finished with other code, data or another spec. Their files are kept.
        allow_code: Let the spec import and run code.
        allow_network: Let the spec send requests, including values of environment variables.
        allow_files: Let the spec name files and folders outside the run folder.
        listeners: As in `audit`.
        quiet: Show no progress.
    Raises: SpecError if it is no run folder, or its spec needs more than is allowed; RunError if finished units cannot
        be reused and `fresh` is false.
    """
    place = place_of(folder)
    fresh = checked_argument("fresh", fresh, bool)
    consent = Consent(allow_code, allow_network, allow_files)
    with event_listeners(listeners, quiet=quiet) as listening, open_run_folder(place, listening) as local_folder:
        spec = read_spec(local_folder)
        with apply_consent(consent_for(spec, consent)):
            plan = dataclasses.replace(make_plan(spec_from_file(spec)), isolated=current_consent().spec is not None)
            require_network(plan.spec, plan.price)
            return _run_in(plan, local_folder, place, listening, fresh=fresh)


@contextlib.contextmanager
def event_listeners(listeners: Sequence[Listener], *, quiet: bool) -> Iterator[Sequence[Listener]]:
    """Yield `listeners`, or a terminal progress display if there are none and `quiet` is false."""
    listeners = checked_argument("listeners", listeners, tuple[Listener, ...])
    quiet = checked_argument("quiet", quiet, bool)
    if quiet or listeners:
        yield listeners
        return
    from dpaudit.engine.report.progress import TerminalProgress, terminal

    with _terminal() as stream, TerminalProgress(terminal(stream)) as progress:
        yield [progress]


@contextlib.contextmanager
def _terminal() -> Iterator[IO[str]]:
    """Yield a copy of standard error: units that run in this process have theirs redirected."""
    stream = original_stream(sys.stderr)
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):  # a notebook's
        yield stream
        return
    with open(descriptor, "w", encoding=stream.encoding, errors="backslashreplace", buffering=1) as terminal:
        yield terminal


@dataclasses.dataclass(frozen=True)
class Before:
    """A run as it began, if most of its units have run before its plan does."""

    began: float  # by `time.monotonic`
    finished: frozenset[str]  # keys of units that earlier runs had finished


def run_plan(
    plan: Plan,
    place: str | Path,
    listeners: Sequence[Listener] = (),
    answers: Mapping[str, Any] | None = None,
    before: Before | None = None,
) -> Report:
    """Run the unfinished units of a plan and write the run folder.

    Args:
        answers: Results of audits that were read in this process, as in a `RunOutcome`.
        before: For a sweep, what had finished when it began; None counts from now.
    Raises: RunError if another driver holds the folder or it cannot be written; SpecError if it contains other files.
    """
    with open_run_folder(place, listeners) as folder:
        return _run_in(plan, folder, place, listeners, fresh=True, answers=answers, before=before)


def _run_in(
    plan: Plan,
    folder: Path,
    place: str | Path,
    listeners: Sequence[Listener],
    *,
    fresh: bool,
    answers: Mapping[str, Any] | None = None,
    before: Before | None = None,
) -> Report:
    began = time.monotonic() if before is None else before.began
    with locked_folder(folder):
        require_registered(plan, folder)
        changes = _write_plan(plan, folder, place, fresh=fresh)
        store = UnitStore(folder / "units")
        with contextlib.closing(EventLog(folder / "events.jsonl")) as log:
            events = EventStream(log, *listeners)
            try:
                with signals_interrupt():
                    for stage in (*changes, f"running {len(plan.units)} units"):
                        events.emit(Event(EventKind.STAGE, detail=stage))
                    outcome = run_missing(plan, folder, store, events, checkpoints_of(place), began, answers=answers)
                    if before is not None:
                        ran, earlier = outcome.finished - before.finished, outcome.finished & before.finished
                        outcome = dataclasses.replace(outcome, ran=len(ran), reused=store.provenance(earlier))
                    events.emit(Event(EventKind.STAGE, detail="estimating"))
                    report = _report(plan, outcome, store, folder, place, began)
                    verdicts = ", ".join(dict.fromkeys(str(result.verdict) for result in report.answers))
                    events.emit(Event(EventKind.STAGE, detail=f"{verdicts}; writing the report"))
                    note = _write_results(report, folder, plan)
                    events.emit(Event(EventKind.FINISHED, seconds=time.monotonic() - began, detail=note))
                    return with_wall_time(began, report)
            except KeyboardInterrupt as err:
                events.emit(Event(EventKind.INTERRUPTED, detail=str(err)))
                raise


def _write_plan(plan: Plan, folder: Path, place: str | Path, *, fresh: bool) -> tuple[str, ...]:
    """Write a plan into its folder; return how the plan that it replaces differs, in words, or ()."""
    record, previous = PlanRecord.of(plan), PlanRecord.load(folder)
    differences = "; ".join(previous.differences(record)) if previous else ""
    if previous and differences:
        finished = len(UnitStore(folder / "units").finished(previous.keys - record.keys))
        if finished and not fresh:
            raise RunError(
                f"{finished} finished units of {place} do not belong to this run: {differences}. `dpaudit report "
                f"{place}` reads them unchanged; `dpaudit resume {place} --fresh` keeps them and runs new units"
            )
        differences += f": the previous results are in {PlanRecord.archive(folder)}/"
    record.write(plan, folder)
    return (differences,) if differences else ()


def report_again(folder: str | Path, *, allow_code: bool = False, allow_files: bool = False) -> Report:
    """Recompute and write the report of a run folder from its finished units; nothing runs.

    Args:
        folder: The run folder, a path or a URI.
        allow_code: Let a spec that this user did not write import code.
        allow_files: Let a spec that this user did not write name files and folders outside the run folder.
    Raises: SpecError if it is no run folder, or its spec needs more than is allowed; RunError if its data or spec have
        changed, OtherPlanError if another dpaudit planned it: nothing is written then.
    """
    place = place_of(folder)
    consent = Consent(code=allow_code, files=allow_files)
    with open_run_folder(place) as local_folder:
        spec = read_spec(local_folder)
        with apply_consent(consent_for(spec, consent)):
            record = PlanRecord.load(local_folder)
            if record is None:
                raise RunError(f"{place} has no plan.parquet. `dpaudit resume {place}` writes it again")
            if spec.digest != record.spec:  # before anything that the spec names is imported
                require_unchanged(["the spec has changed"], place)
            with use_recorded_code(record.version, record.code_digests):
                try:
                    plan = make_plan(spec_from_file(spec))
                except SpecError as err:  # the spec is the one that was planned, so that dpaudit knew the name
                    raise (OtherPlanError(str(err)) if isinstance(root_cause(err), FormerNameError) else err) from err
                record.require_reusable(PlanRecord.of(plan), place)
            # The log is opened before anything is written: if it is no regular file, the folder stays unchanged.
            with locked_folder(local_folder), contextlib.closing(EventLog(local_folder / "events.jsonl")) as log:
                report = report_from_finished(plan, local_folder, place, UnitStore(local_folder / "units"))
                log(Event(EventKind.REPORTED, detail=_write_results(report, local_folder, plan)))
                return report


def report_from_finished(plan: Plan, folder: Path, place: str | Path, store: UnitStore) -> Report:
    """Return the report of the finished units in `store`; links to their scores are made in `folder`."""
    finished = store.finished(unit.key for unit in plan.units)
    failed = store.failures() | {
        key: f"its file is damaged: {why}; `dpaudit resume` reruns it" for key, why in store.damaged.items()
    }
    policy = Policy(plan, store)  # without a clock: no further unit starts
    skipped = policy.skippable(finished, failed.keys()) | policy.waiting(finished, failed.keys())
    missing = {unit.key: failed.get(unit.key, "not run yet") for unit in plan.units if unit.key not in finished}
    outcome = RunOutcome(
        frozenset(finished),
        {key: why for key, why in missing.items() if key in failed or key not in skipped},
        0,
        frozenset(skipped - finished - failed.keys()),
        store.provenance(finished),
        dict(store.damaged),
    )
    return _report(plan, outcome, store, folder, place, time.monotonic())


def _report(plan: Plan, outcome: RunOutcome, store: UnitStore, folder: Path, place: str | Path, began: float) -> Report:
    event_counts: Counter[str] = Counter()
    keys = {unit.key for unit in plan.units}
    repeated, remarked_units = {}, defaultdict[str, dict[str, None]](dict)
    for event in read_events(folder / "events.jsonl"):
        event_counts[event.kind.value] += 1
        if event.kind is EventKind.UNIT_REPEATED and event.unit in keys:
            repeated[event.unit] = RepeatedUnit(event.label, event.detail)
        if event.kind is EventKind.UNIT_REMARKED and event.unit in keys:
            remarked_units[event.detail][event.label] = None
    results = Policy(plan, store).results(outcome, folder)
    joint_test, sweep, summary = plan.spec.together, plan.spec.sweep, None
    if sweep is not None:
        from dpaudit.engine.answer.sweep_summary import sweep_summary  # needed for sweeps only

        summary = sweep_summary(sweep, results, plan.spec.confidence, folder)
    remarks = [
        f"{remark} ({first}{f' and {len(others)} more' if others else ''})"
        for remark, (first, *others) in remarked_units.items()
    ]
    confirmed_names = {entry.audit.name: entry.confirms for entry in plan.audits}
    return Report(
        name=plan.spec.name,
        results=results,
        joint=None
        if joint_test is None
        else joint_verdict(plan.spec.name, joint_test, results, confirmed_names, plan.spec.confidence),
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
        events=dict(event_counts),
        repeated=tuple(repeated.values()),
        remarks=tuple(remarks),
    )


def _write_results(report: Report, folder: Path, plan: Plan) -> str:
    """Write `bounds.json`, the figures and `report.html`; return the checksum note for the run's last event."""
    from dpaudit.engine.report.page import write_bounds, write_page  # slow to import

    note = checksum_note(write_bounds(report, folder))
    write_receipt(folder, plan)
    write_page(report, folder, draw=plan.spec.run.figures)
    forget_renamed(folder, plan.spec, report.results)
    return note


def run_missing(
    plan: Plan,
    folder: Path,
    store: UnitStore,
    events: EventStream,
    scratch: Scratch,
    began: float,
    budget_s: float | None = None,
    answers: Mapping[str, Any] | None = None,
) -> RunOutcome:
    """Run the unfinished units of a plan, then the follow-up units of violations.

    On Ray, workers read each audit as soon as its units have finished, next to the units of other audits.
    """
    finished = store.finished(unit.key for unit in plan.units)
    policy = Policy(plan, store, lambda: time.monotonic() - began, budget_s)
    skipped = policy.skippable(finished, frozenset())
    missing = [unit for unit in plan.units if unit.key not in finished and unit.key not in skipped]
    policy.answers |= answers or {}
    may_use_ray = bool(missing) and plan.spec.runner_if_settled in ("ray", "auto")
    estimates = policy.estimates(folder) if may_use_ray else ()
    with backend_for(plan, [*missing, *estimates], events, scratch, store) as backend:
        outcome = run_units(
            [*plan.units, *estimates],
            backend,
            store,
            events,
            skip=policy.skippable,
            repeats=plan.spec.run.repeats,
            defer=policy.waiting,
            answers=policy.answers,
        )
        if follow_ups := policy.units_after_violations(outcome.finished, outcome.failed.keys()):
            # These units are finished: their results are read, not recomputed.
            needed_keys = {need for unit in follow_ups for need in unit.needs}
            run_units([*(unit for unit in plan.units if unit.key in needed_keys), *follow_ups], backend, store, events)
        return outcome


@contextlib.contextmanager
def backend_for(
    plan: Plan, missing: Sequence[Unit], events: EventStream, scratch: Scratch, store: UnitStore
) -> Iterator[Backend]:
    """Yield the backend that runs the units of a plan, and close it at the end of the `with` block."""
    deadlines = Deadlines(plan.spec.run.time_limit_s)
    # Code of folders that this user did not make never runs in this process.
    runs_in_process = plan.spec.runner_if_settled == "in-process" and not plan.isolated
    with ending_leftovers():
        if runs_in_process or not missing:
            with contextlib.closing(InProcess(dict(plan.shared), scratch, events, deadlines)) as backend:
                yield backend
            return
        from dpaudit.engine.run.runners import backend_elsewhere

        with backend_elsewhere(plan, missing, events, scratch, deadlines, store) as backend:
            yield backend


PACKAGES = ("dpaudit", "ray", "torch", "numpy", "scipy", "catboost", "scikit-learn", "pyarrow", "numba")


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and the installed packages of `PACKAGES`."""
    versions_by_name = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            versions_by_name[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions_by_name


def forget_renamed(folder: Path, spec: AuditSpec, results: Sequence[AuditResult]) -> None:
    """Delete the score folders of audits that the spec no longer has; their units stay."""
    current = {slug(name) for name in (*(audit.name for audit in spec.audits), *(result.name for result in results))}
    with contextlib.suppress(FileNotFoundError):
        for entry in (folder / "scores").iterdir():
            if entry.name not in current and entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
