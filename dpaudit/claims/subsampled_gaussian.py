"""The curve of the Poisson-subsampled Gaussian mechanism, the release of DP-SGD, composed numerically.

One step includes every record with probability q and adds N(0, (m C)^2) to a sum of vectors of norm at most C. Adding
or removing a record, it is no easier to tell apart than P = (1 - q) N(0, m^2) + q N(1, m^2) and Q = N(0, m^2) in one
direction or the other, and k steps no easier than k-fold products (Zhu, Dong and Wang, 2022).

The loss log dP/dQ is put on a grid: the mass of each cell is split over its two ends so that its weight under both P
and Q is kept. Likelihood ratios spread with their mean kept are easier to tell apart, so the discrete pair dominates
the true one ("connecting the dots", Doroshenko et al., 2022, arXiv:2207.04380); what lies past the grid counts as told
apart for certain, or moves up. The k-fold convolution is one power of a Fourier transform; what could wrap around, by
Chernoff's bound, and rounding, are added to delta. So delta and epsilon err upwards only and the trade-off function
downwards only, and evidence above the curve is above the true curve too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, ndtr, ndtri

from dpaudit.claims.closed_forms import GaussianDP
from dpaudit.claims.composition import CUT_MASS, LARGEST_GRID, Losses, composed, larger_of
from dpaudit.claims.curve import checked_order
from dpaudit.claims.table import DeltaTable, tabulated
from dpaudit.errors import require
from dpaudit.registry import register

CELLS_A_DEVIATION = 100
"""Cells of the grid on one standard deviation of one step's loss: its variance grows by at most 1 in 40,000."""


@register("curve", "subsampled-gaussian", source="Doroshenko et al. (2022), arXiv:2207.04380; Mironov et al. (2019)")
@dataclass(frozen=True)
class SubsampledGaussian:
    """Steps of DP-SGD with Poisson sampling, records added or removed.

    Attributes:
        noise_multiplier: Standard deviation of the noise over the sensitivity, > 0.
        sample_rate: Probability with which a step takes a record, in (0, 1].
        steps: Number of steps, >= 1.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        require(
            0 < self.noise_multiplier < math.inf,
            "noise_multiplier must be > 0 and finite",
            noise_multiplier=self.noise_multiplier,
        )
        require(0 < self.sample_rate <= 1, "sample_rate must be in (0, 1]", sample_rate=self.sample_rate)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)

    def __str__(self) -> str:
        sampled = "" if self.sample_rate == 1 else f"sampled at {self.sample_rate:g}, "
        return f"Gaussian of multiplier {self.noise_multiplier:g}, {sampled}{self.steps:,} steps"

    def epsilon(self, delta: float, /) -> float:
        """The smallest epsilon at `delta`; inf where numbers end, at a delta of about 1e-14 x steps."""
        return _table(self).epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        """The larger of both directions'."""
        return _table(self).delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        """The envelope of the larger delta of both directions: symmetric and convex."""
        return _table(self).miss_rate(alarm)

    def renyi(self, order: float, /) -> float:
        """Steps x the divergence of one (P from Q, which is the larger direction)."""
        checked_order(order)
        return self.steps * subsampled_gaussian_rdp(
            order, noise_multiplier=self.noise_multiplier, sample_rate=self.sample_rate
        )


@lru_cache(maxsize=64)
def _table(curve: SubsampledGaussian) -> DeltaTable:
    if curve.sample_rate == 1:
        gaussian = GaussianDP(math.sqrt(curve.steps) / curve.noise_multiplier)
        return tabulated(
            lambda epsilons: np.array([gaussian.delta(float(epsilon)) for epsilon in epsilons]), gaussian.epsilon(1e-15)
        )
    width = _deviation(curve) / CELLS_A_DEVIATION
    while True:
        step = _one_step(curve, width)
        sums = [composed(direction, curve.steps) for direction in step] if step else []
        if sums and all(sums):
            return larger_of([direction for direction in sums if direction])
        width *= 2


def _deviation(curve: SubsampledGaussian) -> float:
    """Standard deviation of one step's loss under Q, by the trapezoid rule."""
    z = np.linspace(-9, 9, 4001)
    weight = np.exp(-(z**2) / 2)
    loss = _loss(z * curve.noise_multiplier, curve)
    mean = np.average(loss, weights=weight)
    return math.sqrt(float(np.average((loss - mean) ** 2, weights=weight)))


