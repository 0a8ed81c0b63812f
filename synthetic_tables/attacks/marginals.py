"""Likelihood ratio of the marginals of the synthetic table, which generators that are fitted on marginals give away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from dpaudit.registry import register
from dpaudit.synthetic_tables.games.cells import Cells, binned_cells
from dpaudit.synthetic_tables.games.view import TableView

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
        sizes = range(1, 1 + min(3, cells.columns))
        sums = [self._evidence(cells, size, view) for size in sizes]
        means = [log_ratio for log_ratio, _, _ in sums]
        return np.column_stack(
            [
                means[0] / 4 + sum(means[1:2]),
                *means,
                *(largest for _, largest, _ in sums),
                *(difference for _, _, difference in sums[1:]),
            ]
        )

    def _evidence(self, cells: Cells, size: int, view: TableView) -> tuple[Floats, Floats, Floats]:
        """Return weighted mean log ratio, largest log ratio and weighted mean relative difference of real rows."""
        scale = len(view.real) / len(view.synthetic)
        ratios, differences, largest = np.zeros(len(view.real)), np.zeros(len(view.real)), np.zeros(len(view.real))
        weights = 0.0
        for columns in self._combinations(cells, size):
            synthetic, real = cells.counts(columns)
            weight = max(cells.discrepancy(columns), CLOSEST) ** -2
            log_ratio = np.log((synthetic * scale + 1) / (real + 1))
            ratios += weight * log_ratio
            differences += weight * (synthetic * scale - real) / (real + 1)
            np.maximum(largest, log_ratio, out=largest)
            weights += weight
        return ratios / weights, largest, differences / weights

    def _combinations(self, cells: Cells, size: int) -> Iterator[tuple[int, ...]]:
        """Yield combinations of columns, at most `most`, evenly spread over all."""
        step = max(1.0, comb(cells.columns, size) / self.most)
        chosen = 0.0
        for place, columns in enumerate(combinations(range(cells.columns), size)):
            if place >= chosen:
                chosen += step
                yield columns
