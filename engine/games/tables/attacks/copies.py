"""Exact and near copies of real rows in the synthetic table, weighed by how unlikely the match is by chance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.tables.cells import Cells, exact_cells
from dpaudit.engine.games.tables.distances import Scaled, nearest, pair_groups
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
        """Return the rarity of the best match less that of the best match among real rows; then each, and exact copies.

        The last columns are log ratios of the frequencies of the whole row and of the row without its best column.
        """
        cells = exact_cells(view)
        surprise = _surprise(cells)
        real = Scaled(np.zeros((len(cells.real), 0), np.float32), cells.real.astype(np.int32))
        synthetic = Scaled(np.zeros((len(cells.synthetic), 0), np.float32), cells.synthetic.astype(np.int32))
        groups = pair_groups(view.pair)
        total = surprise.sum(axis=1)
        leaked = total - np.minimum(nearest(real, synthetic, 1, weights=surprise).distances[:, 0], total)
        usual = nearest(real, real, 1, weights=surprise, groups=(groups, groups)).distances[:, 0]
        usual = total - np.minimum(usual, total)
        everything = range(cells.columns)
        without = [cells.log_ratio(columns) for columns in combinations(everything, max(1, cells.columns - 1))]
        return np.column_stack(
            [leaked - usual, leaked, leaked / total, cells.log_ratio(everything), np.max(without, axis=0)]
        )


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
