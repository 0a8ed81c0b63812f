"""Distances to the nearest synthetic rows, relative to the density of the real rows there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.tables.distances import Scaled, nearest_real, nearest_synthetic, scaled
from dpaudit.engine.games.tables.view import TableView
from dpaudit.registry import register


@register("table-attack", "nearest-neighbour", source="Hilprecht et al. (2019); van Breugel et al. (2023), DOMIAS")
@dataclass(frozen=True)
class NearestNeighbour:
    """Distance to the nearest synthetic rows against that of the real rows of other pairs.

    Attributes:
        neighbours: Numbers of real rows k, by whose k-th distance the density is measured. The first one makes the
            attack's own score.
        smallest: Added to distances, in units of a column's range, so that exact copies stay finite.
    """

    neighbours: tuple[int, ...] = (10, 3, 1)
    smallest: float = 0.01

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return log ratios of the k-th real and the nearest synthetic distance, for each k, then of the third nearest.

        The last column is -log distance. If there are numbers and words, the features of the numbers alone follow.
        """
        synthetic, real = scaled(view)
        columns = [self._features(synthetic, real, view.pair)]
        if real.numbers.shape[1] and real.words.shape[1]:
            columns.append(self._features(synthetic.without_words(), real.without_words(), view.pair))
        return np.column_stack(columns)

    def _features(self, synthetic: Scaled, real: Scaled, pair: NDArray[np.int64]) -> NDArray[np.float64]:
        farthest = 2.0 * (1 + real.numbers.shape[1] + real.words.shape[1])  # where there are fewer than k rows
        near, local = (
            np.log(np.minimum(neighbours.distances, farthest) + self.smallest)
            for neighbours in (
                nearest_synthetic(synthetic, real, 3),
                nearest_real(real, pair, max(3, *self.neighbours)),
            )
        )
        ratios = [local[:, k - 1] - near[:, 0] for k in self.neighbours]
        return np.column_stack([*ratios, local[:, 2] - near[:, 2], -near[:, 0]])
