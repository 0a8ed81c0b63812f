"""Privacy curves: their interface, the curves in closed form, and group privacy over two neighbouring steps.

A mechanism's outputs on two neighbouring data sets are two distributions P and Q. A curve bounds how far apart they are
in four representations: the hockey-stick divergence delta(epsilon) = sup_S P(S) - e^epsilon Q(S), its inverse
epsilon(delta), the trade-off function, and the Renyi divergences. Neighbours are unordered, so a curve covers both
directions: each value is the worse of (P, Q) and (Q, P), and the trade-off function is symmetric.

Values computed by search or on a grid err towards *less* privacy: epsilon, delta and Renyi divergences are rounded up,
the trade-off function down. Evidence that exceeds such a value therefore also exceeds the exact one.

Source: Dong, Roth and Su (2022), arXiv:1905.02383, sections 2.2 and 2.3.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import singledispatch
from typing import Protocol, runtime_checkable

import numpy as np
from scipy.special import erf, erfcx, ndtr, ndtri

from dpaudit.errors import require
from dpaudit.registry import register

_LARGEST_EPSILON = 700.0  # end of searches over epsilon: e^x overflows a double soon after x = 700


class Relation(StrEnum):
    """Neighbouring relation between data sets."""

    ADD_REMOVE = "add-remove"
    """One record is present or absent."""
    REPLACE = "replace"
    """One record is replaced by another; the number of records is public."""
    LABEL = "label"
    """One record's protected attributes (its label) are replaced; everything else is public."""


@runtime_checkable
class PrivacyCurve(Protocol):
    """Bound on the distance between the outputs on two neighbouring data sets."""

    def epsilon(self, delta: float, /) -> float:
        """Return the smallest epsilon >= 0 at `delta` in [0, 1]; inf if there is none."""

    def delta(self, epsilon: float, /) -> float:
        """Return the largest hockey-stick divergence at `epsilon` in [0, inf]; total variation at 0."""

    def miss_rate(self, alarm: float, /) -> float:
        """Return the trade-off function: the least type II error of tests with type I error `alarm` in [0, 1]."""

    def renyi(self, order: float, /) -> float:
        """Return the largest Renyi divergence at a finite `order` > 1; inf if the curve implies no bound."""


class DeltaCurve(ABC):
    """Base of curves defined by delta(epsilon) >= 0, convex in e^epsilon."""

    @abstractmethod
    def delta(self, epsilon: float, /) -> float:
        """Return the largest hockey-stick divergence at `epsilon` in [0, inf]; total variation at 0."""

    def epsilon(self, delta: float, /) -> float:
        """Return the smallest epsilon at `delta`: the upper end of a bisection to a relative 1e-12."""
        require_delta(delta)
        if self.delta(0.0) <= delta:
            return 0.0
        if self.delta(math.inf) > delta:
            return math.inf
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            if high > _LARGEST_EPSILON:
                return math.inf
            low, high = high, 2 * high
        while high - low > 1e-12 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high

    def miss_rate(self, alarm: float, /) -> float:
        """Return the upper envelope over every (epsilon, delta(epsilon)); a search can only give too low a value."""
        require_alarm(alarm)
        if alarm == 0:
            return 1 - self.delta(math.inf)
        steep = _largest(lambda epsilon: 1 - self.delta(epsilon) - math.exp(epsilon) * alarm, 0.0, _LARGEST_EPSILON)
        flat = _largest(lambda epsilon: math.exp(-epsilon) * (1 - self.delta(epsilon) - alarm), 0.0, _LARGEST_EPSILON)
        return max(0.0, steep, flat)


def _largest(value: Callable[[float], float], low: float, high: float) -> float:
    """Return the maximum of a function with one peak in [low, high] by golden section; never above the true one."""
    ratio = (math.sqrt(5) - 1) / 2
    low_probe, high_probe = high - ratio * (high - low), low + ratio * (high - low)
    at_low, at_high = value(low_probe), value(high_probe)
    best = max(value(low), value(high), at_low, at_high)
    while high - low > 1e-9 * (1 + abs(low)):
        if at_low >= at_high:
            high, high_probe, at_high = high_probe, low_probe, at_low
            low_probe = high - ratio * (high - low)
            at_low = value(low_probe)
        else:
            low, low_probe, at_low = low_probe, high_probe, at_high
            high_probe = low + ratio * (high - low)
            at_high = value(high_probe)
        best = max(best, at_low, at_high)
    return best


def require_delta(delta: float) -> None:
    require(0 <= delta <= 1, "delta must be in [0, 1]", delta=delta)


def require_epsilon(epsilon: float) -> None:
    require(epsilon >= 0, "epsilon must be >= 0", epsilon=epsilon)


def require_alarm(alarm: float) -> None:
    require(0 <= alarm <= 1, "the rate of false alarms must be in [0, 1]", alarm=alarm)


def require_order(order: float) -> None:
    require(1 < order < math.inf, "the order must be > 1 and finite", order=order)


