"""Signals and time limits as exceptions. SIGTERM and SIGHUP end a run in order, as Ctrl-C does.

Audited code may raise any exception, including `SystemExit` and `KeyboardInterrupt`. Then only its unit or trial fails,
and the run continues.
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
DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
SWALLOWED_S = 10.0  # a library may swallow an interrupt and raise its own `KeyboardInterrupt` within this time
REPEATED_SIGNAL_S = 2.0  # signals this close together count as one: terminal and parent process may both send one


class _InterruptHandler:
    """Signal handler that raises `Terminated`, once for repeated signals."""

    def __init__(self) -> None:
        self.last_signal = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        previous, self.last_signal = self.last_signal, time.monotonic()
        if self.last_signal - previous >= REPEATED_SIGNAL_S:
            raise Terminated(signal.Signals(number).name)


class Terminated(KeyboardInterrupt):
    """A signal asked this process to end; the message is the signal's name."""


@contextmanager
def signals_interrupt(numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Raise `Terminated` in the block when one of the signals `numbers` arrives.

    Only default handlers are replaced: other handlers, and ignored signals (`nohup`), stay. Does nothing outside the
    main thread, where Python cannot set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = _InterruptHandler()
    replaced = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) in DEFAULT_HANDLERS}
    for number in replaced:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def raised_externally(err: BaseException) -> bool:
    """True if a signal or a time limit raised `err`, and not the code that ran.

    A `KeyboardInterrupt` comes from the code itself if a signal would not have raised it: outside the main thread,
    inside `signals_interrupt`, or if SIGINT is ignored. Shortly after a signal it counts as external: CatBoost catches
    the interrupt and raises its own.
    """
    if isinstance(err, Terminated | TimeLimitExceeded):
        return True
    if not isinstance(err, KeyboardInterrupt):
        return False
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, _InterruptHandler) and time.monotonic() - handler.last_signal < SWALLOWED_S:
            return True
    return not (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        or isinstance(signal.getsignal(signal.SIGINT), _InterruptHandler)
    )


class TimeLimitExceeded(BaseException):
    """A unit ran longer than its limit. Not an `Exception`, so that audited code does not catch it by mistake."""


@contextmanager
def time_limit(limit_s: float | None) -> Iterator[None]:
    """Raise `TimeLimitExceeded` in a block that runs longer than `limit_s` seconds.

    Works for Python code in the main thread, on POSIX. None sets no limit.
    """
    supported = sys.platform != "win32" and threading.current_thread() is threading.main_thread()
    if limit_s is None or not supported:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeLimitExceeded

    start = time.monotonic()
    handler = signal.signal(signal.SIGALRM, end)
    # An alarm set earlier, for example by a test runner, is restored with its remaining time.
    other_alarm_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if other_alarm_s:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, other_alarm_s - (time.monotonic() - start)))
