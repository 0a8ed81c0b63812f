"""Status of a run, read from its run folder alone; download of a run folder; notes of the jobs that fill one."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from dpaudit.actors.events import Event, EventKind, parse_events
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.claims import Scope
from dpaudit.engine.answer.answer_words import DETAILS, aligned
from dpaudit.engine.answer.stated_values import StatedValue, checksum_note, last_checksum_note
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.run.run_folder import PLAN, read_plan
from dpaudit.errors import RunError, SpecError, printable, shortened
from dpaudit.plain_files import is_remote, join_place, new_file, note_path, read_bytes, write_atomically

CONFIGURATIONS = "configurations.json"
"""File of a sweep's folder: the name of each configuration, its state, and the keys of the units that audit it."""
TRAINING = "training.json"
"""File of the folder in which the result of an audited training was saved; it has the fields of `bounds.json`."""
_FAILURES = {EventKind.UNIT_FAILED, EventKind.UNIT_SKIPPED}
_UNIT_ENDS = {EventKind.UNIT_DONE, EventKind.UNIT_RETRIED, EventKind.UNIT_FAILED, EventKind.WORKER_LOST}
_FINAL_STAGES = {EventKind.FINISHED: "finished", EventKind.INTERRUPTED: "interrupted"}
MAX_LISTED = 8  # running units, and configurations of each state except done, that are listed
SILENT_S = 90.0  # a driver writes an event every 30 s while units run
_RUN_FILES = (PLAN, "spec.yaml", "sweep.yaml")  # every folder of a run or sweep has one of these
VERDICTS_BY_SEVERITY = (
    Verdict.NO_VIOLATION,
    Verdict.NO_CLAIM,
    Verdict.INCONCLUSIVE,
    Verdict.FAILED,
    Verdict.UNDECIDED,
    Verdict.VIOLATION,
)
"""Verdicts, the most severe last."""


