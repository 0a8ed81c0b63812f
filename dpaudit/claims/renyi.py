"""Renyi differential privacy: divergences at stated orders, and their conversion to other representations."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims.curve import (
    PrivacyCurve,
    TwoSteps,
    require_alarm,
    require_delta,
    require_epsilon,
    require_order,
    two_steps,
)
from dpaudit.errors import require
from dpaudit.registry import register


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
