"""Slow twin of the guess band: every walk of up to twelve guesses, one by one, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, product
from math import comb, exp

from tests.twins.answers import recorded


def tail(count: int, trials: int, p: Fraction) -> Fraction:
    """Pr[Bin(trials, p) >= count]."""
    return sum(
        (comb(trials, c) * p**c * (1 - p) ** (trials - c) for c in range(max(count, 0), trials + 1)), Fraction(0)
    )


def statistic(right: list[int], guess_counts: list[int], p: Fraction) -> float:
    """Smallest local level, each divided by the weight 1 / sqrt(k) of its number k of guesses."""
    return min(
        float(tail(count, guess_count, p)) * guess_count**0.5
        for count, guess_count in zip(right, guess_counts, strict=True)
    )


@recorded
def p_value(right: list[int], guess_counts: list[int], p: Fraction) -> Fraction:
    """Probability of all walks whose statistic is no larger, by enumerating the 2^m walks."""
    observed = statistic(right, guess_counts, p)
    total = Fraction(0)
    for steps in product((0, 1), repeat=guess_counts[-1]):
        walk = list(accumulate(steps))
        if statistic([walk[guess_count - 1] for guess_count in guess_counts], guess_counts, p) <= observed * (
            1 + 1e-12
        ):
            total += p ** sum(steps) * (1 - p) ** (guess_counts[-1] - sum(steps))
    return total


@recorded
def epsilon(right: list[int], guess_counts: list[int], significance: float, *, steps: int, largest: float) -> float:
    """Last point of an ascending grid up to which every point is rejected."""
    reached = 0.0
    for step in range(steps + 1):
        trial = largest * step / steps
        if (
            p_value(right, guess_counts, Fraction(exp(trial) / (1 + exp(trial))).limit_denominator(10**6))
            > significance
        ):
            return reached
        reached = trial
    return reached
