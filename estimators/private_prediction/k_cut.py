"""Lower bounds on the Renyi divergence from counts of each of k answers, on two neighbouring data sets.

A bound is on D(first || second). The error is shared over *both* directions, so the call with the two samples swapped
holds simultaneously, at the same confidence.

Source: Chadha et al. (2024), appendix B; Huber and Strassen (1973) for the finite-sample bound.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, as_confidence, as_counts, require_one_of, unboxed
from dpaudit.estimators.private_prediction.divergence import (
    ROUNDING,
    as_orders,
    divergences,
    log_power_sum,
    renyi_divergence_of_logs,
    require_same_answers,
)
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.proportions.multinomial import goodman, sison_glaz

KCut = Literal["clopper-pearson", "goodman", "sison-glaz"]


def k_cut_bound(
    counts1: ArrayLike, counts2: ArrayLike, orders: ArrayLike, *, confidence: float, method: KCut = "clopper-pearson"
) -> float | Floats:
    """Return a lower bound on D_a(first || second) from counts of each of k answers.

    `clopper-pearson` is valid for every sample size: 2k intervals with error (1 - confidence) / 2k each, and the exact
    minimum of the divergence over all pairs of laws inside them. `goodman` and `sison-glaz` are as published:
    simultaneous intervals of each law with error (1 - confidence) / 2, whose ends enter the sum term by term. They hold
    only in the limit of many draws.

    Args:
        counts1, counts2: Answers of each class, shape (..., k); integers that broadcast.
        orders: Orders a > 1, scalar or shape (m,).
        confidence: In (0, 1).
        method: "clopper-pearson", "goodman" or "sison-glaz".
    Returns: Nats, >= 0, shape (...,) + shape of `orders`.
    Source: Chadha et al. (2024), appendix B; the finite-sample bound is ours, after Huber and Strassen (1973): the
        least favourable pair of laws inside probability intervals is the same for every order.
    Slow twin: `k_cut_minimum` and `k_cut_termwise` of tests/twins/renyi_twin.py.
    """
    require_one_of("method", method, get_args(KCut))
    flat = np.atleast_1d(as_orders(orders, above=1.0))
    counts1, counts2 = _cells(counts1, "counts1"), _cells(counts2, "counts2")
    require_same_answers(counts1, counts2)
    counts1, counts2 = np.broadcast_arrays(counts1, counts2)
    rows = zip(counts1.reshape(-1, counts1.shape[-1]), counts2.reshape(-1, counts2.shape[-1]), strict=True)
    values = np.array([_k_cut(first, second, flat, confidence, method) for first, second in rows])
    return unboxed(np.maximum(0.0, values - ROUNDING).reshape(counts1.shape[:-1] + np.shape(orders)))


def bootstrap_bound(
    counts1: ArrayLike,
    counts2: ArrayLike,
    orders: ArrayLike,
    *,
    confidence: float,
    rng: np.random.Generator,
    resamples: int = 1000,
) -> float | Floats:
    """Return a low quantile of the divergence of resampled counts: **not a valid bound**, only to reproduce the paper.

    The divergence of two empirical laws is almost never 0, so if the true divergence is 0, nearly every "bound" exceeds
    it, at any confidence. Below about n^(-1/2) it is unreliable. Never report it as an audit.

    Args:
        counts1, counts2: Answers of each class, shape (k,); k = 2 is the published 2-cut bootstrap.
        orders: Orders a > 1, scalar or shape (m,).
        confidence: Stated but not attained; half the error for each direction.
        rng: Generator of the resamples.
        resamples: Number of resamples, >= 1.
    Returns: Nats, >= 0, shape of `orders`.
    Source: Chadha et al. (2024), appendix B; their Table 2 shows the same failure.
    """
    flat = np.atleast_1d(as_orders(orders, above=1.0))
    as_confidence(confidence)
    require(resamples >= 1, "resamples must be >= 1", resamples=resamples)
    laws, rows = [], (_cells(counts1, "counts1"), _cells(counts2, "counts2"))
    require_same_answers(*rows)
    for row in rows:
        require(row.ndim == 1, "bootstrapped counts must be one row", shape=row.shape)
        with np.errstate(divide="ignore"):
            laws.append(np.log(rng.multinomial(row.sum(), row / row.sum(), size=resamples) / row.sum()))
    draws = np.atleast_2d(renyi_divergence_of_logs(laws[0], laws[1], flat))
    # "lower" never interpolates between a finite draw and an infinite one.
    values = np.quantile(draws, (1 - confidence) / 2, axis=0, method="lower")
    return unboxed(np.asarray(values, np.float64).reshape(np.shape(orders)))


def _box(counts: Ints, confidence: float, method: str) -> tuple[Floats, Floats]:
    """Return simultaneous intervals for all answers of one law, with half the error, (1 - confidence) / 2."""
    if method == "clopper-pearson":
        trials = np.broadcast_to(counts.sum(), counts.shape)
        interval = clopper_pearson(counts, trials, confidence=1 - (1 - confidence) / (2 * counts.size))
    else:
        simultaneous = goodman if method == "goodman" else sison_glaz
        interval = simultaneous(counts, confidence=1 - (1 - confidence) / 2)
    return np.asarray(interval.lower, np.float64), np.asarray(interval.upper, np.float64)


def _k_cut(first: Ints, second: Ints, orders: Floats, confidence: float, method: str) -> Floats:
    as_confidence(confidence)
    (lower1, upper1), (lower2, upper2) = (_box(counts, confidence, method) for counts in (first, second))
    with np.errstate(divide="ignore"):
        if method != "clopper-pearson":
            return log_power_sum(np.log(lower1), np.log(upper2), orders)
        pairs = np.log(_closest_laws(lower1, upper1, lower2, upper2))
    # Each candidate lies inside the boxes, and one of them is the minimum for every order.
    return np.asarray(np.min(divergences(pairs[:, 0], pairs[:, 1], orders), axis=0))


def _closest_laws(a: Floats, b: Floats, c: Floats, d: Floats) -> Floats:
    """Return pairs of laws p in [a, b] and q in [c, d], one of which minimises D_o(p || q) for every order o > 1.

    The multipliers of sum p = 1 and sum q = 1 enter as two levels s, t of the ratio r = p/q: p is at its lower end
    where r > s and at its upper end where r < s; q is at its upper end where r > t and at its lower end where r < t. If
    s < t, both sit at their lower ends in between (p = clip(s c, a, b), q = clip(a/t, c, d)); if s > t, at their upper
    ends; if s = t, there p = s q. The order of the divergence cancels. Shape (candidates, 2, k).
    """
    low_s, low_u = _level(c, a, b), _level(a, c, d)  # u = 1/t
    high_s, high_u = _level(d, a, b), _level(b, c, d)
    pairs = []
    for s, u, q_end, p_end in ((low_s, low_u, c, a), (high_s, high_u, d, b)):
        if s is not None and u is not None:
            pairs.append((np.clip(s * q_end, a, b), np.clip(u * p_end, c, d)))
    start = max(high_s or 0.0, 1 / low_u if low_u else 0.0)
    end = min(low_s or math.inf, 1 / high_u if high_u else math.inf)
    if start < end < math.inf:
        s = _common_level(a, b, c, d, start, end)
        low, high = np.clip(s * c, a, b), np.clip(s * d, a, b)
        room = float(np.sum(high - low))
        share = min(max((1 - float(np.sum(low))) / room, 0.0), 1.0) if room > 0 else 0.0
        p = low + share * (high - low)
        pairs.append((p, np.clip(p / s, c, d)))
    return np.array(pairs)


def _level(weights: Floats, lower: Floats, upper: Floats) -> float | None:
    """Return the smallest s >= 0 with sum(clip(s * weights, lower, upper)) = 1, exact; None if there is none."""
    used = weights > 0
    bends = np.unique(np.concatenate([[0.0], lower[used] / weights[used], upper[used] / weights[used]]))

    def total(s: float) -> float:
        return float(np.sum(np.clip(s * weights, lower, upper)))

    if total(float(bends[-1])) < 1:  # up to rounding: the ends of complementary limits may sum to 1 - 1e-16
        return float(bends[-1]) if total(float(bends[-1])) > 1 - 1e-12 else None
    under, over = -1, len(bends) - 1
    while over - under > 1:
        middle = (under + over) // 2
        under, over = (middle, over) if total(float(bends[middle])) < 1 else (under, middle)
    if under < 0:
        return float(bends[0])
    low, high = float(bends[under]), float(bends[over])
    return low + (high - low) * (1 - total(low)) / (total(high) - total(low))


def _common_level(a: Floats, b: Floats, c: Floats, d: Floats, start: float, end: float) -> float:
    """Return the level s = t between `start` and `end` at which both laws sum to 1."""
    from scipy.optimize import brentq  # slow to import

    def excess(s: float) -> float:
        return float(np.sum(np.maximum(a - s * d, 0)) - np.sum(np.maximum(s * c - b, 0))) - (1 - s)

    if excess(start) >= 0:
        return start
    if excess(end) <= 0:
        return end
    return float(brentq(excess, start, end, xtol=1e-300, rtol=4 * np.finfo(float).eps))


def _cells(counts: ArrayLike, name: str) -> Ints:
    cells = as_counts(name, counts)
    require(cells.ndim >= 1 and cells.shape[-1] >= 2, f"{name} must list at least two answers", shape=cells.shape)
    require(bool(np.all(np.sum(cells, axis=-1) > 0)), f"{name} must hold at least one answer", counts=counts)
    return cells
