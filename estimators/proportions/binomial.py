"""Intervals for one proportion, and for the ratio of two.

The trials are independent, and the counted event was fixed before the data were seen. Then `clopper_pearson` holds for
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
"""Relative amount by which a proportion's limits are moved outwards: a hundred times the error of the Beta quantiles.
"""


def clopper_pearson(k: ArrayLike, n: ArrayLike, *, confidence: ArrayLike, side: str = "two-sided") -> Interval:
    """Return the exact interval for a proportion; for every n it misses the truth with probability <= 1 - confidence.

    Args:
        k: Successes, integers 0 <= k <= n.
        n: Trials, integers >= 1.
        confidence: In (0, 1). A two-sided interval allots half of 1 - confidence to each end, a one-sided one all of it
            to one end.
        side: "two-sided"; "lower" gives (limit, inf); "upper" gives (0, limit).
    Returns: Ends in [0, 1] of the broadcast shape, the lower rounded down and the upper up (by 1e-13 relative).
    Raises: InputError for arguments out of range.
    Source: Clopper and Pearson (1934); as used in Zanella-Beguelin et al. (2022), section 2.6.
    Slow twin: `clopper_pearson_lower` and `clopper_pearson_upper` of tests/twins/binomial_twin.py.
    """
    successes, trials, error = _prepared(k, n, confidence, side)
    misses = trials - successes
    lower: Floats = np.asarray(special.betaincinv(np.maximum(successes, 1.0), misses + 1.0, error))
    upper: Floats = np.asarray(special.betainccinv(successes + 1.0, np.maximum(misses, 1.0), error))
    return _ends(lower, upper, successes, misses, side)


def jeffreys(k: ArrayLike, n: ArrayLike, *, confidence: ArrayLike, side: str = "two-sided") -> Interval:
    """Return the equal-tailed credible interval under Jeffreys' prior Beta(1/2, 1/2); it has no coverage guarantee.

    The lower end is 0 at k = 0 and the upper 1 at k = n, so that coverage does not vanish near 0 and 1.

    Args and returns: As for `clopper_pearson`.
    Source: Zanella-Beguelin et al. (2022), section 3.1; Cai (2005).
    Slow twin: `jeffreys_lower` and `jeffreys_upper` of tests/twins/binomial_twin.py.
    """
    successes, trials, error = _prepared(k, n, confidence, side)
    misses = trials - successes
    lower: Floats = np.asarray(special.betaincinv(successes + 0.5, misses + 0.5, error))
    upper: Floats = np.asarray(special.betainccinv(successes + 0.5, misses + 0.5, error))
    return _ends(lower, upper, successes, misses, side)


def katz_log(k1: ArrayLike, n1: ArrayLike, k0: ArrayLike, n0: ArrayLike, *, confidence: ArrayLike) -> Interval:
    """Return the asymptotic interval of ln(p1 / p0) from two independent samples.

    Each end has error (1 - confidence) / 2. The interval is (-inf, inf) if either event has no success.

    Args:
        k1, n1: Successes and trials in world 1, 0 <= k1 <= n1, n1 >= 1.
        k0, n0: Successes and trials in world 0.
        confidence: Confidence of both ends together, in (0, 1).
    Returns: Ends in nats, of the broadcast shape; accurate to 1e-14 relative and not rounded outwards.
    Source: Katz et al. (1978); Lu et al. (2022), Lemma A.3.
    Slow twin: `katz_log` of tests/twins/binomial_twin.py.
    """
    first, trials1 = successes_of_trials(k1, n1, names=("k1", "n1"))
    second, trials0 = successes_of_trials(k0, n0, names=("k0", "n0"))
    level = as_confidence(confidence)
    common_shape(first, trials1, second, trials0, level, names=("k1", "n1", "k0", "n0", "confidence"))
    defined = (first > 0) & (second > 0)
    p1, p0 = np.maximum(first, 1) / trials1, np.maximum(second, 1) / trials0
    spread = special.ndtri((1 + level) / 2) * np.sqrt((1 - p1) / (p1 * trials1) + (1 - p0) / (p0 * trials0))
    centre = np.log(p1 / p0)
    return Interval(
        unboxed(np.where(defined, centre - spread, -np.inf)), unboxed(np.where(defined, centre + spread, np.inf))
    )


def _prepared(k: ArrayLike, n: ArrayLike, confidence: ArrayLike, side: str) -> tuple[Ints, Ints, Floats]:
    """Return the checked successes and trials, and the error of each limit."""
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
