"""Exact and near copies of real rows in the synthetic table, weighed by how unlikely the match is by chance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dpaudit.registry import register
from dpaudit.synthetic_tables.games.cells import Cells, exact_cells
from dpaudit.synthetic_tables.games.distances import Neighbours, Scaled, competing_distances, nearest, pair_groups
from dpaudit.synthetic_tables.games.view import TableView


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
        synthetic, real = (Scaled(np.zeros((len(rows), 0), np.float32), rows) for rows in _narrow(cells))
        near = nearest(real, synthetic, min(3, len(synthetic)), weights=surprise)
        total = surprise.sum(axis=1, keepdims=True)
        shared = total - np.minimum(near.distances, total)
        different = np.count_nonzero(synthetic.words[near.rows[:, 0]] != real.words, axis=1)
        chance = np.log(len(synthetic)) + _log_choices(cells.columns, different)
        usual = _usual_rarity(cells, surprise, near, view.pair)
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


def _narrow(cells: Cells) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return cells.synthetic.astype(np.int32), cells.real.astype(np.int32)


def _log_choices(columns: int, different: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the log of the number of sets of so many columns."""
    return np.asarray(gammaln(columns + 1) - gammaln(different + 1) - gammaln(columns - different + 1))


def _usual_rarity(
    cells: Cells, surprise: NDArray[np.float64], near: Neighbours, pair: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the rarity that real rows of other pairs share with each real row, or with its nearest synthetic rows.

    Returns: The larger one of both, for each of the nearest synthetic rows, shape (rows, k).
    """
    synthetic, real = (Scaled(np.zeros((len(rows), 0), np.float32), rows) for rows in _narrow(cells))
    groups, total = pair_groups(pair), surprise.sum(axis=1, keepdims=True)
    around = nearest(real, real, 1, weights=surprise, groups=(groups, groups)).distances
    weights = _mean_surprise(cells, surprise)
    whole = weights.sum(axis=1)[near.rows]
    other = competing_distances(near, nearest(synthetic, real, 6, weights=weights), pair)
    return np.asarray(np.maximum(total - np.minimum(around, total), whole - np.minimum(other, whole)))


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
