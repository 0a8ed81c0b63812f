"""Compiled probability that a Bernoulli walk, observed at given numbers of trials, ever reaches its limits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpaudit.compiling import compiled


@compiled()
def binomial_terms(trials: int, p: float, smallest: float) -> tuple[int, NDArray[np.float64]]:
    """Return the first count with a Binomial(trials, p) probability >= `smallest`, and the probabilities from there."""
    mode = min(trials, int((trials + 1) * p))
    logarithm = math.lgamma(trials + 1.0) - math.lgamma(mode + 1.0) - math.lgamma(trials - mode + 1.0)
    top = math.exp(logarithm + mode * math.log(p) + (trials - mode) * math.log1p(-p))
    odds = p / (1 - p)
    first, term = mode, top
    while first > 0 and term > smallest:
        term *= first / ((trials - first + 1) * odds)
        first -= 1
    last, term = mode, top
    while last < trials and term > smallest:
        term *= (trials - last) / (last + 1) * odds
        last += 1
    terms = np.empty(last - first + 1)
    terms[mode - first] = top
    for count in range(mode, first, -1):
        terms[count - 1 - first] = terms[count - first] * count / ((trials - count + 1) * odds)
    for count in range(mode, last):
        terms[count + 1 - first] = terms[count - first] * (trials - count) / (count + 1) * odds
    return first, terms


@compiled()
def crossing_probability(
    trial_counts: NDArray[np.int64], limits: NDArray[np.int64], p: float, negligible: float = 1e-16
) -> float:
    """Return Pr[W_k >= limit at some k of `trial_counts`], where W_k is Binomial(k, p) along one walk.

    The result is at most 1e-12 below the exact probability. Mass that is too small to follow counts as having reached a
    limit, or is moved to a higher count.

    `trial_counts` ascend from >= 1. At each of them the mass of the lowest counts is moved up while it is below
    `negligible`, and terms below a hundredth of `negligible` are dropped. The fewer counts are followed, the faster the
    recursion.
    """
    return float(crossing_compared(trial_counts, limits, p, negligible, np.zeros(trial_counts.size), 0.0, 2.0))


@compiled()
def crossing_compared(
    trial_counts: NDArray[np.int64],
    limits: NDArray[np.int64],
    p: float,
    negligible: float,
    later: NDArray[np.float64],
    sufficient: float,
    too_much: float,
) -> float:
    """Return `crossing_probability`, stopped as soon as it is known to be <= `sufficient` or > `too_much`.

    Args:
        trial_counts: As for `crossing_probability`.
        limits: As for `crossing_probability`.
        p: As for `crossing_probability`.
        negligible: As for `crossing_probability`.
        later: For each number of trials, an upper bound on the probability of reaching a limit later.
        sufficient: A probability > 0 at or below which the exact value does not matter; 0 if it always matters.
        too_much: A probability above which the exact value does not matter; above 1 if it always matters.
    Returns: The probability, or after an early stop a number between it and `sufficient`, or between `too_much` and it.
    """
    lowest, staying, crossed, before = 0, np.ones(1), 0.0, 0
    for index in range(trial_counts.size):
        first, terms = binomial_terms(trial_counts[index] - before, p, 0.01 * negligible)
        before = trial_counts[index]
        lowest += first
        size = max(0, min(staying.size + terms.size - 1, limits[index] - lowest))
        moved = np.zeros(size)
        for count in range(min(staying.size, size)):
            share = staying[count]
            for more in range(min(terms.size, size - count)):
                moved[count + more] += share * terms[more]
        crossed += max(0.0, staying.sum() - moved.sum())
        if size == 0:
            return 1.0
        if crossed > too_much or crossed + later[index] + 1e-12 <= sufficient:
            most: float = crossed if crossed > too_much else crossed + later[index]
            return min(1.0, most + 1e-12)
        cut, lifted = 0, 0.0
        while cut < size - 1 and lifted + moved[cut] < negligible:
            lifted += moved[cut]
            cut += 1
        moved[cut] += lifted
        staying = moved[cut:]
        lowest += cut
    return min(1.0, crossed + 1e-12)
