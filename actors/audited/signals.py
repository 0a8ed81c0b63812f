"""What ends a process from outside (SIGTERM, SIGHUP) ends a run as Ctrl-C does: in order, nothing lost.

Audited code may raise anything too, `SystemExit` and `KeyboardInterrupt` among it: then its own unit or trial has
failed, and the run goes on.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__)
USUAL = (signal.SIG_DFL, signal.default_int_handler)
SWALLOWED_S = 10.0  # a library that was interrupted so long ago may raise a `KeyboardInterrupt` of its own instead
SAME_WISH_S = 2.0  # a second signal so soon says nothing new: a terminal and a parent both send one, a hand shakes


class _Interrupts:
    """Handles signals by raising `Terminated`, once for several of one wish."""

    def __init__(self) -> None:
        self.heard = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self.heard = self.heard, time.monotonic()
        if self.heard - before >= SAME_WISH_S:
            raise Terminated(signal.Signals(number).name)


class Terminated(KeyboardInterrupt):
    """The process was asked to end; the text says by which signal."""


@contextmanager
def signals_interrupt(numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Raises `Terminated` in the block for one of these signals that would have ended the process without a word.

    A handler that somebody else installed, and a signal that is ignored (`nohup`), stay as they are; so does every one
    outside the main thread, where Python lets nobody change them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = _Interrupts()
    taken = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) in USUAL}
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def from_outside(err: BaseException) -> bool:
    """Whether something else than the code that ran raised this: a signal, or the limit of its time.

    `KeyboardInterrupt` is the code's own where a signal would not have raised it: outside the main thread, inside
    `signals_interrupt`, and where the signal is ignored. Not so just after a signal: CatBoost raises its own then.
    """
    if isinstance(err, Terminated | OutOfTime):
        return True
    handlers = [handler for number in SIGNALS if isinstance(handler := signal.getsignal(number), _Interrupts)]
    if isinstance(err, KeyboardInterrupt) and any(time.monotonic() - one.heard < SWALLOWED_S for one in handlers):
        return True
    told_apart = (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        or isinstance(signal.getsignal(signal.SIGINT), _Interrupts)
    )
    return isinstance(err, KeyboardInterrupt) and not told_apart


class OutOfTime(BaseException):
    """A unit ran longer than its limit; no `except Exception` of somebody's code takes it for an error of its own."""


@contextmanager
def time_limit(limit_s: float | None) -> Iterator[None]:
    """Raises `OutOfTime` in a block that runs longer, in Python code of the main thread, on POSIX."""
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
