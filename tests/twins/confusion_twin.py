"""Slow twin of the two-world estimators: the Bayesian region integral of S1 and the rectangle over Eq. 1.

The Bayesian mass is integrated over the plane, in extended precision. With x = sin^2 t a Beta(1/2 + k, 1/2 + n - k)
density is the smooth sin^2k t cos^2(n-k) t of deviation about 1/(2 sqrt n) for every k, so one kind of panel fits all.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy.optimize import brentq

from tests.twins.answers import recorded
from tests.twins.binomial_twin import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    jeffreys_lower,
    jeffreys_upper,
)

Extended = NDArray[np.longdouble]


def _gauss_legendre(count: int) -> tuple[Extended, Extended]:
    """Nodes and weights on [-1, 1] to extended precision, by Newton from NumPy's double ones."""
    with mp.workdps(40):
        nodes, weights = [], []
        for start in np.polynomial.legendre.leggauss(count)[0]:
            x = mpf(float(start))
            for _ in range(4):
                p, q = mp.legendre(count, x), mp.legendre(count - 1, x)
                slope = count * (x * p - q) / (x * x - 1)
                x -= p / slope
            slope = count * (x * mp.legendre(count, x) - mp.legendre(count - 1, x)) / (x * x - 1)
            nodes.append(extended(x))
            weights.append(extended(2 / ((1 - x * x) * slope**2)))
        return np.array(nodes, np.longdouble), np.array(weights, np.longdouble)


def extended(value: mpf) -> np.longdouble:
    """A high-precision number in extended precision."""
    return np.longdouble(mp.nstr(value, 25))


NODES, WEIGHTS = _gauss_legendre(24)
# End-flattened nodes: u = (3t - t^3)/2 turns half powers at a panel's ends into whole ones.
FLAT_NODES, FLAT_WEIGHTS = (3 * NODES - NODES**3) / 2, WEIGHTS * (3 - 3 * NODES**2) / 2
HALF_PI = extended(mp.pi / 2)


class RatePosterior:
    """The Jeffreys posterior Beta(1/2 + hits, 1/2 + misses) of a rate."""

    def __init__(self, hits: int, misses: int) -> None:
        self.hits, self.misses = hits, misses
        with mp.workdps(50):
            self._log_front = extended(
                mp.log(2)
                + mp.loggamma(hits + misses + 1)
                - mp.loggamma(hits + mpf(0.5))
                - mp.loggamma(misses + mpf(0.5))
            )
        middle = np.arctan2(np.sqrt(np.longdouble(hits + 0.5)), np.sqrt(np.longdouble(misses + 0.5)))
        deviation = 1 / (2 * np.sqrt(np.longdouble(hits + misses + 1)))
        self.edges = np.unique(np.clip(middle + deviation * np.arange(-13, 14), 0, HALF_PI))
        panels = self._integral(self.edges[:-1], self.edges[1:])
        self._below = np.concatenate([np.zeros(1, np.longdouble), np.cumsum(panels)])
        assert abs(self._below[-1] - 1) < 1e-11, "the panels do not hold the posterior"

    def density(self, angle: Extended) -> Extended:
        """The density of the angle t, x = sin^2 t."""
        sine, cosine = np.sin(angle), np.cos(angle)
        with np.errstate(divide="ignore"):  # the branch not taken
            log_sine = np.where(sine < 0.7, np.log(sine), np.log1p(-(cosine**2)) / 2)
            log_cosine = np.where(cosine < 0.7, np.log(cosine), np.log1p(-(sine**2)) / 2)
        return np.exp(self._log_front + 2 * self.hits * log_sine + 2 * self.misses * log_cosine)

    def _integral(self, start: Extended, stop: Extended) -> Extended:
        half = (stop - start) / 2
        angles = (start + half)[:, None] + half[:, None] * NODES
        return half * (self.density(angles) @ WEIGHTS)

    def cdf(self, rate: Extended) -> Extended:
        """Pr[the rate <= `rate`]; shape (n,) to (n,)."""
        angle = np.clip(np.arcsin(np.sqrt(np.clip(rate, 0, 1))), self.edges[0], self.edges[-1])
        panel = np.clip(np.searchsorted(self.edges, angle, side="right") - 1, 0, len(self.edges) - 2)
        return self._below[panel] + self._integral(self.edges[panel], np.maximum(angle, self.edges[panel]))

    def mirrored(self) -> RatePosterior:
        """The posterior of 1 - rate."""
        return RatePosterior(self.misses, self.hits)


