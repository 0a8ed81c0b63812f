"""Bisection for the last point at which a condition holds, for one number or for an array.

Every search returns a point at which the condition was evaluated and held, so a bound found this way is on the safe
side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.arguments import Floats


def last_true(
    holds: Callable[[float], bool], low: float, high: float, *, absolute: float = 0.0, relative: float = 0.0
) -> float:
    """Return the last point found to hold between `low`, which holds, and `high`, which does not.

    Neither end is evaluated again. The search stops at the width absolute + relative * high, else at the last digit.
    """
    while high - low > absolute + relative * high and low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def last_true_from(
    holds: Callable[[float], bool], low: float = 0.0, *, largest: float, absolute: float = 0.0, relative: float = 0.0
) -> float:
    """Return `last_true` without a known upper end.

    The result is `low` if the condition does not hold there, and >= `largest` if it still holds at `largest`.
    """
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
    """Return `last_true` for arrays of one shape; all points are evaluated until the last search has ended."""
    while True:
        middle = 0.5 * (low + high)
        if not np.any((high - low > absolute + relative * high) & (low < middle) & (middle < high)):
            return low
        below = holds(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