class ConfigurationState(StrEnum):
    """State of a configuration, in the order in which states are printed."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"  # before it was audited


class _RecordedState(StrEnum):
    """State of a configuration in the file."""

    AUDITED = "audited"
    STOPPED = "stopped"
    FAILED = "failed"


def configuration_states(
    content: bytes, source: str, events: Sequence[Event]
) -> tuple[tuple[str, ConfigurationState], ...]:
    """Return the name and state of each configuration.

    Args:
        content: Content of the file `CONFIGURATIONS`, which anyone may have written.
        source: Name of the file, for messages.
        events: All events of the run, including those of earlier drivers.
    Raises: SpecError if the content is invalid.
    """
    stated = StatedValue.parse(content, source, remedy="`dpaudit sweep --restore` writes it again")
    is_over = stated["over"].value is True
    started = {event.unit for event in events if event.kind is EventKind.UNIT_STARTED}
    last = {event.unit: event.kind for event in events if event.kind in {EventKind.UNIT_DONE, *_FAILURES}}
    states = []
    for entry in stated["configurations"].items():
        name, recorded = entry["name"].name(), entry["state"].member(_RecordedState)
        units = [unit.name() for unit in entry["units"].items()]
        ended = [last.get(unit) for unit in units]
        if recorded is not _RecordedState.AUDITED:
            state = ConfigurationState(recorded.value)
        elif any(kind in _FAILURES for kind in ended):
            state = ConfigurationState.FAILED
        elif is_over or all(kind is EventKind.UNIT_DONE for kind in ended):
            state = ConfigurationState.DONE
        else:
            state = ConfigurationState.WAITING if started.isdisjoint(units) else ConfigurationState.RUNNING
        states.append((name, state))
    return tuple(states)


def described_states(states: Sequence[tuple[str, ConfigurationState]]) -> list[str]:
    """Return lines with the number of configurations in each state, then the names of unfinished ones."""
    counts = Counter(state for _, state in states)
    always = {ConfigurationState.DONE, ConfigurationState.RUNNING, ConfigurationState.FAILED}
    printed = [state for state in ConfigurationState if state in always or counts[state]]
    lines = [f"{len(states)} configurations: " + ", ".join(f"{counts[state]} {state}" for state in printed)]
    for state in printed[1:]:
        names = [shortened(name) for name, own_state in states if own_state is state]
        if not names:
            continue
        more = f"; and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        lines.append(f"  {state}: {'; '.join(names[:MAX_LISTED])}{more}")
    return lines


class NotPlanned(SpecError):
    """Raised if a folder has no plan: it is no run folder, or its run has not started."""


@dataclass(frozen=True)
class RunStatus:
    """Status of a run."""

    place: str  # the run folder, a path or a URI
    stage: str  # current activity of the driver
    units: int  # planned units, without skipped ones
    finished: int
    failed: int
    cached: int  # finished units of earlier drivers
    retried: int  # attempts that were repeated
    lost_workers: int
    workers: int  # in the last event that counts them
    running: tuple[tuple[str, float], ...]  # label of each unit on a worker, and seconds since its start
    stopped: tuple[str, ...]  # running units whose worker's process was stopped at the last check
    last_event_at: datetime | None  # UTC; None before the first event
    units_per_second: float  # finished by the current driver
    remaining_s: float | None  # at this rate; None if unknown
    verdicts: tuple[tuple[str, str], ...]  # audit name and verdict from `bounds.json`; () before the report
    configurations: tuple[tuple[str, ConfigurationState], ...] = ()  # name and state of each configuration of a sweep
    cautions: tuple[str, ...] = ()  # limits of these values, for the reader
    # These three are kept so that no file is read a second time, when it may have changed.
    report: StatedValue = field(default=StatedValue(None, ""), repr=False)  # content of `bounds.json`
    recorded_checksum: str = field(default="", repr=False)  # of `bounds.json`, in the last event that has one
    plan_metadata: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)  # of `plan.parquet`

    def __str__(self) -> str:
        lines = [
            f"{self.place}: {shortened(self.stage)}",
            f"{self.finished} of {self.units} units finished ({self.cached} by an earlier driver), "
            f"{len(self.running)} on workers, {self.failed} failed, {self.retried} retried, "
            f"{self.lost_workers} workers lost, {self.workers} up",
        ]
        if self.configurations:
            lines += described_states(self.configurations)
        if self.last_event_at is not None:
            rate = f"at {self.units_per_second:.2g} units a second"
            remaining = "" if self.remaining_s is None else f", about {self.remaining_s:.0f} s left {rate}"
            lines.append(f"last event {self.last_event_at:%Y-%m-%d %H:%M:%S} UTC{remaining}")
        lines += [f"  {seconds:.0f} s  {shortened(label)}" for label, seconds in self.running[:MAX_LISTED]]
        if len(self.running) > MAX_LISTED:
            lines.append(f"  and {len(self.running) - MAX_LISTED} more")
        lines += [f"stopped: {shortened(each)}" for each in self.stopped[:MAX_LISTED]]
        lines += [f"{verdict}  {shortened(name)}" for name, verdict in self.verdicts]
        return "\n".join(map(printable, [*lines, *self.cautions]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the time of the last event in ISO format, UTC."""
        last = self.last_event_at and self.last_event_at.isoformat()
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.repr}
        return {**values, "last_event_at": last, "verdicts": dict(self.verdicts)}

    def answers(self, *, verbose: bool = False) -> list[str]:
        """Return the answers written in `bounds.json`: of the check, or of each audit. Errors as in `outcomes`."""
        self._require_report()
        joint = self.report["joint"]
        stated = [joint["answer"]] if joint else [result["answer"] for result in self.report["results"].items()]
        texts = []
        for answer in stated:  # as `Answer.text` prints it
            pairs = [[part.text() for part in line.items()] for line in answer["lines"].items()]
            lines = [(label, text) for label, text in pairs if verbose or label not in DETAILS]
            texts.append(aligned(f"{answer['verdict'].member(Verdict)}  {answer['name'].text()}", lines))
        return texts

    @property
    def outcomes(self) -> Mapping[str, tuple[Verdict, str]]:
        """Verdict and claim in words by name; for a check, of its one claim and, without a violation, of failed tests.

        Raises: SpecError if the run has no report, or `bounds.json` is not valid in this version.
        """
        self._require_report()
        results, joint = list(self.report["results"].items()), self.report["joint"]
        verdicts = [result["verdict"].member(Verdict) for result in results]
        joint_verdict = joint["verdict"].member(Verdict) if joint else None
        outcomes = {}
        if joint_verdict is not None:
            outcomes[self.report["name"].name()] = joint_verdict, _claim_in_words(results[0]["claim"])
        for result, verdict in zip(results, verdicts, strict=True):
            is_failed_test = verdict is Verdict.FAILED and result["scope"].text() == Scope.CLAIM
            if joint_verdict is None or (joint_verdict is not Verdict.VIOLATION and is_failed_test):
                outcomes[result["name"].name()] = verdict, _claim_in_words(result["claim"])
        return outcomes

    def _require_report(self) -> None:
        if not self.verdicts:
            reason = "; ".join(self.cautions) or f"it is {self.stage}"
            raise SpecError(f"{shortened(self.place)} must be a run folder with a report: {reason}")


