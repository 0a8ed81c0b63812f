"""How a run stands, seen from anywhere its run folder can be read; and a copy of that folder."""

from __future__ import annotations

import io
import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from dpaudit.actors.events import Event, EventKind, parse_events
from dpaudit.actors.storage.mirror import FileStore
from dpaudit.actors.storage.places import is_remote, join_place
from dpaudit.claims.scope import Scope
from dpaudit.engine.reading.bounds_checksum import checksum_note, last_checksum_note
from dpaudit.engine.reading.stated_values import StatedValue
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.run.configurations import (
    CONFIGURATIONS,
    ConfigurationState,
    configuration_states,
    described_states,
)
from dpaudit.engine.run.run_folder import PLAN, read_plan
from dpaudit.errors import RunError, SpecError, printable, shortened
from dpaudit.plain_files import new_file

_ENDED = {EventKind.UNIT_DONE, EventKind.UNIT_RETRIED, EventKind.UNIT_FAILED, EventKind.WORKER_LOST}
_OVER = {EventKind.FINISHED: "finished", EventKind.INTERRUPTED: "interrupted"}
SHOWN = 8  # running units that are named
_OF_RUNS = (PLAN, "spec.yaml", "sweep.yaml")  # one of these is in every run folder and in every sweep's


WORSE = (
    Verdict.NO_VIOLATION,
    Verdict.NO_CLAIM,
    Verdict.INCONCLUSIVE,
    Verdict.FAILED,
    Verdict.UNDECIDED,
    Verdict.VIOLATION,
)
"""Each verdict is worse news than those before it."""


class NotPlanned(SpecError):
    """Raised for a place without a plan: it is no run folder, or its run has not started."""


@dataclass(frozen=True)
class _Claim:
    """A claim, as a report states it."""

    epsilon: float
    delta: float
    relation: str
    curve: str

    @classmethod
    def of(cls, stated: StatedValue) -> _Claim:
        epsilon, delta = point_of(stated)
        return cls(epsilon, delta, stated["relation"].text(), stated["curve"].text())

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.4g} at delta {self.delta:g} ({self.curve}, {self.relation})"


@dataclass(frozen=True)
class Found:
    """The result of one audit, or of several tests of one claim."""

    verdict: Verdict
    claim: _Claim


@dataclass(frozen=True)
class RunStatus:
    """How a run stands."""

    place: str  # the run folder, a path or a URI
    stage: str  # what it does, in words of the driver
    units: int  # planned
    finished: int  # of these; spared ones are not planned any more
    failed: int  # of these, at the last
    cached: int  # finished ones that an earlier driver left
    retried: int  # attempts that were made again
    lost: int  # workers that died
    workers: int  # up at the last
    running: tuple[tuple[str, float], ...]  # labels of units that workers have, and seconds since each was given
    heard: datetime | None  # when the driver last said something, UTC; None where it never did
    per_second: float  # units finished a second by this driver so far
    left_s: float | None  # seconds to go at that rate; None where it is not known
    verdicts: tuple[tuple[str, str], ...]  # by the audit's name, as in `bounds.json`, once the report is written
    configurations: tuple[tuple[str, ConfigurationState], ...] = ()  # name and state of each, of a sweep
    cautions: tuple[str, ...] = ()  # what a reader must know before believing the rest
    # Of the very files that were read: `bounds.json` that the verdicts are of, the hash of one in the last event that
    # has any, and what `plan.parquet` says of what it was made from
    report: StatedValue = field(default=StatedValue(None, ""), repr=False)
    noted: str = field(default="", repr=False)
    made_from: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        lines = [
            f"{self.place}: {shortened(self.stage)}",
            f"{self.finished} of {self.units} units finished ({self.cached} by an earlier driver), "
            f"{len(self.running)} given to workers, {self.failed} failed, {self.retried} tried again, "
            f"{self.lost} workers lost, {self.workers} up",
        ]
        if self.configurations:
            lines += described_states(self.configurations)
        if self.heard is not None:
            rate = f"at {self.per_second:.2g} units a second"
            left = "" if self.left_s is None else f", about {self.left_s:.0f} s left {rate}"
            lines.append(f"last heard of {self.heard:%Y-%m-%d %H:%M:%S} UTC{left}")
        lines += [f"  {seconds:.0f} s  {shortened(label)}" for label, seconds in self.running[:SHOWN]]
        if len(self.running) > SHOWN:
            lines.append(f"  and {len(self.running) - SHOWN} more")
        lines += [f"{verdict}  {shortened(name)}" for name, verdict in self.verdicts]
        return "\n".join(map(printable, [*lines, *self.cautions]))

    @property
    def found(self) -> Mapping[str, Found]:
        """What was found, by name: each audit, or the one claim that all are tests of, as `bounds.json` says.

        Raises: SpecError for a run without a report, and for a `bounds.json` that is none of this version.
        """
        if not self.verdicts:
            why = "; ".join(self.cautions) or f"it is {self.stage}"
            raise SpecError(f"{shortened(self.place)} must be a run folder with a report: {why}")
        return _found(self.report)


