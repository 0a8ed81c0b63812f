"""Calls of a function on a table, in this process or in a worker process of another Python, with equal outcomes.

The worker runs audited code, so it may die, hang, print without end, or write into any open descriptor. Its output is
read along with its answers, and the last lines are saved for messages. A malformed answer ends the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence

from dpaudit.errors import InputError, require, shortened
from dpaudit.mechanisms.adapters.other_python import worker
from dpaudit.mechanisms.adapters.user_code import global_randomness
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome

BATCH = 1_000  # calls in a request
START_LIMIT_S = 300.0  # imports are slow on a busy machine
EXIT_LIMIT_S = 2.0  # between closing the pipes and the kill
MAX_BODY = 8 * (worker.MAX_NUMBERS * 2)  # bytes of numbers in an answer
MAX_HEADER = 1 << 20  # bytes of an answer's header
OUTPUT_BYTES = 4_000  # of the worker's output, saved for messages
CHUNK = 1 << 18  # bytes read at a time
NO_LIMITS = CallLimits()
OUT_OF_TIME = "out of time"  # ending of a call that exceeded its time limit


def call_in_process(
    function: Callable[..., Any],
    table: pa.Table,
    seeds: Sequence[int],
    *,
    form: str = "frame",
    settings: Mapping[str, Any] | None = None,
    timed: bool = False,
    limits: CallLimits = NO_LIMITS,
    generator: Mapping[str, Any] | None = None,
) -> list[CallOutcome]:
    """Call `function(rows, rng, **settings)` in this process, once for each seed.

    Args:
        table: Columns of float64, int64 or string, with nulls; each call gets a separate copy in `form`.
        seeds: Whole numbers >= 0.
        timed: True to add the duration of each call in seconds to its numbers.
        generator: Columns and count of the table of a generator (`GeneratorCalls`); None for a function.
    Raises: InputError if the form cannot hold the table; signals, which are exceptions from outside, pass.
    """
    called = worker.AuditedFunction(function, _form(form), settings or {}, timed, generator)
    rows, limit_s = _row_copies(called, form, table), limits.limit_s

    def call(seed: int) -> CallOutcome:
        try:
            with limits.time_limit(limit_s):
                ending, numbers, fault, low_bits, unread = called.call(rows, seed, limits.from_outside)
        except BaseException as err:
            if limit_s is None or not limits.from_outside(err) or isinstance(err, KeyboardInterrupt):
                raise
            return CallOutcome(OUT_OF_TIME, np.empty(0), f"still running after {limit_s:g} s")
        return CallOutcome(ending, np.array(numbers, np.float64), fault, low_bits, _pairs(unread))

    with global_randomness(SeedSequence(0)):  # restores the global generators
        return [call(seed) for seed in _seeds(seeds)]


_RECENT_ROWS: list[tuple[str, pa.Table, Callable[[], Any]]] = []
"""Form, table and copies of the last two tables: calls on D and on D' alternate."""


def _row_copies(called: worker.AuditedFunction, form: str, table: pa.Table) -> Callable[[], Any]:
    for recent_form, recent_table, copies in _RECENT_ROWS:
        if recent_table is table and recent_form == form:
            return copies
    header, body = _table_message(table)
    try:
        copies = called.rows(worker.columns_of(header, body))
    except worker.Refused as err:
        raise InputError(str(err)) from err
    _RECENT_ROWS[:] = [*_RECENT_ROWS[-1:], (form, table, copies)]
    return copies


def _form(form: str) -> str:
    require(form in worker.FORMS, f"form must be one of {', '.join(worker.FORMS)}", form=form)
    return form