def run_status(place: str | Path) -> RunStatus:
    """Return the status of the run in a folder. Nothing is written, and the driver is not contacted.

    Raises: RunError if the folder cannot be read; NotPlanned if it is no run folder.
    """
    store = FileStore.at(place)
    store.require_plain()
    with store.explain_errors("must be a run folder that can be read"):
        plan, log, bounds = (store.content(name) for name in (PLAN, "events.jsonl", "bounds.json"))
        sweep = store.content("sweep.yaml") if plan is None else None
        configuration_file = store.content(CONFIGURATIONS)
        training = store.content(TRAINING) if plan is None and sweep is None else None
    if training is not None:
        return _status_of_training(str(place), training)
    if plan is None and sweep is None:
        raise NotPlanned(f"{shortened(place)} must be the folder of a run (with plan.parquet) or sweep (sweep.yaml)")
    lines = list(parse_events(io.BytesIO(log or b"")))
    events = [event for event in lines if event is not None]
    start = max((at for at, event in enumerate(events) if event.kind is EventKind.UNITS_PLANNED), default=0)
    plan_metadata: Mapping[bytes, bytes] = {}
    if plan is None:  # while a sweep explores configurations, its plans are not written
        planned = events[start].count if events else 0
    else:
        table = read_plan(plan, join_place(place, PLAN), ["key"])
        planned, plan_metadata = table.num_rows, table.schema.metadata or {}
    status = _status(str(place), planned, events[start:], bounds)
    configurations: tuple[tuple[str, ConfigurationState], ...] = ()
    problem = ""
    if configuration_file is not None:
        try:
            configurations = configuration_states(configuration_file, f"{place}/{CONFIGURATIONS}", events)
        except SpecError as err:
            problem = str(err)
    unreadable = len(lines) - len(events)
    line_caution = (f"{unreadable:,} lines of events.jsonl are not events and were skipped",) if unreadable else ()
    cautions = (*line_caution, *status.cautions, *([problem] if problem else ()))
    return replace(
        status,
        configurations=configurations,
        cautions=cautions,
        recorded_checksum=last_checksum_note(events),
        plan_metadata=plan_metadata,
    )


def _status(place: str, planned: int, all_events: Sequence[Event], bounds: bytes | None) -> RunStatus:
    events = [event for event in all_events if event.kind is not EventKind.REPORTED]  # events of drivers
    counts = Counter(event.kind for event in events)
    running, stopped = {}, {}
    for event in events:
        if event.kind is EventKind.UNIT_STARTED:
            running[event.unit] = event
        elif event.kind in _UNIT_ENDS or event.kind is EventKind.UNIT_REPEATED:
            running.pop(event.unit, None)
        elif event.kind is EventKind.UNIT_RUNNING:
            stopped[event.unit] = event.detail
    now, is_over = time.time(), any(event.kind in (EventKind.FINISHED, EventKind.INTERRUPTED) for event in events)
    running = {} if is_over else running
    done_count = counts[EventKind.UNIT_DONE]
    cached = sum(event.count for event in events if event.kind is EventKind.UNITS_CACHED)
    failed = counts[EventKind.UNIT_FAILED] + counts[EventKind.UNIT_SKIPPED]
    units = planned - sum(event.count for event in events if event.kind is EventKind.UNITS_SPARED)
    remaining = units - done_count - cached - failed
    elapsed_s = max(0.0, events[-1].time - events[0].time) if events else 0.0
    stages = [event.detail for event in events if event.kind is EventKind.STAGE]
    last = events[-1] if events else None
    finished = last is not None and last.kind is EventKind.FINISHED
    verdicts, caution, report = _verdicts(place, bounds, all_events) if finished else ((), "", RunStatus.report)
    silent_s = now - last.time if last and running else 0.0
    silence = f"no event for {silent_s:.0f} s while units run: the driver may be stopped or killed"
    return RunStatus(
        place=place,
        stage=_FINAL_STAGES.get(last.kind, stages[-1] if stages else "running") if last else "planned",
        units=units,
        finished=done_count + cached,
        failed=failed,
        cached=cached,
        retried=counts[EventKind.UNIT_RETRIED],
        lost_workers=counts[EventKind.WORKER_LOST],
        workers=next((event.count for event in reversed(events) if event.kind is EventKind.WORKER_STARTED), 0),
        running=tuple((event.label, max(0.0, now - event.time)) for event in running.values()),
        stopped=tuple(f"{event.label}: {stopped[key]}" for key, event in running.items() if stopped.get(key)),
        last_event_at=datetime.fromtimestamp(last.time, UTC) if last else None,
        units_per_second=done_count / elapsed_s if elapsed_s else 0.0,
        remaining_s=elapsed_s / done_count * remaining if done_count and remaining > 0 and not is_over else None,
        verdicts=verdicts,
        cautions=(*[caution] * bool(caution), *[silence] * (silent_s > SILENT_S)),
        report=report,
    )


