"""Compiled bets: thresholds chosen on past pairs, counts of scores above them, and the resulting wealth.

A bet is on a set at or above a threshold. Its wealth depends on the scores only through two counts: hits of the set in
the world in which it is expected, and hits in the other world. One pass therefore serves every epsilon and every stake.
Array axes: side (0: high scores against world 0; 1: low scores against world 1, as mirrored scores with the worlds
exchanged), and rule that chooses the threshold; the first rules count past scores, the last ones smooth them.
"""

from __future__ import annotations

import math

import numpy as np

from dpaudit.compiling import compiled
from dpaudit.estimators.arguments import Floats, Ints

_MOST_SMOOTHED, _CANDIDATES = 256, 64  # scores of a kernel density, and thresholds that are tried
_LOG_ROUNDING = 1e-9  # far above the rounding error of a log wealth; a rejection needs this much more than its level


_compiled = compiled(error_model="numpy")


@_compiled
def growth(hit: float, alarm: float, ratio: float) -> float:
    """Return the mean log gain of the best stake on a set with these rates against `ratio` = e^epsilon.

    It is <= 0 if no stake gains.
    """
    if hit <= ratio * alarm:
        return hit - ratio * alarm
    fraction = (hit - ratio * alarm) / (hit + alarm)
    return hit * math.log1p(fraction / ratio) + alarm * math.log1p(-fraction)


