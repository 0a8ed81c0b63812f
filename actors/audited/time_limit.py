"""A block of code that runs too long is ended: how the runner in this process ends a unit.

It imports nothing of what it ends, so that what only waits for signals stays light.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class OutOfTime(BaseException):
    """A unit ran longer than its limit; no `except Exception` of somebody's code takes it for an error of its own."""


@contextmanager
def time_limit(limit_s: float | None) -> Iterator[None]:
    """Raises `OutOfTime` in a block that runs longer, where the system can: in the main thread, on POSIX.

    Code of other languages is left running until it comes back to the interpreter.
    """
    able = sys.platform != "win32" and threading.current_thread() is threading.main_thread()
    if limit_s is None or not able:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, end)
    # Somebody else's alarm, such as a test runner's, goes on counting afterwards.
    others_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others_s:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, others_s - (time.monotonic() - began)))
