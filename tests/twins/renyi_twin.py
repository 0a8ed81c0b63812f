"""Slow twins of the Renyi estimators of private prediction (S3), sums and integrals written out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy.optimize import minimize

from tests.twins.answers import recorded
from tests.twins.binomial_twin import (
    DIGITS,
    Number,
    clopper_pearson_lower,
    clopper_pearson_upper,
    goodman,
    sison_glaz,
)


def divergence(p: Sequence[Number], q: Sequence[Number], order: float) -> mpf:
    """D_a(P||Q) = log(sum_i q_i (p_i/q_i)^a)/(a - 1); Kullback-Leibler at 1, the largest log ratio at infinity."""
    with mp.workdps(DIGITS):
        pairs = [(mpf(a), mpf(b)) for a, b in zip(p, q, strict=True) if a > 0]
        if order == 1:
            return mp.inf if any(b == 0 for _, b in pairs) else mp.fsum(a * mp.log(a / b) for a, b in pairs)
        if mp.isinf(order):
            return mp.inf if any(b == 0 for _, b in pairs) else max(mp.log(a / b) for a, b in pairs)
        order = mpf(order)
        if order > 1 and any(b == 0 for _, b in pairs):
            return mp.inf
        shared = [(a, b) for a, b in pairs if b > 0]
        if not shared:
            return mp.inf
        return mp.log(mp.fsum(b * (a / b) ** order for a, b in shared)) / (order - 1)


def bernoulli_divergence(p: Number, q: Number, order: float) -> mpf:
    """The 2-cut at one set: D_a(Bernoulli(p) || Bernoulli(q))."""
    return divergence([p, 1 - mpf(p)], [q, 1 - mpf(q)], order)


def two_cut_rectangle(k1: int, n1: int, k2: int, n2: int, confidence: float) -> tuple[mpf, mpf, mpf, mpf]:
    """(p1_lo, p1_hi, p2_lo, p2_hi): four Clopper-Pearson limits, a quarter of the error each."""
    error = (1 - mpf(confidence)) / 4
    return (
        clopper_pearson_lower(k1, n1, error),
        clopper_pearson_upper(k1, n1, error),
        clopper_pearson_lower(k2, n2, error),
        clopper_pearson_upper(k2, n2, error),
    )


@recorded
def two_cut_minimum(k1: int, n1: int, k2: int, n2: int, order: float, *, confidence: float) -> mpf:
    """min of the 2-cut divergence over the rectangle; 0 if the rectangle meets the diagonal.

    The divergence falls towards p1 = p2 along both axes, so the minimum over an off-diagonal rectangle is searched
    on its border by a grid that contains all four corners.
    """
    low1, high1, low2, high2 = two_cut_rectangle(k1, n1, k2, n2, confidence)
    if max(low1, low2) <= min(high1, high2):
        return mpf(0)
    grid1, grid2 = mp.linspace(low1, high1, 6), mp.linspace(low2, high2, 6)
    return min(bernoulli_divergence(p, q, order) for p, q in product(grid1, grid2))


@recorded
def two_cut_termwise(k1: int, n1: int, k2: int, n2: int, order: float, *, confidence: float) -> mpf:
    """Appendix B as published: log(p1_lo^a p2_hi^(1-a) + (1-p1_hi)^a (1-p2_lo)^(1-a))/(a - 1), not cut at 0."""
    low1, high1, low2, high2 = two_cut_rectangle(k1, n1, k2, n2, confidence)
    return _termwise([low1, 1 - high1], [high2, 1 - low2], order)


def _termwise(numerators: Sequence[mpf], denominators: Sequence[mpf], order: float) -> mpf:
    with mp.workdps(DIGITS):
        a = mpf(order)
        total = mp.fsum(p**a * q ** (1 - a) for p, q in zip(numerators, denominators, strict=True) if p > 0)
        return mp.log(total) / (a - 1) if total > 0 else -mp.inf


@recorded
def k_cut_limits(
    counts: Sequence[int], method: str, *, confidence: float, error_of_a_limit: Number | None = None
) -> list[tuple[mpf, mpf]]:
    """The k pairs of limits: `clopper-pearson` at the given error a limit, `goodman` or `sison-glaz` jointly."""
    if method == "clopper-pearson":
        n = sum(counts)
        return [
            (clopper_pearson_lower(k, n, error_of_a_limit), clopper_pearson_upper(k, n, error_of_a_limit))
            for k in counts
        ]
    return {"goodman": goodman, "sison-glaz": sison_glaz}[method](counts, confidence)


def k_cut_termwise(limits1: Sequence[tuple[mpf, mpf]], limits2: Sequence[tuple[mpf, mpf]], order: float) -> mpf:
    """Appendix B as published: log(sum_i p1_lo(i)^a p2_hi(i)^(1-a))/(a - 1), not cut at 0."""
    return _termwise([low for low, _ in limits1], [high for _, high in limits2], order)


@recorded
def noisy_argmax(histogram: Sequence[float], sigma: float) -> list[mpf]:
    """Pr[argmax(n_c + N(0, sigma^2)) = c] = int phi((x - n_c)/sigma)/sigma prod_(i != c) Phi((x - n_i)/sigma) dx."""
    with mp.workdps(30):
        sigma = mpf(sigma)
        counts = [mpf(n) for n in histogram]
        reach = 14 * sigma
        low, high = min(counts) - reach, max(counts) + reach
        panels = int(mp.ceil((high - low) / (2 * sigma)))
        points = sorted({*mp.linspace(low, high, panels + 1), *counts})

        @cache  # the integrals of all classes meet at the same points
        def below(x: mpf, i: int) -> mpf:
            return mp.ncdf(x, counts[i], sigma)

        def chance(c: int) -> mpf:
            def density(x: mpf) -> mpf:
                return mp.npdf(x, counts[c], sigma) * mp.fprod(below(x, i) for i in range(len(counts)) if i != c)

            # The quadrature stops at an absolute error: bring the integrand to the size of 1 first.
            fine = mp.linspace(low, high, 8 * panels + 1)
            size = max(density(x) for x in fine)
            return size * mp.quad(lambda x: density(x) / size, points, method="gauss-legendre", maxdegree=5)

        return [chance(c) for c in range(len(counts))]


@recorded
def log_noisy_argmax(histogram: list[float], sigma: float, c: int) -> float:
    """log Pr[argmax(n_i + N(0, sigma^2)) = c], the integrand of one class about its peak."""
    with mp.workdps(25):
        u = [mpf(n) / mpf(sigma) for n in histogram]
        others = Counter(u[:c] + u[c + 1 :])

        def exponent(x: mpf) -> mpf:
            return -((x - u[c]) ** 2) / 2 + sum(m * mp.log(mp.ncdf(x - v)) for v, m in others.items())

        grid = [float(u[c] + max(u)) / 2 - 1 + 0.1 * i for i in range(int(5 * abs(float(max(u) - u[c]))) + 50)]
        peak = max(grid, key=lambda x: exponent(mpf(x)))
        ends = [peak + step for step in (-9, -3, -1.2, -0.5, 0, 0.5, 1.2, 3, 9)]
        top = exponent(peak)
        whole = mp.quad(lambda x: mp.exp(exponent(x) - top), ends, maxdegree=5)
        return float(top + mp.log(whole / mp.sqrt(2 * mp.pi)))


def rdp_to_epsilon(orders: Sequence[float], rdp: Sequence[float], *, delta: float, conversion: str = "improved") -> mpf:
    """min over orders a of rdp + log((a-1)/a) - (log delta + log a)/(a-1), or classical rdp - log(delta)/(a-1)."""
    with mp.workdps(DIGITS):
        bounds = []
        for a, value in zip(orders, rdp, strict=True):
            a, epsilon = mpf(a), mpf(value) - mp.log(delta) / (mpf(a) - 1)
            if conversion == "improved":
                epsilon += mp.log((a - 1) / a) - mp.log(a) / (a - 1)
            bounds.append(epsilon)
        return min(bounds)


@recorded
def k_cut_minimum(
    limits1: Sequence[tuple[float, float]], limits2: Sequence[tuple[float, float]], order: float
) -> float:
    """min of D_a over pairs of laws inside the limits, in doubles, by sequential quadratic programming.

    sum_i p_i^a q_i^(1-a) is jointly convex for a > 1, so any local minimum will do; the best of a few starts is taken.
    """
    limits = np.clip(np.array([*limits1, *limits2], dtype=float), 1e-12, 1)
    k = len(limits1)

    def value(laws: NDArray[np.float64]) -> float:
        return math.log(np.sum(laws[:k] ** order * laws[k:] ** (1 - order))) / (order - 1)

    def slope(laws: NDArray[np.float64]) -> NDArray[np.float64]:
        ratio = laws[:k] / laws[k:]
        total = np.sum(laws[:k] * ratio ** (order - 1))
        return np.concatenate([order * ratio ** (order - 1), (1 - order) * ratio**order]) / total / (order - 1)

    sums = [
        {"type": "eq", "fun": lambda laws: laws[:k].sum() - 1},
        {"type": "eq", "fun": lambda laws: laws[k:].sum() - 1},
    ]
    bounds = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        start = limits[:, 0] + share * (limits[:, 1] - limits[:, 0])
        laws = start
        for _ in range(20):  # each run restarts where the last one stopped, with a fresh curvature
            options = {"ftol": 1e-16, "maxiter": 500}
            outcome = minimize(value, laws, jac=slope, bounds=limits, constraints=sums, method="SLSQP", options=options)
            laws = np.clip(outcome.x, limits[:, 0], limits[:, 1])
        if max(abs(laws[:k].sum() - 1), abs(laws[k:].sum() - 1)) < 1e-10:
            bounds.append(value(laws))
    return max(0.0, min(bounds))
