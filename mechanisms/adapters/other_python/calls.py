"""Calls of a function on a table: here, or in a Python of its own; the outcomes are the same.

A worker in another Python is started, written to, listened to and ended from here. The process is no one's friend: it
may die, hang, print without end and write into every descriptor it finds. What it prints is read with what it answers,
and its last lines are kept; an answer that is no message ends it.
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
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence

from dpaudit.errors import InputError, require, shortened
from dpaudit.mechanisms.adapters.other_python import worker
from dpaudit.mechanisms.adapters.user_code import global_randomness
from dpaudit.mechanisms.queries.outcome import CallOutcome

BATCH = 1_000  # calls that are asked for at a time
PREPARED_S = 300.0  # on a machine that is busy, libraries take long to load
ENDED_S = 2.0  # what closed its pipes and has not ended so long after is killed
MOST_BEHIND = 8 * (worker.MAX_NUMBERS * 2)  # bytes of numbers in an answer
MOST_WORDS = 1 << 20  # bytes of an answer's header
KEPT_BYTES = 4_000  # of what it printed
CHUNK = 1 << 18  # bytes read at a time
OUT_OF_TIME = "out of time"  # how a call ended


def _no_limit(limit_s: float | None) -> AbstractContextManager[None]:
    return nullcontext()


def _never(err: BaseException) -> bool:
    return False


def call_in_process(
    function: Callable[..., Any],
    table: pa.Table,
    seeds: Sequence[int],
    *,
    form: str = "frame",
    settings: Mapping[str, Any] | None = None,
    timed: bool = False,
    limit_s: float | None = None,
    time_limit: Callable[[float | None], AbstractContextManager[None]] = _no_limit,
    from_outside: Callable[[BaseException], bool] = _never,
) -> list[CallOutcome]:
    """Calls `function(rows, rng, **settings)` in this process, once for each seed.

    Args:
        table: Columns of float64, int64 or string, with nulls; each call has a copy of its own, in `form`.
        seeds: Whole numbers >= 0.
        timed: Whether the seconds that a call took are one of its numbers.
        limit_s: How long a call may take.
        time_limit: What ends a block after so many seconds, by an exception.
        from_outside: Whether an exception is not the function's own: a signal, which passes, or `time_limit`.
    Raises: InputError when the form cannot hold the table.
    """
    called = worker.AuditedFunction(function, _form(form), settings or {}, timed)
    rows = _row_copies(called, table)

    def call(seed: int) -> CallOutcome:
        try:
            with time_limit(limit_s):
                ending, numbers, fault, low_bits = called.call(rows, seed, from_outside)
        except BaseException as err:
            if limit_s is None or not from_outside(err) or isinstance(err, KeyboardInterrupt):
                raise
            return _out_of_time(limit_s)
        return CallOutcome(ending, np.array(numbers, np.float64), fault, low_bits)

    with global_randomness(SeedSequence(0)):  # as they were, afterwards
        return [call(seed) for seed in _seeds(seeds)]


def _row_copies(called: worker.AuditedFunction, table: pa.Table) -> Callable[[], Any]:
    header, body = _table_message(table)
    try:
        return called.rows(worker.columns_of(header, body))
    except worker.Refused as err:
        raise InputError(str(err)) from err


def _out_of_time(limit_s: float) -> CallOutcome:
    return CallOutcome(OUT_OF_TIME, np.empty(0), f"still running after {limit_s:g} s")


def _form(form: str) -> str:
    require(form in worker.FORMS, f"form must be one of {', '.join(worker.FORMS)}", form=form)
    return form


class OtherPython:
    """Calls a function in a Python of its own, which is started anew when a call ends it."""

    def __init__(
        self,
        python: str,
        function: str,
        *,
        form: str = "frame",
        settings: Mapping[str, Any] | None = None,
        timed: bool = False,
        limit_s: float | None = None,
        memory_bytes: int | None = None,
        path: Sequence[str] = (),
    ) -> None:
        """Nothing is started yet.

        Args:
            python: The program.
            function: Where `function(rows, rng, **settings)` is there: "module:name".
            form: Of the rows: one of `worker.FORMS`.
            settings: Numbers, words, None, and lists, tuples and dicts of these.
            timed: Whether the seconds that a call took are one of its numbers.
            limit_s: How long a call may take; one that takes longer is ended.
            memory_bytes: How much address space calls may take, beyond what the process has when its code is imported.
            path: Folders in which the module is looked for first.
        Raises: InputError for what no worker can be sent.
        """
        self._python, self._limit_s = python, limit_s
        self._request = _start(function, form, settings or {}, memory_bytes, path) | {"timed": timed}
        self._process: WorkerProcess | None = None
        self._known: dict[int, pa.Table] = {}  # the tables that the process has, by their names
        self._sent = 0

    def __enter__(self) -> Self:
        """Starts the worker; InputError when it cannot be."""
        self._up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(ENDED_S if err is None else 0.0)

    def call(self, table: pa.Table, seeds: Sequence[int]) -> list[CallOutcome]:
        """Calls the function on a table, once for each seed, in order; see `called_here`.

        A call that ends its process, hangs or takes too much memory has an outcome that says so, and the next one has
        a new process.

        Raises: InputError when the form cannot hold the table, or a worker cannot be started.
        """
        outcomes, numbers = list[CallOutcome](), _seeds(seeds)
        while len(outcomes) < len(numbers):
            self._batch(table, numbers[len(outcomes) : len(outcomes) + BATCH], outcomes)
        return outcomes

    def _batch(self, table: pa.Table, seeds: Sequence[int], outcomes: list[CallOutcome]) -> None:
        """Outcomes of the first of these seeds, up to one that ended the process."""
        process = self._up()
        try:
            process.send({"table": self._name(process, table), "seeds": list(seeds)}, limit_s=self._limit_s)
            for _ in seeds:
                outcomes.append(_outcome(*process.answer(limit_s=self._limit_s)))  # noqa: PERF401  (kept when one ends it)
        except WorkerEnded as err:
            self._process = None
            outcomes.append(CallOutcome(err.ending, np.empty(0), str(err)))
        except BaseException:  # answers may be left in the pipe
            self._end()
            raise

    def _up(self) -> WorkerProcess:
        if self._process is None:
            self._known = {}
            self._process, _ = start_worker(self._python, self._request)
        return self._process

    def _name(self, process: WorkerProcess, table: pa.Table) -> int:
        """The name of a table, which is sent when the process has it not."""
        for name, known in self._known.items():
            if known is table:
                return name
        if len(self._known) == worker.TABLES:  # the process forgets the same one
            del self._known[min(self._known)]
        header, body = _table_message(table)
        self._sent += 1
        process.prepare({**header, "table": self._sent}, body)
        self._known[self._sent] = table
        return self._sent

    def _end(self, patience_s: float = 0.0) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(patience_s)


def identity(python: str, function: str, *, path: Sequence[str] = ()) -> str:
    """What the outcomes of a function depend on: its Python's version, its file, the distribution it belongs to.

    Raises: InputError when it cannot be imported there.
    """
    process, words = start_worker(python, {**_start(function, "list", {}, None, path), "identity": True})
    process.end()
    return words


def _start(
    function: str, form: str, settings: Mapping[str, Any], memory_bytes: int | None, path: Sequence[str]
) -> dict[str, Any]:
    module, _, name = function.partition(":")
    require(bool(module and name), "a function in another Python must be given as `module:name`", function=function)
    request = {
        "function": function,
        "form": _form(form),
        "settings": worker.plain(dict(settings)),
        "memory_bytes": memory_bytes,
        "timed": False,
        "path": [str(folder) for folder in path],
        "identity": False,
    }
    try:
        json.dumps(request)
    except (TypeError, ValueError) as err:
        raise InputError(f"settings must be numbers, words, and lists, tuples and dicts of these: {err}") from err
    return request


def _outcome(answer: Mapping[str, Any], body: bytes) -> CallOutcome:
    numbers = np.frombuffer(body, "<f8", count=len(body) // 8).astype(np.float64)
    low_bits = min(int(answer.get("low_bits", 0)), len(numbers))
    return CallOutcome(str(answer.get("ending", "")), numbers, str(answer.get("fault", "")), max(0, low_bits))


def _seeds(seeds: Sequence[int]) -> list[int]:
    numbers = [int(seed) for seed in seeds]
    require(min(numbers, default=0) >= 0, "a seed must be >= 0", seed=min(numbers, default=0))
    return numbers


def _table_message(table: pa.Table) -> tuple[dict[str, Any], bytes]:
    """A table as a worker reads it: words in the header, numbers behind it."""
    columns: list[dict[str, Any]] = []
    body: list[bytes] = []
    kinds = {pa.float64(): ("float", "<f8"), pa.int64(): ("whole", "<i8")}
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
    """The worker is gone, or was ended; `ending` says how in a word or two, the text for people."""

    def __init__(self, ending: str, text: str) -> None:
        super().__init__(text)
        self.ending = ending


class WorkerProcess:
    """One process; when it has ended, it stays ended."""

    def __init__(self, python: str) -> None:
        """Raises: InputError when there is no such Python."""
        requests, answers, alive, printed = (os.pipe() for _ in range(4))
        self._requests, self._answers, self._printed = requests[1], answers[0], printed[0]
        self._ours = [requests[1], answers[0], alive[1], printed[0]]
        theirs = (requests[0], answers[1], alive[0])
        self._received, self._lines, self._heard = bytearray(), bytearray(), time.monotonic()
        try:
            self._process = subprocess.Popen(
                [python, worker.__file__, *map(str, theirs)],
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
                stdout=printed[1],
                stderr=printed[1],
                process_group=0,  # Ctrl-C is for the parent, and whatever it leaves running is ended with it
                env={**os.environ, "PYTHONHASHSEED": "0"},  # sets have one order for all workers
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
        """Has it do what is no call, and so is under no limit of one; what it says when it is ready.

        Raises: InputError when it refuses; Ended.
        """
        self.send(header, body, limit_s=PREPARED_S)
        answer, _ = self.answer(limit_s=PREPARED_S)
        if "refused" in answer:
            raise InputError(shortened(answer["refused"], 400))
        return str(answer.get("ready", ""))

    def send(self, header: Mapping[str, Any], body: bytes = b"", *, limit_s: float | None = None) -> None:
        """A request, of which the process must read some every `limit_s` seconds; Ended when it does not."""
        unsent = memoryview(worker.message(header, body))
        self._heard = time.monotonic()
        self._poll.register(self._requests, select.POLLOUT)
        try:
            while unsent:
                if self._wait(limit_s) & {self._requests}:
                    unsent = unsent[os.write(self._requests, unsent) :]
                    self._heard = time.monotonic()
        except BrokenPipeError:
            raise self._ended_by_itself() from None
        finally:
            with contextlib.suppress(KeyError, OSError):
                self._poll.unregister(self._requests)

    def answer(self, *, limit_s: float | None = None) -> tuple[dict[str, Any], bytes]:
        """The next answer, which must come within `limit_s` seconds of the one before; Ended when there is none."""
        while (message := self._next()) is None:
            if self._answers in self._wait(limit_s):
                more = os.read(self._answers, CHUNK)
                if not more:
                    raise self._ended_by_itself()
                self._received += more
        return message

    def end(self, patience_s: float = 0.0) -> int:
        """Ends it, and what it started, when it had so long to end by itself; its exit code."""
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

    def last_lines(self) -> str:
        """The end of what it printed, in one line."""
        with contextlib.suppress(OSError):  # it was ended before
            os.set_blocking(self._printed, False)
            while self._hear():
                pass
        lines = self._lines.decode(errors="replace").strip().splitlines()
        return shortened(lines[-1]) if lines else ""

    def _wait(self, limit_s: float | None) -> set[int]:
        """Which descriptors can be used; what was printed is read."""
        left_ms = None if limit_s is None else max(0.0, self._heard + limit_s - time.monotonic()) * 1e3
        ready = {number for number, _ in self._poll.poll(left_ms)}
        useless = not ready & {self._answers, self._requests}  # it may print without end
        if useless and limit_s is not None and time.monotonic() - self._heard >= limit_s:
            self.end()
            raise WorkerEnded(OUT_OF_TIME, f"still running after {limit_s:g} s")
        if self._printed in ready and not self._hear():
            self._poll.unregister(self._printed)
        return ready

    def _hear(self) -> int:
        more = os.read(self._printed, CHUNK)
        self._lines = (self._lines + more)[-KEPT_BYTES:]
        return len(more)

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        size = worker.HEAD.size
        if len(self._received) < size:
            return None
        mark, words, behind, checksum = worker.HEAD.unpack_from(self._received)
        if mark != worker.MARK or words > MOST_WORDS or behind > MOST_BEHIND:
            raise self._garbled()
        end = size + words + behind
        if len(self._received) < end:
            return None
        header, body = bytes(self._received[size : size + words]), bytes(self._received[size + words : end])
        if checksum != zlib.crc32(body, zlib.crc32(header)):
            raise self._garbled()
        del self._received[:end]
        self._heard = time.monotonic()
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
            self._process.wait(ENDED_S)
        last = self.last_lines()
        code = self.end()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return WorkerEnded(
            f"process ended: {how}", f"its process ended: {how}" + (f"; it printed: {last}" if last else "")
        )

    def _close(self) -> None:
        ours, self._ours = self._ours, []
        for number in ours:
            os.close(number)


def start_worker(python: str, request: Mapping[str, Any]) -> tuple[WorkerProcess, str]:
    """A worker that has imported its function, and what it says of itself.

    Raises: InputError when it does not come so far.
    """
    process = WorkerProcess(python)
    try:
        return process, process.prepare(request)
    except WorkerEnded as err:
        raise InputError(f"a worker must start in {shortened(repr(python))}: {err}") from err
    except InputError as err:
        process.end()
        raise InputError(f"{err}; the Python is {shortened(repr(python))}") from err
    except BaseException:
        process.end()
        raise
