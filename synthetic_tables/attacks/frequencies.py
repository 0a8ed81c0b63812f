"""Attacks on frequencies of cells: copies weighed by their rarity, marginals, rare values and extremes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dpaudit.registry import register
from dpaudit.synthetic_tables.games.distances import Scaled, competing_distances, nearest, pair_groups
from dpaudit.synthetic_tables.games.view import Cells, TableView, binned_cells, exact_cells


@register("table-attack", "copies", source="Ours")
@dataclass(frozen=True)
class Copies:
    """Equal cells of a real row and its most similar synthetic row, weighed by the rarity of what is equal.

    A cell that two rows share counts by -log of its frequency among real rows of other pairs, given the column that
    predicts it best. So the sum over shared cells is about -log of the probability of sharing them by chance, and a
    number with many digits counts as much as many common words.
    """

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return evidence of the best match against chance, and against other real rows; then the rarity of the match.

        The last columns are log ratios of the frequencies of the whole row and of the row without its best column.
        """
        cells = exact_cells(view)
        surprise = _surprise(cells)
        synthetic, real = (
            Scaled(np.zeros((len(rows), 0), np.float32), rows.astype(np.int32))
            for rows in (cells.synthetic, cells.real)
        )
        near = nearest(real, synthetic, min(3, len(synthetic)), weights=surprise)
        total = surprise.sum(axis=1, keepdims=True)
        shared = total - np.minimum(near.distances, total)
        different = np.count_nonzero(synthetic.words[near.rows[:, 0]] != real.words, axis=1)
        choices = gammaln(cells.columns + 1) - gammaln(different + 1) - gammaln(cells.columns - different + 1)
        chance = np.log(len(synthetic)) + choices
        # What real rows of other pairs share with this row, or with its nearest synthetic rows.
        groups, mean_surprise = pair_groups(view.pair), _mean_surprise(cells, surprise)
        around = nearest(real, real, 1, weights=surprise, groups=(groups, groups)).distances
        other = competing_distances(near, nearest(synthetic, real, 6, weights=mean_surprise), view.pair)
        whole = mean_surprise.sum(axis=1)[near.rows]
        usual = np.maximum(total - np.minimum(around, total), whole - np.minimum(other, whole))
        everything = range(cells.columns)
        without = [cells.log_ratio(columns) for columns in combinations(everything, max(1, cells.columns - 1))]
        return np.column_stack(
            [
                np.log1p(np.exp(np.minimum(shared[:, 0] - chance, LARGEST)) / 10),
                np.log1p(np.exp(np.minimum((shared - usual).max(axis=1), LARGEST)) / 100),
                shared[:, 0],
                cells.log_ratio(everything),
                np.max(without, axis=0),
            ]
        )


LARGEST = 500.0
"""Largest evidence in nats."""


