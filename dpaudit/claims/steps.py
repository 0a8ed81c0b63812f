"""What a promise about one step between data sets says about two: replacing a record removes one and adds another.

With P, Q and R the outputs before, between and after, a test at false alarm rate a on (P, R) is a test on (P, Q) and on
(Q, R), so its miss rate is at least f(1 - f(a)).

Source: Dong, Roth and Su (2022), arXiv:1905.02383, theorem 2.14; Mironov (2017), arXiv:1702.07476, proposition 11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np

from dpaudit.claims.curve import (
    LARGEST_EPSILON,
    ApproximateDP,
    DeltaCurve,
    GaussianDP,
    PrivacyCurve,
    PureDP,
    checked_alarm,
    checked_epsilon,
    checked_order,
    largest,
)
from dpaudit.claims.renyi import RenyiDP
from dpaudit.registry import register


@singledispatch
def two_steps(curve: PrivacyCurve) -> PrivacyCurve:
    """The promise over two steps of a promise over one: mu-GDP becomes 2 mu-GDP, Renyi DP stays Renyi DP."""
    return TwoSteps(curve)


@two_steps.register
def _(curve: GaussianDP) -> PrivacyCurve:
    return GaussianDP(2 * curve.mu)


@two_steps.register
def _(curve: RenyiDP) -> PrivacyCurve:
    # Order a in both terms of the triangle is enough for order a^2 / (2a - 1), and for no larger one.
    orders = tuple(a * a / (2 * a - 1) for a in curve.orders)
    return RenyiDP(orders, tuple(triangle(curve, order) for order in orders))


@register("curve", "two-steps", source="Dong, Roth and Su (2022), arXiv:1905.02383, theorem 2.14")
@dataclass(frozen=True)
class TwoSteps(DeltaCurve):
    """Two steps of a promise that is about one.

    Attributes:
        curve: The promise about one step.
    """

    curve: PrivacyCurve = field(metadata={"kind": "curve"})

    def __str__(self) -> str:
        return f"two steps of {self.curve}"

    @staticmethod
    def missed(bound: float, missed: float) -> float:
        """(1 + e^b) d: what (b, d)-DP may miss over two steps, at epsilon 2 b."""
        return (1 + math.exp(min(bound, 700.0))) * missed

    def delta(self, epsilon: float, /) -> float:
        """The least delta(s) + e^s delta(epsilon - s) over s: any s is valid, so a search only errs upwards."""
        checked_epsilon(epsilon)
        return min(1.0, _two_step_delta(self.curve, epsilon))

    def miss_rate(self, alarm: float, /) -> float:
        """f(1 - f(alarm))."""
        checked_alarm(alarm)
        return self.curve.miss_rate(1 - self.curve.miss_rate(alarm))

    def renyi(self, order: float, /) -> float:
        """By the triangle inequality of Renyi divergences; tight for Gaussians."""
        checked_order(order)
        return triangle(self.curve, order)


def triangle(curve: PrivacyCurve, order: float) -> float:
    """Two steps' Renyi divergence: (a - 1/p) / (a - 1) D_pa + D_(q(a-1)+1), 1/p + 1/q = 1, at the best p looked at."""
    a = order
    # p - 1 = (a - 1) / a is the best for Gaussians; every p > 1 is valid.
    shares: list[float] = ((a - 1) / a * np.concatenate([[1.0], np.geomspace(1e-3, 1e3, 121)])).tolist()
    return min(
        (a - 1 / (1 + u)) / (a - 1) * curve.renyi((1 + u) * a) + curve.renyi((1 + 1 / u) * (a - 1) + 1) for u in shares
    )


def delta_at(curve: PrivacyCurve, epsilon: float) -> float:
    """The hockey-stick divergence at any real `epsilon`, where below 0 the other direction's serves.

    sup_S P(S) - e^-x Q(S) = 1 - e^-x (1 - sup_S Q(S) - e^x P(S)), and a curve covers both directions.
    """
    if epsilon >= 0:
        return curve.delta(epsilon)
    return 1 - math.exp(epsilon) * (1 - curve.delta(-epsilon))


@singledispatch
def _two_step_delta(curve: PrivacyCurve, epsilon: float) -> float:
    if math.isinf(epsilon):
        # Both parts may be missed in turn: 1 - f(1 - f(0)).
        return 1 - curve.miss_rate(curve.delta(math.inf))

    def at(s: float) -> float:
        return delta_at(curve, s) + math.exp(s) * delta_at(curve, epsilon - s)

    reach = 40.0  # below -40, 1 - e^s is 1 to the last digit
    return min(at(epsilon / 2), -largest(lambda s: -at(s), -reach, min(epsilon + reach, LARGEST_EPSILON)))


@_two_step_delta.register
def _(curve: PureDP | ApproximateDP, epsilon: float) -> float:
    """f(1 - f) has slopes -e^(2 b), -1 and -e^(-2 b): delta is a line in e^epsilon between epsilon = 0 and 2 b."""
    bound, missed = curve.bound, curve.missed if isinstance(curve, ApproximateDP) else 0.0
    if math.isinf(bound):
        return 1.0
    flat = 1 - math.exp(-bound) * (1 - 2 * missed)
    least = min(TwoSteps.missed(bound, missed), flat)
    if epsilon >= 2 * bound:
        return least
    return least + (flat - least) * math.expm1(epsilon - 2 * bound) / math.expm1(-2 * bound)
