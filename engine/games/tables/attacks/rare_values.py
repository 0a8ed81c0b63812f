"""Rare values and extremes of real rows that occur in the synthetic table, and rare ones that are missing there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.tables.cells import exact_cells
from dpaudit.engine.games.tables.view import TableView
from dpaudit.registry import register


@register(
    "table-attack", "rare-values", source="Ours; Stadler, Oprisanu and Troncoso (2022) for domains taken from data"
)
@dataclass(frozen=True)
class RareValues:
    """Rare words, numbers and pairs of values that occur in the synthetic table or not, and its largest numbers.

    Attributes:
        rare: A value is rare if at most so many real rows of other pairs have it.
        most: Largest number of pairs of columns.
    """

    rare: int = 3
    most: int = 600

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return all evidence together; then that of single values, of pairs of values, and of extremes."""
        cells = exact_cells(view)
        single, double = np.zeros(len(view.real)), np.zeros(len(view.real))
        for column in range(cells.columns):
            single += self._evidence(*cells.counts([column]), len(view.real) / len(view.synthetic))
        pairs = list(combinations(range(cells.columns), 2))
        for columns in pairs[:: max(1, -(-len(pairs) // self.most))]:
            double += self._evidence(*cells.counts(columns), len(view.real) / len(view.synthetic))
        extremes = extreme_evidence(view)
        return np.column_stack([single + double / max(1, cells.columns) + extremes, single, double, extremes])

    def _evidence(self, synthetic: NDArray[np.int64], real: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
        ratio = np.log((synthetic * scale + 1) / (real + 1))
        return np.asarray(np.where(real <= self.rare, ratio, 0.0))


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
