"""Waiting for what another process or thread does. How long is no assertion: it only tells a hang from a wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

HANGS_S = 300.0
"""Timeout in seconds, far above the duration of any wait on a busy machine."""


def until(reached: Callable[[], T | None], what: str) -> T:
    """Poll `reached` and return its first true value.

    Args:
        reached: Function that returns a true value once the event has happened.
        what: Description of the event for the message.
    Raises: TimeoutError if the event does not happen within `HANGS_S`.
    """
    end = time.monotonic() + HANGS_S
    while not (value := reached()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {HANGS_S:.0f} s, so it hangs")
        time.sleep(0.05)
    return value