class _Point:
    """Curve of (b, d)-DP alone; randomised response attains the curve of (b, 0)-DP."""

    bound: float
    missed: float  # the delta d

    def epsilon(self, delta: float, /) -> float:
        """Return log(e^b - x (1 + e^b)), at least 0, where `delta` = d + (1 - d) x; inf below d."""
        require_delta(delta)
        if delta <= self.missed:
            return self.bound if delta == self.missed else math.inf
        if math.isinf(self.bound):
            return 0.0 if delta == 1 else math.inf
        # log(e^b - x (1 + e^b)) = b + log(1 - x (1 + e^-b)), with x = (delta - d) / (1 - d).
        factor = 1 - (delta - self.missed) / (1 - self.missed) * (1 + math.exp(-self.bound))
        return max(0.0, self.bound + math.log(factor)) if factor > 0 else 0.0

    def delta(self, epsilon: float, /) -> float:
        """Return d + (1 - d) (e^b - e^epsilon) / (1 + e^b) if epsilon < b, else d."""
        require_epsilon(epsilon)
        if epsilon >= self.bound:
            return self.missed
        if math.isinf(self.bound):
            return 1.0
        return self.missed + (1 - self.missed) * -math.expm1(epsilon - self.bound) / (1 + math.exp(-self.bound))

    def miss_rate(self, alarm: float, /) -> float:
        """Return max(0, 1 - d - e^b alarm, e^-b (1 - d - alarm))."""
        require_alarm(alarm)
        steep = 1 - self.missed - (math.exp(min(self.bound, 700.0)) * alarm)
        return max(0.0, steep, math.exp(-self.bound) * (1 - self.missed - alarm))


@register("curve", "pure", source="Dwork et al. (2006)")
@dataclass(frozen=True)
class PureDP(_Point):
    """Epsilon-DP: no likelihood ratio exceeds e^epsilon. Randomised response on one bit attains it.

    Attributes:
        bound: Epsilon in nats, > 0; `inf` bounds nothing.
    """

    missed = 0.0
    bound: float

    def __post_init__(self) -> None:
        require(self.bound > 0, "a claimed epsilon must be > 0", epsilon=self.bound)

    def __str__(self) -> str:
        return f"{self.bound:g}-DP"

    def renyi(self, order: float, /) -> float:
        """Return the divergence of randomised response (Mironov, 2017, arXiv:1702.07476, proposition 5)."""
        require_order(order)
        if self.bound > _LARGEST_EPSILON:  # e^-bound rounds to 0, and every divergence to the bound
            return self.bound
        keep, flip = -np.logaddexp(0, -self.bound), -np.logaddexp(0, self.bound)
        with np.errstate(over="ignore"):  # at orders near 1e308, where the divergence equals the bound
            moment = np.logaddexp(order * keep + (1 - order) * flip, order * flip + (1 - order) * keep)
        return min(self.bound, max(0.0, float(moment / (order - 1))))


@register("curve", "approximate", source="Dwork et al. (2006)")
@dataclass(frozen=True)
class ApproximateDP(_Point):
    """(epsilon, delta)-DP: a single point of a curve.

    Attributes:
        bound: Epsilon in nats, > 0; `inf` bounds nothing.
        missed: Delta, in [0, 1).
    """

    bound: float
    missed: float

    def __post_init__(self) -> None:
        require(self.bound > 0, "a claimed epsilon must be > 0", epsilon=self.bound)
        require(0 <= self.missed < 1, "a claimed delta must be in [0, 1)", delta=self.missed)

    def __str__(self) -> str:
        return f"({self.bound:g}, {self.missed:g})-DP"

    def renyi(self, order: float, /) -> float:
        """Return inf unless delta is 0: the mass delta may have an infinite loss."""
        require_order(order)
        return PureDP(self.bound).renyi(order) if self.missed == 0 else math.inf


