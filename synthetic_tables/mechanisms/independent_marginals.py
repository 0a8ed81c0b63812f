"""Synthetic tables from noisy histograms of single columns.

Each of k columns gets a k-th of epsilon. A record that is added or removed changes one count of each histogram by 1, a
replaced one two counts. Two-sided geometric noise with odds exp(-epsilon / (k s)) per step, s = 1 or 2, then gives
epsilon / k for each column. The ratio of the probabilities of a noisy count for two neighbours is exp(epsilon / (k s))
or its inverse, so the epsilon of all noisy counts together is exact: there are outputs with a ratio of exp(epsilon),
of probability (1 + exp(-epsilon / (k s)))^(-k s). The synthetic rows are post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.queries.schema import Number
from dpaudit.mechanisms.ranges import NoiseByEpsilon, require_epsilon, require_positive
from dpaudit.registry import register
from dpaudit.synthetic_tables.mechanisms.schema_generator import (
    ColumnCells,
    Releases,
    SchemaGenerator,
    column_cells,
    draw_cells,
    schema_words,
    summary_of,
    uniforms,
)
from dpaudit.synthetic_tables.mechanisms.table_summary import CellGrid, TableBatch

Floats = NDArray[np.float64]


@register("mechanism", "independent-marginals", source="Dwork et al. (2006); Ghosh et al. (2009)")
@dataclass(frozen=True)
class IndependentMarginals(NoiseByEpsilon, SchemaGenerator):
    """Synthetic rows of independent columns, from histograms with geometric noise; the exact epsilon is known.

    Attributes:
        schema: For each column a range of numbers `[0, 100]` or words `[f, m]`; it is public.
        count: Number of synthetic rows that a call as a function releases, >= 1; it is public.
        bins: Largest number of bins of a column of numbers, >= 1.
        relation: "add-remove", or "replace" with twice the noise.
        measurements: True if the noisy counts are released too.
        noise_factor: Factor on the noise, > 0; below 1 it breaks the claim.
        domain_from_data: Defect: only cells that occur in the rows get noise; the others stay 0.
        bounds_from_data: Defect: the bins lie between the smallest and the largest number of the rows.
        noise_over_n: Defect: the noise is divided by the number of rows, as if counts were frequencies.
        count_from_data: Defect: as many rows are released as there are real ones.
    """

    epsilon: float
    schema: Mapping[str, Any]
    count: int = 50
    bins: int = 10
    relation: Relation = Relation.ADD_REMOVE
    measurements: bool = True
    noise_factor: float = 1.0
    domain_from_data: bool = False
    bounds_from_data: bool = False
    noise_over_n: bool = False
    count_from_data: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require_epsilon(self.epsilon)
        require_positive(self, "bins", "noise_factor")
        relations = (Relation.ADD_REMOVE, Relation.REPLACE)
        require(self.relation in relations, "relation must be add-remove or replace", relation=self.relation)
        self.require_schema()

    def claim(self) -> Claim:
        return Claim(self.epsilon, relation=self.relation)

    def exact_epsilon(self) -> float:
        """Return the exact epsilon of the noisy counts; infinite with a defect other than `noise_factor`."""
        others = (self.domain_from_data, self.bounds_from_data, self.noise_over_n, self.count_from_data)
        return math.inf if any(others) else self.epsilon / self.noise_factor

    def released_count(self, rows: pa.Table) -> int:
        return len(rows) if self.count_from_data else self.count

    def scales(self, rows: int) -> dict[str, float]:
        """Return the noise scale b of each column, for odds exp(-1 / b) per step, if there are `rows` rows."""
        columns = len(self.schema)
        sensitivity = 2 if self.relation is Relation.REPLACE else 1
        scale = columns * sensitivity / self.epsilon * self.noise_factor
        return dict.fromkeys(self.schema, scale / max(1, rows) if self.noise_over_n else scale)

    def releases(self, rows: pa.Table, count: int, seeds: Sequence[int]) -> Releases:
        schema = summary_of(self).schema
        cells, scales = self._cells(rows), self.scales(len(rows))
        widths = {name: column.count for name, column in column_cells(schema, self.bins).items()}
        uniform, used = uniforms(seeds, sum(2 * column.count + 2 * count for column in cells.values())), 0
        columns, noisy_counts = {}, []
        for name, column in cells.items():
            exact = self.exact_counts(name, column, rows)
            noise = two_sided_geometric(uniform[:, used : used + 2 * column.count], scales[name])
            used += 2 * column.count
            noisy = self.noisy_counts(name, exact, noise)
            codes = draw_cells(noisy, uniform[:, used : used + count])
            columns[name] = column.values(codes, uniform[:, used + count : used + 2 * count])
            used += 2 * count
            unused = widths[name] - column.count  # a narrower range may have fewer whole numbers than bins
            noisy_counts.append(np.pad(noisy, ((0, 0), (0, unused))))
        measurements = np.concatenate(noisy_counts if self.measurements else [np.empty((len(seeds), 0))], axis=1)
        return Releases(TableBatch(columns, schema_words(schema)), measurements)

    def exact_counts(self, name: str, column: ColumnCells, rows: pa.Table) -> NDArray[np.float64]:
        """Return the counts of a column's cells."""
        return np.bincount(column.codes(rows[name]), minlength=column.count + 1)[: column.count].astype(np.float64)

    def noisy_counts(self, name: str, exact: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the counts of a column with noise, shape (seeds, cells)."""
        return exact + (np.where(exact > 0, noise, 0.0) if self.domain_from_data else noise)

    def _cells(self, rows: pa.Table) -> dict[str, ColumnCells]:
        """Return the cells of each histogram."""
        cells = column_cells(summary_of(self).schema, self.bins)
        for name, column in cells.items() if self.bounds_from_data else ():
            if isinstance(column.grid.column, Number):
                numbers = np.asarray(rows[name].cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
                numbers = numbers[np.isfinite(numbers)]
                if len(numbers):
                    between = replace(column.grid.column, low=float(numbers.min()), high=float(numbers.max()))
                    cells[name] = ColumnCells(CellGrid(between, self.bins))
        return cells


def two_sided_geometric(uniform: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Return the difference of two geometric numbers, of odds exp(-1 / scale) per step; shape (n, 2 k) to (n, k)."""
    steps = np.floor(-np.log1p(-uniform) * scale)
    half = uniform.shape[1] // 2
    return np.asarray(steps[:, :half] - steps[:, half:])
