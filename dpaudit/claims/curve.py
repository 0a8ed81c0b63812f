"""A promise of privacy as a curve, and what one face of it says of the others.

A mechanism's outputs on two neighbouring data sets are two distributions P and Q. How far apart they may be has four
faces: the hockey-stick divergence delta(epsilon) = sup_S P(S) - e^epsilon Q(S), its inverse epsilon(delta), the
trade-off function, and the Renyi divergences. Neighbours are unordered, so a curve covers both directions: each face is
the worse of (P, Q) and (Q, P), and the trade-off function is symmetric.

Where a face is computed by search or on a grid it errs towards *less* privacy: epsilon, delta and Renyi divergences up,
the trade-off function down. A verdict that evidence lies above such a face also holds against the exact one.

Source: Dong, Roth and Su (2022), arXiv:1905.02383, sections 2.2 and 2.3.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from dpaudit.errors import require

LARGEST_EPSILON = 700.0
"""Where searches over epsilon end: e^700 is the largest power of e that is a number."""


@runtime_checkable
class PrivacyCurve(Protocol):
    """How far apart the outputs on two neighbouring data sets may be."""

    def epsilon(self, delta: float, /) -> float:
        """The smallest epsilon >= 0 promised at `delta` in [0, 1]; inf where none is."""
        ...

    def delta(self, epsilon: float, /) -> float:
        """The hockey-stick divergence promised at `epsilon` in [0, inf]; total variation at 0."""
        ...

    def miss_rate(self, alarm: float, /) -> float:
        """The trade-off function: the least type II error of any test with type I error `alarm` in [0, 1]."""
        ...

    def renyi(self, order: float, /) -> float:
        """The Renyi divergence promised at a finite `order` > 1; inf where nothing is implied."""
        ...


class DeltaCurve(ABC):
    """The other faces of a curve that knows its delta(epsilon) >= 0, convex in e^epsilon."""

    @abstractmethod
    def delta(self, epsilon: float, /) -> float:
        """The hockey-stick divergence promised at `epsilon` in [0, inf]; total variation at 0."""

    def epsilon(self, delta: float, /) -> float:
        """The smallest epsilon promised at `delta`, by bisection to a relative 1e-12, then the larger end."""
        checked_delta(delta)
        if self.delta(0.0) <= delta:
            return 0.0
        if self.delta(math.inf) > delta:
            return math.inf
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            if high > LARGEST_EPSILON:
                return math.inf
            low, high = high, 2 * high
        while high - low > 1e-12 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high

    def miss_rate(self, alarm: float, /) -> float:
        """The upper envelope of the trade-off functions of every (epsilon, delta(epsilon)), by search.

        Any epsilon gives a valid value, so the search can only err downwards.
        """
        checked_alarm(alarm)
        if alarm == 0:
            return 1 - self.delta(math.inf)
        steep = largest(lambda epsilon: 1 - self.delta(epsilon) - math.exp(epsilon) * alarm, 0.0, LARGEST_EPSILON)
        flat = largest(lambda epsilon: math.exp(-epsilon) * (1 - self.delta(epsilon) - alarm), 0.0, LARGEST_EPSILON)
        return max(0.0, steep, flat)


def largest(value: Callable[[float], float], low: float, high: float) -> float:
    """The largest value of a function with one peak between `low` and `high`, by golden section; never above it."""
    ratio = (math.sqrt(5) - 1) / 2
    ends = max(value(low), value(high))
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = value(left), value(right)
    best = max(ends, at_left, at_right)
    while high - low > 1e-9 * (1 + abs(low)):
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = value(right)
        best = max(best, at_left, at_right)
    return best


def delta_at(curve: PrivacyCurve, epsilon: float) -> float:
    """The hockey-stick divergence at any real `epsilon`, where below 0 the other direction's serves.

    sup_S P(S) - e^-x Q(S) = 1 - e^-x (1 - sup_S Q(S) - e^x P(S)), and a curve covers both directions.
    """
    if epsilon >= 0:
        return curve.delta(epsilon)
    return 1 - math.exp(epsilon) * (1 - curve.delta(-epsilon))


def checked_delta(delta: float) -> None:
    require(0 <= delta <= 1, "delta must be in [0, 1]", delta=delta)


def checked_epsilon(epsilon: float) -> None:
    require(epsilon >= 0, "epsilon must be >= 0", epsilon=epsilon)


def checked_alarm(alarm: float) -> None:
    require(0 <= alarm <= 1, "the rate of false alarms must be in [0, 1]", alarm=alarm)


def checked_order(order: float) -> None:
    require(1 < order < math.inf, "the order must be > 1 and finite", order=order)