@register("curve", "gaussian", source="Dong, Roth and Su (2022), arXiv:1905.02383")
@dataclass(frozen=True)
class GaussianDP(DeltaCurve):
    """mu-GDP: the outputs are no easier to distinguish than N(0, 1) and N(mu, 1).

    Attributes:
        mu: Sensitivity divided by the standard deviation of the noise, > 0 and finite.
    """

    mu: float

    def __post_init__(self) -> None:
        require(0 < self.mu < math.inf, "mu must be > 0 and finite", mu=self.mu)

    def __str__(self) -> str:
        return f"{self.mu:g}-GDP"

    def epsilon(self, delta: float, /) -> float:
        """Return the inverse of `delta`, rounded up; inf at delta = 0."""
        return math.inf if delta == 0 else super().epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        """Return Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
        require_epsilon(epsilon)
        if epsilon == 0:
            return float(erf(self.mu / math.sqrt(8)))
        if math.isinf(epsilon):
            return 0.0
        near, far = self.mu / 2 - epsilon / self.mu, -self.mu / 2 - epsilon / self.mu
        # e^epsilon Phi(far) / Phi(near) is a ratio of scaled error functions, in which the exponentials cancel exactly.
        ratio = float(erfcx(-far / math.sqrt(2)) / erfcx(-near / math.sqrt(2)))
        return float(ndtr(near)) * (1 - ratio)

    def miss_rate(self, alarm: float, /) -> float:
        """Return Phi(Phi^-1(1 - alarm) - mu)."""
        require_alarm(alarm)
        return float(ndtr(-ndtri(alarm) - self.mu))

    def renyi(self, order: float, /) -> float:
        """Return order mu^2 / 2."""
        require_order(order)
        return order * self.mu * self.mu / 2  # overflows to inf; `mu**2` would raise OverflowError


@singledispatch
def two_steps(curve: PrivacyCurve) -> PrivacyCurve:
    """Return the curve between data sets two neighbouring steps apart: mu-GDP becomes 2 mu-GDP, for example."""
    return TwoSteps(curve)


@two_steps.register
def _(curve: GaussianDP) -> PrivacyCurve:
    return GaussianDP(min(2 * curve.mu, sys.float_info.max))


@register("curve", "two-steps", source="Dong, Roth and Su (2022), arXiv:1905.02383, theorem 2.14")
@dataclass(frozen=True)
class TwoSteps(DeltaCurve):
    """Curve between data sets two neighbouring steps apart, derived from the curve of one step.

    Let P, Q and R be the outputs before, between and after the two steps. A test on (P, R) with false alarm rate a is
    also a test on (P, Q) and on (Q, R), so its miss rate is at least f(1 - f(a)). The Renyi divergences are those of
    Mironov (2017), arXiv:1702.07476, proposition 11.

    Attributes:
        curve: The curve of one step.
    """

    curve: PrivacyCurve = field(metadata={"kind": "curve"})

    def __str__(self) -> str:
        return f"two steps of {self.curve}"

    @staticmethod
    def missed(bound: float, missed: float) -> float:
        """Return (1 + e^b) d, the delta of (b, d)-DP over two steps at epsilon 2 b."""
        return (1 + math.exp(min(bound, 700.0))) * missed

    def delta(self, epsilon: float, /) -> float:
        """Return the minimum over s of delta(s) + e^s delta(epsilon - s); every s gives a valid upper bound."""
        require_epsilon(epsilon)
        return min(1.0, _two_step_delta(self.curve, epsilon))

    def miss_rate(self, alarm: float, /) -> float:
        """Return f(1 - f(alarm))."""
        require_alarm(alarm)
        return self.curve.miss_rate(1 - self.curve.miss_rate(alarm))

    def renyi(self, order: float, /) -> float:
        """Return the triangle inequality's bound on the Renyi divergence; tight for Gaussians."""
        require_order(order)
        a, renyi = order, self.curve.renyi
        # Minimum of (a - 1/p) / (a - 1) D_pa + D_(q(a-1)+1), 1/p + 1/q = 1, over a grid of p. Every p > 1 is valid, and
        # p - 1 = (a - 1) / a is optimal for Gaussians.
        shares: list[float] = ((a - 1) / a * np.concatenate([[1.0], np.geomspace(1e-3, 1e3, 121)])).tolist()
        return min((a - 1 / (1 + u)) / (a - 1) * renyi((1 + u) * a) + renyi((1 + 1 / u) * (a - 1) + 1) for u in shares)


def delta_at(curve: PrivacyCurve, epsilon: float) -> float:
    """Return the hockey-stick divergence at any real `epsilon`.

    At epsilon = -x < 0, sup_S P(S) - e^-x Q(S) = 1 - e^-x (1 - sup_S Q(S) - e^x P(S)), by the other direction.
    """
    if epsilon >= 0:
        return curve.delta(epsilon)
    return 1 - math.exp(epsilon) * (1 - curve.delta(-epsilon))


@singledispatch
def _two_step_delta(curve: PrivacyCurve, epsilon: float) -> float:
    if math.isinf(epsilon):
        # The infinite losses of both steps: 1 - f(1 - f(0)).
        return 1 - curve.miss_rate(curve.delta(math.inf))

    def at(s: float) -> float:
        return delta_at(curve, s) + math.exp(s) * delta_at(curve, epsilon - s)

    reach = 40.0  # below s = -40, 1 - e^s rounds to 1
    middle = min(epsilon / 2, _LARGEST_EPSILON)
    return min(at(middle), -_largest(lambda s: -at(s), -reach, min(epsilon + reach, _LARGEST_EPSILON)))


@_two_step_delta.register
def _(curve: PureDP | ApproximateDP, epsilon: float) -> float:
    # f(1 - f) has slopes -e^(2 b), -1 and -e^(-2 b): delta is linear in e^epsilon between epsilon = 0 and 2 b.
    bound, missed = curve.bound, curve.missed
    if math.isinf(bound):
        return 1.0
    flat = 1 - math.exp(-bound) * (1 - 2 * missed)
    least = min(TwoSteps.missed(bound, missed), flat)
    if epsilon >= 2 * bound:
        return least
    return least + (flat - least) * math.expm1(epsilon - 2 * bound) / math.expm1(-2 * bound)