def _mean_surprise(cells: Cells, surprise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of each cell of the synthetic rows: the mean of the real rows with it, in nats."""
    means = np.empty(cells.synthetic.shape)
    for column, size in enumerate(cells.sizes):
        rows = np.bincount(cells.real[:, column], minlength=size)
        sums = np.bincount(cells.real[:, column], surprise[:, column], minlength=size)
        unseen = np.log(len(cells.real) + 1.0)
        means[:, column] = np.where(rows > 0, sums / np.maximum(rows, 1), unseen)[cells.synthetic[:, column]]
    return means


def _surprise(cells: Cells) -> NDArray[np.float64]:
    """Return -log of the frequency of each cell among real rows of other pairs, given its best predictor, in nats.

    The frequency of a value v in rows with a value u in another column is (n(u, v) + q(v)) / (n(u) + 1), where q(v) =
    (n(v) + 1) / (n + 1). So unseen pairs of values fall back on the frequency of v.
    """
    rows = len(cells.real)
    alone = np.column_stack([cells.counts([column])[1] for column in range(cells.columns)])
    frequency = (alone + 1.0) / (rows + 1.0)
    best = -np.log(frequency)
    for column, other in combinations(range(cells.columns), 2):
        together = cells.counts([column, other])[1]
        for target, predictor in ((column, other), (other, column)):
            conditional = (together + frequency[:, target]) / (alone[:, predictor] + 1.0)
            best[:, target] = np.minimum(best[:, target], -np.log(conditional))
    return np.asarray(np.maximum(best, SMALLEST))


SMALLEST = 1e-3
"""Smallest weight of a shared cell, in nats."""


Floats = NDArray[np.float64]

CLOSEST = 0.2
"""Smallest discrepancy that a weight is computed from."""


@register("table-attack", "marginals", source="Ours, after Dwork et al. (2015), Robust traceability from trace amounts")
@dataclass(frozen=True)
class Marginals:
    """Log ratio of marginal frequencies in the synthetic table and among real rows, over one to three columns.

    Marginals that the generator was fitted on are closer to those of the training rows than to those of the real rows,
    and marginals that it was not fitted on are distorted. So a marginal counts by 1 / f^2, where f is its chi-squared
    over the degrees of freedom.

    Attributes:
        bins: Number of bins of a column of numbers.
        most: Largest number of combinations of columns of one size; a size with more is thinned evenly.
    """

    bins: int = 20
    most: int = 600

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return weighted means over the marginals of one and two columns, one, two and three; then the largest ratios.

        The means of relative differences over the marginals of two and three columns follow.
        """
        cells = binned_cells(view, self.bins)
        sums = [self._evidence(cells, size) for size in range(1, 1 + min(3, cells.columns))]
        means, largest, differences = zip(*sums, strict=True)
        return np.column_stack([means[0] / 4 + sum(means[1:2]), *means, *largest, *differences[1:]])

    def _evidence(self, cells: Cells, size: int) -> tuple[Floats, Floats, Floats]:
        """Return weighted mean log ratio, largest log ratio and weighted mean relative difference of real rows."""
        scale = len(cells.real) / len(cells.synthetic)
        ratios, differences, largest = np.zeros((3, len(cells.real)))
        weights = 0.0
        step = max(1.0, comb(cells.columns, size) / self.most)
        chosen = 0.0
        for place, columns in enumerate(combinations(range(cells.columns), size)):
            if place < chosen:
                continue
            chosen += step
            synthetic, real = cells.counts(columns)
            weight = max(cells.discrepancy(columns), CLOSEST) ** -2
            log_ratio = np.log((synthetic * scale + 1) / (real + 1))
            ratios += weight * log_ratio
            differences += weight * (synthetic * scale - real) / (real + 1)
            np.maximum(largest, log_ratio, out=largest)
            weights += weight
        return ratios / weights, largest, differences / weights


@register(
    "table-attack", "rare-values", source="Ours; Stadler, Oprisanu and Troncoso (2022) for domains taken from data"
)
@dataclass(frozen=True)
class RareValues:
    """Rare words, numbers and pairs of values that occur in the synthetic table, and its largest numbers.

    If values come from the training rows only, a value of r other real rows occurs with probability 1 if this row was
    trained on, and else with probability 1 - 2^-r, that of any of the others being trained on. How often it occurs
    matters little.

    Attributes:
        rare: A value is rare if at most so many real rows of other pairs have it.
        most: Largest number of pairs of columns.
    """

    rare: int = 6
    most: int = 600

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return evidence of occurring values and pairs; of each alone; log ratios of rare ones; and of extremes."""
        cells = exact_cells(view)
        pairs = list(combinations(range(cells.columns), 2))
        single = self._evidence(cells, [(column,) for column in range(cells.columns)])
        double = self._evidence(cells, pairs[:: max(1, -(-len(pairs) // self.most))])
        return np.column_stack([single[0] + double[0] / 4, *single, *double, extreme_evidence(view)])

    def _evidence(self, cells: Cells, combined: Sequence[tuple[int, ...]]) -> tuple[Floats, Floats]:
        """Return the evidence of occurring values, and the sum of log ratios of frequencies, over columns."""
        scale = len(cells.real) / len(cells.synthetic)
        occurring, ratios = np.zeros(len(cells.real)), np.zeros(len(cells.real))
        for columns in combined:
            synthetic, real = cells.counts(columns)
            by_others = 1 - np.exp2(-np.minimum(real, 60.0))
            occurring += np.where((synthetic > 0) & (real <= self.rare), -np.log(by_others + BY_CHANCE), 0.0)
            ratios += np.where(real <= self.rare, np.log((synthetic * scale + 1) / (real + 1)), 0.0)
        return occurring, ratios


BY_CHANCE = 0.05
"""Probability that a rare value occurs without any training row that has it."""


def extreme_evidence(view: TableView) -> NDArray[np.float64]:
    """Return the evidence of ends of the numbers: where a domain is taken from data, no trained row lies beyond it.

    For each end of each column of numbers, the real rows at the first real value at or beyond the synthetic end count
    1, and 2 if it is the very same value. Rows beyond it count -1.
    """
    evidence = np.zeros(len(view.real))
    for synthetic, real in zip(view.synthetic.numbers.T, view.real.numbers.T, strict=True):
        for sign in (1.0, -1.0):
            present = sign * synthetic[~np.isnan(synthetic)]
            if not present.size:
                continue
            end, values = present.max(), sign * real
            beyond = values[values >= end]  # NaN is not
            if beyond.size:
                first = beyond.min()
                evidence += np.where(values == first, 2.0 if first == end else 1.0, 0.0) - (values > first)
    return evidence