@dataclass(eq=False)
class OtherPython:
    """Calls a function in a worker process of another Python; starts it when needed, and again if a call ends it.

    Attributes:
        python: Path of the Python.
        function: Import path "module:name" of `function(rows, rng, **settings)` in that Python.
        form: Form of the rows, one of `worker.FORMS`.
        settings: Numbers, words, None, and lists, tuples and dicts of these.
        timed: True to add the duration of each call in seconds to its numbers.
        limit_s: Time limit of a call; a longer one ends the worker.
        memory_bytes: Address space for calls, in addition to that of the process after its imports.
        path: Folders in which the module is looked for first.
        generator: Columns and count of the table of a generator (`GeneratorCalls`); None for a function.
    """

    python: str
    function: str
    _: KW_ONLY
    form: str = "frame"
    settings: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False
    limit_s: float | None = None
    memory_bytes: int | None = None
    path: Sequence[str] = ()
    generator: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raises: InputError for arguments that cannot be sent to a worker."""
        module, _, name = self.function.partition(":")
        must = "a function in another Python must be given as `module:name`"
        require(bool(module and name), must, function=self.function)
        sent = ("function", "timed", "memory_bytes", "generator")
        self._request = {name: getattr(self, name) for name in sent} | {
            "form": _form(self.form),
            "settings": worker.plain(dict(self.settings)),
            "path": [str(folder) for folder in self.path],
        }
        try:
            json.dumps(self._request)
        except (TypeError, ValueError) as err:
            raise InputError(f"settings must be numbers, words, and lists, tuples and dicts of these: {err}") from err
        self._process: WorkerProcess | None = None

    def __enter__(self) -> Self:
        """Start the worker. Raises: InputError if it fails to start."""
        self._running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(EXIT_LIMIT_S if err is None else 0.0)

    def call(self, table: pa.Table, seeds: Sequence[int]) -> list[CallOutcome]:
        """Call the function on a table, once for each seed, in order; see `call_in_process`.

        A call that ends its process, hangs or exceeds its memory has an outcome that says so. The next call gets a new
        process.

        Raises: InputError if the form cannot hold the table, or a worker fails to start.
        """
        outcomes, numbers = list[CallOutcome](), _seeds(seeds)
        while len(outcomes) < len(numbers):
            self._batch(table, numbers[len(outcomes) : len(outcomes) + BATCH], outcomes)
        return outcomes

    def _batch(self, table: pa.Table, seeds: Sequence[int], outcomes: list[CallOutcome]) -> None:
        """Append the outcomes of these seeds, up to a call that ends the process."""
        process, (header, body) = self._running(), _table_message(table)
        try:
            process.prepare({**header, "seeds": list(seeds)}, body)
            for _ in seeds:
                outcomes.append(_outcome(*process.answer(limit_s=self.limit_s)))  # noqa: PERF401  (must survive WorkerEnded)
        except WorkerEnded as err:
            self._process = None
            outcomes.append(CallOutcome(err.ending, np.empty(0), str(err)))
        except BaseException:  # the pipe may hold further answers
            self._end()
            raise

    def _running(self) -> WorkerProcess:
        if self._process is None:
            self._process, _ = self._start()
        return self._process

    def identity(self) -> str:
        """Return the version of the Python, the hash of the function's file, and the distribution's version.

        Raises: InputError if the function cannot be imported there.
        """
        process, words = self._start(identity=True)
        process.end()
        return words

    def _start(self, *, identity: bool = False) -> tuple[WorkerProcess, str]:
        """Start a worker, wait until it has imported its function, and return it with the text of its answer.

        Raises: InputError if it fails to start.
        """
        process, python = WorkerProcess(self.python), shortened(repr(self.python))
        try:
            return process, process.prepare({**self._request, "identity": identity})
        except WorkerEnded as err:
            raise InputError(f"a worker cannot start in {python}: {err}") from err
        except InputError as err:
            process.end()
            raise InputError(f"{err}; the Python is {python}") from err
        except BaseException:
            process.end()
            raise

    def _end(self, patience_s: float = 0.0) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(patience_s)


def _outcome(answer: Mapping[str, Any], body: bytes) -> CallOutcome:
    numbers = np.frombuffer(body, np.float64, count=len(body) // 8).copy()
    low_bits = min(int(answer.get("low_bits", 0)), len(numbers))
    ending, fault = str(answer.get("ending", "")), str(answer.get("fault", ""))
    return CallOutcome(ending, numbers, fault, max(0, low_bits), _pairs(answer.get("unread")))


def _pairs(unread: Any) -> tuple[tuple[str, str], ...]:
    """Return the unread parts as pairs of words; a worker may have been sent anything by the audited code."""
    pairs = unread if isinstance(unread, list) else []
    return tuple((str(pair[0]), str(pair[1])) for pair in pairs if isinstance(pair, list) and len(pair) == 2)


def _seeds(seeds: Sequence[int]) -> list[int]:
    numbers = [int(seed) for seed in seeds]
    require(min(numbers, default=0) >= 0, "a seed must be >= 0", seed=min(numbers, default=0))
    return numbers


def _table_message(table: pa.Table) -> tuple[dict[str, Any], bytes]:
    """Encode a table for a worker: words in the header, numbers in the body."""
    columns: list[dict[str, Any]] = []
    body: list[bytes] = []
    kinds = {pa.float64(): ("float", np.float64), pa.int64(): ("whole", np.int64)}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.type in kinds:
            kind, sent_as = kinds[column.type]
            missing = np.flatnonzero(column.is_null().to_numpy()).tolist()
            columns.append({"name": name, "kind": kind, "missing": missing})
            body.append(column.fill_null(0).to_numpy().astype(sent_as).tobytes())
        else:
            require(column.type == pa.string(), "a column must be float64, int64 or string", type=column.type)
            columns.append({"name": name, "kind": "words", "words": column.to_pylist()})
    return {"rows": table.num_rows, "columns": columns}, b"".join(body)


class WorkerEnded(Exception):
    """The worker process ended. `ending` is the short form of the reason, the text the long one."""

    def __init__(self, ending: str, text: str) -> None:
        super().__init__(text)
        self.ending = ending


class WorkerProcess:
    """A worker process, which is not restarted."""

    def __init__(self, python: str) -> None:
        """Start the process. Raises: InputError if there is no such Python."""
        requests, answers, alive, printed = (os.pipe() for _ in range(4))
        self._requests, self._answers, self._printed = requests[1], answers[0], printed[0]
        self._ours = [requests[1], answers[0], alive[1], printed[0]]
        theirs = (requests[0], answers[1], alive[0])
        self._received, self._output, self._last_message = bytearray(), bytearray(), time.monotonic()
        try:
            self._process = subprocess.Popen(
                [python, worker.__file__, *map(str, theirs)],
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
                stdout=printed[1],
                stderr=printed[1],
                process_group=0,  # Ctrl-C reaches the parent only; `end` kills the group
                env={**os.environ, "PYTHONHASHSEED": "0"},  # the same order of sets in all workers
            )
        except OSError as err:
            self._close()
            raise InputError(f"{shortened(repr(python))} must be a Python that can be started: {err}") from err
        finally:
            for number in (*theirs, printed[1]):
                os.close(number)
        os.set_blocking(self._requests, False)
        self._poll = select.poll()
        for number in (self._answers, self._printed):
            self._poll.register(number, select.POLLIN)

    def prepare(self, header: Mapping[str, Any], body: bytes = b"") -> str:
        """Send a request other than calls, without their time limit, and return the text of the `ready` answer.

        Raises: InputError if the worker refuses; WorkerEnded.
        """
        self.send(header, body, limit_s=START_LIMIT_S)
        answer, _ = self.answer(limit_s=START_LIMIT_S)
        if "refused" in answer:
            raise InputError(shortened(answer["refused"], 400))
        return str(answer.get("ready", ""))

    def send(self, header: Mapping[str, Any], body: bytes = b"", *, limit_s: float | None = None) -> None:
        """Send a request. Raises: WorkerEnded if the worker reads none of it for `limit_s` seconds."""
        unsent = memoryview(worker.message(header, body))
        self._last_message = time.monotonic()
        self._poll.register(self._requests, select.POLLOUT)
        try:
            while unsent:
                if self._wait(limit_s) & {self._requests}:
                    unsent = unsent[os.write(self._requests, unsent) :]
                    self._last_message = time.monotonic()
        except BrokenPipeError:
            raise self._ended_by_itself() from None
        finally:
            with contextlib.suppress(KeyError, OSError):
                self._poll.unregister(self._requests)

    def answer(self, *, limit_s: float | None = None) -> tuple[dict[str, Any], bytes]:
        """Return the next answer. Raises: WorkerEnded if it takes more than `limit_s` seconds since the last one."""
        while (message := self._next()) is None:
            if self._answers in self._wait(limit_s):
                more = os.read(self._answers, CHUNK)
                if not more:
                    raise self._ended_by_itself()
                self._received += more
        return message

    def end(self, patience_s: float = 0.0) -> int:
        """Wait `patience_s` for the worker's exit, kill it with the processes it started, and return its exit code."""
        if patience_s:
            self._ours.remove(self._requests)
            os.close(self._requests)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._close()
        return code

    def _wait(self, limit_s: float | None) -> set[int]:
        """Wait for and return the ready descriptors, after reading the worker's output."""
        left_ms = None if limit_s is None else max(0.0, self._last_message + limit_s - time.monotonic()) * 1e3
        ready = {number for number, _ in self._poll.poll(left_ms)}
        only_output = not ready & {self._answers, self._requests}  # the worker may print without end
        if only_output and limit_s is not None and time.monotonic() - self._last_message >= limit_s:
            self.end()
            raise WorkerEnded(OUT_OF_TIME, f"still running after {limit_s:g} s")
        if self._printed in ready and not self._read_output():
            self._poll.unregister(self._printed)
        return ready

    def _read_output(self) -> int:
        more = os.read(self._printed, CHUNK)
        self._output = (self._output + more)[-OUTPUT_BYTES:]
        return len(more)

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        size = worker.HEAD.size
        if len(self._received) < size:
            return None
        mark, header_bytes, body_bytes, checksum = worker.HEAD.unpack_from(self._received)
        if mark != worker.MARK or header_bytes > MAX_HEADER or body_bytes > MAX_BODY:
            raise self._garbled()
        end = size + header_bytes + body_bytes
        if len(self._received) < end:
            return None
        header = bytes(self._received[size : size + header_bytes])
        body = bytes(self._received[size + header_bytes : end])
        if checksum != zlib.crc32(body, zlib.crc32(header)):
            raise self._garbled()
        del self._received[:end]
        self._last_message = time.monotonic()
        try:
            content = json.loads(header)
        except (ValueError, RecursionError):
            raise self._garbled() from None
        return (content, body) if isinstance(content, dict) else ({}, body)

    def _garbled(self) -> WorkerEnded:
        self.end()
        return WorkerEnded("process ended: wrote into the pipe of its worker", "it wrote into the pipe of its worker")

    def _ended_by_itself(self) -> WorkerEnded:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_LIMIT_S)
        with contextlib.suppress(OSError):  # a process that it started may hold the pipe
            os.set_blocking(self._printed, False)
            while self._read_output():
                pass
        lines = self._output.decode(errors="replace").strip().splitlines()
        code = self.end()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        printed = f"; it printed: {shortened(lines[-1])}" if lines else ""
        return WorkerEnded(f"process ended: {how}", f"its process ended: {how}{printed}")

    def _close(self) -> None:
        ours, self._ours = self._ours, []
        for number in ours:
            os.close(number)