def run_status(place: str | Path) -> RunStatus:
    """How the run in a folder stands; nothing is written, no driver is asked.

    Raises: RunError where it cannot be read; NotPlanned where it is no run folder.
    """
    store = FileStore.at(place)
    store.require_plain()
    with store.explain_errors("must be a run folder that can be read"):
        plan, log, bounds = (store.content(name) for name in (PLAN, "events.jsonl", "bounds.json"))
        sweep = store.content("sweep.yaml") if plan is None else None
        noted = store.content(CONFIGURATIONS)
    if plan is None and sweep is None:
        raise NotPlanned(f"{shortened(place)} must be the folder of a run (with plan.parquet) or sweep (sweep.yaml)")
    read = list(parse_events(io.BytesIO(log or b"")))
    events = [event for event in read if event is not None]
    begun = max((at for at, event in enumerate(events) if event.kind is EventKind.UNITS_PLANNED), default=0)
    made_from: Mapping[bytes, bytes] = {}
    if plan is None:  # a sweep that tries configurations has a plan for each round, and none that is written
        planned = events[begun].count if events else 0
    else:
        table = read_plan(plan, join_place(place, PLAN), ["key"])
        planned, made_from = table.num_rows, table.schema.metadata or {}
    status = _status(str(place), planned, events[begun:], bounds)
    states: tuple[tuple[str, ConfigurationState], ...] = ()
    trouble = ""
    if noted is not None:
        try:
            states = configuration_states(noted, f"{place}/{CONFIGURATIONS}", events)
        except SpecError as err:
            trouble = str(err)
    unread = len(read) - len(events)
    left_out = (f"{unread:,} lines of events.jsonl are no events, and are left out",) if unread else ()
    cautions = (*left_out, *status.cautions, *([trouble] if trouble else ()))
    return replace(
        status, configurations=states, cautions=cautions, noted=last_checksum_note(events), made_from=made_from
    )


def _status(place: str, planned: int, said: Sequence[Event], bounds: bytes | None) -> RunStatus:
    events = [event for event in said if event.kind is not EventKind.REPORTED]  # what drivers said
    counts = Counter(event.kind for event in events)
    open_ = {}
    for event in events:
        if event.kind is EventKind.UNIT_STARTED:
            open_[event.unit] = event
        elif event.kind in _ENDED or event.kind is EventKind.UNIT_REPEATED:
            open_.pop(event.unit, None)
    now, over = time.time(), any(event.kind in (EventKind.FINISHED, EventKind.INTERRUPTED) for event in events)
    done = counts[EventKind.UNIT_DONE]
    cached = sum(event.count for event in events if event.kind is EventKind.UNITS_CACHED)
    failed = counts[EventKind.UNIT_FAILED] + counts[EventKind.UNIT_SKIPPED]
    units = planned - sum(event.count for event in events if event.kind is EventKind.UNITS_SPARED)
    to_go = units - done - cached - failed
    took_s = max(0.0, events[-1].time - events[0].time) if events else 0.0
    stages = [event.detail for event in events if event.kind is EventKind.STAGE]
    last = events[-1] if events else None
    finished = last is not None and last.kind is EventKind.FINISHED
    verdicts, caution, report = _verdicts(place, bounds, said) if finished else ((), "", RunStatus.report)
    return RunStatus(
        place=place,
        stage=_OVER.get(last.kind, stages[-1] if stages else "running") if last else "planned",
        units=units,
        finished=done + cached,
        failed=failed,
        cached=cached,
        retried=counts[EventKind.UNIT_RETRIED],
        lost=counts[EventKind.WORKER_LOST],
        workers=next((event.count for event in reversed(events) if event.kind is EventKind.WORKER_STARTED), 0),
        running=tuple((event.label, max(0.0, now - event.time)) for event in open_.values() if not over),
        heard=datetime.fromtimestamp(last.time, UTC) if last else None,
        per_second=done / took_s if took_s else 0.0,
        left_s=took_s / done * to_go if done and to_go > 0 and not over else None,
        verdicts=verdicts,
        cautions=(caution,) if caution else (),
        report=report,
    )


