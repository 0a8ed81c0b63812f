"""What ends a process from outside (SIGTERM, SIGHUP) ends a run as Ctrl-C does: in order, nothing lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__)
USUAL = (signal.SIG_DFL, signal.default_int_handler)
SAME_WISH_S = 2.0
"""A second signal within this time says nothing new: a terminal and a parent process both send one, a hand shakes."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end; the text says by which signal."""


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raises `Terminated` in the block for a signal that would have ended the process without a word.

    A handler that somebody else installed, and a signal that is ignored (`nohup`), stay as they are; so does every one
    outside the main thread, where Python lets nobody change them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = -SAME_WISH_S

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        before, heard = heard, time.monotonic()
        if heard - before >= SAME_WISH_S:
            raise Terminated(signal.Signals(number).name)

    taken = {number: signal.getsignal(number) for number in SIGNALS if signal.getsignal(number) in USUAL}
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
