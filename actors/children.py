"""Backend that runs units in child processes, without Ray.

Several children share the work of a machine, or one child runs code from another person. Units are sent pickled.
Results are parsed as text and numbers only, never unpickled, because the code in the child may have forged them. This
is no sandbox: the code in the child has the user's rights.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import pyarrow as pa

import dpaudit
from dpaudit.actors.backend import REMIND_S, Attempt, Completion, Deadlines, Handle, InProcess, still_running
from dpaudit.actors.events import EventStream
from dpaudit.actors.storage.store import decode_unit
from dpaudit.actors.unit import Resources, Unit
from dpaudit.plain_files import Scratch

_BYTES = ("content", "printed")
_FIELDS = {
    "seconds": float,
    "error": str,
    "retryable": bool,
    "memory_mb": float,
    "worker": str,
    "table_bytes": int,
}
_CONNECTION_ERRORS = (OSError, EOFError, ValueError, TypeError, KeyError, RecursionError)
"""Raised by a broken connection to a child, and for a unit that cannot be pickled."""
START_S = 300.0  # limit for the start of a child; loading libraries is slow on a busy machine
ENDED_S = 5.0  # an idle child that has not ended this long after its connection was closed is killed

_Job: TypeAlias = tuple[Unit, tuple[Handle, ...], bool]  # unit, tables it needs, True if others need its result


@dataclass(eq=False)
class _Child:
    """A child process and its state."""

    process: subprocess.Popen[bytes]
    connection: Connection
    is_ready: bool = False  # True once it has loaded its libraries; the time of its job counts from then
    job: _Job | None = None  # the job that it runs
    started: float = field(default_factory=time.monotonic)  # start of the process, later of its job
    reminded: float = field(default_factory=time.monotonic)  # time of the last UNIT_RUNNING event of its job

    @classmethod
    def start(cls) -> _Child:
        parent_end, child_end = Pipe()
        command = [sys.executable, "-m", "dpaudit.actors.children", str(child_end.fileno())]
        root = str(Path(dpaudit.__file__).absolute().parent.parent)
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": paths}
        process = subprocess.Popen(
            command,
            pass_fds=(child_end.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C reaches only the driver, which ends the children
        )
        child_end.close()
        return cls(process, parent_end)

    def run(self, job: _Job) -> None:
        self.job = job
        self.started = self.reminded = time.monotonic()
        self.connection.send_bytes(cloudpickle.dumps(job[:2]))

    def end(self) -> int | None:
        """End the process, immediately if it runs a job; return its exit code."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(0.0 if self.job else ENDED_S)
        self.process.kill()
        return self.process.wait()


