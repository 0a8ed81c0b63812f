"""A classifier of synthetic against real rows, whose odds estimate the ratio of both densities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.compute import limited_threads
from dpaudit.registry import register
from dpaudit.synthetic_tables.games.view import MixedTable, TableView

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

        order = _content_order(view)
        synthetic, real = _matrix(view.synthetic, view), _matrix(view.real.take(order), view)
        fold = _folds(view.pair[order], real, self.folds)
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


def _content_order(view: TableView) -> NDArray[np.int64]:
    """Return an order of the real rows by their cells and pairs, which does not depend on the order of the view."""
    return np.lexsort([view.pair, *view.real.words.T, *view.real.numbers.T]).astype(np.int64)


def _folds(pair: NDArray[np.int64], real: NDArray[np.float64], folds: int) -> NDArray[np.int64]:
    """Return the fold of each row: one for each pair, and one for equal rows outside pairs, which stand together."""
    differs = np.any((real[1:] != real[:-1]) & ~(np.isnan(real[1:]) & np.isnan(real[:-1])), axis=1)
    content = np.append(0, np.cumsum(differs))
    return np.where(pair >= 0, pair, content) % folds


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