def _verdicts(
    place: str, bounds: bytes | None, events: Sequence[Event]
) -> tuple[tuple[tuple[str, str], ...], str, StatedValue]:
    """The verdicts in `bounds.json`, how far to believe them, and all of it; nothing of one that is not the last."""
    anew = "`dpaudit report` reads the results themselves"
    noted, nothing = last_checksum_note(events), RunStatus.report
    if bounds is None:
        return (), f"there is no bounds.json; {anew}", nothing
    if noted and noted != checksum_note(bounds):
        return (), f"bounds.json is not the one that the run's last event names, and is not shown; {anew}", nothing
    try:
        report = StatedValue.parse(bounds, f"{place}/bounds.json", remedy="`dpaudit report` writes it anew")
        found = [(audit["name"].name(), audit["verdict"].member(Verdict)) for audit in report["results"].items()]
    except SpecError:  # which would show what nobody vouches for
        return (), f"bounds.json is no report that can be read; {anew}", nothing
    how = "the file that the run's last event names" if noted else "not checked"
    said = f"verdicts as written in bounds.json ({how}); who writes in the folder can forge both; {anew}"
    return tuple(found), said, report


def point_of(claim: StatedValue) -> tuple[float, float]:
    """Epsilon and delta of a claim in `bounds.json`."""
    return claim["epsilon"].number(0, math.inf), claim["delta"].number(0, 1)


def _found(report: StatedValue) -> dict[str, Found]:
    """Return what was found, by name: of each audit, or of the one claim that all are tests of.

    Beside a joint verdict other than VIOLATION stand the tests of the claim that failed.
    """
    results, joint = list(report["results"].items()), report["joint"]
    verdicts = [result["verdict"].member(Verdict) for result in results]
    if not joint:
        return {
            result["name"].name(): Found(verdict, _Claim.of(result["claim"]))
            for result, verdict in zip(results, verdicts, strict=True)
        }
    verdict = joint["verdict"].member(Verdict)
    one = {report["name"].name(): Found(verdict, _Claim.of(results[0]["claim"]))}
    if verdict is Verdict.VIOLATION:
        return one
    return one | {
        result["name"].name(): Found(each, _Claim.of(result["claim"]))
        for result, each in zip(results, verdicts, strict=True)
        if each is Verdict.FAILED and result["scope"].text() == Scope.CLAIM
    }


def fetch(place: str | Path, folder: Path) -> None:
    """Copies a run folder to a local folder, where `dpaudit report` and `dpaudit resume` take it up.

    Nothing is copied where one of its names is no file below that folder, and nothing that is there is written over.

    Raises: RunError where one of them cannot be read or written; SpecError for a folder that holds something, and for
        a place that holds no run.
    """
    if folder.exists() and any(folder.iterdir()):
        raise SpecError(f"the folder to fetch to must be new or empty, {folder} is not; give another one")
    at = "" if is_remote(place) else "(a path of this machine) "
    store = FileStore.at(place)
    store.require_plain()
    with store.explain_errors(f"{at}could not be fetched"):
        files = store.file_infos()
        if files.keys().isdisjoint(_OF_RUNS):
            raise SpecError(
                f"{shortened(place)} {at}must be a run folder (with {' or '.join(_OF_RUNS)} in it), it holds "
                f"{shortened(', '.join(sorted(files)) or 'nothing')}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        size, room = sum(info.size for info in files.values()), shutil.disk_usage(folder).free
        if size > room:
            raise RunError(f"{shortened(folder)} must have room for {size:,} bytes, it has {room:,}; give another one")
        for name in files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with store.open_file(name) as source, new_file(target) as copy:
                shutil.copyfileobj(source, copy)
