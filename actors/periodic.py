"""Periodic calls of a function in a background thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def call_periodically(
    callback: Callable[[], object], interval_s: float, name: str, *, rest_factor: float = 0.0
) -> Iterator[None]:
    """Call `callback` every `interval_s` seconds in a thread until the block ends.

    After a slow call, the next one waits at least `rest_factor` times as long as the call took.
    """
    ended = threading.Event()

    def loop() -> None:
        pause_s = interval_s
        while not ended.wait(pause_s):
            start = time.monotonic()
            callback()
            pause_s = max(interval_s, rest_factor * (time.monotonic() - start))

    thread = threading.Thread(target=loop, name=f"dpaudit-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
