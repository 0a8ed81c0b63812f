"""Intervals for one proportion, and for the ratio of two.

The trials are independent and the event counted was fixed before looking at them. `clopper_pearson` then holds for
every sample size; `jeffreys` and `katz_log` hold in the limit of many trials.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.estimators.arguments import (
    Floats,
    Interval,
    Ints,
    as_confidence,
    common_shape,
    require_one_of,
    successes_of_trials,
    unboxed,
)

OUTWARD = 1e-13
"""Relative distance each proportion's limit is moved outwards: a hundred times the error of the Beta quantiles used."""


def clopper_pearson(k: ArrayLike, n: ArrayLike, *, confidence: ArrayLike, side: str = "two-sided") -> Interval:
    """Exact interval for a proportion; misses it with probability <= 1 - confidence for every n.

    Args:
        k: Successes, integers 0 <= k <= n.
        n: Trials, integers >= 1.
        confidence: In (0, 1); "two-sided" leaves half of 1 - confidence to each end, one-sided all of it to one.
        side: "two-sided"; "lower" gives (limit, inf); "upper" gives (0, limit).
    Returns: Ends in [0, 1] of the broadcast shape, the lower rounded down and the upper up (by 1e-13 of itself).
    Raises: InputError.
    Source: Clopper and Pearson (1934); as used in Zanella-Beguelin et al. (2022), section 2.6.
    """
    successes, trials, error = _prepared(k, n, confidence, side)
    misses = trials - successes
    lower: Floats = np.asarray(special.betaincinv(np.maximum(successes, 1.0), misses + 1.0, error))
    upper: Floats = np.asarray(special.betainccinv(successes + 1.0, np.maximum(misses, 1.0), error))
    return _ends(lower, upper, successes, misses, side)


def jeffreys(k: ArrayLike, n: ArrayLike, *, confidence: ArrayLike, side: str = "two-sided") -> Interval:
    """Equal-tailed credible interval for a proportion under Jeffreys' prior Beta(1/2, 1/2); no coverage guarantee.

    The lower end is 0 at k = 0 and the upper 1 at k = n, so that coverage does not vanish near 0 and 1.

    Args and returns: As `clopper_pearson`.
    Source: Zanella-Beguelin et al. (2022), section 3.1; Cai (2005).
    """
    successes, trials, error = _prepared(k, n, confidence, side)
    misses = trials - successes
    lower: Floats = np.asarray(special.betaincinv(successes + 0.5, misses + 0.5, error))
    upper: Floats = np.asarray(special.betainccinv(successes + 0.5, misses + 0.5, error))
    return _ends(lower, upper, successes, misses, side)


def katz_log(k1: ArrayLike, n1: ArrayLike, k0: ArrayLike, n0: ArrayLike, *, confidence: ArrayLike) -> Interval:
    """Asymptotic interval of ln(p1 / p0) from two independent samples; each end errs with half of 1 - confidence.

    Undefined when either event was never seen: such tables claim nothing, (-inf, inf).

    Args:
        k1, n1: Successes and trials in world 1, 0 <= k1 <= n1, n1 >= 1.
        k0, n0: The same in world 0.
        confidence: In (0, 1), of both ends together.
    Returns: Ends in nats, of the broadcast shape; computed to 1e-14 relative and not rounded outwards.
    Source: Katz et al. (1978); Lu et al. (2022), Lemma A.3.
    """
    first, trials1 = successes_of_trials(k1, n1, names=("k1", "n1"))
    second, trials0 = successes_of_trials(k0, n0, names=("k0", "n0"))
    level = as_confidence(confidence)
    common_shape(first, trials1, second, trials0, level, names=("k1", "n1", "k0", "n0", "confidence"))
    seen = (first > 0) & (second > 0)
    p1, p0 = np.maximum(first, 1) / trials1, np.maximum(second, 1) / trials0
    spread = special.ndtri((1 + level) / 2) * np.sqrt((1 - p1) / (p1 * trials1) + (1 - p0) / (p0 * trials0))
    centre = np.log(p1 / p0)
    return Interval(unboxed(np.where(seen, centre - spread, -np.inf)), unboxed(np.where(seen, centre + spread, np.inf)))


def _prepared(k: ArrayLike, n: ArrayLike, confidence: ArrayLike, side: str) -> tuple[Ints, Ints, Floats]:
    """Checked successes and trials, and the error left to each limit."""
    successes, trials = successes_of_trials(k, n)
    level = as_confidence(confidence)
    require_one_of("side", side, ("two-sided", "lower", "upper"))
    common_shape(successes, trials, level, names=("k", "n", "confidence"))
    return successes, trials, (1 - level) / (2 if side == "two-sided" else 1)


def _ends(lower: Floats, upper: Floats, successes: Ints, misses: Ints, side: str) -> Interval:
    low = np.where(successes == 0, 0.0, lower * (1 - OUTWARD))
    high = np.where(misses == 0, 1.0, np.minimum(upper * (1 + OUTWARD), 1.0))
    if side == "lower":
        high = np.full_like(low, np.inf)
    elif side == "upper":
        low = np.zeros_like(high)
    return Interval(unboxed(low), unboxed(high))
