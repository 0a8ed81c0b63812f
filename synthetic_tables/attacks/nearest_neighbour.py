"""Distances to the nearest synthetic rows, relative to the density of the real rows there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.registry import register
from dpaudit.synthetic_tables.games.distances import (
    Scaled,
    competing_distances,
    nearest,
    nearest_real,
    nearest_synthetic,
    scaled,
)
from dpaudit.synthetic_tables.games.view import TableView

CLAIMANTS = 6
"""Real rows that are looked at around a synthetic row, to find one of another pair."""


@register("table-attack", "nearest-neighbour", source="Hilprecht et al. (2019); van Breugel et al. (2023), DOMIAS")
@dataclass(frozen=True)
class NearestNeighbour:
    """Distance to the nearest synthetic rows, against their distance to other real rows and against the density.

    A ratio r counts by log(1 + r^2 / 10): a row that is not near any synthetic row was trained on as likely as not, so
    only ratios well above 1 are evidence.

    Attributes:
        neighbours: Number of synthetic rows that are looked at around a real row, and of real rows for the density.
        smallest: Added to distances, in units of a column's range, so that exact copies stay finite.
    """

    neighbours: int = 3
    smallest: float = 0.005

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return evidence from other real rows around the synthetic one, from the density, and two log distances.

        If there are numbers and words, the features of the numbers alone follow.
        """
        synthetic, real = scaled(view)
        columns = [self._features(synthetic, real, view.pair)]
        if real.numbers.shape[1] and real.words.shape[1]:
            columns.append(self._features(synthetic.without_words(), real.without_words(), view.pair))
        return np.column_stack(columns)

    def _features(self, synthetic: Scaled, real: Scaled, pair: NDArray[np.int64]) -> NDArray[np.float64]:
        near = nearest_synthetic(synthetic, real, min(self.neighbours, len(synthetic)))
        local = nearest_real(real, pair, 10).distances
        local = np.where(np.isinf(local), 2.0 * (1 + real.numbers.shape[1] + real.words.shape[1]), local)
        other = competing_distances(near, nearest(synthetic, real, CLAIMANTS), pair)
        other = np.minimum(other, near.distances + local[:, :1])  # triangle inequality
        ratio = np.max((other + self.smallest) / (near.distances + self.smallest), axis=1)
        distance = near.distances[:, 0] + self.smallest
        return np.column_stack(
            [
                np.log1p(ratio**2 / 10),
                np.log1p(((local[:, 0] + self.smallest) / distance) ** 2 / 10),
                np.log((local[:, -1] + self.smallest) / distance),
                -np.log(distance),
            ]
        )
