"""The two ends of an interval."""

from __future__ import annotations

from typing import NamedTuple

from dpaudit.estimators.arguments import Floats


class Interval(NamedTuple):
    """Ends of a confidence or credible interval; one-sided lower bounds have `upper = inf`.

    Attributes:
        lower: Lower end, rounded down where a bound on epsilon rests on it.
        upper: Upper end, rounded up likewise.
    """

    lower: float | Floats
    upper: float | Floats
