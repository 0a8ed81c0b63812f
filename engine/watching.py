"""How a run stands, seen from anywhere its run folder can be read; and a copy of that folder."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from dpaudit.actors.events import Event, EventKind, events_of
from dpaudit.actors.mirror import bytes_from, files_in, inside, is_remote, reached, reading_from, why_not
from dpaudit.engine.place import require_plain_place
from dpaudit.engine.plan_file import PLAN, planned_units
from dpaudit.errors import RunError, SpecError, shortened
from dpaudit.plain_files import new_file

_ENDED = {EventKind.UNIT_DONE, EventKind.UNIT_RETRIED, EventKind.UNIT_FAILED, EventKind.WORKER_LOST}
SHOWN = 8
"""Running units that are named."""
_OF_RUNS = (PLAN, "spec.yaml", "sweep.yaml")
"""One of these is in every run folder and in every sweep's."""


@dataclass(frozen=True)
class Running:
    """A unit that was begun and has not ended.

    Attributes:
        label: For people.
        seconds: Since it was begun.
    """

    label: str
    seconds: float


@dataclass(frozen=True)
class RunStatus:
    """How a run stands.

    Attributes:
        place: The run folder, a path or a URI.
        stage: What it does, in words of the driver.
        units: Planned.
        finished: Of these; spared ones are not planned any more.
        failed: Of these, at the last.
        cached: Finished ones that an earlier driver left.
        retried: Attempts that were made again.
        lost: Workers that died.
        workers: Up at the last.
        spilled_mb: What the object stores have written to disk for want of memory.
        running: Units that run now.
        heard: When the driver last said something, UTC; None where it never did.
        per_second: Units finished a second by this driver so far.
        left_s: Seconds to go at that rate; None where it is not known.
        verdicts: What the audits found, by name, once the report is written.
    """

    place: str
    stage: str
    units: int
    finished: int
    failed: int
    cached: int
    retried: int
    lost: int
    workers: int
    spilled_mb: int
    running: tuple[Running, ...]
    heard: datetime | None
    per_second: float
    left_s: float | None
    verdicts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [
            f"{self.place}: {self.stage}",
            f"{self.finished} of {self.units} units finished ({self.cached} by an earlier driver), {len(self.running)} "
            f"running, {self.failed} failed, {self.retried} tried again, {self.lost} workers lost, {self.workers} up",
        ]
        if self.heard is not None:
            left = (
                ""
                if self.left_s is None
                else f", about {self.left_s:.0f} s left at {self.per_second:.2g} units a second"
            )
            lines.append(f"last heard of {self.heard:%Y-%m-%d %H:%M:%S} UTC{left}")
        if self.spilled_mb:
            lines.append(f"object stores wrote {self.spilled_mb:,} MB to disk for want of memory")
        lines += [f"  {unit.seconds:.0f} s  {unit.label}" for unit in self.running[:SHOWN]]
        if len(self.running) > SHOWN:
            lines.append(f"  and {len(self.running) - SHOWN} more")
        return "\n".join([*lines, *(f"{verdict:<19}{name}" for name, verdict in self.verdicts)])


def run_status(place: str | Path) -> RunStatus:
    """How the run in a folder stands; nothing is written, no driver is asked.

    Args:
        place: The run folder, a path or a URI.
    Raises: RunError where it cannot be read; SpecError where it is no run folder.
    """
    require_plain_place(place)
    filesystem, root = reached(place)
    try:
        plan = _read(filesystem, f"{root}/{PLAN}")
        log = _read(filesystem, f"{root}/events.jsonl")
        bounds = _read(filesystem, f"{root}/bounds.json")
    except (OSError, pa.ArrowException) as err:
        raise RunError(f"{shortened(place)} must be a run folder that can be read: {why_not(err)}") from err
    if plan is None:
        raise SpecError(f"{shortened(place)} must be a run folder (with plan.parquet in it)")
    events = list(events_of(io.BytesIO(log or b"")))
    begun = max((at for at, event in enumerate(events) if event.kind is EventKind.UNITS_PLANNED), default=0)
    return _status(str(place), planned_units(plan, inside(str(place), PLAN)), events[begun:], bounds)


