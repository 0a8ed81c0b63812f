"""Slow twin of the betting test, written from its docstring: each combination of bets has separate capital."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from tests.twins.answers import recorded

COUNTING = [(epsilon, margin) for margin in (0.25, 0.75) for epsilon in (0.5, 1.5, 3.0, 5.0)]
SMOOTHING = [(epsilon, None) for epsilon in (0.1, 0.5, 1.0, 2.0)]
STAKES = {1.0: 0.2, 0.9: 0.2, 0.7: 0.18, 0.5: 0.14, 0.3: 0.1, 0.15: 0.08, 0.07: 0.05, 0.03: 0.03, 0.01: 0.02}


def gain(hit: float, alarm: float, epsilon: float) -> float:
    """(hit + alarm) times the relative entropy of the share of hits to e^epsilon / (1 + e^epsilon)."""
    if hit <= math.exp(epsilon) * alarm:
        return hit - math.exp(epsilon) * alarm
    share, honest = hit / (hit + alarm), 1 / (1 + math.exp(-epsilon))
    return (hit + alarm) * (share * math.log(share / honest) + (1 - share) * math.log((1 - share) / (1 - honest)))


def threshold(ones: Sequence[float], zeros: Sequence[float], epsilon: float, margin: float) -> float | None:
    """Highest of the best cuts between the pooled scores, where scores of world 0 are raised by the margin."""
    raised = [zero + margin * (max(zeros) - float(np.median(zeros))) for zero in zeros]
    pooled = sorted({*ones, *raised}, reverse=True)
    cuts = [(upper + lower) / 2 for upper, lower in itertools.pairwise(pooled)]

    def value(cut: float) -> float:
        hits, alarms = (sum(score >= cut for score in scores) for scores in (ones, raised))
        return gain((hits + 0.5) / (len(ones) + 1), (alarms + 0.5) / (len(ones) + 1), epsilon)

    return max(cuts, key=value, default=None)  # the first of equals: the highest


def smoothed_threshold(ones: Sequence[float], zeros: Sequence[float], epsilon: float) -> float:
    """First of the best of 64 evenly spaced pooled scores, if scores follow Gaussian kernel densities (Silverman)."""
    pooled = sorted([*ones, *zeros])
    cuts = [pooled[int((i + 0.5) / 64 * len(pooled))] for i in range(64)]

    def rate(scores: Sequence[float], cut: float) -> float:
        ordered, n = sorted(scores), len(scores)
        quartiles = (ordered[3 * n // 4] - ordered[n // 4]) / 1.34
        spread = min(float(np.std(scores)), quartiles) if quartiles > 0 else float(np.std(scores))
        if spread == 0:
            reached = float(sum(score >= cut for score in scores))
        else:
            reached = sum(float(norm.sf(cut, score, 0.9 * spread * n**-0.2)) for score in scores)
        return (reached + 0.5) / (n + 1)

    return max(cuts, key=lambda cut: gain(rate(ones, cut), rate(zeros, cut), epsilon))


@recorded
def wealth(ones: Sequence[float], zeros: Sequence[float], epsilon: float, delta: float) -> float:
    """Return the wealth after all pairs, from 1: half of it by rules that count, half by rules that smooth."""
    return sum(wealth_of(designs, ones, zeros, epsilon, delta) for designs in (COUNTING, SMOOTHING)) / 2


def wealth_of(
    designs: Sequence[tuple[float, float | None]],
    ones: Sequence[float],
    zeros: Sequence[float],
    epsilon: float,
    delta: float,
) -> float:
    """Return the mean over (rule, stake) of S and of S' of separate wealths, from 1."""
    chooses_at = {1}
    while max(chooses_at) < len(ones):
        chooses_at.add(max(chooses_at) + max(1, max(chooses_at) // 10))
    total = 0.0
    factor = math.exp(epsilon)
    high = {design: _in_force(ones, zeros, design, chooses_at) for design in designs}
    low = {design: _in_force([-z for z in zeros], [-o for o in ones], design, chooses_at) for design in designs}
    for above in high.values():
        for below in low.values():
            for a, a_capital in STAKES.items():
                for b, b_capital in STAKES.items():
                    one_wealth = 1.0
                    for one_score, zero, t, u in zip(ones, zeros, above, below, strict=True):
                        if t is not None:
                            one_wealth *= (1 + a / factor * (one_score >= t)) * (1 - a * (zero >= t))
                            one_wealth /= (1 + a / factor * delta / 2) ** 2
                        if u is not None:
                            one_wealth *= (1 + b / factor * (-zero >= u)) * (1 - b * (-one_score >= u))
                            one_wealth /= (1 + b / factor * delta / 2) ** 2
                    total += a_capital * b_capital * one_wealth / len(designs) ** 2
    return total


def _in_force(
    ones: Sequence[float], zeros: Sequence[float], design: tuple[float, float | None], chooses_at: set[int]
) -> list[float | None]:
    """Return the threshold in force at each pair."""
    current: float | None = None
    met = []
    for i in range(len(ones)):
        if i in chooses_at:
            epsilon, margin = design
            if margin is None:
                current = smoothed_threshold(ones[:i], zeros[:i], epsilon)
            else:
                current = threshold(ones[:i], zeros[:i], epsilon, margin)
        met.append(current)
    return met