def _loss(x: NDArray[np.float64], curve: SubsampledGaussian) -> NDArray[np.float64]:
    q, m = curve.sample_rate, curve.noise_multiplier
    return np.asarray(np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * m * m)))


def _one_step(curve: SubsampledGaussian, width: float) -> tuple[Losses, Losses] | None:
    """Losses of one step, removing and adding a record; None where the grid would be too fine."""
    q, m = curve.sample_rate, curve.noise_multiplier
    end = 1 - m * float(ndtri(CUT_MASS))
    first = math.floor(math.log1p(-q) / width)
    last = math.ceil(float(_loss(np.array([end]), curve)[0]) / width)
    if last - first >= LARGEST_GRID:
        return None
    at = width * np.arange(first, last + 1)
    # Where each loss is reached; none is below log(1 - q).
    reached = np.full(len(at), -math.inf)
    some = at > math.log1p(-q)
    reached[some] = m * m * (np.log(np.expm1(at[some]) + q) - math.log(q)) + 0.5
    low = _cell_mass(reached / m)  # Q
    high = (1 - q) * low + q * _cell_mass((reached - 1) / m)  # P
    # a at the lower end and b at the upper one: a + b = low, a e^l + b e^(l + width) = high.
    raised = np.clip((high * np.exp(-at[:-1]) - low) / math.expm1(width), 0, low)
    mass = np.zeros(len(at))
    mass[:-1] += low - raised
    mass[1:] += raised
    beyond = float(ndtr(-reached[-1] / m))
    removing = Losses(first, mass * np.exp(at), (1 - q) * beyond + q * float(ndtr((1 - reached[-1]) / m)), width)
    mass[-1] += beyond  # a loss below -last when adding: moved up to it
    return removing, Losses(-last, mass[::-1].copy(), 0.0, width)


def _cell_mass(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard normal mass between neighbours, from the nearer tail."""
    below, above = np.diff(ndtr(z)), -np.diff(ndtr(-z))
    return np.asarray(np.where(z[:-1] < 0, below, above))


def subsampled_gaussian_rdp(order: float, *, noise_multiplier: float, sample_rate: float) -> float:
    """Renyi cost of one step.

    Args:
        order: a > 1; whole orders by the binomial sum, others by quadrature.
        noise_multiplier: m, standard deviation over sensitivity, > 0.
        sample_rate: q in [0, 1].
    Source: Mironov, Talwar and Zhang (2019), arXiv:1908.10530, section 3.3.
    """
    require(order > 1, "order must be > 1", order=order)
    require(noise_multiplier > 0, "noise_multiplier must be > 0", noise_multiplier=noise_multiplier)
    require(0 <= sample_rate <= 1, "sample_rate must be in [0, 1]", sample_rate=sample_rate)
    if sample_rate == 0:
        return 0.0
    if sample_rate == 1:
        return order / (2 * noise_multiplier**2)
    whole = float(order).is_integer()
    log_moment = (_whole if whole else _fractional)(order, sample_rate, noise_multiplier)
    return max(0.0, log_moment / (order - 1))


def _whole(a: float, q: float, m: float) -> float:
    """log sum_i C(a, i) q^i (1-q)^(a-i) exp(i (i-1) / (2 m^2))."""
    i = np.arange(a + 1)
    return float(
        logsumexp(_log_binomial(a, i) + i * math.log(q) + (a - i) * math.log1p(-q) + i * (i - 1) / (2 * m * m))
    )


def _fractional(a: float, q: float, m: float) -> float:
    """log E[((1-q) + q exp((2z - 1) / (2 m^2)))^a] for z ~ N(0, m^2), by the trapezoid rule.

    The integrand is analytic up to |Im z| = pi m^2 and falls like a Gaussian, so steps of h err by about
    exp(-2 pi^2 m^2 / h): below 1e-30 here. Its mass lies between the humps at 0 and a.
    """
    h = min(m / 8, m * m / 4)
    z = np.arange(-12 * m, a + 12 * m, h)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * m * m))
    log_density = -0.5 * (z / m) ** 2 - math.log(m * math.sqrt(2 * math.pi))
    return float(logsumexp(log_density + a * log_ratio) + math.log(h))


def _log_binomial(a: float, i: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(gammaln(a + 1) - gammaln(i + 1.0) - gammaln(a - i + 1))
