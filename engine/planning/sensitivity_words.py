"""Sentences on sensitivity, the same before and after a run."""

from __future__ import annotations

import math

from dpaudit.estimators.bound import format_upper

POWER = 0.9
"""Probability of detection at which sensitivity is stated."""
MOST_SCALED = 8.0
"""Largest factor on the noise that is tried."""


def factor_in_words(factor: float) -> str:
    """Return which noise would be detected: `factor` times too small; inf if not even `MOST_SCALED` times."""
    power = f"({100 * POWER:.0f} % power)"
    if factor == math.inf:
        return f"would not detect noise scaled down {MOST_SCALED:g} times {power}"
    return f"would detect noise scaled down {format_upper(factor, 2)} times or more {power}"


def number_in_words(epsilon: float) -> str:
    """Return a maximum detectable epsilon, rounded up."""
    return "unlimited" if math.isinf(epsilon) else format_upper(epsilon, 2)
