"""Exact simultaneous confidence bands for a distribution function (Berk-Jones).

Of n independent scores from one world, the share at or above a threshold estimates the rate Pr[score >= threshold]. A
band bounds this rate at *every* threshold at once, so the threshold may be chosen on the same scores at no cost. Like
Berk and Jones (1979), it gives each rank k the exact (Beta) limit of its order statistic at one local level. This level
is the largest for which all n limits hold together with the stated probability.

The probability is computed, not simulated. It is the chance that a Poisson process of rate n, conditioned to end at n,
stays on the right side of the limits; the law of its count is carried from limit to limit (Moscovich and Nadler, 2017).
Every step errs on the safe side. Counts further than `_REACH` standard deviations from their mean are treated as if
they had crossed. Above `_EXACT_UP_TO` scores, neighbouring ranks are tested together, by the strictest of them. Above
two million scores, the crossing probabilities of blocks of ranks are added (limits are 10 to 25 % wider). Ties only
make the limits wider than necessary.

For the default weight and 10,000 scores or more the level was computed beforehand. Its logarithm is a polynomial in the
logarithms of the number of scores and of the error, lowered by twice its largest distance from 110 computed levels
(`benchmarks/band_levels.py` computes, fits and checks it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, require_one_of

# Range of scores, errors and weight of the fitted level, and the margin by which its logarithm is lowered.
FITTED_FROM, FITTED_UP_TO = 10_000, 2_000_000
LEAST_ERROR, MAX_ERROR = 1e-5, 0.3
WEIGHT = "low"
MARGIN = 0.011

_DEGREE = 5
_COEFFICIENTS = (
    -14.549603,
    5.3814522,
    0.10392124,
    0.00016152731,
    0.064493911,
    0.085844934,
    -1.9467388,
    -0.0042824281,
    0.0041512401,
    0.009743924,
    -0.012320058,
    -0.020388572,
    0.0058922434,
    -0.0063566261,
    0.0044643086,
    0.032071762,
    0.012046233,
    -0.0055155249,
    0.01935858,
    -0.018753205,
    -0.060116426,
)


def terms(n: NDArray[np.int64] | int, error: Floats | float) -> Floats:
    """Return the terms of the polynomial, shape (..., terms)."""
    x, y = np.log(np.asarray(n, dtype=np.float64) / 1e5) / 4, np.log(np.asarray(error) / 1e-3) / 5
    powers = [(i, j) for i in range(_DEGREE + 1) for j in range(_DEGREE + 1 - i)]
    return np.stack([x**i * y**j for i, j in powers], axis=-1)


def fitted_level(n: int, error: float, weight: str) -> float | None:
    """Return the fitted `local_level` for n scores of a world; None outside the fitted range."""
    if not (FITTED_FROM <= n <= FITTED_UP_TO and LEAST_ERROR <= error <= MAX_ERROR and weight == WEIGHT):
        return None
    return float(np.exp(terms(n, error) @ np.array(_COEFFICIENTS) - MARGIN))


WEIGHTS: Mapping[str, Callable[[Floats], Floats]] = {
    "flat": np.ones_like,
    "tails": lambda rate: 0.5 / np.sqrt(rate * (1 - rate)),
    "low": lambda rate: 1 / np.sqrt(rate),
    "lowest": lambda rate: 1 / rate,
}
"""Local level of a rank, relative to the others, by its expected rate k / (n + 1).

