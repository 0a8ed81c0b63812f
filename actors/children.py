"""Units in processes of their own beside this one, without Ray.

Several share the work of a machine, or one runs code that nobody here wrote. What goes to a process is pickled; what
comes back is read as text and numbers alone, since the code that ran there may have made it. It is no wall: the code
has the user's rights, there as here.
"""

from __future__ import annotations

import contextlib
import json
import os
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
from dpaudit.actors.backend import REMIND_S, Attempt, Completion, Deadlines, Handle, InProcess
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.storage.places import Scratch
from dpaudit.actors.storage.store import table_in
from dpaudit.actors.unit import Resources, Unit

_BYTES = ("content", "printed")
_KINDS = {"seconds": float, "error": str, "retryable": bool, "memory_mb": float, "worker": str, "table_bytes": int}
_BROKEN = (OSError, EOFError, ValueError, TypeError, KeyError, RecursionError)
"""What a line to a child that is lost raises, and what a unit that cannot be sent does."""
START_S = 300.0  # on a machine that is busy, libraries take long to load
ENDED_S = 5.0  # a child that has nothing to do ends at once when it is told; one that has not so long after is killed

_Job: TypeAlias = tuple[Unit, tuple[Handle, ...], bool]  # with the tables it needs, and whether others need its own


@dataclass(eq=False)
class _Child:
    """A process, from the moment it is begun."""

    process: subprocess.Popen[bytes]
    line: Connection
    up: bool = False  # whether it takes units: until then no time counts for one
    job: _Job | None = None  # what it runs
    since: float = field(default_factory=time.monotonic)  # when it was begun; later, when what it runs was
    reminded: float = field(default_factory=time.monotonic)  # when it was last said that this still runs

    @classmethod
    def begun(cls) -> _Child:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "dpaudit.actors.children", str(theirs.fileno())]
        root = str(Path(dpaudit.__file__).absolute().parent.parent)
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": paths}
        process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver, which ends them
        )
        theirs.close()
        return cls(process, ours)

    def run(self, job: _Job) -> None:
        self.job = job
        self.since = self.reminded = time.monotonic()
        self.line.send_bytes(cloudpickle.dumps(job[:2]))

    def end(self) -> int | None:
        """Ends the process, at once where it runs something; its exit code."""
        self.line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(0.0 if self.job else ENDED_S)
        self.process.kill()
        return self.process.wait()