def _mass_below(epsilon: float, delta: float, x: RatePosterior, y: RatePosterior) -> np.longdouble:
    """Pr[y < max(0, 1 - delta - e^eps x, (1 - delta - x) e^-eps)]: the mass below the region's lower border."""
    growth, room = np.exp(np.longdouble(epsilon)), 1 - np.longdouble(delta)
    y_edges = np.sin(y.edges) ** 2
    bends = np.concatenate(
        [[np.longdouble(0), room / (1 + growth), room], (room - y_edges) / growth, room - y_edges * growth]
    )
    bends = np.arcsin(np.sqrt(bends[(bends >= 0) & (bends <= room)]))
    borders = np.unique(np.clip(np.concatenate([x.edges, bends]), x.edges[0], min(x.edges[-1], np.max(bends))))
    if len(borders) < 2:
        return np.longdouble(0)
    half = np.diff(borders) / 2
    angles = (borders[:-1] + half)[:, None] + half[:, None] * FLAT_NODES
    rates = np.sin(angles) ** 2
    lowest = np.maximum(np.maximum(room - growth * rates, (room - rates) / growth), 0)
    inside = y.cdf(lowest.ravel()).reshape(lowest.shape) * x.density(angles)
    return np.sum(half * (inside @ FLAT_WEIGHTS))


class EpsilonPosterior:
    """The posterior of epsilon given a confusion table and delta (S1, Definition 3.1)."""

    def __init__(self, tp: int, fp: int, tn: int, fn: int, delta: float) -> None:
        self._delta = delta
        self._fnr, self._fpr = RatePosterior(fn, tp), RatePosterior(fp, tn)
        self._tnr, self._tpr = self._fpr.mirrored(), self._fnr.mirrored()

    def cdf(self, epsilon: float) -> float:
        """F(epsilon), the posterior mass of the privacy region; the region is point-symmetric about (1/2, 1/2)."""
        left_out = _mass_below(epsilon, self._delta, self._fnr, self._fpr)
        left_out += _mass_below(epsilon, self._delta, self._tpr, self._tnr)
        return float(1 - left_out)

    def pdf(self, epsilon: float, step: float) -> float:
        """dF/d epsilon by central differences extrapolated over four halvings of `step`."""
        table = [self._slope(epsilon, step / 2**i) for i in range(4)]
        for order in range(1, 4):
            table = [(4**order * fine - coarse) / (4**order - 1) for coarse, fine in pairwise(table)]
        return table[0]

    def _slope(self, epsilon: float, step: float) -> float:
        return (self.cdf(epsilon + step) - self.cdf(epsilon - step)) / (2 * step)

    def quantile(self, mass: float) -> float:
        """The epsilon with F(epsilon) = mass; 0 if F(0) >= mass."""
        if self.cdf(0.0) >= mass:
            return 0.0
        high = 1.0
        while self.cdf(high) < mass:
            high *= 2
        return float(brentq(lambda e: self.cdf(e) - mass, 0.0, high, xtol=1e-13, rtol=1e-14))


@recorded
def bayesian_interval(
    tp: int, fp: int, tn: int, fn: int, *, delta: float, confidence: float, side: str = "two-sided"
) -> tuple[float, float]:
    """Equal-tailed (Eq. 4 and 5) or one-sided (section 3.3) credible interval of epsilon."""
    posterior = EpsilonPosterior(tp, fp, tn, fn, delta)
    if side == "two-sided":
        return posterior.quantile((1 - confidence) / 2), posterior.quantile((1 + confidence) / 2)
    return posterior.quantile(1 - confidence), float("inf")


@recorded
def posterior_at_its_ends(
    tp: int, fp: int, tn: int, fn: int, delta: float, *, confidence: float
) -> tuple[tuple[float, float], tuple[float, ...]]:
    """Both ends of the interval; the mass up to 0, the lower end, the middle, the upper end and 1 beyond; the density.

    The density is that of the middle; it is 0 where both ends are one.
    """
    posterior = EpsilonPosterior(tp, fp, tn, fn, delta)
    low, high = posterior.quantile((1 - confidence) / 2), posterior.quantile((1 + confidence) / 2)
    middle = (low + high) / 2
    mass = (posterior.cdf(epsilon) for epsilon in (0.0, low, middle, high, high + 1))
    density = posterior.pdf(middle, step=(high - low) / 20) if high > low else 0.0
    return (low, high), (*mass, density)


