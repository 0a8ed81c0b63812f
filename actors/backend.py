"""Where units run: one interface, two backends (this process, or a pool of Ray actors)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import pyarrow as pa

from dpaudit.actors.audited.around import Around
from dpaudit.actors.audited.signals import OutOfTime, from_outside, signals_interrupt, time_limit
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.meanwhile import meanwhile
from dpaudit.actors.storage.places import Scratch, inside, is_remote
from dpaudit.actors.storage.store import sealed
from dpaudit.actors.unit import Inputs, Resources, Unit, code_version
from dpaudit.errors import RunError, require
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.plain_files import private_folder
from dpaudit.variables import hide_variable_values

_T = TypeVar("_T")

Handle: TypeAlias = Any  # a table that may live elsewhere: an Arrow table here, an object reference on a cluster


@dataclass(frozen=True)
class Attempt:
    """How one attempt at a unit ended."""

    seconds: float
    error: str = ""  # the error's text with its traceback; "" when it succeeded
    retryable: bool = False  # whether another attempt may succeed (a failed training) or not (a wrong argument)
    memory_mb: float = 0.0  # the most memory that its process held so far; 0 where the system does not tell
    worker: str = ""  # who ran it, "host:process"; "" where that is not known
    content: bytes = field(default=b"", repr=False)  # the unit's file, when it succeeded
    table_bytes: int = 0  # of the result in memory
    remarks: tuple[str, ...] = ()  # what it did to its process, and what of it was ended, in words
    printed: bytes = field(default=b"", repr=False)  # what it printed, the middle left out where that is much
    ago_s: float = 0.0  # how long before it was told of it ended: others ran on the same worker meanwhile


@dataclass(frozen=True)
class Completion:
    """A unit that came back."""

    unit: Unit
    attempt: Attempt
    table: Handle = None  # its result for later units, when it succeeded and some need it
    worker_died: bool = False  # or its node, under it; says nothing about the unit


class Backend(Protocol):
    """Runs units somewhere and hands back what ended, in completion order."""

    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        """How many more units that occupy so much, and do this, it takes now, at least.

        So many `ready` ones wait for it, where that is said.
        """

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        """Takes a unit and the results it needs, and whether other units need its own."""

    def wait(self) -> list[Completion]:
        """Blocks until units have come back, or more are taken than before; then there may be none."""

    def hold(self, table: pa.Table) -> Handle:
        """Makes a table available to later units."""

    def close(self) -> None:
        """Ends all workers; what they were doing is abandoned."""


MULTIPLE = 30  # a unit that runs this many times longer than the slowest of its kind so far hangs rather than works
SHORTEST_S = 600.0  # no limit learned from other units is shorter: a machine may be busy, a first look at the data slow
CHECKPOINTS_S = 30.0  # how often new checkpoints are brought to a remote place
REMIND_S = 30.0  # after this long, and again each time, a unit that still runs is shown


@dataclass
class Deadlines:
    """How long each unit may run: what was stated, else `MULTIPLE` times the slowest unit of its kind so far."""

    stated_s: float | None = None  # seconds, > 0; None learns from the units that came back
    _slowest_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.stated_s is None or self.stated_s > 0, "a time limit must be > 0 s", stated_s=self.stated_s)

    def learn(self, unit: Unit, seconds: float) -> None:
        """Takes note of how long a unit ran that came back with a result."""
        kind = unit.does
        self._slowest_s[kind] = max(seconds, self._slowest_s.get(kind, 0.0))

    def limit_s(self, unit: Unit) -> float | None:
        """Seconds this unit may run; None while there is nothing to tell by."""
        if self.stated_s is not None:
            return self.stated_s
        slowest = self.slowest_s(unit)
        return max(SHORTEST_S, MULTIPLE * slowest) if unit.does in self._slowest_s else None

    def slowest_s(self, unit: Unit) -> float:
        """Seconds of the slowest unit of its kind so far."""
        return self._slowest_s.get(unit.does, 0.0)

    def refusal(self, limit_s: float) -> str:
        """What is recorded of a unit that was ended."""
        if self.stated_s is not None:
            return f"TimeLimit: still running after {limit_s:.4g} s, the stated `time_limit_s`"
        return (
            f"TimeLimit: still running after {limit_s:.4g} s, more than {MULTIPLE} times the slowest unit of its kind; "
            "state `time_limit_s` in `run:` when it needs that long"
        )


def attempt_unit(
    unit: Unit, inputs: Inputs, scratch: Scratch | None = None, version: str = ""
) -> tuple[Attempt, pa.Table | None]:
    """Runs one unit and turns any failure into a value: failure is data. Only what comes from outside passes.

    A `scratch` where every worker can write lets a long training go on where a lost worker left it.
    """
    began, worker, around = time.perf_counter(), f"{platform.node()}:{os.getpid()}", Around()
    with signals_interrupt((signal.SIGINT,)):
        try:
            with around.kept(), _checkpoints(scratch, unit.key) as own:
                table = _anew(unit).task.run(inputs, unit.resources.compute(own))
            seconds = time.perf_counter() - began
            content = sealed(unit.key, table, version=version, own=unit.own_version)
        except BaseException as err:  # somebody's sys.exit(0) is no result, and ends their unit alone
            if from_outside(err):
                raise
            retryable = isinstance(err, TrainingError | MemoryError | OSError)
            error, seconds = _error_text(err, unit.task), time.perf_counter() - began
            return Attempt(seconds, error, retryable, 0.0, worker, b"", 0, around.remarks, around.printed), None
    memory_mb, size = most_memory_mb(), table.nbytes
    return Attempt(seconds, "", False, memory_mb, worker, content, size, around.remarks, around.printed), table


@contextlib.contextmanager
def _checkpoints(scratch: Scratch | None, key: str) -> Iterator[Path | None]:
    """The folder of a unit's checkpoints for the length of a block; a unit that finishes leaves nothing there."""
    if scratch is None:
        yield None
    elif is_remote(scratch):
        with _mirrored(inside(scratch, key)) as folder:
            yield folder
    else:
        yield Path(scratch) / key
        shutil.rmtree(Path(scratch) / key, ignore_errors=True)