class InChildren:
    """Runs units in children of this process, `count` at a time; a child that dies or hangs is replaced."""

    def __init__(
        self,
        shared: Mapping[str, Any],
        scratch: Scratch | None,
        events: EventStream,
        deadlines: Deadlines,
        count: int = 1,
    ) -> None:
        self._given = cloudpickle.dumps((dict(shared), scratch))
        self._events, self._deadlines, self._count = events, deadlines, count
        self._queue: deque[_Job] = deque()
        self._children: list[_Child] = []

    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        return self._count - len(self._queue) - len(self._busy())

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        self._queue.append((unit, tables, needed))

    def wait(self) -> list[Completion]:
        while True:
            back = self._give()
            busy = {child.line: child for child in self._busy()}
            ready = wait(list(busy), timeout=0.0 if back else self._next_look_s())
            back += [done for line in ready if (done := self._heard(busy[line])) is not None]  # type: ignore[index]
            back += self._looked()
            if back:
                return back

    def hold(self, table: pa.Table) -> Handle:
        return table

    def close(self) -> None:
        self._queue.clear()
        for child in self._children:
            child.line.close()  # all end side by side
        while self._children:
            self._children.pop().end()

    def _busy(self) -> list[_Child]:
        return [child for child in self._children if child.job is not None]

    def _give(self) -> list[Completion]:
        """Gives what is queued to children that have nothing to do; new ones load their libraries side by side."""
        idle = [child for child in self._children if child.job is None]
        new = [_Child.begun() for _ in range(len(self._queue) - len(idle))]
        self._children += new
        lost: list[Completion] = []
        for child in [*idle, *new]:
            if not self._queue:
                break
            job = self._queue.popleft()
            try:
                if not child.up:
                    child.line.send_bytes(json.dumps(sys.path).encode())
                    child.line.send_bytes(self._given)
                child.run(job)
            except _BROKEN as err:
                child.job = job
                lost.append(self._lost(child, err))
        return lost

    def _heard(self, child: _Child) -> Completion | None:
        """What a child has to say: that it is up, how its unit ended, or nothing any more."""
        assert child.job is not None
        unit, _, needed = child.job
        try:
            if not child.up:
                child.line.recv_bytes()
                child.up = True
                child.since = child.reminded = time.monotonic()
                return None
            attempt = _received(child.line)
            table = table_in(attempt.content) if needed and not attempt.error else None
        except _BROKEN as err:
            return self._lost(child, err)
        child.job = None
        if not attempt.error:
            self._deadlines.learn(unit, attempt.seconds)
        return Completion(unit, attempt, table)

    def _lost(self, child: _Child, err: Exception) -> Completion:
        code = self._end(child)
        by = f"by {signal.Signals(-code).name}" if code and -code in [*signal.Signals] else f"with exit code {code}"
        why = f"the process that ran it ended {by} ({type(err).__name__})"
        if code == -signal.SIGKILL:  # which the system sends where memory is short, and few else
            why += "; where nobody killed it, memory ran out: give the run fewer `workers`, or the unit less to hold"
        return self._without_result(child, why, worker_died=True)

    def _end(self, child: _Child) -> int | None:
        self._children.remove(child)
        return child.end()

    @staticmethod
    def _without_result(child: _Child, why: str, *, worker_died: bool = False) -> Completion:
        assert child.job is not None
        return Completion(
            child.job[0], Attempt(time.monotonic() - child.since, why, retryable=True), worker_died=worker_died
        )

    def _limit_s(self, child: _Child) -> float | None:
        assert child.job is not None
        return self._deadlines.limit_s(child.job[0]) if child.up else START_S

    def _next_look_s(self) -> float:
        """Seconds until a child may have run too long, or is to be shown."""
        now = time.monotonic()
        limits = [(child, limit) for child in self._busy() if (limit := self._limit_s(child)) is not None]
        return max(0.0, min([REMIND_S, *(child.since + limit - now for child, limit in limits)]))

    def _looked(self) -> list[Completion]:
        """Units that ran too long; says which others still run."""
        now, back = time.monotonic(), []
        for child in self._busy():
            assert child.job is not None
            unit, limit_s = child.job[0], self._limit_s(child)
            if limit_s is not None and now - child.since >= limit_s:
                self._end(child)
                late = f"the process that was to run it did not start within {START_S:.0f} s"
                why = self._deadlines.refusal(limit_s) if child.up else late
                back.append(self._without_result(child, why, worker_died=not child.up))
            elif now - child.reminded >= REMIND_S:
                child.reminded = now
                self._events.emit(Event(EventKind.UNIT_RUNNING, unit.key, unit.label, seconds=now - child.since))
        return back


def _sent(line: Connection, attempt: Attempt) -> None:
    plain = {name: value for name, value in vars(attempt).items() if name not in _BYTES}
    line.send_bytes(json.dumps(plain).encode())
    for name in _BYTES:
        line.send_bytes(getattr(attempt, name))


def _received(line: Connection) -> Attempt:
    """An attempt as the child tells it; nothing of it is unpickled."""
    plain = json.loads(line.recv_bytes())
    content, printed = (line.recv_bytes() for _ in _BYTES)
    known: dict[str, Any] = {name: kind(plain[name]) for name, kind in _KINDS.items()}
    return Attempt(**known, remarks=tuple(map(str, plain["remarks"])), content=content, printed=printed)


def main(number: int) -> None:
    """Serves units until the other end of the line is closed."""
    line = Connection(number)
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            sys.path[:] = json.loads(line.recv_bytes())
            shared, scratch = cloudpickle.loads(line.recv_bytes())
            backend = InProcess(shared, scratch)
            line.send_bytes(b"up")
            while True:
                unit, tables = cloudpickle.loads(line.recv_bytes())
                backend.submit(unit, tables, needed=False)
                (done,) = backend.wait()
                _sent(line, done.attempt)
        except KeyboardInterrupt as err:
            _end_by(err)


def _end_by(interrupt: KeyboardInterrupt) -> None:
    """Ends this process by the signal that interrupted it, without a traceback: the driver says what became of it."""
    number = signal.Signals.__members__.get(str(interrupt), signal.SIGINT)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
