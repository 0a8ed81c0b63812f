"""Exact and near copies of real rows in the synthetic table, weighed by how unlikely the match is by chance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.tables.cells import Cells, exact_cells
from dpaudit.engine.games.tables.distances import Scaled, competing_distances, nearest, pair_groups
from dpaudit.engine.games.tables.view import TableView
from dpaudit.registry import register


@register("table-attack", "copies", source="Ours")
@dataclass(frozen=True)
class Copies:
    """Equal cells of a real row and its most similar synthetic row, weighed by the rarity of what is equal.

    A cell that two rows share counts by -log of its frequency among real rows of other pairs, given the column that
    predicts it best. So the sum over shared cells is about -log of the probability of sharing them by chance, and a
    number with many digits counts as much as many common words.
    """

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return all evidence together; the rarity of the best match less the usual one; the rarity of the best match.

        The last columns are log ratios of the frequencies of the whole row and of the row without its best column.
        """
        cells = exact_cells(view)
        surprise = _surprise(cells)
        excess, matched = _excess_rarity(cells, surprise, view.pair)
        everything = range(cells.columns)
        whole = cells.log_ratio(everything)
        without = [cells.log_ratio(columns) for columns in combinations(everything, max(1, cells.columns - 1))]
        own = np.log1p(np.exp(np.minimum(excess, 500.0)) / 100) + WHOLE_ROW * np.maximum(whole, 0.0)
        return np.column_stack([own, excess, matched, whole, np.max(without, axis=0)])


WHOLE_ROW = 3.0
"""Weight of the log ratio of whole rows in the attack's own score."""


def _excess_rarity(
    cells: Cells, surprise: NDArray[np.float64], pair: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rarity that each real row shares with a synthetic row, first less what other real rows share.

    The other real rows are those of other pairs: the most similar to the real row, and to the synthetic row.
    """
    synthetic, real = (
        Scaled(np.zeros((len(rows), 0), np.float32), rows)
        for rows in (cells.synthetic.astype(np.int32), cells.real.astype(np.int32))
    )
    groups, total = pair_groups(pair), surprise.sum(axis=1, keepdims=True)
    near = nearest(real, synthetic, min(3, len(synthetic)), weights=surprise)
    shared = total - np.minimum(near.distances, total)
    usual = total - np.minimum(nearest(real, real, 1, weights=surprise, groups=(groups, groups)).distances, total)
    weights = _mean_surprise(cells, surprise)
    other = competing_distances(near, nearest(synthetic, real, 6, weights=weights), pair)
    whole = weights.sum(axis=1)[near.rows]
    usual = np.maximum(usual, whole - np.minimum(other, whole))
    return (shared - usual).max(axis=1), shared[:, 0]


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

    The frequency of a value v that stands beside a value u is (n(u, v) + q(v)) / (n(u) + 1) with q(v) = (n(v) + 1) / (n
    + 1), so that unseen pairs of values fall back on the frequency of v.
    """
    rows = len(cells.real)
    alone = np.column_stack([cells.counts([column])[1] for column in range(cells.columns)])
    frequency = (alone + 1.0) / (rows + 1.0)
    best = -np.log(frequency)
    for column, other in combinations(range(cells.columns), 2):
        together = cells.counts([column, other])[1]
        for target, known in ((column, other), (other, column)):
            given = (together + frequency[:, target]) / (alone[:, known] + 1.0)
            best[:, target] = np.minimum(best[:, target], -np.log(given))
    return np.asarray(np.maximum(best, SMALLEST))


SMALLEST = 1e-3
"""Smallest weight of a shared cell, in nats."""