@contextlib.contextmanager
def _mirrored(uri: str) -> Iterator[Path]:
    """A remote one; where it cannot be reached, the training begins anew, or its checkpoints stay on its node."""
    from dpaudit.actors.storage.mirror import Mirror  # of runs on object stores alone

    mirror = Mirror(_temporary_folder() / hashlib.sha256(uri.encode()).hexdigest()[:24], uri)
    with contextlib.suppress(RunError):
        mirror.pull()
    done = False
    try:
        with contextlib.suppress(RunError), mirror.kept_up(CHECKPOINTS_S, patience_s=0.0):
            yield mirror.folder
            done = True
    finally:
        if done:
            with contextlib.suppress(OSError, pa.ArrowException):
                mirror.forget()


def _temporary_folder() -> Path:
    """This user's own folder in the machine's temporary one, found by the next run; a new one where it is another's."""
    try:
        return private_folder(Path(tempfile.gettempdir()) / f"dpaudit-of-{os.geteuid()}")
    except RunError:
        return Path(tempfile.mkdtemp(prefix="dpaudit-"))


def most_memory_mb() -> float:
    """The most memory that this process has held so far; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, StopIteration):  # on Linux `ru_maxrss` begins with the parent's
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024 / 1e6
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6  # Linux counts in KiB


_MESSAGE_CHARACTERS = 20_000  # of an error's text, no more is kept: the beginning and the end


def _error_text(err: BaseException, task: object) -> str:
    """An error with its traceback, in characters that can be written anywhere, and not more than can be read."""
    text = hide_variable_values("".join(traceback.format_exception(err)), task)
    half = _MESSAGE_CHARACTERS // 2
    if len(text) > _MESSAGE_CHARACTERS:
        text = f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
    return text.encode("utf-8", errors="backslashreplace").decode()


def _as_on_a_cluster(value: _T) -> _T:
    """The same value on the same memory, read-only as an object store hands it out: no unit sees what another did."""
    buffers: list[pickle.PickleBuffer] = []
    content = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [memoryview(buffer).toreadonly() for buffer in buffers]
    return pickle.loads(content, buffers=views)  # type: ignore[no-any-return]


def _anew(unit: Unit) -> Unit:
    """With copies of the user's objects, where they can be copied: what one unit leaves in them no other one sees."""
    if not unit.own:
        return unit
    try:
        return pickle.loads(cloudpickle.dumps(unit))  # type: ignore[no-any-return]
    except Exception:  # such as a lock: it runs in this process alone
        return unit


class InProcess:
    """Runs units one after another in this process: no Ray, the same results. Units cannot write to `shared`."""

    def __init__(
        self,
        shared: dict[str, Any],
        scratch: Scratch | None = None,
        events: EventStream | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._shared = {name: _as_on_a_cluster(value) for name, value in shared.items()}
        self._scratch = scratch
        self._events = events or EventStream()
        self._deadlines = deadlines or Deadlines()
        self._queue: deque[tuple[Unit, tuple[Handle, ...], bool]] = deque()

    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        return 1 - len(self._queue)

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        self._queue.append((unit, tables, needed))

    def wait(self) -> list[Completion]:
        unit, tables, needed = self._queue.popleft()
        shared = {name: self._shared[name] for name in unit.shared}
        inputs = Inputs(shared, dict(zip(unit.needs, tables, strict=True)))
        limit_s = self._deadlines.limit_s(unit)
        try:
            with self._shown(unit), time_limit(limit_s):
                attempt, table = attempt_unit(unit, inputs, self._scratch, code_version())
        except OutOfTime:
            assert limit_s is not None
            return [Completion(unit, Attempt(limit_s, self._deadlines.refusal(limit_s), retryable=True))]
        if not attempt.error:
            self._deadlines.learn(unit, attempt.seconds)
        return [Completion(unit, attempt, table if needed else None)]

    def _shown(self, unit: Unit) -> AbstractContextManager[None]:
        """Says every `REMIND_S` seconds that the unit still runs."""
        began = time.monotonic()

        def remind() -> None:
            running_s = time.monotonic() - began
            self._events.emit(Event(EventKind.UNIT_RUNNING, unit.key, unit.label, seconds=running_s))

        return meanwhile(remind, REMIND_S, "still-running")

    def hold(self, table: pa.Table) -> Handle:
        return table

    def close(self) -> None:
        self._queue.clear()