@_compiled
def choose(ones: Floats, zeros: Floats, designs: Floats, margins: Floats, thresholds: Floats) -> None:
    """Write into `thresholds`, shape (designs,), those that would have gained most on these scores, both shape (n,).

    Both arrays ascend. The world-0 scores are first raised by a margin, in units of their upper spread: a threshold
    right above the highest of n scores is crossed by the next one with probability 1 / (n + 1). Rates are smoothed by
    half a hit. A threshold lies in the middle of its gap. It is NaN if none divides the scores.

    `growth` increases in the hits, decreases in the alarms, and is convex where positive and linear elsewhere. So the
    best threshold is a vertex of the upper hull of the ROC curve, and no other one is evaluated.
    """
    n = ones.size
    best = np.full(designs.size, -np.inf)
    thresholds[:] = np.nan
    spread = zeros[n - 1] - (zeros[n // 2] + zeros[(n - 1) // 2]) / 2
    hull_hits, hull_alarms, hull_cuts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n)
    for margin in np.unique(margins):
        raised = zeros + margin * spread if np.isfinite(spread) else zeros
        hits = alarms = counted = size = 0
        while hits + alarms < 2 * n:
            upper = max(ones[n - 1 - hits] if hits < n else -np.inf, raised[n - 1 - alarms] if alarms < n else -np.inf)
            while hits < n and ones[n - 1 - hits] == upper:
                hits += 1
            while alarms < n and raised[n - 1 - alarms] == upper:
                alarms += 1
            # Only a cut with more hits than the last one can be better.
            if hits == counted or hits + alarms == 2 * n:
                continue
            counted = hits
            lower = max(ones[n - 1 - hits] if hits < n else -np.inf, raised[n - 1 - alarms] if alarms < n else -np.inf)
            middle = lower + 0.5 * (upper - lower)
            if not lower < middle <= upper:  # neighbouring floats, or an infinity
                middle = upper
            while size >= 2 and (
                (hull_alarms[size - 1] - hull_alarms[size - 2]) * (hits - hull_hits[size - 2])
                > (hull_hits[size - 1] - hull_hits[size - 2]) * (alarms - hull_alarms[size - 2])
            ):
                size -= 1
            hull_hits[size], hull_alarms[size], hull_cuts[size] = hits, alarms, middle
            size += 1
        for k in range(designs.size):
            if margins[k] == margin:
                ratio = math.exp(designs[k])
                for vertex in range(size):
                    value = growth((hull_hits[vertex] + 0.5) / (n + 1), (hull_alarms[vertex] + 0.5) / (n + 1), ratio)
                    if value > best[k]:
                        best[k], thresholds[k] = value, hull_cuts[vertex]


@_compiled
def choose_smoothed(ones: Floats, zeros: Floats, designs: Floats, thresholds: Floats) -> None:
    """Write into `thresholds`, shape (designs,), those that gain most if scores follow kernel densities of the past.

    Both arrays ascend, shape (n,). Of many scores, evenly spaced ones stand for all. Counts alone overrate the tails
    at a small epsilon, where the worlds differ little everywhere.
    """
    if ones.size > _MOST_SMOOTHED:
        places = ((np.arange(_MOST_SMOOTHED) + 0.5) / _MOST_SMOOTHED * ones.size).astype(np.int64)
        ones, zeros = ones[places], zeros[places]
    n = ones.size
    best = np.full(designs.size, -np.inf)
    thresholds[:] = np.nan
    width_1, width_0 = bandwidth(ones), bandwidth(zeros)
    pooled = np.sort(np.concatenate((ones, zeros)))
    for candidate in range(_CANDIDATES):
        cut = pooled[int((candidate + 0.5) / _CANDIDATES * 2 * n)]
        hit = (reaching(ones, width_1, cut) + 0.5) / (n + 1)
        alarm = (reaching(zeros, width_0, cut) + 0.5) / (n + 1)
        for k in range(designs.size):
            value = growth(hit, alarm, math.exp(designs[k]))
            if value > best[k]:
                best[k], thresholds[k] = value, cut


@_compiled
def bandwidth(ascending: Floats) -> float:
    """Return Silverman's bandwidth of a Gaussian kernel for these scores, which ascend; 0 if they are all equal."""
    finite = ascending[np.isfinite(ascending)]
    if finite.size < 2:
        return 0.0
    quartiles = (finite[3 * finite.size // 4] - finite[finite.size // 4]) / 1.34
    deviation = finite.std()
    return float(0.9 * (min(deviation, quartiles) if quartiles > 0 else deviation) * finite.size**-0.2)


@_compiled
def reaching(scores: Floats, width: float, threshold: float) -> float:
    """Return the number of scores at or above a threshold, each smoothed by a Gaussian kernel of this width."""
    total = 0.0
    for score in scores:
        if width > 0 and math.isfinite(score):
            total += 0.5 * math.erfc((threshold - score) / (width * math.sqrt(2.0)))
        else:
            total += score >= threshold
    return total


@_compiled
def merged(ascending: Floats, others: Floats) -> Floats:
    """Return the values of an ascending array and of others, ascending."""
    others = np.sort(others)
    both = np.empty(ascending.size + others.size)
    i = j = 0
    for k in range(both.size):
        if j == others.size or (i < ascending.size and ascending[i] <= others[j]):
            both[k] = ascending[i]
            i += 1
        else:
            both[k] = others[j]
            j += 1
    return both


@_compiled
def log_wealth(
    epsilon: float,
    delta: float,
    hits: Ints,
    alarms: Ints,
    bets: Ints,
    fractions: Floats,
    weights: Floats,
    counting: int,
) -> float:
    """Return the logarithm of the wealth of the counts, each shape (2, designs), against (epsilon, delta)-DP.

    Stakes are `fractions` of the largest, e^-epsilon; `weights` (both shape (stakes,), sum 1) divide the initial
    capital. The first `counting` rules and the others have half of the capital each; if there are no others, all of it.
    """
    gains = np.log1p(fractions * math.exp(-epsilon))
    losses = np.log1p(-fractions)
    costs = 2.0 * np.log1p(0.5 * delta * math.exp(-epsilon) * fractions)
    families = np.zeros(2)
    for side in range(2):
        logs = np.empty(hits.shape[1])
        for k in range(logs.size):
            stakes = hits[side, k] * gains - bets[side, k] * costs
            if alarms[side, k]:
                stakes += alarms[side, k] * losses
            logs[k] = log_sum(stakes, weights)
        families[0] += log_sum(logs[:counting], np.full(counting, 1 / counting))
        others = logs.size - counting
        families[1] += log_sum(logs[counting:], np.full(others, 1 / others)) if others else 0.0
    return log_sum(families, np.full(2, 0.5)) if hits.shape[1] > counting else families[0]


@_compiled
def log_sum(logs: Floats, weights: Floats) -> float:
    """Return the logarithm of the weighted sum of the exponentials; one of `logs` is finite."""
    largest = logs.max()
    return float(largest + math.log((weights * np.exp(logs - largest)).sum()))


@_compiled
def play_pairs(
    ones: Floats,
    zeros: Floats,
    first: int,
    thresholds: Floats,
    hits: Ints,
    alarms: Ints,
    bets: Ints,
    chooses_at: int,
    reached: int,
    epsilons: Floats,
    delta: float,
    log_needed: float,
    designs: Floats,
    margins: Floats,
    fractions: Floats,
    weights: Floats,
    path: Ints,
) -> int:
    """Play the pairs from number `first` on, and return the number of the pair before which to choose next.

    `ones` and `zeros` hold all scores. The function updates `thresholds`, `hits`, `alarms` and `bets`. It writes to
    `path` the number of `epsilons` rejected after each pair, in their order; `reached` of them already are.
    """
    sorted_ones, sorted_zeros = np.empty(0), np.empty(0)  # those before the last choice
    next_rejection = first  # number of the first pair after which the next epsilon may be rejected
    for i in range(first, ones.size):
        if i == chooses_at:
            sorted_ones = merged(sorted_ones, ones[sorted_ones.size : i])
            sorted_zeros = merged(sorted_zeros, zeros[sorted_zeros.size : i])
            counting = margins.size
            choose(sorted_ones, sorted_zeros, designs[:counting], margins, thresholds[0, :counting])
            choose(-sorted_zeros[::-1], -sorted_ones[::-1], designs[:counting], margins, thresholds[1, :counting])
            choose_smoothed(sorted_ones, sorted_zeros, designs[counting:], thresholds[0, counting:])
            choose_smoothed(-sorted_zeros[::-1], -sorted_ones[::-1], designs[counting:], thresholds[1, counting:])
            chooses_at = i + max(1, i // 10)
        for side in range(2):
            score_1, score_0 = (ones[i], zeros[i]) if side == 0 else (-zeros[i], -ones[i])
            for k in range(designs.size):
                threshold = thresholds[side, k]
                if not math.isnan(threshold):
                    bets[side, k] += 1
                    hits[side, k] += score_1 >= threshold
                    alarms[side, k] += score_0 >= threshold
        while i >= next_rejection and reached < epsilons.size:
            wealth = log_wealth(epsilons[reached], delta, hits, alarms, bets, fractions, weights, margins.size)
            if wealth < log_needed + _LOG_ROUNDING:
                # A pair multiplies the wealth of a side by at most 1 + e^-epsilon, so the next pairs cannot reject.
                most_gain = 2 * math.log1p(math.exp(-epsilons[reached]))
                next_rejection = i + max(1, int((log_needed - wealth) / most_gain))
                break
            reached += 1
        path[i - first] = reached
    return chooses_at