class ChildProcesses:
    """Runs units in `count` child processes; a child that dies or hangs is replaced."""

    runs_answers = False

    def __init__(
        self,
        shared: Mapping[str, Any],
        scratch: Scratch | None,
        events: EventStream,
        deadlines: Deadlines,
        count: int = 1,
    ) -> None:
        self._setup = cloudpickle.dumps((dict(shared), scratch))
        self._events, self._deadlines, self._count = events, deadlines, count
        self._queue: deque[_Job] = deque()
        self._children: list[_Child] = []

    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        return self._count - len(self._queue) - len(self._busy())

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        self._queue.append((unit, tables, needed))

    def wait(self) -> list[Completion]:
        while True:
            completions = self._dispatch()
            busy = {child.connection: child for child in self._busy()}
            now = time.monotonic()
            limits = [(child, limit) for child in busy.values() if (limit := self._limit_s(child)) is not None]
            next_check_s = max(0.0, min([REMIND_S, *(child.started + limit - now for child, limit in limits)]))
            ready = wait(list(busy), timeout=0.0 if completions else next_check_s)
            completions += [completion for line in ready if (completion := self._receive(busy[line])) is not None]  # type: ignore[index]
            completions += self._check_deadlines()
            if completions:
                return completions

    def hold(self, table: pa.Table) -> Handle:
        return table

    def close(self) -> None:
        self._queue.clear()
        for child in self._children:
            child.connection.close()  # all children end at the same time
        while self._children:
            self._children.pop().end()

    def _busy(self) -> list[_Child]:
        return [child for child in self._children if child.job is not None]

    def _dispatch(self) -> list[Completion]:
        """Send queued jobs to idle and new children; return the jobs that could not be sent."""
        idle = [child for child in self._children if child.job is None]
        new = [_Child.start() for _ in range(len(self._queue) - len(idle))]
        self._children += new
        failed: list[Completion] = []
        for child in [*idle, *new]:
            if not self._queue:
                break
            job = self._queue.popleft()
            try:
                if not child.is_ready:
                    child.connection.send_bytes(json.dumps(sys.path).encode())
                    child.connection.send_bytes(self._setup)
                child.run(job)
            except _CONNECTION_ERRORS as err:
                child.job = job
                failed.append(self._worker_died(child, err))
        return failed

    def _receive(self, child: _Child) -> Completion | None:
        """Read a message of a child; return its unit's completion, None if the message is that the child is ready."""
        assert child.job is not None
        unit, _, needed = child.job
        try:
            if not child.is_ready:
                child.connection.recv_bytes()
                child.is_ready = True
                child.started = child.reminded = time.monotonic()
                return None
            attempt = _receive_attempt(child.connection)
            table = decode_unit(attempt.content) if needed and not attempt.error else None
        except _CONNECTION_ERRORS as err:
            return self._worker_died(child, err)
        child.job = None
        if not attempt.error:
            self._deadlines.learn(unit, attempt.seconds)
        return Completion(unit, attempt, table)

    def _worker_died(self, child: _Child, err: Exception) -> Completion:
        self._children.remove(child)
        code = child.end()
        by = f"by {signal.Signals(-code).name}" if code and -code in [*signal.Signals] else f"with exit code {code}"
        reason = f"the process that ran it ended {by} ({type(err).__name__})"
        if code == -signal.SIGKILL:  # sent by the system when memory is short
            reason += "; unless a user killed it, memory ran out: use fewer `workers`, or units that need less memory"
        return self._failed_completion(child, reason, worker_died=True)

    @staticmethod
    def _failed_completion(child: _Child, reason: str, *, worker_died: bool = False) -> Completion:
        assert child.job is not None
        return Completion(
            child.job[0], Attempt(time.monotonic() - child.started, reason, retryable=True), worker_died=worker_died
        )

    def _limit_s(self, child: _Child) -> float | None:
        assert child.job is not None
        return self._deadlines.limit_s(child.job[0]) if child.is_ready else START_S

    def _check_deadlines(self) -> list[Completion]:
        """Return the units that exceeded their limits; emit UNIT_RUNNING for others."""
        now, completions = time.monotonic(), []
        for child in self._busy():
            assert child.job is not None
            unit, limit_s = child.job[0], self._limit_s(child)
            if limit_s is not None and now - child.started >= limit_s:
                self._children.remove(child)
                child.end()
                start_timeout = f"the process that was to run it did not start within {START_S:.0f} s"
                reason = self._deadlines.timeout_message(limit_s) if child.is_ready else start_timeout
                completions.append(self._failed_completion(child, reason, worker_died=not child.is_ready))
            elif now - child.reminded >= REMIND_S:
                child.reminded = now
                worker = f"{platform.node()}:{child.process.pid}"
                self._events.emit(still_running(unit, now - child.started, worker))
        return completions


def _receive_attempt(connection: Connection) -> Attempt:
    """Return the attempt that a child sent, without unpickling anything."""
    plain = json.loads(connection.recv_bytes())
    content, printed = (connection.recv_bytes() for _ in _BYTES)
    values: dict[str, Any] = {name: kind(plain[name]) for name, kind in _FIELDS.items()}
    return Attempt(**values, remarks=tuple(map(str, plain["remarks"])), content=content, printed=printed)


def main(number: int) -> None:
    """Run units in this child process until the parent closes the connection."""
    connection = Connection(number)
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            sys.path[:] = json.loads(connection.recv_bytes())
            shared, scratch = cloudpickle.loads(connection.recv_bytes())
            backend = InProcess(shared, scratch)
            connection.send_bytes(b"up")
            while True:
                unit, tables = cloudpickle.loads(connection.recv_bytes())
                backend.submit(unit, tables, needed=False)
                (completion,) = backend.wait()
                sent = vars(completion.attempt)
                plain = {name: value for name, value in sent.items() if name not in _BYTES}
                for message in (json.dumps(plain).encode(), *(sent[name] for name in _BYTES)):
                    connection.send_bytes(message)
        except KeyboardInterrupt as err:  # the signal ends this process without a traceback
            number = signal.Signals.__members__.get(str(err), signal.SIGINT)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
