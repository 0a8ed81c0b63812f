"""Promises whose every face is a formula: pure, approximate and Gaussian differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, erfcx, ndtr, ndtri

from dpaudit.claims.curve import DeltaCurve, checked_alarm, checked_delta, checked_epsilon, checked_order
from dpaudit.errors import require
from dpaudit.registry import register


@register("curve", "pure", source="Dwork et al. (2006)")
@dataclass(frozen=True)
class PureDP:
    """Epsilon-DP: no likelihood ratio exceeds e^epsilon. Randomised response on one bit reaches every face.

    Attributes:
        bound: Epsilon in nats, > 0; `inf` promises nothing.
    """

    bound: float

    def __post_init__(self) -> None:
        require(self.bound > 0, "a claimed epsilon must be > 0", epsilon=self.bound)

    def __str__(self) -> str:
        return f"{self.bound:g}-DP"

    def epsilon(self, delta: float, /) -> float:
        """log(e^b - delta (1 + e^b)), at least 0."""
        return _epsilon(self.bound, 0.0, delta)

    def delta(self, epsilon: float, /) -> float:
        """(e^b - e^epsilon) / (1 + e^b), at least 0."""
        return _delta(self.bound, 0.0, epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        """max(0, 1 - e^b alarm, e^-b (1 - alarm))."""
        return _miss_rate(self.bound, 0.0, alarm)

    def renyi(self, order: float, /) -> float:
        """The divergence of randomised response (Mironov, 2017, arXiv:1702.07476, proposition 5)."""
        checked_order(order)
        if math.isinf(self.bound):
            return math.inf
        keep, flip = -np.logaddexp(0, -self.bound), -np.logaddexp(0, self.bound)
        moment = np.logaddexp(order * keep + (1 - order) * flip, order * flip + (1 - order) * keep)
        return max(0.0, float(moment / (order - 1)))


@register("curve", "approximate", source="Dwork et al. (2006)")
@dataclass(frozen=True)
class ApproximateDP:
    """(epsilon, delta)-DP, and nothing beside that one point.

    Attributes:
        bound: Epsilon in nats, > 0; `inf` promises nothing.
        missed: Delta, in [0, 1).
    """

    bound: float
    missed: float

    def __post_init__(self) -> None:
        require(self.bound > 0, "a claimed epsilon must be > 0", epsilon=self.bound)
        require(0 <= self.missed < 1, "a claimed delta must be in [0, 1)", delta=self.missed)

    def __str__(self) -> str:
        return f"({self.bound:g}, {self.missed:g})-DP"

    def epsilon(self, delta: float, /) -> float:
        """Where `delta` exceeds the stated one, less than the stated epsilon; below it, inf."""
        return _epsilon(self.bound, self.missed, delta)

    def delta(self, epsilon: float, /) -> float:
        """d + (1 - d) (e^b - e^epsilon) / (1 + e^b) below the stated epsilon b, the stated delta d from there on."""
        return _delta(self.bound, self.missed, epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        """max(0, 1 - d - e^b alarm, e^-b (1 - d - alarm))."""
        return _miss_rate(self.bound, self.missed, alarm)

    def renyi(self, order: float, /) -> float:
        """inf unless delta is 0: what is missed may be everything."""
        checked_order(order)
        return PureDP(self.bound).renyi(order) if self.missed == 0 else math.inf


@register("curve", "gaussian", source="Dong, Roth and Su (2022), arXiv:1905.02383")
@dataclass(frozen=True)
class GaussianDP(DeltaCurve):
    """mu-GDP: no easier to tell apart than N(0, 1) and N(mu, 1).

    Attributes:
        mu: Sensitivity over the noise's standard deviation, > 0 and finite.
    """

    mu: float

    def __post_init__(self) -> None:
        require(0 < self.mu < math.inf, "mu must be > 0 and finite", mu=self.mu)

    def __str__(self) -> str:
        return f"{self.mu:g}-GDP"

    def epsilon(self, delta: float, /) -> float:
        """The inverse of `delta`, rounded up; inf at delta = 0."""
        return math.inf if delta == 0 else super().epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
        checked_epsilon(epsilon)
        if epsilon == 0:
            return float(erf(self.mu / math.sqrt(8)))
        if math.isinf(epsilon):
            return 0.0
        near, far = self.mu / 2 - epsilon / self.mu, -self.mu / 2 - epsilon / self.mu
        # e^epsilon Phi(far) / Phi(near) is a ratio of scaled error functions: the exponentials cancel exactly.
        ratio = float(erfcx(-far / math.sqrt(2)) / erfcx(-near / math.sqrt(2)))
        return float(ndtr(near)) * (1 - ratio)

    def miss_rate(self, alarm: float, /) -> float:
        """Phi(Phi^-1(1 - alarm) - mu)."""
        checked_alarm(alarm)
        return float(ndtr(-ndtri(alarm) - self.mu))

    def renyi(self, order: float, /) -> float:
        """order mu^2 / 2."""
        checked_order(order)
        return order * self.mu**2 / 2


def _epsilon(bound: float, missed: float, delta: float) -> float:
    checked_delta(delta)
    if delta <= missed:
        return bound if delta == missed else math.inf
    if math.isinf(bound):
        return 0.0 if delta == 1 else math.inf
    # log(e^b - x (1 + e^b)) = b + log(1 - x (1 + e^-b)), with x the share of what is not missed.
    left = 1 - (delta - missed) / (1 - missed) * (1 + math.exp(-bound))
    return max(0.0, bound + math.log(left)) if left > 0 else 0.0


def _delta(bound: float, missed: float, epsilon: float) -> float:
    checked_epsilon(epsilon)
    if epsilon >= bound:
        return missed
    if math.isinf(bound):
        return 1.0
    return missed + (1 - missed) * -math.expm1(epsilon - bound) / (1 + math.exp(-bound))


def _miss_rate(bound: float, missed: float, alarm: float) -> float:
    checked_alarm(alarm)
    steep = 1 - missed - (math.exp(min(bound, 700.0)) * alarm)
    return max(0.0, steep, math.exp(-bound) * (1 - missed - alarm))
