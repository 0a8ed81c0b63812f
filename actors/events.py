"""Events of a run, for the terminal, the log and the report."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from dpaudit.plain_files import open_for_update, open_to_read

MAX_LINE_BYTES = 16 << 20  # a longer line of a log is ignored
MAX_NUMBER = 1e11  # limit of an event's numbers; as a time, the year 5138


class EventKind(StrEnum):
    """Kind of an event."""

    STAGE = "stage"  # the run entered a stage; `detail` names it
    UNITS_PLANNED = "units-planned"  # `count` units are in this run
    UNITS_CACHED = "units-cached"  # the results of `count` units were already in the run folder
    UNIT_DAMAGED = "unit-damaged"  # its file in the run folder failed its check; the unit runs again
    UNIT_STARTED = "unit-started"
    UNIT_RUNNING = "unit-running"  # it still runs, after `seconds`; `detail` says so if its process is stopped
    UNIT_DONE = "unit-done"
    UNIT_RETRIED = "unit-retried"  # an attempt failed; the unit is retried
    UNIT_FAILED = "unit-failed"  # the last attempt failed
    UNIT_SKIPPED = "unit-skipped"  # a unit it needs failed
    UNIT_REPEATED = "unit-repeated"  # it ran a second time for comparison; `detail` describes a difference
    UNIT_REMARKED = "unit-remarked"  # it changed its process as `detail` says; the change was undone
    ESTIMATED = "estimated"  # a worker has computed the bounds of an audit; no unit of the plan
    UNITS_SPARED = "units-spared"  # `count` units were not run, because the outcome no longer depends on them
    WORKER_STARTED = "worker-started"
    WORKER_LOST = "worker-lost"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"  # `detail` names the file with the bounds and its hash
    REPORTED = "reported"  # the report was rebuilt from finished units; `detail` as for FINISHED


@dataclass(frozen=True)
class Event:
    """One event of a run."""

    kind: EventKind
    unit: str = ""  # key of the unit, if the event concerns one
    label: str = ""  # label of that unit
    attempt: int = 0  # number of the attempt, from 1; 0 if not applicable
    seconds: float = 0.0  # duration of the attempt
    count: int = 0  # number of units, workers or megabytes
    detail: str = ""  # error text, name of a stage, or name and hash of the file with the bounds
    memory_mb: float = 0.0  # peak memory so far of the process that ran the attempt
    time: float = field(default_factory=time.time)  # seconds since the epoch
    worker: str = ""  # worker that ran the attempt, "host:process"; "" if unknown


Listener = Callable[[Event], None]


class EventStream:
    """Passes events, from any thread, to every listener in order, one at a time."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = [*listeners]
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def subscribed(self, listener: Listener) -> Iterator[None]:
        """Add `listener` for the duration of a block."""
        with self._lock:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def emit(self, event: Event) -> None:
        with self._lock:
            for listener in self._listeners:
                listener(event)

    def flush(self) -> None:
        """Make listeners show or write the events that they have buffered."""
        with self._lock:
            for listener in self._listeners:
                if flush := getattr(listener, "flush", None):
                    flush()


BUFFERED_KINDS = {
    EventKind.UNIT_STARTED,
    EventKind.UNIT_DONE,
    EventKind.ESTIMATED,
}  # frequent: listeners may buffer them until `flush`


class EventLog:
    """Listener that appends events to a JSON-lines file; a killed driver leaves only complete lines."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(open_for_update(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")
        self._lines: list[str] = []

    def __call__(self, event: Event) -> None:
        self._lines.append(json.dumps(vars(event)) + "\n")
        if event.kind not in BUFFERED_KINDS or len(self._lines) > 1000:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        self._file.write("".join(lines))
        self._file.flush()

    def close(self) -> None:
        self.flush()
        self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a log, none if the file is missing; invalid lines are skipped."""
    with contextlib.suppress(FileNotFoundError), open_to_read(path) as file:
        yield from (event for event in parse_events(file) if event is not None)


def parse_events(log: BinaryIO) -> Iterator[Event | None]:
    """Yield the event of each line of a log; None for a line that is truncated, damaged, or from another version."""
    while line := log.readline(MAX_LINE_BYTES):
        if line.endswith(b"\n") or len(line) < MAX_LINE_BYTES:
            yield _parse_event(line.decode(errors="replace"))
            continue
        while (rest := log.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None


def _parse_event(line: str) -> Event | None:
    try:
        values = json.loads(line)
        if not all(_has_type(values[part.name], part.type) for part in fields(Event) if part.name in values):
            return None
        return Event(**{**values, "kind": EventKind(values["kind"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _has_type(value: object, kind: object) -> bool:
    """True if `value` has the type `kind`; numbers must be in [0, MAX_NUMBER)."""
    if kind in ("int", "float"):
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return (is_integer or (kind == "float" and isinstance(value, float))) and 0 <= value < MAX_NUMBER  # type: ignore[operator]
    return isinstance(value, str)


def last_line(error: str) -> str:
    """Return the last line of an error text, the message of the exception, cut to 500 characters."""
    line = next(reversed(error.strip().splitlines()), "")
    return line if len(line) <= 500 else f"{line[:500]} ..."
