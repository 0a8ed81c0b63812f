"""What happens during a run, as a stream that the terminal, the log and the report all read."""

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

MAX_LINE_BYTES = 16 << 20  # a longer line of a log is none
MAX_NUMBER = 1e11  # of an event: seconds, units or megabytes; a time up to the year 5138


class EventKind(StrEnum):
    """What happened."""

    STAGE = "stage"  # the run entered a stage; `detail` names it
    UNITS_PLANNED = "units-planned"  # `count` units are in this run
    UNITS_CACHED = "units-cached"  # the results of `count` units were already in the run folder
    UNIT_DAMAGED = "unit-damaged"  # its file in the run folder failed its check: it is run again
    UNIT_STARTED = "unit-started"
    UNIT_RUNNING = "unit-running"  # it has been running for `seconds` and goes on
    UNIT_DONE = "unit-done"
    UNIT_RETRIED = "unit-retried"  # an attempt failed and another one follows
    UNIT_FAILED = "unit-failed"  # no attempt is left
    UNIT_SKIPPED = "unit-skipped"  # a unit it needs failed
    UNIT_REPEATED = "unit-repeated"  # it was run a second time; `detail` says what was different, if anything
    UNIT_REMARKED = "unit-remarked"  # it did to its process what `detail` says, and that was put back
    UNITS_SPARED = "units-spared"  # `count` units were not run: enough is known without them
    WORKER_STARTED = "worker-started"
    WORKER_LOST = "worker-lost"
    SPILLED = "spilled"  # the object stores have written `count` MB to disk so far, for want of memory
    INTERRUPTED = "interrupted"
    FINISHED = "finished"  # `detail` says what was written
    REPORTED = "reported"  # the report was made anew from what is finished; `detail` as for FINISHED


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: EventKind
    unit: str = ""  # key of the unit it happened to, or ""
    label: str = ""  # that unit's label
    attempt: int = 0  # which attempt, from 1; 0 where it has no meaning
    seconds: float = 0.0  # how long the attempt ran
    count: int = 0  # a number of units, workers or megabytes
    detail: str = ""  # the error's text, a stage's name, or the name and hash of the file that holds the bounds
    memory_mb: float = 0.0  # the most memory that the process held which ran the attempt, so far
    time: float = field(default_factory=time.time)  # seconds since the epoch
    worker: str = ""  # who ran the attempt, "host:process"; "" where that is not known


Listener = Callable[[Event], None]


class EventStream:
    """Hands each event to every listener, in the order they happen; one at a time, from whichever thread."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = [*listeners]
        self._one_at_a_time = threading.RLock()

    @contextlib.contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """One more listener, for the length of a block."""
        with self._one_at_a_time:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._one_at_a_time:
                self._listeners.remove(listener)

    def emit(self, event: Event) -> None:
        with self._one_at_a_time:
            for listener in self._listeners:
                listener(event)

    def settle(self) -> None:
        """Has listeners show what they have kept for now of the many events that are each of a unit alone."""
        with self._one_at_a_time:
            for listener in self._listeners:
                if settle := getattr(listener, "settle", None):
                    settle()


MANY = {EventKind.UNIT_STARTED, EventKind.UNIT_DONE}  # what a listener may keep until it is told to settle


class EventLog:
    """Appends events to a JSON-lines file, one write for all that come together: a killed driver leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(open_for_update(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")
        self._lines: list[str] = []

    def __call__(self, event: Event) -> None:
        self._lines.append(json.dumps(vars(event)) + "\n")
        if event.kind not in MANY or len(self._lines) > 1000:
            self.settle()

    def settle(self) -> None:
        lines, self._lines = self._lines, []
        self._file.write("".join(lines))
        self._file.flush()

    def close(self) -> None:
        self.settle()
        self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log, none where there is no file; lines that are no events are left out."""
    with contextlib.suppress(FileNotFoundError), open_to_read(path) as file:
        yield from (event for event in events_in(file) if event is not None)


def events_in(log: BinaryIO) -> Iterator[Event | None]:
    """The event of each line of a log; None for one that is cut short by a kill, damaged, or of another version."""
    while line := log.readline(MAX_LINE_BYTES):
        if line.endswith(b"\n") or len(line) < MAX_LINE_BYTES:
            yield _event_of(line.decode(errors="replace"))
            continue
        while (rest := log.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None


def _event_of(line: str) -> Event | None:
    try:
        values = json.loads(line)
        if not all(_fits(values[part.name], part.type) for part in fields(Event) if part.name in values):
            return None
        return Event(**{**values, "kind": EventKind(values["kind"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _fits(value: object, kind: object) -> bool:
    """Whether a field holds what its annotation says; numbers are those that a clock or a counter can show."""
    if kind in ("int", "float"):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return (whole or (kind == "float" and isinstance(value, float))) and 0 <= value < MAX_NUMBER  # type: ignore[operator]
    return isinstance(value, str)


def last_line(error: str) -> str:
    """The last line of an error's text, which says what it is; cut where it is longer than a reader reads."""
    line = next(reversed(error.strip().splitlines()), "")
    return line if len(line) <= 500 else f"{line[:500]} ..."
