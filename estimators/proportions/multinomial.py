"""Simultaneous asymptotic intervals for all cells of a multinomial."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Interval, as_confidence, as_counts, common_shape


def goodman(counts: ArrayLike, *, confidence: ArrayLike) -> Interval:
    """Return simultaneous asymptotic intervals for the cells of multinomials: Bonferroni-corrected score intervals.

    Args:
        counts: Integers >= 0, shape (..., K) with K >= 2; each multinomial lies along the last axis, with a sum >= 1.
        confidence: Confidence of all K intervals together, in (0, 1); a scalar or shape (...).
    Returns: Ends in [0, 1], arrays of shape (..., K); the lower end is 0 for an empty cell.
    Source: Goodman (1965).
    Slow twin: `goodman` of tests/twins/binomial_twin.py.
    """
    cells, trials, level = _multinomial(counts, confidence)
    quantile = special.chdtri(1.0, (1 - level) / cells.shape[-1])
    root = np.sqrt(quantile * (quantile + 4 * cells * ((trials - cells) / trials)))
    # The product of the quadratic's roots gives the lower one without the cancellation of -b - sqrt(...).
    lower = 2 * cells * (cells / trials) / (quantile + 2 * cells + root)
    upper = np.minimum((quantile + 2 * cells + root) / (2 * (trials + quantile)), 1.0)
    return Interval(lower, upper)


def sison_glaz(counts: ArrayLike, *, confidence: ArrayLike) -> Interval:
    """Return simultaneous asymptotic intervals of equal width for the cells of multinomials.

    The half-width is the smallest c with nu(c) <= confidence < nu(c + 1), where nu(c) approximates the probability that
    every cell stays within c of its observed count. c grows with the square root of the number of trials. Doubling and
    bisection find it in milliseconds even for 10^8 trials.

    Args and returns: As for `goodman`.
    Source: Sison and Glaz (1995); the recursion for the moments of the truncated Poisson law loses no digits.
    Slow twin: `sison_glaz` of tests/twins/binomial_twin.py.
    """
    cells, _, level = _multinomial(counts, confidence)
    lower, upper = np.empty(cells.shape), np.empty(cells.shape)
    levels = np.broadcast_to(level[..., 0], cells.shape[:-1])
    for row in np.ndindex(cells.shape[:-1]):
        lower[row], upper[row] = _sison_glaz(cells[row], float(levels[row]))
    return Interval(lower, upper)


def _multinomial(counts: ArrayLike, confidence: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return the counts, their sums and the confidence; the latter two have a last axis of length 1."""
    cells = as_counts("counts", counts)
    level = as_confidence(confidence)
    require(cells.ndim >= 1 and cells.shape[-1] >= 2, "counts must have shape (..., K) with K >= 2", shape=cells.shape)
    trials = cells.sum(axis=-1, keepdims=True)
    require(bool(np.all(trials >= 1)), "every multinomial in counts must hold at least one trial", least=trials.min())
    common_shape(level[..., None], trials, names=("confidence", "counts"))
    return cells.astype(np.float64), trials.astype(np.float64), level[..., None]


def _sison_glaz(cells: Floats, confidence: float) -> tuple[Floats, Floats]:
    trials = float(cells.sum())
    high = 1.0
    while high < trials and _within(high, cells) <= confidence:
        high *= 2
    high = min(high, trials)
    low = 0.0
    while high - low > 1:
        middle = np.floor((low + high) / 2)
        if _within(middle, cells) <= confidence:
            low = middle
        else:
            high = middle
    reached, beyond = _within(low, cells), _within(low + 1, cells)
    gamma = float(np.clip((confidence - reached) / (beyond - reached), 0, 1)) if beyond > reached else 1.0
    centre = cells / trials
    return np.maximum(centre - low / trials, 0.0), np.minimum(centre + (low + 2 * gamma) / trials, 1.0)


def _within(c: float, cells: Floats) -> float:
    """Return nu(c): the probability that truncated Poisson counts lie within c of their means, given their sum.

    The law of the sum is an Edgeworth series of order 1/n.
    """
    first, last = np.maximum(cells - c, 0.0), cells + c
    inside = special.pdtr(last, cells) - np.where(first > 0, special.pdtr(np.maximum(first - 1, 0), cells), 0.0)
    inside = np.maximum(inside, _poisson(cells, cells))
    below = np.where(first > 0, _poisson(np.maximum(first - 1, 0), cells), 0.0) / inside
    above = _poisson(last, cells) / inside
    # E[(Y - m) h(Y)] = m (E[h(Y + 1) - h(Y)] + h(first) below - h(last + 1) above), with h = (Y - m)^r in turn.
    low, high = first - cells, last + 1 - cells
    m1 = cells * (below - above)
    m2 = cells * (1 + low * below - high * above)
    m3 = cells * (2 * m1 + 1 + low**2 * below - high**2 * above)
    m4 = cells * (3 * m2 + 3 * m1 + 1 + low**3 * below - high**3 * above)
    variance = m2 - m1**2
    third = m3 - 3 * m2 * m1 + 2 * m1**3
    fourth = m4 - 4 * m3 * m1 + 6 * m2 * m1**2 - 3 * m1**4
    total = variance.sum()
    if total <= 0:  # no cell may deviate: the probability of exactly these counts
        return float(np.prod(_poisson(cells, cells)) / _poisson(cells.sum(), cells.sum()))
    skew = third.sum() / total**1.5
    excess = (fourth - 3 * variance**2).sum() / total**2
    z = -m1.sum() / np.sqrt(total)
    series = (
        1
        + skew * (z**3 - 3 * z) / 6
        + excess * (z**4 - 6 * z**2 + 3) / 24
        + skew**2 * (z**6 - 15 * z**4 + 45 * z**2 - 15) / 72
    )
    density = series * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi * total)
    return float(np.prod(inside) * density / _poisson(cells.sum(), cells.sum()))


def _poisson(y: ArrayLike, mean: ArrayLike) -> Floats:
    """Return Poisson probabilities by Loader's (2000) expansion, which is accurate even for means of 1e8."""
    count, rate = np.asarray(y, dtype=np.float64), np.asarray(mean, dtype=np.float64)
    small = count < 30
    at = np.where(small, 30.0, count)
    stirling = 1 / (12 * at) - 1 / (360 * at**3) + 1 / (1260 * at**5) - 1 / (1680 * at**7)
    safe = np.where(rate > 0, rate, 1.0)
    step = at / safe - 1
    deviance = safe * ((1 + step) * np.log1p(step) - step)
    large_value = np.exp(-deviance - stirling) / np.sqrt(2 * np.pi * at)
    few = np.where(small, count, 0.0)
    small_value = np.exp(special.xlogy(few, rate) - rate - special.gammaln(few + 1))
    return cast(Floats, np.where(small, small_value, np.where(rate > 0, large_value, 0.0)))
