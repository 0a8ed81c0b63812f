"""Common part of our own generators of synthetic tables: a schema, and releases for many seeds at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome, GeneratedTable
from dpaudit.mechanisms.queries.schema import Category, Number, Schema
from dpaudit.synthetic_tables.mechanisms.table_summary import CellGrid, TableBatch, TableSummary

BLOCK_CELLS = 500_000
"""Largest number of synthetic cells that are drawn together."""


@dataclass(frozen=True, eq=False)
class Releases:
    """Releases of one fitted table, one for each seed.

    Attributes:
        tables: The synthetic tables.
        measurements: Numbers that are released too, shape (seeds, m).
    """

    tables: TableBatch
    measurements: NDArray[np.float64]


class SchemaGenerator(ABC):
    """A generator of tables of a schema, whose release depends on rows and seed alone.

    As a function on rows, its outcome is the summary of the released table, then the measurements.

    Attributes:
        schema: For each column a range of numbers `[0, 100]` or words `[f, m]`.
        count: Number of synthetic rows that a call as a function releases, >= 1.
    """

    schema: Mapping[str, Any]
    count: int

    keeps_no_state: ClassVar[bool] = True
    """Calls share nothing, so calls on one table may precede those on the other."""

    @abstractmethod
    def releases(self, rows: pa.Table, count: int, seeds: Sequence[int]) -> Releases:
        """Return a release of `count` rows for each seed; a release does not depend on the other seeds."""

    def default_data(self) -> Mapping[str, Any]:
        return {"name": "schema-rows", "schema": self.schema}

    def alternatives(self) -> Sequence[Mapping[str, Any]]:
        return ({},)

    def released_count(self, rows: pa.Table) -> int:
        """Return the number of synthetic rows that a call as a function releases for these rows."""
        return self.count

    def outcomes(
        self, rows: pa.Table, seeds: Sequence[int], settings: Mapping[str, Any], limits: CallLimits
    ) -> Sequence[CallOutcome]:
        summary, count = summary_of(self), self.released_count(rows)
        block = max(1, BLOCK_CELLS // (max(1, count) * len(summary.schema.columns)))
        outcomes: list[CallOutcome] = []
        for first in range(0, len(seeds), block):
            releases = self.releases(rows, count, seeds[first : first + block])
            numbers = np.concatenate([summary.numbers(releases.tables), releases.measurements], axis=1)
            outcomes += map(CallOutcome, summary.endings(releases.tables), numbers)
        return outcomes

    def generate(
        self, rows: pa.Table, count: int, seed: int, settings: Mapping[str, Any], limits: CallLimits
    ) -> GeneratedTable:
        releases = self.releases(rows, count, [seed])
        return GeneratedTable(releases.tables.table(0, summary_of(self).schema), releases.measurements[0])

    def require_schema(self) -> None:
        """Reject an invalid schema or count."""
        Schema.of(self.schema)
        require(self.count >= 1, "count must be >= 1", count=self.count)


def summary_of(generator: SchemaGenerator) -> TableSummary:
    """Return the summary of the tables of a generator's schema."""
    return _summary(tuple(Schema.of(generator.schema).columns.items()))


@lru_cache(maxsize=16)
def _summary(columns: tuple[tuple[str, Number | Category], ...]) -> TableSummary:
    return TableSummary(Schema(dict(columns)))


def uniforms(seeds: Sequence[int], count: int) -> NDArray[np.float64]:
    """Return `count` uniform numbers in [0, 1) for each seed, shape (seeds, count)."""
    numbers = np.empty((len(seeds), count))
    for place, seed in enumerate(seeds):
        np.random.default_rng(seed).random(out=numbers[place])
    return numbers


def normals(seeds: Sequence[int], count: int, stream: int = 1) -> NDArray[np.float64]:
    """Return `count` standard normal numbers for each seed, independent of `uniforms`; shape (seeds, count)."""
    numbers = np.empty((len(seeds), count))
    for place, seed in enumerate(seeds):
        np.random.default_rng((seed, stream)).standard_normal(out=numbers[place])
    return numbers


def draw_cells(weights: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return positions drawn with probabilities proportional to the positive parts of weights; all 0 means uniform.

    Shapes (tables, k) and (tables, rows) to (tables, rows), or weights of each row, (tables, rows, k).
    """
    positive = np.maximum(weights, 0.0)
    positive = np.where(positive.sum(axis=-1, keepdims=True) > 0, positive, 1.0)
    cumulative = positive.cumsum(axis=-1)
    limits = cumulative if weights.ndim == 3 else cumulative[:, None]
    places = (limits <= uniform[..., None] * limits[..., -1:]).sum(axis=-1)
    return np.asarray(np.minimum(places, weights.shape[-1] - 1), np.int64)


@dataclass(frozen=True, eq=False)
class ColumnCells:
    """The cells of the noisy histogram of a column: words or bins, and one for missing values if they are allowed."""

    grid: CellGrid

    @property
    def count(self) -> int:
        """Number of cells."""
        return self.grid.cells + int(self.grid.column.nullable)

    def codes(self, cells: pa.ChunkedArray) -> NDArray[np.int64]:
        """Return the cell of each value; `count` for values that have none, which are left out.

        Numbers outside the range are clipped to it.
        """
        column = self.grid.column
        if isinstance(column, Category):
            places = {word: place for place, word in enumerate(column.values)}
            missing = self.grid.cells if column.nullable else self.count
            values = cells.to_pylist()
            return np.array([missing if each is None else places.get(each, self.count) for each in values], np.int64)
        numbers = np.asarray(cells.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
        clipped = np.clip(numbers, column.low, column.high)
        # A fraction between two whole numbers belongs to the smaller one.
        codes = self.grid.codes(clipped)
        return np.where(np.isnan(numbers), self.grid.cells if column.nullable else self.count, codes)

    def values(self, codes: NDArray[np.int64], uniform: NDArray[np.float64]) -> NDArray[np.float64] | NDArray[np.int64]:
        """Return values of cells as in a `TableBatch`; numbers are uniform within their bin."""
        column, missing = self.grid.column, codes == self.grid.cells
        if isinstance(column, Category):
            return np.where(missing, -1, codes)
        inside = np.minimum(codes, self.grid.cells - 1)
        low, high = self.grid.edges[inside], self.grid.edges[inside + 1]
        numbers = low + (high - low) * uniform
        return np.where(missing, np.nan, np.floor(numbers) if column.whole else numbers)


def column_cells(schema: Schema, bins: int) -> dict[str, ColumnCells]:
    """Return the cells of each column."""
    return {name: ColumnCells(CellGrid(column, bins)) for name, column in schema.columns.items()}


def schema_words(schema: Schema) -> dict[str, Sequence[str]]:
    """Return the words of each column of words."""
    return {name: column.values for name, column in schema.columns.items() if isinstance(column, Category)}
