"""A worker in another Python, from outside: started, written to, listened to, ended.

The process is no one's friend: it may die, hang, print without end and write into every descriptor it finds. What it
prints is read with what it answers, and its last lines are kept; an answer that is no message ends it.
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
from collections.abc import Mapping
from typing import Any

from dpaudit.errors import InputError, shortened
from dpaudit.mechanisms.adapters.other_python import worker

PREPARED_S = 300.0  # on a machine that is busy, libraries take long to load
ENDED_S = 2.0  # what closed its pipes and has not ended so long after is killed
MOST_BEHIND = 8 * (worker.MAX_NUMBERS * 2)  # bytes of numbers in an answer
MOST_WORDS = 1 << 20  # bytes of an answer's header
KEPT_BYTES = 4_000  # of what it printed
CHUNK = 1 << 18  # bytes read at a time


class Ended(Exception):
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
        left = memoryview(worker.packed(header, body))
        self._heard = time.monotonic()
        self._poll.register(self._requests, select.POLLOUT)
        try:
            while left:
                if self._wait(limit_s) & {self._requests}:
                    left = left[os.write(self._requests, left) :]
                    self._heard = time.monotonic()
        except BrokenPipeError:
            raise self._gone() from None
        finally:
            with contextlib.suppress(KeyError, OSError):
                self._poll.unregister(self._requests)

    def answer(self, *, limit_s: float | None = None) -> tuple[dict[str, Any], bytes]:
        """The next answer, which must come within `limit_s` seconds of the one before; Ended when there is none."""
        while (found := self._next()) is None:
            if self._answers in self._wait(limit_s):
                more = os.read(self._answers, CHUNK)
                if not more:
                    raise self._gone()
                self._received += more
        return found

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
            raise Ended(worker.OUT_OF_TIME, f"still running after {limit_s:g} s")
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
            found = json.loads(header)
        except (ValueError, RecursionError):
            raise self._garbled() from None
        return (found, body) if isinstance(found, dict) else ({}, body)

    def _garbled(self) -> Ended:
        self.end()
        return Ended("process ended: wrote into the pipe of its worker", "it wrote into the pipe of its worker")

    def _gone(self) -> Ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDED_S)
        last = self.last_lines()
        code = self.end()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return Ended(f"process ended: {how}", f"its process ended: {how}" + (f"; it printed: {last}" if last else ""))

    def _close(self) -> None:
        ours, self._ours = self._ours, []
        for number in ours:
            os.close(number)


def started(python: str, request: Mapping[str, Any]) -> tuple[WorkerProcess, str]:
    """A worker that has imported its function, and what it says of itself.

    Raises: InputError when it does not come so far.
    """
    process = WorkerProcess(python)
    try:
        return process, process.prepare(request)
    except Ended as err:
        raise InputError(f"a worker must start in {shortened(repr(python))}: {err}") from err
    except InputError as err:
        process.end()
        raise InputError(f"{err}; the Python is {shortened(repr(python))}") from err
    except BaseException:
        process.end()
        raise
