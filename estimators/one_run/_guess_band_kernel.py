"""Compiled: how probable is it that a Bernoulli walk, looked at now and then, ever reaches its limits?"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def binomial_terms(trials: int, p: float, smallest: float) -> tuple[int, NDArray[np.float64]]:
    """The terms of Binomial(trials, p) that are not below `smallest`: the first count among them, and the terms."""
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


@njit(cache=True, nogil=True)
def crossing_probability(
    looks: NDArray[np.int64], limits: NDArray[np.int64], p: float, negligible: float = 1e-16
) -> float:
    """Pr[W_k >= limit at some look k], W_k the successes of the first k of independent trials of probability p.

    Exact but for rounding and for mass too small to follow, which is counted as having reached a limit or lifted nearer
    to it: never too small by more than 1e-12.

    The looks are numbers of trials, ascending, >= 1. At each look the mass of the lowest counts is lifted while it is
    below `negligible`, and terms below a hundredth of it are left out: the fewer counts are followed, the faster.
    """
    return float(crossing_compared(looks, limits, p, negligible, np.zeros(looks.size), 0.0, 2.0))


@njit(cache=True, nogil=True)
def crossing_compared(
    looks: NDArray[np.int64],
    limits: NDArray[np.int64],
    p: float,
    negligible: float,
    later: NDArray[np.float64],
    enough: float,
    too_much: float,
) -> float:
    """`crossing_probability`, followed until it is known to be at most `enough`, or to exceed `too_much`.

    Args:
        looks: As there.
        limits: As there.
        p: As there.
        negligible: As there.
        later: By look, a number that the probability of reaching a limit at some later look does not exceed.
        enough: A probability > 0 at or below which its size does not matter; 0 where it does.
        too_much: A probability beyond which its size does not matter; above 1 where it does.
    Returns: The probability; a number between it and `enough`, or between `too_much` and it, where that came first.
    """
    lowest, staying, crossed, before = 0, np.ones(1), 0.0, 0
    for look in range(looks.size):
        first, terms = binomial_terms(looks[look] - before, p, 0.01 * negligible)
        before = looks[look]
        lowest += first
        kept = max(0, min(staying.size + terms.size - 1, limits[look] - lowest))
        moved = np.zeros(kept)
        for count in range(min(staying.size, kept)):
            share = staying[count]
            for more in range(min(terms.size, kept - count)):
                moved[count + more] += share * terms[more]
        crossed += max(0.0, staying.sum() - moved.sum())
        if kept == 0:
            return 1.0
        if crossed > too_much or crossed + later[look] + 1e-12 <= enough:
            most: float = crossed if crossed > too_much else crossed + later[look]
            return min(1.0, most + 1e-12)
        cut, lifted = 0, 0.0
        while cut < kept - 1 and lifted + moved[cut] < negligible:
            lifted += moved[cut]
            cut += 1
        moved[cut] += lifted
        staying = moved[cut:]
        lowest += cut
    return min(1.0, crossed + 1e-12)