def _status(place: str, planned: int, events: Sequence[Event], bounds: bytes | None) -> RunStatus:
    counts = Counter(event.kind for event in events)
    open_ = {}
    for event in events:
        if event.kind is EventKind.UNIT_STARTED:
            open_[event.unit] = event
        elif event.kind in _ENDED or event.kind is EventKind.UNIT_REPEATED:
            open_.pop(event.unit, None)
    over = any(event.kind in (EventKind.FINISHED, EventKind.INTERRUPTED) for event in events)
    done = counts[EventKind.UNIT_DONE]
    cached = sum(event.count for event in events if event.kind is EventKind.UNITS_CACHED)
    failed = counts[EventKind.UNIT_FAILED] + counts[EventKind.UNIT_SKIPPED]
    units = planned - sum(event.count for event in events if event.kind is EventKind.UNITS_SPARED)
    to_go = units - done - cached - failed
    took_s = events[-1].time - events[0].time if events else 0.0
    stages = [event.detail for event in events if event.kind is EventKind.STAGE]
    ended = {EventKind.FINISHED: "finished", EventKind.INTERRUPTED: "interrupted"}
    last = events[-1] if events else None
    return RunStatus(
        place=place,
        stage=ended.get(last.kind, stages[-1] if stages else "running") if last else "planned",
        units=units,
        finished=done + cached,
        failed=failed,
        cached=cached,
        retried=counts[EventKind.UNIT_RETRIED],
        lost=counts[EventKind.WORKER_LOST],
        workers=next((event.count for event in reversed(events) if event.kind is EventKind.WORKER_STARTED), 0),
        spilled_mb=max((event.count for event in events if event.kind is EventKind.SPILLED), default=0),
        running=() if over else tuple(Running(event.label, time.time() - event.time) for event in open_.values()),
        heard=datetime.fromtimestamp(last.time, UTC) if last else None,
        per_second=done / took_s if took_s else 0.0,
        left_s=took_s / done * to_go if done and to_go and not over else None,
        verdicts=_verdicts(bounds) if last and last.kind is EventKind.FINISHED else (),
    )


def _verdicts(bounds: bytes | None) -> tuple[tuple[str, str], ...]:
    try:
        return tuple((audit["name"], audit["verdict"]) for audit in json.loads(bounds or b"{}")["results"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def fetch(place: str | Path, folder: Path) -> None:
    """Copies a run folder to a local folder, where `dpaudit report` and `dpaudit resume` take it up.

    Nothing is copied where one of its names is no file below that folder, and nothing that is there is written over.

    Args:
        place: The run folder, a URI or a path.
        folder: New or empty.
    Raises: RunError where one of them cannot be read or written; SpecError for a folder that holds something, and for
        a place that holds no run.
    """
    if folder.exists() and any(folder.iterdir()):
        raise SpecError(f"the folder to fetch to must be new or empty, {folder} is not; give another one")
    at = "" if is_remote(place) else " (a path of this machine)"
    require_plain_place(place)
    filesystem, root = reached(place)
    try:
        files = files_in(filesystem, root, place)
        if files.keys().isdisjoint(_OF_RUNS):
            raise SpecError(
                f"{shortened(place)}{at} must be a run folder (with {' or '.join(_OF_RUNS)} in it), it holds "
                f"{shortened(', '.join(sorted(files)) or 'nothing')}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        size, room = sum(info.size for info in files.values()), shutil.disk_usage(folder).free
        if size > room:
            raise RunError(f"{shortened(folder)} must have room for {size:,} bytes, it has {room:,}; give another one")
        for name, info in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with reading_from(filesystem, info.path) as source, new_file(target) as copy:
                shutil.copyfileobj(source, copy)
    except (OSError, pa.ArrowException) as err:
        raise RunError(f"{shortened(place)}{at} could not be fetched: {why_not(err)}") from err


def _read(filesystem: pafs.FileSystem, path: str) -> bytes | None:
    """A file's content; None where there is no such file."""
    try:
        return bytes_from(filesystem, path)
    except FileNotFoundError:
        return None
