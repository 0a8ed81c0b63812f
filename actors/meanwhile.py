"""Something done every few seconds beside the work of a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(do: Callable[[], object], every_s: float, name: str) -> Iterator[None]:
    """Calls `do` every so many seconds in a thread of its own, and no more once the block has ended."""
    ended = threading.Event()

    def keep_doing() -> None:
        while not ended.wait(every_s):
            do()

    thread = threading.Thread(target=keep_doing, name=f"dpaudit-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