@recorded
def cdf_by_panels(epsilon: float, tp: int, fp: int, tn: int, fn: int, delta: float) -> float:
    """Eq. 3 in 30 digits: the density of FNR times FPR's probability of lying between the region's edges."""
    with mp.workdps(30):
        grow, d = mp.exp(epsilon), mpf(delta)

        def below(y: mpf) -> mpf:
            return mp.betainc(fp + 0.5, tn + 0.5, 0, min(max(y, 0), 1), regularized=True)

        def integrand(t: mpf) -> mpf:  # x = sin^2 t takes the singularities of Jeffreys' prior away
            x = mp.sin(t) ** 2
            low = max(0, 1 - d - grow * x, (1 - d - x) / grow)
            high = min(1, 1 + (d - x) / grow, d + (1 - x) * grow)
            return mp.sin(t) ** (2 * fn) * mp.cos(t) ** (2 * tp) * (below(high) - below(low))

        corner = (1 - d) / (1 + grow)
        near = [mpf(2) ** -j for j in range(1, 20)]  # the edges end in square roots at 1 - delta and delta
        kinks = {
            0,
            corner,
            1 - corner,
            1,
            d,
            1 - d,
            *((1 - d) * (1 - s) for s in near),
            *(d + (1 - d) * s for s in near),
        }
        cuts = sorted({*(mp.asin(mp.sqrt(x)) for x in kinks), *(mp.pi / 2 * j / 16 for j in range(1, 16))})
        total = mpf(0)
        nodes, weights = np.polynomial.legendre.leggauss(12)
        for start, right in pairwise(cuts):
            middle, half = (start + right) / 2, (right - start) / 2
            total += half * sum(w * integrand(middle + half * t) for t, w in zip(nodes, weights, strict=True))
        return float(2 * total / mp.beta(fn + 0.5, tp + 0.5))


def region_mass_by_plane(tp: int, fp: int, tn: int, fn: int, *, delta: float, epsilon: float) -> mpf:
    """F(epsilon) as the plain double integral of Eq. 3, tanh-sinh in both directions: for small counts only."""
    growth = mp.exp(epsilon)
    room = 1 - mpf(delta)
    x_front = 1 / mp.beta(fn + mpf(0.5), tp + mpf(0.5))
    y_front = 1 / mp.beta(fp + mpf(0.5), tn + mpf(0.5))

    def density_x(x: mpf) -> mpf:
        return x_front * x ** (fn - mpf(0.5)) * (1 - x) ** (tp - mpf(0.5))

    def density_y(y: mpf) -> mpf:
        return y_front * y ** (fp - mpf(0.5)) * (1 - y) ** (tn - mpf(0.5))

    def slice_at(x: mpf) -> mpf:
        low = max(mpf(0), room - growth * x, (room - x) / growth)
        high = min(mpf(1), 1 + (delta - x) / growth, delta + (1 - x) * growth)
        return density_x(x) * mp.quad(density_y, [low, high])

    kink = room / (1 + growth)
    bends = sorted({mpf(0), kink, 1 - kink, room, mpf(delta), room / growth, 1 - room / growth, mpf(1)})
    return mp.quad(slice_at, bends)


def equation_1(fnr: mpf, fpr: mpf, delta: float) -> mpf:
    """max{log((1-delta-FPR)/FNR), log((1-delta-FNR)/FPR)}, not below 0; infinite at a rate of 0."""
    bound = mpf(0)
    for numerator, rate in ((1 - mpf(delta) - fpr, fnr), (1 - mpf(delta) - fnr, fpr)):
        if numerator > 0:
            bound = max(bound, mp.inf if rate == 0 else mp.log(numerator / rate))
    return bound


@recorded
def rectangle_interval(
    tp: int, fp: int, tn: int, fn: int, *, delta: float, confidence: float, method: str, side: str = "two-sided"
) -> tuple[mpf, mpf]:
    """Extremes over the rectangle of the two rates' intervals, each rate given half the error.

    Two-sided: of the least epsilon whose region, with all four edges, holds the rates. One-sided: of Eq. 1, which knows
    two edges. The extremes are looked for on a 9 x 9 grid over the closed rectangle, corners included, and where its
    lines cross the line of guessing.
    """
    lower, upper = _LIMITS[method]
    error = (1 - mpf(confidence)) / 2
    if side == "two-sided":
        error /= 2
    fnr = mp.linspace(lower(fn, fn + tp, error), upper(fn, fn + tp, error), 9)
    fpr = mp.linspace(lower(fp, fp + tn, error), upper(fp, fp + tn, error), 9)
    if side == "lower":
        return min(equation_1(x, y, delta) for x in fnr for y in fpr), mp.inf
    # The region is point-symmetric about (1/2, 1/2).
    points = [(x, y) for x in fnr for y in fpr]
    points += [(x, 1 - x) for x in fnr if fpr[0] <= 1 - x <= fpr[-1]]
    points += [(1 - y, y) for y in fpr if fnr[0] <= 1 - y <= fnr[-1]]
    values = [max(equation_1(x, y, delta), equation_1(1 - x, 1 - y, delta)) for x, y in points]
    return min(values), max(values)


Limit = Callable[[int, int, mpf], mpf]
_LIMITS: dict[str, tuple[Limit, Limit]] = {
    "clopper-pearson": (clopper_pearson_lower, clopper_pearson_upper),
    "jeffreys": (jeffreys_lower, jeffreys_upper),
}
