"""Waiting for what another process or thread does. How long is no assertion: it only tells a hang from a wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

HANGS_S = 300.0
"""Many times longer than anything a test waits for takes on a busy machine."""


def until(reached: Callable[[], T | None], what: str) -> T:
    """Asks again and again; the first answer that is true.

    Args:
        reached: Gives something true once it has happened.
        what: Is waited for, for the message.
    Raises: TimeoutError when it has not happened for `HANGS_S`.
    """
    end = time.monotonic() + HANGS_S
    while not (value := reached()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {HANGS_S:.0f} s, so it hangs")
        time.sleep(0.05)
    return value
