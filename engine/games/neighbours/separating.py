"""What occurs in one world only: exact values, multiples of 1/n, numbers beyond all that the other world shows.

Such a separation is deterministic, as low bits of floating-point noise, shares of a private number of records, or a
noise that ends. A classifier that adds up what all numbers say dilutes it, so it is looked for by itself and ranked
before everything else. A rule is found on two thirds of the search samples and counts if the last third never
contradicts it, as often as chance would not allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

JUDGED = 3
"""One in so many search samples confirms or contradicts."""
FIRST = 60.0
"""Log-odds in nats, beyond all that a classifier says, from which on rules are ranked."""
CHANCE = 0.01
"""Probability that chance confirms a rule, of all numbers of a summary together, where both worlds are the same."""
OFTEN = 2
"""Times that a value must have been seen, in one world alone."""
MOST_COLUMNS = 500
"""Longer summaries are not looked at."""
ROUNDED = 2.0**-24
"""Relative error of a number of 32 bits."""
STEPS = 24
"""Of the continued fraction that finds the denominator of a number."""
BY_CHANCE = 0.25
"""Probability below which a number that is no fraction may pass for one."""

Rule = Callable[[Floats], Floats]
"""Of which world a column's numbers are: 1, or -1 for world 0; 0 where the rule says nothing."""


@dataclass(frozen=True, eq=False)
class _Column:
    """One number of each summary: itself, or its denominator."""

    place: int
    denominator: bool

    def of(self, summaries: Floats) -> Floats:
        return denominators(summaries[:, self.place]) if self.denominator else summaries[:, self.place]


def separating(summaries: Floats, truth: Flags) -> Callable[[Floats], Floats]:
    """Ranks summaries, shape (n, d) to (n,): `FIRST` and more, or as much below 0, where a rule tells; else 0.

    Of several rules that which was confirmed most often decides.

    Args:
        summaries: Search samples, shape (m, d), rounded to 32 bits.
        truth: Their worlds, shape (m,).
    """
    judged = np.arange(len(truth)) % JUDGED == JUDGED - 1
    if any(len(np.unique(truth[part])) < 2 for part in (judged, ~judged)):
        return lambda others: np.zeros(len(others))
    known = [(column, column.of(summaries)) for column in _columns(summaries)]
    needed = math.ceil(math.log2(max(1, 2 * len(known)) / CHANCE))
    kept: list[tuple[int, _Column, Rule]] = []
    for column, numbers in known:
        for learn in (_values, _limits):
            said = learn(numbers[~judged], truth[~judged])(numbers[judged])
            told = said != 0
            confirmed = int(np.count_nonzero(told))
            if confirmed >= needed and ((said > 0) == truth[judged])[told].all():
                kept.append((confirmed, column, learn(numbers, truth)))
    kept.sort(key=lambda rule: -rule[0])

    def rank(others: Floats) -> Floats:
        ranks = np.zeros(len(others))
        for confirmed, column, rule in kept:
            ranks = np.where(ranks == 0, rule(column.of(others)) * (FIRST + math.log(confirmed)), ranks)
        return ranks

    return rank


def _columns(summaries: Floats) -> Iterator[_Column]:
    if summaries.shape[1] <= MOST_COLUMNS:
        for place in range(summaries.shape[1]):
            yield _Column(place, False)
            if (summaries[:, place] % 1 != 0).any():
                yield _Column(place, True)


def _values(numbers: Floats, truth: Flags) -> Rule:
    """Values that were seen in one world only, twice or more."""
    values, place = np.unique(numbers, return_inverse=True)
    zero, one = (np.bincount(place[truth == world], minlength=len(values)) for world in (False, True))
    alone = ((zero == 0) | (one == 0)) & (zero + one >= OFTEN)
    values, of_world = values[alone], np.where(one > zero, 1.0, -1.0)[alone]

    def rule(others: Floats) -> Floats:
        if not len(values):
            return np.zeros(len(others))
        found = np.minimum(np.searchsorted(values, others), len(values) - 1)
        return np.where(values[found] == others, of_world[found], 0.0)

    return rule


def _limits(numbers: Floats, truth: Flags) -> Rule:
    """Numbers beyond all that were seen of one world, and not of the other."""
    ranges = [(numbers[truth == world].min(), numbers[truth == world].max()) for world in (False, True)]

    def rule(others: Floats) -> Floats:
        beyond_zero, beyond_one = (((others < low) | (others > high)).astype(np.float64) for low, high in ranges)
        return np.asarray(beyond_zero - beyond_one)

    return rule


def denominators(numbers: Floats) -> Floats:
    """The smallest n of which a number is a multiple of 1/n, up to its rounding; 0 where n were one by chance.

    The convergents of its continued fraction are the best approximations there are, shape (n,) to (n,).
    """
    found = np.zeros(len(numbers))
    error = ROUNDED * np.maximum(np.abs(numbers), np.finfo(np.float64).tiny)
    rest, before, here = np.abs(numbers), np.zeros(len(numbers)), np.ones(len(numbers))
    rest = rest - np.floor(rest)  # the denominators of a number and of its fraction are the same
    part = rest.copy()
    open_ = np.isfinite(numbers)
    for _ in range(STEPS):
        away = np.abs(part * here - np.round(part * here)) / here
        # So many fractions with a denominator up to n lie that near by chance.
        fits = open_ & (away <= error)
        found[fits] = here[fits]
        open_ &= ~fits & (here**2 * 2 * error <= BY_CHANCE) & (rest > 0)
        if not open_.any():
            break
        inverse = 1 / np.where(rest > 0, rest, 1.0)
        whole = np.floor(inverse)
        rest = inverse - whole
        before, here = here, whole * here + before
    return np.where(found**2 * 2 * error <= BY_CHANCE, found, 0.0)
