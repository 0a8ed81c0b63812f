"""Likelihood ratio of the marginals of the synthetic table, which generators that are fitted on marginals give away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.tables.cells import Cells, binned_cells
from dpaudit.engine.games.tables.view import TableView
from dpaudit.registry import register


@register("table-attack", "marginals", source="Ours, after Dwork et al. (2015), Robust traceability from trace amounts")
@dataclass(frozen=True)
class Marginals:
    """Log ratio of marginal frequencies in the synthetic table and among real rows, over one to three columns.

    Attributes:
        bins: Number of bins of a column of numbers.
        most: Largest number of combinations of columns of one size; a size with more is thinned evenly.
    """

    bins: int = 20
    most: int = 600

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return the sum over two-way and three-way marginals, each sum alone, and the largest ratios."""
        cells = binned_cells(view, self.bins)
        sums, largest = [], []
        for size in range(1, 1 + min(3, cells.columns)):
            total, maximum, count = np.zeros(len(view.real)), np.full(len(view.real), -np.inf), 0
            for columns in self._combinations(cells, size):
                ratio = cells.log_ratio(columns)
                total += ratio
                np.maximum(maximum, ratio, out=maximum)
                count += 1
            sums.append(total / count)
            largest.append(maximum)
        return np.column_stack([sum(sums), *sums, *largest])

    def _combinations(self, cells: Cells, size: int) -> Iterator[tuple[int, ...]]:
        """Yield combinations of columns, at most `most`, evenly spread over all."""
        step = max(1.0, comb(cells.columns, size) / self.most)
        chosen = 0.0
        for place, columns in enumerate(combinations(range(cells.columns), size)):
            if place >= chosen:
                chosen += step
                yield columns
