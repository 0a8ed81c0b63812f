"""Interface of backends that run units, and `InProcess`, which runs them in this process."""

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
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import pyarrow as pa

from dpaudit.actors.audited.around import ProcessGuard
from dpaudit.actors.audited.signals import (
    TimeLimitExceeded,
    call_periodically,
    raised_externally,
    signals_interrupt,
    time_limit,
)
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.storage.store import encode_unit
from dpaudit.actors.unit import Inputs, Resources, Unit, code_version
from dpaudit.consent import hide_variable_values
from dpaudit.errors import RunError, require
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.gpu_memory import hold_share, is_out_of_memory, release_resident, shared_examples
from dpaudit.plain_files import Scratch, is_remote, join_place, temporary_folder

_T = TypeVar("_T")

Handle: TypeAlias = Any  # reference to a table: the Arrow table itself, or an object reference on a cluster


@dataclass(frozen=True)
class Attempt:
    """Result of one attempt at a unit."""

    seconds: float
    error: str = ""  # error text with traceback; "" for a success
    retryable: bool = False  # True if another attempt may succeed (failed training), False if not (wrong argument)
    memory_mb: float = 0.0  # peak memory so far of the process; 0 if unknown
    worker: str = ""  # worker that ran it, "host:process"; "" if unknown
    content: bytes = field(default=b"", repr=False)  # the unit's file, for a success
    table_bytes: int = 0  # size of the result in memory
    remarks: tuple[str, ...] = ()  # descriptions of side effects on the process, and of processes that were ended
    printed: bytes = field(default=b"", repr=False)  # its output; the middle of a long output is left out
    report_delay_s: float = 0.0  # time from its end to its report, while other units ran on the same worker


@dataclass(frozen=True)
class Completion:
    """A unit whose attempt ended."""

    unit: Unit
    attempt: Attempt
    table: Handle = None  # its result, if the attempt succeeded and other units need it
    worker_died: bool = False  # True if the worker or its node died, whether or not the unit was the cause


class Backend(Protocol):
    """Runs units and returns them in order of completion."""

    @property
    def runs_answers(self) -> bool:
        """True if it runs units whose results are not stored: workers are trusted, and several run at a time."""

    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        """Return a lower bound on the number of units that can be submitted now.

        Args:
            kind: Resources of one unit.
            ready: Number of such units that wait, if known.
            does: Name of the function that the units call, if known.
        """

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        """Submit a unit with handles of the results it needs; `needed` is True if other units need its result."""

    def wait(self) -> list[Completion]:
        """Block until units have ended or the capacity has grown; return the ended units, possibly none."""

    def hold(self, table: pa.Table) -> Handle:
        """Make a table available to later units; return its handle."""

    def close(self) -> None:
        """End all workers; running units are abandoned."""


LIMIT_FACTOR = 30  # a unit this many times slower than the slowest of its kind so far is taken to hang
MIN_LIMIT_S = 600.0  # limits derived from other units are at least this: a busy machine or a first data load is slow
CHECKPOINT_INTERVAL_S = 30.0  # between uploads of checkpoints to a remote place
REMIND_S = 30.0  # between events of a unit that still runs


def still_running(unit: Unit, seconds: float, worker: str) -> Event:
    """Return the event of a unit that still runs on a worker, "host:process".

    Its detail says that the process is stopped by a signal, as far as Linux shows processes of this machine.
    """
    host, _, process = worker.rpartition(":")
    is_stopped = False
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{process}/stat").read_text() if host == platform.node() else ""
        is_stopped = stat.rpartition(") ")[2].startswith(("T", "t"))
    detail = f"process {process} on {host} is stopped; `kill -CONT {process}` continues it" if is_stopped else ""
    return Event(EventKind.UNIT_RUNNING, unit.key, unit.label, seconds=seconds, detail=detail, worker=worker)


@dataclass
class Deadlines:
    """Time limits of units: the stated limit, else `LIMIT_FACTOR` times the slowest unit of the same kind of work."""

    stated_s: float | None = None  # seconds, > 0; None derives limits from finished units
    _slowest_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.stated_s is None or self.stated_s > 0, "a time limit must be > 0 s", stated_s=self.stated_s)

    def learn(self, unit: Unit, seconds: float) -> None:
        """Record the duration of a successful unit."""
        self._slowest_s[unit.kind_of_work] = max(seconds, self.slowest_s(unit))

    def limit_s(self, unit: Unit) -> float | None:
        """Return the time limit of a unit in seconds; None if no unit of its kind has finished yet."""
        if self.stated_s is not None:
            return self.stated_s
        if unit.kind_of_work not in self._slowest_s:
            return None
        return max(MIN_LIMIT_S, LIMIT_FACTOR * self.slowest_s(unit))

    def slowest_s(self, unit: Unit) -> float:
        """Return the duration of the slowest unit of the same kind so far, in seconds."""
        return self._slowest_s.get(unit.kind_of_work, 0.0)

    def timeout_message(self, limit_s: float) -> str:
        """Return the error text of a unit that exceeded its limit."""
        if self.stated_s is not None:
            return f"TimeLimit: still running after {limit_s:.4g} s, the stated `time_limit_s`"
        return (
            f"TimeLimit: still running after {limit_s:.4g} s, more than {LIMIT_FACTOR} times the slowest unit of its "
            "kind; set `time_limit_s` in `run:` if it needs more time"
        )


