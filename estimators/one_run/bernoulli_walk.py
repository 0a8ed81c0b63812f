"""Tails of a Bernoulli walk: its limits at given numbers of trials, and the probability that it ever reaches them."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ndtri

from dpaudit.estimators.arguments import Floats, Ints

TRANSFORMED_FROM = 300_000
"""Number of products in a convolution above which Fourier transforms are faster."""


def crossing_in_arrays(
    guess_counts: Ints, limits: Ints, p: float, negligible: float, later: Floats, sufficient: float, too_much: float
) -> float:
    """Return `_guess_band_kernel.crossing_compared` computed with array operations instead of compiled code.

    Long walks are convolved by Fourier transforms, in n log n operations for each look; rounding adds less than 1e-14
    for each look.
    """
    lowest, staying, crossed = 0, np.ones(1), 0.0
    for trials, limit, beyond in zip(
        np.diff(guess_counts, prepend=0).tolist(), limits.tolist(), later.tolist(), strict=True
    ):
        first, terms = _binomial_terms(trials, p, 0.01 * negligible)
        lowest += first
        moved = _convolve(staying, terms)[: max(0, limit - lowest)]
        crossed += max(0.0, float(staying.sum() - moved.sum()))
        if not moved.size:
            return 1.0
        if crossed > too_much:
            return min(1.0, crossed + 1e-12)
        if crossed + beyond + 1e-12 <= sufficient:
            return float(crossed + beyond + 1e-12)
        lifted = np.cumsum(moved)
        cut = int(np.searchsorted(lifted[:-1], negligible))
        moved[cut] = lifted[cut]
        staying = moved[cut:]
        lowest += cut
    return min(1.0, crossed + 1e-12)


def _convolve(first: Floats, second: Floats) -> Floats:
    """Return `np.convolve` of probabilities."""
    if first.size * second.size < TRANSFORMED_FROM:
        return np.convolve(first, second)
    size = first.size + second.size - 1
    length = 1 << (size - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(first, length) * np.fft.rfft(second, length), length)[:size]
    return np.maximum(product, 0.0, out=product)


@lru_cache(maxsize=256)
def _binomial_terms(trials: int, p: float, smallest: float) -> tuple[int, Floats]:
    """Return the first count with a Binomial(trials, p) probability >= `smallest`, and the probabilities from there."""
    mode = min(trials, int((trials + 1) * p))
    ways = math.lgamma(trials + 1.0) - math.lgamma(mode + 1.0) - math.lgamma(trials - mode + 1.0)
    top = math.exp(ways + mode * math.log(p) + (trials - mode) * math.log1p(-p))
    rare = -math.log(smallest)
    reach = int(rare + math.sqrt(2 * rare * trials * p * (1 - p))) + 2  # by Bernstein's inequality
    down, up = np.arange(mode, max(mode - reach, 0), -1.0), np.arange(mode, min(mode + reach, trials))
    odds = p / (1 - p)
    below = top * np.cumprod(down / ((trials - down + 1) * odds))
    above = top * np.cumprod((trials - up) / (up + 1) * odds)
    below, above = below[below >= smallest], above[above >= smallest]
    return mode - below.size, np.concatenate([below[::-1], [top], above])


def upper_tails(counts: Ints, guess_counts: Ints, p: float) -> Floats:
    """Return Pr[Bin(k, p) >= count], shape as both; without the overhead of scipy's distributions."""
    inside = np.minimum(np.maximum(counts, 1), guess_counts)  # `np.clip` takes as long as the tails of a few looks
    tail = np.asarray(betainc(inside, guess_counts - inside + 1.0, p), np.float64)
    tail[counts <= 0] = 1.0
    tail[counts > guess_counts] = 0.0
    return tail


def walk_limits(guess_counts: Ints, p: float, levels: Floats) -> Ints:
    """Return the smallest count c at each look with Pr[Bin(k, p) >= c] <= level; in doubt one too low: safe."""

    def within(counts: Ints, places: Ints) -> NDArray[np.bool_]:
        return upper_tails(counts, guess_counts[places], p) <= levels[places] * (1 + 1e-9)

    every = np.arange(guess_counts.size)
    expected = _expected_limits(guess_counts, p, levels)
    below, above = np.clip(expected - 1, -1, guess_counts), np.clip(expected, 0, guess_counts + 1)
    too_high = within(below, every) & (below >= 0)
    places, wider = every[too_high], 1
    while places.size:
        above[places] = below[places]
        below[places] = np.maximum(below[places] - wider, -1)
        places, wider = places[within(below[places], places) & (below[places] >= 0)], 2 * wider
    places, wider = every[~too_high], 1
    places = places[~within(above[places], places)]
    while places.size:
        below[places] = above[places]
        above[places] = np.minimum(above[places] + wider, guess_counts[places] + 1)
        places, wider = places[~within(above[places], places)], 2 * wider
    # Now `above` is within the level and `below` is not, at every look.
    places = every[above - below > 1]
    while places.size:
        middle = (below[places] + above[places]) // 2
        enough = within(middle, places)
        below[places], above[places] = np.where(enough, below[places], middle), np.where(enough, middle, above[places])
        places = places[above[places] - below[places] > 1]
    return above


def _expected_limits(guess_counts: Ints, p: float, levels: Floats) -> Ints:
    """Return `walk_limits` approximately: the normal law, corrected for skewness (Cornish and Fisher, 1937)."""
    z = -ndtri(np.clip(levels, 1e-300, 0.5))
    mean, spread = guess_counts * p, np.sqrt(guess_counts * (p * (1 - p)))
    expected: Ints = np.ceil(mean + 0.5 + z * spread + (1 - 2 * p) * (z * z - 1) / 6).astype(np.int64)
    return expected
