"""Where a condition stops holding: halving an interval, for one number or for many at once.

Every search here returns the last point at which its condition was seen to hold, never one beyond it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.arguments import Floats


def last_true(
    holds: Callable[[float], bool], low: float, high: float, *, absolute: float = 0.0, relative: float = 0.0
) -> float:
    """The last point seen to hold between `low`, which holds, and `high`, which does not; neither is asked for again.

    The search stops at the width absolute + relative * high, else at the last digit.
    """
    while high - low > absolute + relative * high and low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def last_true_from(
    holds: Callable[[float], bool], low: float = 0.0, *, largest: float, absolute: float = 0.0, relative: float = 0.0
) -> float:
    """`last_true` with no upper end known: `low` where not even that holds, >= `largest` where that still holds."""
    if not holds(low):
        return low
    high = low + 1.0
    while holds(high):
        if high >= largest:
            return high
        low, high = high, 2 * high
    return last_true(holds, low, high, absolute=absolute, relative=relative)


def last_true_of_each(
    holds: Callable[[Floats], NDArray[np.bool_]],
    low: Floats,
    high: Floats,
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
) -> Floats:
    """`last_true` for arrays of one shape; `holds` is asked for all points until the last one is found."""
    while True:
        middle = 0.5 * (low + high)
        if not np.any((high - low > absolute + relative * high) & (low < middle) & (middle < high)):
            return low
        below = holds(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
