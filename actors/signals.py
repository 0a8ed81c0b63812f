"""What ends a process from outside (SIGTERM, SIGHUP) ends a run as Ctrl-C does: in order, nothing lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if name in signal.Signals.__members__)


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

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated(signal.Signals(number).name)

    taken = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