`flat` is Berk and Jones's band. Epsilon is the logarithm of a rate near 1 over a rate near 0. An error of 1 % in the
small rate costs 0.01 nats, and one in the large rate almost nothing. Therefore `low`, the default of audits, spends the
error at small rates. `lowest` does so more strongly (better for rare strong leaks, worse for even ones). `tails` spends
it at both ends.
"""

_EXACT_UP_TO = 3_000  # scores; above it ranks are tested in blocks, which saves seconds and costs little width
# scores; above it the recursion takes minutes, and its wide blocks lose more than the union bound
_RECURSION_UP_TO = 2_000_000
_BLOCK = 0.1  # standard deviations of a rank that one block spans
_UNION_BLOCK = 0.2  # standard deviations of a rank that one block spans in the union bound
# least span of a block in the logarithm of a rate, and the number of scores above which it applies
_COARSE, _COARSE_FROM = 0.002, 100_000
_REACH = 6.0  # standard deviations of a count that are followed; the rest is given up (about 1e-7)
_SLACK = 0.02  # share of the error that may stay unused: a few thousandths of the width, and one evaluation less
_COARSE_SLACK = 0.1  # the same above `_COARSE_FROM` scores, where an evaluation takes a second: 0.5 % of the width
_ROUNDING = 1e-9  # relative; far above the rounding of sums of a million positive products
_LARGEST_LEVEL = 1 - 1e-6  # a weighted local level is a probability


def upper_rates(n: int, *, error: float, weight: str = "flat") -> Floats:
    """Return upper limits of Pr[score >= threshold] that hold at all thresholds together.

    Args:
        n: Number of independent scores of one world, >= 1.
        error: Largest probability that any limit fails, in (0, 1).
        weight: A key of `WEIGHTS`.
    Returns: Shape (n + 1,), non-decreasing; entry j is the limit if j of the n scores are at or above the threshold.
        The last is 1. By symmetry these are also the limits of Pr[score < threshold] if j scores are below.
    """
    level = local_level(n, error=error, weight=weight)
    return np.append(_limits(n, np.arange(1, n + 1), level, weight), 1.0)


def upper_rates_at(counts: Ints, n: int, *, error: float, weight: str = "flat") -> Floats:
    """Return the entries `counts` of `upper_rates`, shape as `counts`, without computing the others."""
    level = local_level(n, error=error, weight=weight)
    counts = np.asarray(counts, dtype=np.int64)
    limits = np.ones(counts.shape)
    inside = counts < n
    limits[inside] = _limits(n, counts[inside] + 1, level, weight)
    return limits


@cache
def local_level(n: int, *, error: float, weight: str = "flat") -> float:
    """Return the level of each rank's limit (times its weight) at which all n hold together; as for `upper_rates`.

    At this level the computed probability that some limit fails is at most `error`, and at least (1 - `_SLACK`)
    `error`, or 0.96 `error` if the level was fitted.
    """
    require(n >= 1, "a band needs at least one score", n=n)
    require(0 < error < 1, "the error of a band must be in (0, 1)", error=error)
    require_one_of("weight", weight, WEIGHTS)
    fitted = fitted_level(n, error, weight)
    if fitted is not None:
        return fitted
    crossing = crossing_probability if n <= _RECURSION_UP_TO else union_crossing_probability
    return _solve(lambda trial: crossing(n, trial, weight), _start(n, error, weight), n, error)


def union_crossing_probability(n: int, level: float, weight: str = "flat") -> float:
    """Return a union bound on the crossing probability over blocks of ranks; it takes a second for 10^8 scores."""
    first, last = _blocks(n, coarse=False, block=_UNION_BLOCK)
    # A block has crossed if its last order statistic exceeds the limit of its first one.
    return float(special.betaincc(last, n - last + 1.0, _limits(n, first, level, weight)).sum())


def crossing_probability(n: int, level: float, weight: str = "flat", *, coarse: bool = True) -> float:
    """Return the probability that some order statistic of n uniform variables exceeds its limit; never too small.

    `level` is the probability that the limit of one rank fails, before its weight. With `coarse`, ranks are tested in
    wider blocks above `_COARSE_FROM` scores: a quarter of the time, and two thirds too high at a million.
    """
    first, last = _blocks(n, coarse=coarse)
    times = _limits(n, first, level, weight)
    # Some Beta quantiles are wrong (scipy 1.17.1: rank 1,000 of 87,270). A lower limit is safe: it fails more often.
    times = np.minimum.accumulate(times[::-1])[::-1]
    return 1.0 - _staying_probability(times, last.astype(np.int64), n, _REACH) * (1 - _ROUNDING)


def _limits(n: int, ranks: Ints, level: float, weight: str) -> Floats:
    """Return the limits of some ranks, increasing: Beta quantiles of order statistics at their share of the level."""
    ranks = np.asarray(ranks, dtype=np.float64)
    share = np.minimum(level * WEIGHTS[weight](ranks / (n + 1)), _LARGEST_LEVEL)
    return np.asarray(special.betainccinv(ranks, n - ranks + 1, share), dtype=np.float64)


def _blocks(n: int, *, coarse: bool, block: float = _BLOCK) -> tuple[Ints, Ints]:
    """Return first and last rank of each block.

    All limits of a block hold if as many points as its last rank lie below its first rank's limit.
    """
    if n <= _EXACT_UP_TO:
        ranks = np.arange(1, n + 1)
        return ranks, ranks
    first = [1]
    while (rank := first[-1]) < n:
        least = _COARSE * math.sqrt(min(rank, n - rank)) if coarse and n > _COARSE_FROM else 0.0
        first.append(rank + max(1, int(max(block, least) * math.sqrt(rank * (n - rank) / n))))
    starts = np.array(first)
    return starts, np.append(starts[1:] - 1, n)


def _solve(crossing: Callable[[float], float], level: float, n: int, error: float) -> float:
    """Return the largest level, to `_SLACK`, with a crossing probability <= `error`, by a secant on a log-log scale."""
    points: list[tuple[float, float]] = []
    slack = _SLACK if n <= _COARSE_FROM else _COARSE_SLACK
    for _ in range(_MAX_STEPS):
        probability = crossing(level)
        if (1 - slack) * error <= probability <= error:
            return level
        points.append((math.log(level), math.log(max(probability, 1e-300))))
        log_level, value = points[-1]
        slope = 1.0
        if len(points) > 1 and points[-2][0] != log_level:
            slope = min(max((value - points[-2][1]) / (log_level - points[-2][0]), 0.3), 3.0)
        level = math.exp(log_level + (math.log((1 - slack / 2) * error) - value) / slope)
    # Not expected, because the probability is smooth and increasing in the level. The union bound always holds, because
    # no weight exceeds n + 1.
    return error / (n * (n + 1.0))


_MAX_STEPS = 30
# Start of the search: local level over error at 1, 10, ..., 10^6 scores, for error 0.025. It affects only the time of
# the search.
_START_LOG_N = tuple(math.log(10.0**power) for power in range(7))
_START_SHARE = {
    "flat": (1.0, 0.147, 0.0438, 0.0213, 0.0124, 0.00823, 0.00603),
    "tails": (1.0, 0.114, 0.0221, 0.00599, 0.00178, 0.000551, 0.000175),
    "low": (0.707, 0.0868, 0.0197, 0.00613, 0.0020, 0.000657, 0.00015),
    "lowest": (0.5, 0.0425, 0.00469, 0.000509, 5.2e-5, 5.22e-6, 5.24e-7),
}


def _start(n: int, error: float, weight: str) -> float:
    share = np.interp(math.log(n), _START_LOG_N, np.log(_START_SHARE[weight]))
    slack = _SLACK if n <= _COARSE_FROM else _COARSE_SLACK
    return (1 - slack / 2) * error * math.exp(float(share))


def _staying_probability(times: Floats, at_least: Ints, n: int, reach: float) -> float:
    """Return the probability that at least `at_least` of n uniform points lie below each of `times`; never too large.

    The points are those of a Poisson process conditioned to end at n.
    """
    current = np.zeros(n + 1)
    following = np.zeros(n + 1)
    current[0] = 1.0
    low = 0
    high = 0
    time = 0.0
    for step in range(times.size + 1):
        last = step == times.size
        next_time = 1.0 if last else times[step]
        spread = reach * math.sqrt(n * next_time * (1 - next_time)) + reach * reach / 3
        new_low = n if last else max(at_least[step], low, int(n * next_time - spread))
        new_high = n if last else min(n, int(n * next_time + spread) + 1)
        mean = n * (next_time - time)
        wide = reach * math.sqrt(mean) + reach * reach / 3 + 2
        fewest = max(0, int(mean - wide))
        most = int(mean + wide) + 1
        size = most - fewest + 1
        chance = np.zeros(size)
        if mean > 0:
            logarithm = fewest * math.log(mean) - mean - math.lgamma(fewest + 1.0)
            chance = np.exp(logarithm) * np.cumprod(np.append(1.0, mean / np.arange(fewest + 1.0, most + 1.0)))
        elif fewest == 0:
            chance[0] = 1.0
        ends = low + fewest  # smallest number of points of the sums
        sums = np.convolve(current[low : high + 1], chance)
        following[new_low : new_high + 1] = 0
        reached = slice(max(new_low, ends), min(new_high, high + most) + 1)
        following[reached] = sums[reached.start - ends : reached.stop - ends]
        current, following = following, current
        low = new_low
        high = new_high
        time = next_time
        if low > high:
            return 0.0
    if n < 20:
        return float(current[n]) / math.exp(n * math.log(n) - n - math.lgamma(n + 1.0))
    # Stirling's series: a difference of numbers near n log n would lose digits, and an integer n**5 would overflow.
    part = 1.0 / n
    return float(current[n]) * math.sqrt(2 * math.pi * n) * math.exp(part / 12 - part**3 / 360 + part**5 / 1260)
