"""Privacy curves: their interface, the curves in closed form, Renyi divergences, and group privacy over two steps.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, singledispatch
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
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
    ZERO_OUT = "zero-out"
    """One record's contribution becomes zero; the number of records, and what sums are divided by, stay as they are."""
    LABEL = "label"
    """One record's protected attributes (its label) are replaced; everything else is public."""

    @property
    def of_two_inputs(self) -> Relation:
        """The relation in which games of whole records test a claim: `replace` for zero-out, which implies it."""
        return Relation.REPLACE if self is Relation.ZERO_OUT else self


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


@register("curve", "renyi", source="Mironov (2017), arXiv:1702.07476; Canonne, Kamath and Steinke (2020)")
@dataclass(frozen=True)
class RenyiDP:
    """Renyi divergences of at most `values` at `orders`.

    Attributes:
        orders: Renyi orders, > 1, finite, rising.
        values: Divergence at each order, >= 0; `inf` bounds nothing at that order.
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(map(float, self.orders)))
        object.__setattr__(self, "values", tuple(map(float, self.values)))
        require(len(self.orders) >= 1, "orders must hold at least one order", orders=self.orders)
        rising = all(low < high for low, high in pairwise(self.orders))
        fine = rising and self.orders[0] > 1 and self.orders[-1] < math.inf
        require(fine, "orders must be > 1, finite and rising", orders=self.orders)
        orders, values = len(self.orders), len(self.values)
        require(values == orders, "values must hold one value for each order", orders=orders, values=values)
        require(all(value >= 0 for value in self.values), "values must be >= 0", values=self.values)
        require(any(value < math.inf for value in self.values), "values must hold a finite one", values=self.values)

    def __str__(self) -> str:
        first, last = self.orders[0], self.orders[-1]
        return f"Renyi DP at orders {first:g} to {last:g}" if last > first else f"({first:g}, {self.values[0]:g})-RDP"

    def epsilon(self, delta: float, /) -> float:
        """Return the conversion of Canonne, Kamath and Steinke; 0 if delta >= total variation, inf at delta = 0."""
        require_delta(delta)
        if delta == 0:
            return math.inf if max(self.values) > 0 else 0.0
        if delta >= self._total_variation():
            return 0.0
        return rdp_to_epsilon(np.array(self.orders), np.array(self.values), delta)

    def delta(self, epsilon: float, /) -> float:
        """Return the smallest delta that any order implies, at most the bound on total variation."""
        require_epsilon(epsilon)
        if math.isinf(epsilon):
            return 0.0
        orders, log_factor = self._finite()
        with np.errstate(over="ignore"):  # (order - 1) x epsilon may overflow: then delta is 0
            return min(self._total_variation(), math.exp(min(0.0, float((log_factor - (orders - 1) * epsilon).min()))))

    def miss_rate(self, alarm: float, /) -> float:
        """Return the envelope of the (epsilon, delta) pairs that the orders imply, each order at its best epsilon."""
        require_alarm(alarm)
        if alarm in (0, 1):
            return 1 - alarm
        orders, log_factor = self._finite()
        # d/d epsilon of 1 - c e^(-(a-1) epsilon) - alarm e^epsilon, and of e^-epsilon (1 - alarm) - c e^(-a epsilon).
        steep = np.maximum(0, (log_factor + np.log(orders - 1) - math.log(alarm)) / orders)
        flat = np.maximum(0, (log_factor + np.log(orders) - math.log1p(-alarm)) / (orders - 1))
        with np.errstate(over="ignore"):  # an overflow gives -inf, which never is the maximum
            return max(
                0.0,
                1 - self._total_variation() - alarm,
                float((1 - np.exp(log_factor - (orders - 1) * steep) - alarm * np.exp(steep)).max()),
                float((np.exp(-flat) * (1 - alarm) - np.exp(log_factor - orders * flat)).max()),
            )

    def renyi(self, order: float, /) -> float:
        """Return the divergence, between stated orders by convexity of (order - 1) x divergence; inf above the last."""
        require_order(order)
        corners, heights = self._hull
        return float(np.interp(order - 1, corners, heights, right=math.inf)) / (order - 1)

    def _finite(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return orders with a finite value, and log c in delta(epsilon) = c e^(-(order - 1) epsilon)."""
        orders, values = np.array(self.orders), np.array(self.values)
        orders, values = orders[np.isfinite(values)], values[np.isfinite(values)]
        with np.errstate(over="ignore"):
            log_factor = (orders - 1) * (values + np.log1p(-1 / orders)) - np.log(orders)
        return orders, np.minimum(log_factor, sys.float_info.max)

    def _total_variation(self) -> float:
        """Return the smaller one of Pinsker's and Bretagnolle and Huber's bounds, as KL is below Renyi divergences."""
        least = min(self.values)
        return math.sqrt(min(least / 2, -math.expm1(-least)))

    @cached_property
    def _hull(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower convex hull of (order - 1, (order - 1) value) and (0, 0), which bounds the log moments."""
        hull = [(0.0, 0.0)]
        for order, value in zip(self.orders, self.values, strict=True):
            point = (order - 1, (order - 1) * value)
            if math.isinf(point[1]):
                continue
            while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        corners, heights = zip(*hull, strict=True)
        return np.array(corners), np.array(heights)


@two_steps.register
def _(curve: RenyiDP) -> PrivacyCurve:
    # The triangle inequality with order a in both terms gives order b = a^2 / (2a - 1), and no larger one. Its factor
    # (b - b / a) / (b - 1) is then a / (a - 1).
    orders = tuple(a * a / (2 * a - 1) for a in curve.orders)
    direct = [value * ((2 * a - 1) / (a - 1)) for a, value in zip(curve.orders, curve.values, strict=True)]
    values = tuple(map(min, direct, map(TwoSteps(curve).renyi, orders)))
    return RenyiDP(orders, values) if min(values) < math.inf else TwoSteps(curve)


def _turns_down(first: Sequence[float], middle: Sequence[float], last: Sequence[float]) -> bool:
    """True if the middle point lies on or above the chord."""
    return (middle[1] - first[1]) * (last[0] - first[0]) >= (last[1] - first[1]) * (middle[0] - first[0])


def rdp_to_epsilon(orders: NDArray[np.float64], rdp: NDArray[np.float64], delta: float) -> float:
    """Return the smallest epsilon at `delta` that Renyi divergences `rdp` at `orders` imply.

    It is the minimum over the orders a > 1 of rdp + log(1 - 1/a) - log(delta a) / (a - 1), at least 0.

    Source: Canonne, Kamath and Steinke (2020), arXiv:2004.00010, proposition 12.
    """
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
    epsilons = rdp + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(epsilons.min()))
