"""Units in a process of their own beside this one: for code that nobody here wrote, run without Ray.

What goes to the process is pickled; what comes back is read as text and numbers alone, since the code that ran there
may have made it. It is no wall: the code has the user's rights, there as here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pyarrow as pa

import dpaudit
from dpaudit.actors.backend import Attempt, Completion, Deadlines, InProcess
from dpaudit.actors.events import EventStream, last_line
from dpaudit.actors.storage.places import Scratch
from dpaudit.actors.storage.store import table_in
from dpaudit.actors.unit import Unit
from dpaudit.errors import RunError

_BYTES = ("content", "printed")
_KINDS = {"seconds": float, "error": str, "retryable": bool, "memory_mb": float, "worker": str, "table_bytes": int}
START_S = 300.0  # on a machine that is busy, libraries take long to load
ENDED_S = 5.0  # a child that has nothing to do ends at once when it is told; one that has not so long after is killed


class InChild(InProcess):
    """Runs units one after another in a child of this process; one that dies or hangs is replaced."""

    def __init__(
        self, shared: Mapping[str, Any], scratch: Scratch | None, events: EventStream, deadlines: Deadlines
    ) -> None:
        super().__init__({}, scratch, events, deadlines)
        self._given = dict(shared), scratch
        self._child: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None

    def wait(self) -> list[Completion]:
        unit, tables, needed = self._queue.popleft()
        limit_s, began = self._deadlines.limit_s(unit), time.monotonic()
        try:
            with self._shown(unit):
                line = self._up()
                line.send_bytes(cloudpickle.dumps((unit, tables)))
                if not line.poll(limit_s):
                    assert limit_s is not None
                    self._end()
                    return [Completion(unit, Attempt(limit_s, self._deadlines.refusal(limit_s), retryable=True))]
                attempt = _received(line)
        except (OSError, EOFError, ValueError, TypeError, KeyError, RecursionError) as err:
            code = self._end()
            why = f"the process that ran it ended (exit code {code}; {type(err).__name__})"
            return [Completion(unit, Attempt(time.monotonic() - began, why, retryable=True), worker_died=True)]
        if attempt.error:
            return [Completion(unit, attempt)]
        self._deadlines.learn(unit, attempt.seconds)
        return [Completion(unit, attempt, table_in(attempt.content) if needed else None)]

    def close(self) -> None:
        super().close()
        self._end(patience_s=ENDED_S)

    def _up(self) -> Connection:
        """The line to the child, which is started where there is none."""
        if self._line is None:
            ours, theirs = Pipe()
            command = [sys.executable, "-m", "dpaudit.actors.child", str(theirs.fileno())]
            root = str(Path(dpaudit.__file__).absolute().parent.parent)
            paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
            environment = {**os.environ, "PYTHONPATH": paths}
            self._child = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), env=environment, stdin=subprocess.DEVNULL
            )
            theirs.close()
            ours.send_bytes(json.dumps(sys.path).encode())
            ours.send_bytes(cloudpickle.dumps(self._given))
            self._line = ours
            if not ours.poll(START_S):
                raise TimeoutError(f"it did not start within {START_S:.0f} s")
            ours.recv_bytes()  # it is up: from now on time counts for the unit
        return self._line

    def _end(self, patience_s: float = 0.0) -> int | None:
        """Ends the child; its exit code."""
        if self._line is not None:
            self._line.close()
        child, self._line, self._child = self._child, None, None
        if child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(patience_s)
        child.kill()
        return child.wait()


def run_afresh(unit: Unit) -> pa.Table:
    """What a unit gives in a process that has made no call before, and makes none after; RunError when it failed."""
    backend = InChild({}, None, EventStream(), Deadlines())
    with contextlib.closing(backend):
        backend.submit(unit, (), needed=True)
        (done,) = backend.wait()
    if done.attempt.error:
        raise RunError(last_line(done.attempt.error))
    return done.table


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
    sys.path[:] = json.loads(line.recv_bytes())
    shared, scratch = cloudpickle.loads(line.recv_bytes())
    backend = InProcess(shared, scratch)
    line.send_bytes(b"up")
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            unit, tables = cloudpickle.loads(line.recv_bytes())
            backend.submit(unit, tables, needed=False)
            (done,) = backend.wait()
            _sent(line, done.attempt)


if __name__ == "__main__":
    main(int(sys.argv[1]))