def is_training(place: str | Path) -> bool:
    """True if a folder, a path or a URI, holds the saved result of an audited training; False if it cannot be read."""
    try:
        return FileStore.at(place).content(TRAINING) is not None
    except OSError:
        return False


def _status_of_training(place: str, content: bytes) -> RunStatus:
    advice = "audit another training to repeat them"
    verdicts, caution, report = _verdicts(place, content, (), name=TRAINING, advice=advice, remedy=advice)
    empty = _status(place, 0, (), None)
    return replace(empty, stage="finished", verdicts=verdicts, cautions=(caution,), report=report)


def _verdicts(
    place: str,
    bounds: bytes | None,
    events: Sequence[Event],
    *,
    name: str = "bounds.json",
    advice: str = "`dpaudit report` recomputes the verdicts from the results",
    remedy: str = "`dpaudit report` writes it again",
) -> tuple[tuple[tuple[str, str], ...], str, StatedValue]:
    """Return the verdicts in `bounds.json`, or in another file with this name, a caution about them, and its content.

    Verdicts and content are empty if the run's last event has the checksum of another file.
    """
    recorded, empty = last_checksum_note(events), RunStatus.report
    if bounds is None:
        return (), f"there is no bounds.json; {advice}", empty
    if recorded and recorded != checksum_note(bounds):
        return (), f"bounds.json does not match the checksum in the run's last event and is ignored; {advice}", empty
    try:
        report = StatedValue.parse(bounds, f"{place}/{name}", remedy=remedy)
        verdicts = [(audit["name"].name(), audit["verdict"].member(Verdict)) for audit in report["results"].items()]
    except SpecError:  # its text would quote content that was not checked
        return (), f"{name} is not a valid report; {advice}", empty
    check = "it matches the checksum in the run's last event" if recorded else "not checked"
    forgery = "A user who can write to the folder can forge both"
    caution = f"verdicts as written in {name} ({check}). {forgery}; {advice}"
    return tuple(verdicts), caution, report


def claim_point(claim: StatedValue) -> tuple[float, float]:
    """Return epsilon and delta of a claim in `bounds.json`."""
    return claim["epsilon"].number(0, math.inf), claim["delta"].number(0, 1)


def _claim_in_words(claim: StatedValue) -> str:
    epsilon, delta = claim_point(claim)
    kind = f"{claim['curve'].text()}, {claim['relation'].text()}"
    return "none" if epsilon == math.inf else f"epsilon {epsilon:.4g} at delta {delta:g} ({kind})"


def fetch(place: str | Path, folder: Path) -> None:
    """Copy a run folder to a new or empty local folder, for `dpaudit report` and `dpaudit resume`.

    Nothing is copied if a name in `place` leads out of `folder`.

    Raises: RunError if a folder cannot be read or written; SpecError if `folder` is not empty or `place` holds no run.
    """
    if folder.exists() and any(folder.iterdir()):
        raise SpecError(f"the target folder must be new or empty, {folder} is not. Give another folder")
    origin = "" if is_remote(place) else "(a path of this machine) "
    store = FileStore.at(place)
    store.require_plain()
    with store.explain_errors(f"{origin}could not be fetched"):
        files = store.file_infos()
        if files.keys().isdisjoint(_RUN_FILES):
            raise SpecError(
                f"{shortened(place)} {origin}must be a run folder (with {' or '.join(_RUN_FILES)} in it), but it "
                f"contains {shortened(', '.join(sorted(files)) or 'nothing')}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        size, room = sum(info.size for info in files.values()), shutil.disk_usage(folder).free
        if size > room:
            raise RunError(f"{shortened(folder)} needs {size:,} bytes but has {room:,} free. Give another folder")
        for name in files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with store.open_file(name) as source, new_file(target) as copy:
                shutil.copyfileobj(source, copy)


def note_submission(place: str | Path, job: str, address: str) -> None:
    """Note outside the run folder which job of a cluster fills it; do nothing if the home cannot be written."""
    note = _submission_note(place)
    content = json.dumps({"job": job, "address": address}).encode()
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(note, lambda file: file.write(content))


def submission_of(place: str | Path) -> tuple[str, str] | None:
    """Return name and dashboard of the job last submitted from this machine to write `place`; None if there is none."""
    try:
        noted = json.loads(read_bytes(_submission_note(place)))
        return str(noted["job"]), str(noted["address"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _submission_note(place: str | Path) -> Path:
    return note_path("submissions", str(place).rstrip("/") if is_remote(place) else os.path.abspath(place))
