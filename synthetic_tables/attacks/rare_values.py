"""Rare values and extremes of real rows that occur in the synthetic table, and rare ones that are missing there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpaudit.registry import register
from dpaudit.synthetic_tables.games.cells import Cells, exact_cells
from dpaudit.synthetic_tables.games.view import TableView

Floats = NDArray[np.float64]


@register(
    "table-attack", "rare-values", source="Ours; Stadler, Oprisanu and Troncoso (2022) for domains taken from data"
)
@dataclass(frozen=True)
class RareValues:
    """Rare words, numbers and pairs of values that occur in the synthetic table, and its largest numbers.

    If values come from the training rows only, a value of r other real rows occurs with probability 1 if this row was
    trained on, and else with probability 1 - 2^-r, that of any of the others being trained on. How often it occurs
    matters little.

    Attributes:
        rare: A value is rare if at most so many real rows of other pairs have it.
        most: Largest number of pairs of columns.
    """

    rare: int = 6
    most: int = 600

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return evidence of occurring values and pairs; of each alone; log ratios of rare ones; and of extremes."""
        cells = exact_cells(view)
        pairs = list(combinations(range(cells.columns), 2))
        single = self._evidence(cells, [(column,) for column in range(cells.columns)])
        double = self._evidence(cells, pairs[:: max(1, -(-len(pairs) // self.most))])
        return np.column_stack([single[0] + double[0] / 4, *single, *double, extreme_evidence(view)])

    def _evidence(self, cells: Cells, combined: Sequence[tuple[int, ...]]) -> tuple[Floats, Floats]:
        """Return the evidence of occurring values, and the sum of log ratios of frequencies, over columns."""
        scale = len(cells.real) / len(cells.synthetic)
        occurring, ratios = np.zeros(len(cells.real)), np.zeros(len(cells.real))
        for columns in combined:
            synthetic, real = cells.counts(columns)
            by_others = 1 - np.exp2(-np.minimum(real, 60.0))
            occurring += np.where((synthetic > 0) & (real <= self.rare), -np.log(by_others + BY_CHANCE), 0.0)
            ratios += np.where(real <= self.rare, np.log((synthetic * scale + 1) / (real + 1)), 0.0)
        return occurring, ratios


BY_CHANCE = 0.05
"""Probability that a rare value occurs without any training row that has it."""


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
