"""Attacks on densities: distances to the nearest synthetic rows, and a classifier of synthetic against real rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.compute import limited_threads
from dpaudit.registry import register
from dpaudit.synthetic_tables.games.distances import (
    Scaled,
    competing_distances,
    nearest,
    nearest_real,
    scaled,
)
from dpaudit.synthetic_tables.games.view import MixedTable, TableView

CLAIMANTS = 6
"""Real rows that are looked at around a synthetic row, to find one of another pair."""

CLOSE = 0.03
"""Distance that counts as none, as a share of the median distance between nearest real rows."""


@register("table-attack", "nearest-neighbour", source="Hilprecht et al. (2019); van Breugel et al. (2023), DOMIAS")
@dataclass(frozen=True)
class NearestNeighbour:
    """Distance to the nearest synthetic rows, against their distance to other real rows and against the density.

    A ratio r counts by log(1 + r^2 / 10): a row that is not near any synthetic row was trained on as likely as not, so
    only ratios well above 1 are evidence.

    Attributes:
        neighbours: Number of synthetic rows that are looked at around a real row, and of real rows for the density.
        smallest: Added to distances, in units of a column's range, so that exact copies stay finite; less if real rows
            are nearer to each other.
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
        near = nearest(real, synthetic, min(self.neighbours, len(synthetic)))
        local = nearest_real(real, pair, 10).distances
        smallest = self._smallest(local[:, 0])
        local = np.where(np.isinf(local), 2.0 * (1 + real.numbers.shape[1] + real.words.shape[1]), local)
        other = competing_distances(near, nearest(synthetic, real, CLAIMANTS), pair)
        other = np.minimum(other, near.distances + local[:, :1])  # triangle inequality
        ratio = np.max((other + smallest) / (near.distances + smallest), axis=1)
        distance = near.distances[:, 0] + smallest
        return np.column_stack(
            [
                np.log1p(ratio**2 / 10),
                np.log1p(((local[:, 0] + smallest) / distance) ** 2 / 10),
                np.log((local[:, -1] + smallest) / distance),
                -np.log(distance),
            ]
        )

    def _smallest(self, local: NDArray[np.float64]) -> float:
        """Return what is added to distances, from the distance of each real row to its nearest one."""
        positive = local[np.isfinite(local) & (local > 0)]
        return min(self.smallest, CLOSE * float(np.median(positive))) if positive.size else self.smallest


MAX_CATEGORIES = 250
"""Words of a column beyond this number, by frequency, share one code: the classifier allows 255."""


@register("table-attack", "density-classifier", source="Ours, after van Breugel et al. (2023), DOMIAS")
@dataclass(frozen=True)
class DensityClassifier:
    """Log odds that a row is synthetic, by boosted trees that were fitted on the rows of other pairs.

    Attributes:
        folds: Number of groups of pairs. The odds of each group come from a classifier fitted on the others.
        rounds: Number of trees of a classifier.
    """

    folds: int = 5
    rounds: int = 60

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return the log odds, shape (rows, 1)."""
        from sklearn.ensemble import HistGradientBoostingClassifier  # slow to import

        # Neither the order nor the folds depend on the order of the view: each pair is in one fold, and so are equal
        # rows outside pairs, which stand together.
        order = np.lexsort([view.pair, *view.real.words.T, *view.real.numbers.T]).astype(np.int64)
        synthetic, real = _matrix(view.synthetic, view), _matrix(view.real.take(order), view)
        differs = np.any((real[1:] != real[:-1]) & ~(np.isnan(real[1:]) & np.isnan(real[:-1])), axis=1)
        pair = view.pair[order]
        fold = np.where(pair >= 0, pair, np.append(0, np.cumsum(differs))) % self.folds
        categorical = np.arange(real.shape[1]) >= view.real.numbers.shape[1]
        odds = np.empty(len(real))
        for place in range(self.folds):
            if not (fold == place).any():
                continue
            rows = np.concatenate([synthetic, real[fold != place]])
            labels = np.arange(len(rows)) < len(synthetic)
            model = HistGradientBoostingClassifier(
                max_iter=self.rounds,
                learning_rate=0.1,
                max_leaf_nodes=31,
                min_samples_leaf=10,
                categorical_features=categorical,
                early_stopping=False,
                random_state=0,
            )
            with limited_threads(1):  # more threads wait for each other on tables of this size
                model.fit(rows, labels)
                odds[fold == place] = model.decision_function(real[fold == place])
        features = np.empty((len(real), 1))
        features[order, 0] = odds
        return features


def _matrix(rows: MixedTable, view: TableView) -> NDArray[np.float64]:
    """Return numbers and codes of words, NaN where a value is missing, with at most `MAX_CATEGORIES` codes a column."""
    words = np.where(rows.words < 0, np.nan, rows.words.astype(np.float64))
    for column in np.flatnonzero(view.real.levels > MAX_CATEGORIES):
        everywhere = np.concatenate([view.synthetic.words[:, column], view.real.words[:, column]])
        counts = np.bincount(everywhere[everywhere >= 0], minlength=view.real.levels[column])
        rank = np.empty(counts.size)
        rank[np.argsort(-counts, kind="stable")] = np.minimum(np.arange(counts.size), MAX_CATEGORIES)
        present = rows.words[:, column] >= 0
        words[present, column] = rank[rows.words[present, column]]
    return np.column_stack([rows.numbers, words])
