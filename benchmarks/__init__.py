"""Measurements of the package; `bench_*.py` time single operations."""

from __future__ import annotations

import time
from collections.abc import Callable

Measured = tuple[str, float, str]
"""Name, seconds and a note."""


def least_seconds(
    work: Callable[[], object], repeats: int = 1, *, warm: bool = False, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of the fastest of some calls, after one that is not timed if `warm`."""
    seconds = []
    for _ in range(repeats + warm):
        began = clock()
        work()
        seconds.append(clock() - began)
    return min(seconds[warm:])
