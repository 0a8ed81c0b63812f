"""Where units run: one interface, two backends (this process, or a pool of Ray actors)."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import signal
import sys
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import pyarrow as pa

from dpaudit.actors.audited.around import Around
from dpaudit.actors.audited.signals import from_outside, signals_interrupt
from dpaudit.actors.audited.time_limit import OutOfTime, time_limit
from dpaudit.actors.deadlines import Deadlines, shown_while_it_runs
from dpaudit.actors.events import EventStream
from dpaudit.actors.storage.checkpoints import Scratch, checkpoints
from dpaudit.actors.storage.store import sealed
from dpaudit.actors.unit import Inputs, Resources, Unit, code_version, own_version
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.variables import without_values

_T = TypeVar("_T")

Handle: TypeAlias = Any
"""A table that may live elsewhere: an Arrow table here, an object reference on a cluster."""


@dataclass(frozen=True)
class Attempt:
    """How one attempt at a unit ended.

    Attributes:
        seconds: How long it ran.
        error: The error's text with its traceback; "" when it succeeded.
        again: Whether another attempt may succeed (a failed training) or not (a wrong argument).
        memory_mb: The most memory that its process held so far; 0 where the system does not tell.
        worker: Who ran it, "host:process"; "" where that is not known.
        content: The unit's file, when it succeeded.
        table_bytes: Size of the result in memory.
        remarks: What it did to its process, and what of it was ended, in words.
        printed: What it printed, the middle left out where that is much.
    """

    seconds: float
    error: str = ""
    again: bool = False
    memory_mb: float = 0.0
    worker: str = ""
    content: bytes = field(default=b"", repr=False)
    table_bytes: int = 0
    remarks: tuple[str, ...] = ()
    printed: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Completion:
    """A unit that came back.

    Attributes:
        unit: Which.
        attempt: How it ended.
        table: Its result for later units, when it succeeded and some need it.
        lost: The worker or its node died under it; says nothing about the unit.
    """

    unit: Unit
    attempt: Attempt
    table: Handle = None
    lost: bool = False


class Backend(Protocol):
    """Runs units somewhere and hands back what ended, in completion order."""

    def capacity(self, kind: Resources) -> int:
        """How many more units that occupy so much it takes now."""
        ...

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        """Takes a unit and the results it needs, and whether other units need its own."""
        ...

    def wait(self) -> list[Completion]:
        """Blocks until units have come back, or more are taken than before; then there may be none."""
        ...

    def hold(self, table: pa.Table) -> Handle:
        """Makes a table available to later units."""
        ...

    def close(self) -> None:
        """Ends all workers; what they were doing is abandoned."""
        ...


def attempt_unit(
    unit: Unit, inputs: Inputs, scratch: Scratch | None = None, version: str = ""
) -> tuple[Attempt, pa.Table | None]:
    """Runs one unit and turns any failure into a value: failure is data. Only what comes from outside passes.

    Args:
        unit: What to run.
        inputs: What it is given.
        scratch: Folder of all units' checkpoints. One where every worker can write, or the URI of one, lets a long
            training go on where a lost worker left it. A finished unit leaves nothing there.
        version: Code version of dpaudit, for the unit's file.
    """
    began, worker, around = time.perf_counter(), f"{platform.node()}:{os.getpid()}", Around()
    with signals_interrupt((signal.SIGINT,)):
        try:
            with around.kept(), checkpoints(scratch, unit.key) as own:
                table = unit.task.run(inputs, unit.resources.compute(own))
            seconds = time.perf_counter() - began
            content = sealed(unit.key, table, version=version, own=own_version(unit.own))
        except BaseException as err:  # somebody's sys.exit(0) is no result, and ends their unit alone
            if from_outside(err):
                raise
            again = isinstance(err, TrainingError | MemoryError | OSError)
            error, seconds = error_text(err, unit.task), time.perf_counter() - began
            return Attempt(seconds, error, again, worker=worker, remarks=around.remarks, printed=around.printed), None
    memory_mb, size = most_memory_mb(), table.nbytes
    return Attempt(seconds, "", False, memory_mb, worker, content, size, around.remarks, around.printed), table


def most_memory_mb() -> float:
    """The most memory that this process has held so far; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, StopIteration):  # on Linux `ru_maxrss` begins with the parent's
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024 / 1e6
    if sys.platform == "win32":
        return 0.0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6  # Linux counts in KiB


MESSAGE_CHARACTERS = 20_000
"""Of an error's text, no more is kept: the beginning and the end."""


def error_text(err: BaseException, task: object) -> str:
    """An error with its traceback, in characters that can be written anywhere, and not more than can be read.

    Args:
        err: The error.
        task: What raised it. Variables of the environment that it names are shown by name: their values may be secrets.
    """
    text = without_values("".join(traceback.format_exception(err)), task)
    half = MESSAGE_CHARACTERS // 2
    if len(text) > MESSAGE_CHARACTERS:
        text = f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
    return text.encode("utf-8", errors="backslashreplace").decode()


def as_on_a_cluster(value: _T) -> _T:
    """The same value on the same memory, which cannot be written to through it, as an object store hands it out.

    What one unit does to its inputs is then never seen by another one, in this process as on a cluster.
    """
    buffers: list[pickle.PickleBuffer] = []
    content = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [memoryview(buffer).toreadonly() for buffer in buffers]
    return pickle.loads(content, buffers=views)  # type: ignore[no-any-return]


class InProcess:
    """Runs units one after another in this process: no Ray, the same results.

    Args:
        shared: Large inputs by name; units cannot write to them.
        scratch: Folder of the units' checkpoints, see `attempt_unit`.
        events: Told of a unit that takes long.
        deadlines: How long a unit may run.
    """

    def __init__(
        self,
        shared: dict[str, Any],
        scratch: Scratch | None = None,
        events: EventStream | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._shared = {name: as_on_a_cluster(value) for name, value in shared.items()}
        self._scratch = scratch
        self._events = events or EventStream()
        self._deadlines = deadlines or Deadlines()
        self._queue: deque[tuple[Unit, tuple[Handle, ...], bool]] = deque()

    def capacity(self, kind: Resources) -> int:
        """One unit at a time."""
        return 1 - len(self._queue)

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        """Remembers the unit; `wait` runs it."""
        self._queue.append((unit, tables, needed))

    def wait(self) -> list[Completion]:
        """Runs the unit that was submitted."""
        unit, tables, needed = self._queue.popleft()
        shared = {name: self._shared[name] for name in unit.shared}
        inputs = Inputs(shared, dict(zip(unit.needs, tables, strict=True)))
        limit_s = self._deadlines.limit_s(unit)
        try:
            with shown_while_it_runs(unit, self._events), time_limit(limit_s):
                attempt, table = attempt_unit(unit, inputs, self._scratch, code_version())
        except OutOfTime:
            assert limit_s is not None
            return [Completion(unit, Attempt(limit_s, self._deadlines.refusal(limit_s), again=True))]
        if not attempt.error:
            self._deadlines.learn(unit, attempt.seconds)
        return [Completion(unit, attempt, table if needed else None)]

    def hold(self, table: pa.Table) -> Handle:
        """The table itself."""
        return table

    def close(self) -> None:
        """Nothing to end."""
        self._queue.clear()
