"""Lower bounds on the Renyi divergence from counts of answers in a fixed set O, on two neighbouring data sets.

A bound is on D(first || second). The error is shared over *both* directions, so the call with the two samples swapped
holds simultaneously, at the same confidence. The draws must not have been used to choose O.

Source: Chadha et al. (2024), section 4.2 and appendix B.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, as_confidence, unboxed
from dpaudit.estimators.private_prediction.divergence import (
    ROUNDING,
    as_orders,
    as_probabilities,
    divergences,
    log_power_sum,
    renyi_divergence,
)
from dpaudit.estimators.proportions.binomial import clopper_pearson

TwoCut = Literal["corner", "termwise"]


def two_cut_bound(
    k1: ArrayLike,
    n1: ArrayLike,
    k2: ArrayLike,
    n2: ArrayLike,
    orders: ArrayLike,
    *,
    confidence: float,
    method: TwoCut = "corner",
) -> float | Floats:
    """Return a lower bound on D_a(first || second) from counts of answers in one fixed set O.

    The four Clopper-Pearson limits of the two proportions have error (1 - confidence) / 4 each, so all orders and the
    swapped call hold together. `corner` is the exact minimum over the rectangle of the limits, attained at its corner
    nearest to p1 = p2. `termwise` is the published bound, valid and looser.

    Args:
        k1, n1: Answers in O and all answers of the first law; integers that broadcast.
        k2, n2: Answers in O and all answers of the second law.
        orders: Orders a > 1, scalar or shape (m,).
        confidence: In (0, 1).
        method: "corner" or "termwise".
    Returns: Nats, >= 0, shape of the counts + shape of `orders`.
    Source: Chadha et al. (2024), section 4.2 and appendix B; the corner is ours.
    Slow twin: `two_cut_minimum` and `two_cut_termwise` of tests/twins/renyi_twin.py.
    """
    require(method in ("corner", "termwise"), "method must be 'corner' or 'termwise'", method=method)
    flat = np.atleast_1d(as_orders(orders, above=1.0))
    k1, n1, k2, n2 = (np.asarray(count) for count in (k1, n1, k2, n2))
    # The limits of the complement are computed from its own count: 1 - p would lose the digits of small values.
    ends = [*_limits(k1, n1, confidence), *_limits(n1 - k1, n1, confidence)]
    ends += [*_limits(k2, n2, confidence), *_limits(n2 - k2, n2, confidence)]
    lower1, upper1, lower1c, upper1c, lower2, upper2, lower2c, upper2c = np.broadcast_arrays(*ends)
    if method == "termwise":
        values = log_power_sum(_logs(lower1, lower1c), _logs(upper2, upper2c), flat)
    else:
        above, below = lower1 > upper2, upper1 < lower2
        p = _logs(np.where(above, lower1, upper1), np.where(above, upper1c, lower1c))
        q = _logs(np.where(above, upper2, lower2), np.where(above, lower2c, upper2c))
        values = np.where((above | below)[..., None], divergences(p, q, flat), 0.0)
    return unboxed(np.maximum(0.0, values - ROUNDING).reshape(lower1.shape + np.shape(orders)))


def two_cut_set(p: ArrayLike, q: ArrayLike, order: float) -> NDArray[np.bool_]:
    """Return the set of answers whose 2-cut D_a(p || q) is largest, shape (k,) to (k,), for two laws of k >= 2 answers.

    By the Neyman-Pearson lemma it is a level set of the likelihood ratio, so k - 1 candidates suffice instead of 2^k -
    2. Choose it on other draws than those of the bound.
    """
    p, q = as_probabilities(p, "p"), as_probabilities(q, "q")
    require(
        p.ndim == 1 and p.shape == q.shape and p.size >= 2,
        "p and q must be two equally long rows",
        p=p.shape,
        q=q.shape,
    )
    ratio = np.divide(p, q, out=np.where(p > 0, np.inf, 1.0), where=q > 0)
    ranked = np.argsort(-ratio, kind="stable")
    inside = [np.clip(np.cumsum(law[ranked])[:-1], 0.0, 1.0) for law in (p, q)]
    first, second = (np.stack([law, 1 - law], axis=-1) for law in inside)
    best = int(np.argmax(np.atleast_1d(renyi_divergence(first, second, order))))
    chosen = np.zeros(p.size, dtype=bool)
    chosen[ranked[: best + 1]] = True
    return chosen


def _limits(k: Ints, n: Ints, confidence: float) -> tuple[Floats, Floats]:
    """Return both Clopper-Pearson limits of one proportion, each with a quarter of the error."""
    as_confidence(confidence)
    interval = clopper_pearson(k, n, confidence=1 - (1 - confidence) / 2, side="two-sided")
    return np.asarray(interval.lower, np.float64), np.asarray(interval.upper, np.float64)


def _logs(inside: Floats, outside: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(np.stack([inside, outside], axis=-1))