def attempt_unit(
    unit: Unit, inputs: Inputs, scratch: Scratch | None = None, version: str = ""
) -> tuple[Attempt, pa.Table | None]:
    """Run one unit and return its attempt and table; an exception of the unit becomes a failed attempt.

    Signals and time limits are raised.

    Args:
        scratch: Folder or URI that every worker can write to. It lets a long training resume after a lost worker.
        version: Code version of dpaudit, recorded in the unit's file.
    """
    start, worker, around = time.perf_counter(), f"{platform.node()}:{os.getpid()}", ProcessGuard()
    with signals_interrupt((signal.SIGINT,)):
        try:
            with around.guard(), _checkpoints(scratch, unit.key) as checkpoints:
                compute = unit.resources.compute(checkpoints)
                hold_share(compute)
                with shared_examples(inputs.shared):
                    table = _isolated(unit).task.run(inputs, compute)
            seconds = time.perf_counter() - start
            content = encode_unit(unit.key, table, version=version, user_code=unit.user_code_version)
        except BaseException as err:  # `sys.exit(0)` in user code also fails the unit
            if raised_externally(err):
                raise
            out_of_memory = is_out_of_memory(err)
            if out_of_memory:
                release_resident()  # the next attempt has the whole memory
            retryable = out_of_memory or isinstance(err, TrainingError | MemoryError | OSError)
            error, seconds = _error_text(err, unit.task), time.perf_counter() - start
            return Attempt(seconds, error, retryable, 0.0, worker, b"", 0, around.remarks, around.printed), None
    memory_mb, size = peak_memory_mb(), table.nbytes
    return Attempt(seconds, "", False, memory_mb, worker, content, size, around.remarks, around.printed), table


@contextlib.contextmanager
def _checkpoints(scratch: Scratch | None, key: str) -> Iterator[Path | None]:
    """Yield the folder of a unit's checkpoints; it is deleted when the unit finishes without an error."""
    if scratch is None:
        yield None
    elif is_remote(scratch):
        with _mirrored_checkpoints(join_place(scratch, key)) as folder:
            yield folder
    else:
        yield Path(scratch) / key
        shutil.rmtree(Path(scratch) / key, ignore_errors=True)


@contextlib.contextmanager
def _mirrored_checkpoints(uri: str) -> Iterator[Path]:
    """Yield a local folder mirrored to `uri`.

    If the store cannot be reached, the training starts from the beginning, or its checkpoints stay on its node.
    """
    from dpaudit.actors.storage.mirror import Mirror  # only needed for object stores

    mirror = Mirror(temporary_folder() / hashlib.sha256(uri.encode()).hexdigest()[:24], uri)
    with contextlib.suppress(RunError):
        mirror.pull()
    finished = False
    try:
        with contextlib.suppress(RunError), mirror.synchronized(CHECKPOINT_INTERVAL_S, patience_s=0.0):
            yield mirror.folder
            finished = True
    finally:
        if finished:
            with contextlib.suppress(OSError, pa.ArrowException):
                mirror.delete_copies()


def peak_memory_mb() -> float:
    """Return the peak memory of this process so far in MB; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, StopIteration):  # on Linux `ru_maxrss` includes the parent's peak
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # Linux counts in KiB


_MESSAGE_CHARACTERS = 20_000  # limit of an error text; the middle of a longer one is left out


def _error_text(err: BaseException, task: object) -> str:
    """Return the traceback of `err`, without values of environment variables, shortened and encodable as UTF-8."""
    text = hide_variable_values("".join(traceback.format_exception(err)), task)
    half = _MESSAGE_CHARACTERS // 2
    if len(text) > _MESSAGE_CHARACTERS:
        text = f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
    return text.encode("utf-8", errors="backslashreplace").decode()


def _read_only_copy(value: _T) -> _T:
    """Return a copy of `value` with read-only buffers, as from an object store, so that units cannot modify it."""
    buffers: list[pickle.PickleBuffer] = []
    content = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [memoryview(buffer).toreadonly() for buffer in buffers]
    return pickle.loads(content, buffers=views)  # type: ignore[no-any-return]


def _isolated(unit: Unit) -> Unit:
    """Return the unit with copies of the user's objects, so that its changes to them do not affect other units."""
    if not unit.user_code:
        return unit
    try:
        return pickle.loads(cloudpickle.dumps(unit))  # type: ignore[no-any-return]
    except Exception:  # not picklable, such as a lock: it can only run in this process
        return unit


class InProcess:
    """Runs units one after another in this process, without Ray. Units cannot write to `shared`."""

    runs_answers = False

    def __init__(
        self,
        shared: dict[str, Any],
        scratch: Scratch | None = None,
        events: EventStream | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._shared = {name: _read_only_copy(value) for name, value in shared.items()}
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
        start = time.monotonic()

        def remind() -> None:
            running_s = time.monotonic() - start
            self._events.emit(Event(EventKind.UNIT_RUNNING, unit.key, unit.label, seconds=running_s))

        try:
            with call_periodically(remind, REMIND_S, "still-running"), time_limit(limit_s):
                attempt, table = attempt_unit(unit, inputs, self._scratch, code_version())
        except TimeLimitExceeded:
            assert limit_s is not None
            return [Completion(unit, Attempt(limit_s, self._deadlines.timeout_message(limit_s), retryable=True))]
        if not attempt.error:
            self._deadlines.learn(unit, attempt.seconds)
        return [Completion(unit, attempt, table if needed else None)]

    def hold(self, table: pa.Table) -> Handle:
        return table

    def close(self) -> None:
        self._queue.clear()
