"""Something done every few seconds beside the work of a block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(do: Callable[[], object], every_s: float, name: str, *, rest: float = 0.0) -> Iterator[None]:
    """Calls `do` every so many seconds in a thread of its own, and no more once the block has ended.

    After a call that took long it rests, `rest` times as long.
    """
    ended = threading.Event()

    def keep_doing() -> None:
        pause_s = every_s
        while not ended.wait(pause_s):
            began = time.monotonic()
            do()
            pause_s = max(every_s, rest * (time.monotonic() - began))

    thread = threading.Thread(target=keep_doing, name=f"dpaudit-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
