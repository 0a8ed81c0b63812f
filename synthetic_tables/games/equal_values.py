"""Tests of whether equal values stand in one file too often: sites, households, uploads, numbers of digits.

Of the k rows of a value, t stand in the training file. A statistic sums a function of k and t over the values. Its
p-value is a Chernoff bound. It holds for any number of rows and far into the tail, where a normal or a gamma
approximation fails and permutations would have to be many.

Why it holds: independent coins that send each row to the training file give a uniformly random split, given that their
sum is the number of training rows. So a mean over random splits is at most the mean over coins, divided by the
probability of that sum. Rows that the statistic does not read lower the bound by the largest probability of any number
of training rows among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize_scalar

from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.synthetic_tables.games.view import MixedTable

MANY = 4
"""A column has many different values if they are more than the rows divided by this."""
NEAR = 8
"""Number of rows of a block of near values in the order of a column of many different values."""
MOST_PAIRED = 24
"""Largest number of columns whose pairs are compared: evenly spaced ones of wider tables."""
NOTABLE = 2.0
"""Standard deviations from the mean from which a p-value is computed; it counts as 1 below."""
DECIMALS = range(-6, 16)
"""Numbers of decimals that are told apart; negative ones count zeros at the end of a whole number."""

Statistic = Callable[[Ints, Ints, float], Floats]
"""Function of the numbers of rows of values, of those in the training file, and of the share of training rows."""


def in_one_file(rows: Ints, training: Ints, share: float) -> Floats:
    """Return how far the training rows of a value are from their expected number, in units of one variance.

    For files of equal size it is a constant plus the number of pairs of rows in one file, divided by `rows` - 1.
    """
    return np.asarray((training - share * rows) ** 2 / (rows - 1))


def across(rows: Ints, training: Ints, share: float) -> Floats:
    """Return the number of pairs of rows of a value with one row in each file."""
    return np.asarray(training * (rows - training), np.float64)


def in_training(rows: Ints, training: Ints, share: float) -> Floats:
    """Return the number of pairs of rows of a value in the training file."""
    return np.asarray(training * (training - 1) / 2, np.float64)


def p_of_too_many(codes: Ints, trained: NDArray[np.bool_], statistic: Statistic = in_one_file) -> float:
    """Return an upper bound on the p-value of a large statistic, valid for a uniformly random split.

    Args:
        codes: Code of the value of each row, shape (rows,). Rows of negative codes do not count.
        trained: True for training rows, shape (rows,).
    """
    share, counted = float(trained.mean()), codes >= 0
    rows = np.bincount(codes[counted])
    training = np.bincount(codes[counted & trained], minlength=rows.size)
    repeated = rows > 1
    if not repeated.any() or share in (0.0, 1.0):
        return 1.0
    actual = float(statistic(rows[repeated], training[repeated], share).sum())
    sizes, values = np.unique(rows[repeated], return_counts=True)
    starts = np.cumsum([0, *(sizes[:-1] + 1)])
    size = np.repeat(sizes, sizes + 1)
    inside = np.arange(size.size) - np.repeat(starts, sizes + 1)
    log_chance, score = stats.binom.logpmf(inside, size, share), statistic(size, inside, share)
    mean = np.add.reduceat(np.exp(log_chance) * score, starts)
    deviation = float(np.sqrt(values @ (np.add.reduceat(np.exp(log_chance) * score**2, starts) - mean**2)))
    if actual <= values @ mean + NOTABLE * deviation:
        return 1.0

    def log_bound(log_tilt: float) -> float:
        tilt = np.exp(log_tilt) / deviation
        terms = log_chance + tilt * score
        largest = np.maximum.reduceat(terms, starts)
        sums = np.add.reduceat(np.exp(terms - np.repeat(largest, sizes + 1)), starts)
        return float(values @ (largest + np.log(sums)) - tilt * actual)

    smallest = float(minimize_scalar(log_bound, bounds=(-5, 12), method="bounded").fun)
    unread = trained.size - int(rows[repeated].sum())
    most_probable = stats.binom.logpmf(np.floor((unread + 1) * share), unread, share)
    return float(min(1.0, np.exp(smallest + most_probable - stats.binom.logpmf(trained.sum(), trained.size, share))))


def two_sided(codes: Ints, trained: NDArray[np.bool_], statistic: Statistic) -> float:
    """Return an upper bound on the p-value of a large or a small statistic."""

    def negative(rows: Ints, training: Ints, share: float) -> Floats:
        return -statistic(rows, training, share)

    return min(1.0, 2 * min(p_of_too_many(codes, trained, each) for each in (statistic, negative)))


def tests_of_equal_values(table: MixedTable, trained: NDArray[np.bool_]) -> Iterator[tuple[str, float]]:
    """Yield the name and the p-value of a test of each column, of all columns together, and of pairs of columns."""
    columns = [*table.numbers.T, *table.words.T]
    codes = [np.unique(column, return_inverse=True)[1].astype(np.int64) for column in columns]
    repeated = np.full(trained.size, -1, np.int64)  # the first value of each row that stands out by its repetition
    for place, name in enumerate((*table.number_names, *table.word_names)):
        kinds, stands_out = {"equal values": codes[place]}, np.zeros(trained.size, np.bool_)
        if codes[place].max() > trained.size / MANY:
            kinds["near values"] = _blocks(codes[place], trained.size // NEAR)
            stands_out = np.bincount(codes[place])[codes[place]] >= MANY
        if place < len(table.number_names):
            kinds["equal numbers of digits"] = digits = _digits(columns[place])
            stands_out |= digits > np.bincount(digits).argmax()
        repeated = np.where(stands_out & (repeated < 0), place * trained.size + codes[place], repeated)
        p_values = {kind: p_of_too_many(values, trained) for kind, values in kinds.items()}
        strongest = min(p_values, key=p_values.__getitem__)
        yield f"the number of {strongest} of column {name} in one file", min(1.0, len(kinds) * p_values[strongest])
    seldom = np.where(repeated < 0, -1, np.unique(repeated, return_inverse=True)[1])
    yield "the number of equal unusual values in one file", p_of_too_many(seldom, trained)
    chosen = np.unique(np.linspace(0, len(codes) - 1, min(len(codes), MOST_PAIRED)).astype(int))
    bins = max(2, int(np.sqrt(trained.size / MANY)))
    pairs = list(combinations([codes[place] for place in chosen], 2))
    pairs += [(_blocks(first, bins), _blocks(second, bins)) for first, second in pairs]
    if pairs:
        cells = (np.unique(first * (second.max() + 1) + second, return_inverse=True)[1] for first, second in pairs)
        smallest = min(p_of_too_many(cell, trained) for cell in cells)
        yield "the number of equal or near values of two columns in one file", min(1.0, len(pairs) * smallest)


def _blocks(codes: Ints, blocks: int) -> Ints:
    """Return the block of each code in their order, in blocks of about as many rows; equal codes share a block."""
    return np.searchsorted(np.sort(codes), codes) * blocks // codes.size


def _digits(numbers: Floats) -> Ints:
    """Return a code for the number of decimals of each number, larger for more of them, shape (rows,); 0 for NaN."""
    codes = np.where(np.isnan(numbers), 0, len(DECIMALS) + 1)
    for code, decimals in reversed(list(enumerate(DECIMALS, 1))):
        codes[np.round(numbers, decimals) == numbers] = code
    return codes
