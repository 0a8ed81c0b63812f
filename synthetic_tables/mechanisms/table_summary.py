"""The summary of a synthetic table: numbers in a fixed order, equally many for all tables of a schema.

They are the number of rows, the counts of all one-way and two-way marginals, and a few statistics of each column of
numbers. Which cells are counted depends on the schema alone, never on a table. A word outside the schema is part of the
ending of a call, because the number of such words is not bounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.queries.schema import Category, Number, Schema

MAX_BINS = 10
"""Largest number of bins of a column of numbers."""
MAX_GROUPS = 4
"""Largest number of groups of the bins or words of a column in two-way marginals; missing and outside are one more."""
MAX_PAIRS = 45
"""Largest number of two-way marginals: those of all pairs of ten columns. Neighbouring columns come first."""
NAMED_WORDS = 8
"""Largest number of words outside the schema that an ending names, for each column."""
QUANTILES = (0.25, 0.5, 0.75)
STATISTICS = 5 + len(QUANTILES)
"""Minimum, maximum, mean, quantiles, number of distinct values, and spread of a column of numbers."""


@dataclass(frozen=True, eq=False)
class CellGrid:
    """The cells into which a column of a schema is counted.

    Cells are the words, or bins of equal width; a whole column with few values has one bin for each. After the cells
    come the code of values outside the schema and the code of missing values.
    """

    column: Number | Category
    bins: int = MAX_BINS

    @cached_property
    def cells(self) -> int:
        """Number of words or bins, >= 1."""
        if isinstance(self.column, Category):
            return len(self.column.values)
        if self.column.low == self.column.high:
            return 1
        values = self.column.high - self.column.low + 1 if self.column.whole else np.inf
        return int(min(self.bins, values))

    @property
    def outside(self) -> int:
        """Code of values outside the schema."""
        return self.cells

    @property
    def missing(self) -> int:
        """Code of missing values."""
        return self.cells + 1

    @cached_property
    def edges(self) -> NDArray[np.float64]:
        """Edges of the bins of a column of numbers, shape (cells + 1,)."""
        assert isinstance(self.column, Number)
        share = np.arange(self.cells + 1) / self.cells
        high = self.column.high + (1 if self.column.whole else 0)
        edges = self.column.low * (1 - share) + high * share
        return np.ceil(edges - 1e-9) if self.column.whole else edges

    def codes(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the codes of the cells of numbers, NaN for missing ones; any shape."""
        assert isinstance(self.column, Number)
        inside = (values >= self.column.low) & (values <= self.column.high)
        bins = np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, self.cells - 1)
        return np.where(np.isnan(values), self.missing, np.where(inside, bins, self.outside)).astype(np.int64)

    @cached_property
    def group_of(self) -> NDArray[np.int64]:
        """Group of each code in two-way marginals, shape (cells + 2,); the last group has all codes after the cells."""
        groups = self.groups - 1
        of_cells = np.arange(self.cells) * groups // self.cells
        return np.concatenate([of_cells, [groups, groups]]).astype(np.int64)

    @property
    def groups(self) -> int:
        """Number of groups in two-way marginals."""
        return min(MAX_GROUPS, self.cells) + 1


@dataclass(frozen=True, eq=False)
class TableBatch:
    """Tables of equally many rows, one for each seed.

    Attributes:
        columns: Values by column, shape (tables, rows): float64 with NaN for missing numbers, or int64 codes of words.
            The codes are positions in `words`; those of the schema come first, and -1 is a missing word.
        words: All words by column.
    """

    columns: Mapping[str, NDArray[np.float64] | NDArray[np.int64]]
    words: Mapping[str, Sequence[str]]

    def table(self, place: int, schema: Schema) -> pa.Table:
        """Return the table number `place` with the types of the schema; numbers outside a whole column stay floats."""
        arrays = {}
        for name, column in schema.columns.items():
            values = self.columns[name][place]
            if isinstance(column, Category):
                words = [*self.words[name], None]
                arrays[name] = pa.array([words[code] for code in values.tolist()], pa.string())
                continue
            missing = np.isnan(values)
            whole = column.whole and bool((values[~missing] % 1 == 0).all())
            filled = np.where(missing, 0, values)
            arrays[name] = pa.array(filled.astype(np.int64) if whole else filled, mask=missing)
        return pa.table(arrays)

    @classmethod
    def of(cls, table: pa.Table, schema: Schema) -> TableBatch:
        """Return a batch of one table, which has the columns of the schema; words and numbers must not be mixed up.

        Raises: InputError if a column is missing, or holds words instead of numbers.
        """
        columns: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {}
        words: dict[str, Sequence[str]] = {}
        for name, column in schema.columns.items():
            require(name in table.column_names, "a table must have all columns of its schema", missing=name)
            if isinstance(column, Number):
                columns[name] = _numbers(name, table[name])[None]
                continue
            cells = table[name].cast(pa.string()).to_pylist()
            code_of = {word: code for code, word in enumerate(column.values)}
            for word in sorted({cell for cell in cells if cell is not None} - code_of.keys()):
                code_of[word] = len(code_of)
            words[name] = tuple(code_of)
            columns[name] = np.array([[-1 if cell is None else code_of[cell] for cell in cells]], np.int64)
        return cls(columns, words)


def _numbers(name: str, column: pa.ChunkedArray) -> NDArray[np.float64]:
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    require(is_number or pa.types.is_null(kind), "a column of numbers must hold numbers", column=name, type=str(kind))
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


@dataclass(frozen=True, eq=False)
class TableSummary:
    """Summaries of the tables of a schema."""

    schema: Schema

    @cached_property
    def grids(self) -> Mapping[str, CellGrid]:
        """Cells of each column."""
        return {name: CellGrid(column) for name, column in self.schema.columns.items()}

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Pairs of columns with a two-way marginal."""
        names = list(self.schema.columns)
        places = sorted(itertools.combinations(range(len(names)), 2), key=lambda pair: (pair[1] - pair[0], pair[0]))
        return tuple((names[first], names[second]) for first, second in places[:MAX_PAIRS])

    @property
    def names(self) -> tuple[str, ...]:
        """Descriptions of the numbers, in their order."""
        names = ["number of rows"]
        for name, grid in self.grids.items():
            names += [f"count of {name}, cell {cell}" for cell in range(grid.cells)]
            names += [f"count of {name} outside its schema", f"count of {name} missing"]
            if isinstance(grid.column, Number):
                statistics = ("minimum", "maximum", "mean", *(f"quantile {share:g}" for share in QUANTILES))
                names += [f"{word} of {name}" for word in (*statistics, "number of distinct values", "spread")]
        for first, second in self.pairs:
            cells = itertools.product(range(self.grids[first].groups), range(self.grids[second].groups))
            names += [f"count of {first} and {second}, groups {row} and {column}" for row, column in cells]
        return tuple(names)

    def numbers(self, batch: TableBatch) -> NDArray[np.float64]:
        """Return the numbers of each table, shape (tables, width); all are finite."""
        tables, rows = next(iter(batch.columns.values())).shape
        codes = {name: self._codes(name, values) for name, values in batch.columns.items()}
        parts = [np.full((tables, 1), float(rows))]
        for name, grid in self.grids.items():
            parts.append(_counts(codes[name], grid.cells + 2))
            if isinstance(grid.column, Number):
                parts.append(_statistics(np.asarray(batch.columns[name], np.float64)))
        for first, second in self.pairs:
            width = self.grids[second].groups
            joined = self.grids[first].group_of[codes[first]] * width + self.grids[second].group_of[codes[second]]
            parts.append(_counts(joined, self.grids[first].groups * width))
        return np.concatenate(parts, axis=1)

    def endings(self, batch: TableBatch) -> list[str]:
        """Return the discrete part of each table: the words outside the schema."""
        tables = len(next(iter(batch.columns.values())))
        endings = ["table"] * tables
        for name, words in batch.words.items():
            values = batch.columns[name]
            for place in np.flatnonzero((values >= self.grids[name].cells).any(axis=1)).tolist():
                codes = np.unique(values[place])
                outside = [words[int(code)] for code in codes if code >= self.grids[name].cells]
                more = f" and {len(outside) - NAMED_WORDS} more" if len(outside) > NAMED_WORDS else ""
                endings[place] += f"; words of {name} outside the schema: {', '.join(outside[:NAMED_WORDS])}{more}"
        return endings

    def _codes(self, name: str, values: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.int64]:
        grid = self.grids[name]
        if isinstance(grid.column, Number):
            return grid.codes(np.asarray(values, np.float64))
        return np.where(values < 0, grid.missing, np.minimum(values, grid.outside)).astype(np.int64)


def _counts(codes: NDArray[np.int64], width: int) -> NDArray[np.float64]:
    """Return how often each code below `width` occurs in each row, shape (tables, rows) to (tables, width)."""
    tables = len(codes)
    joined = codes + np.arange(tables)[:, None] * width
    return np.bincount(joined.ravel(), minlength=tables * width).reshape(tables, width).astype(np.float64)


def _statistics(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the statistics of the finite numbers of each row, all 0 without any; shape (tables, STATISTICS)."""
    finite = np.isfinite(values)
    count = finite.sum(axis=1)
    ordered = np.sort(np.where(finite, values, np.inf), axis=1)
    statistics = np.zeros((len(values), STATISTICS))
    some = count > 0
    if not some.any():
        return statistics
    ordered, count = ordered[some], count[some]
    rows = np.arange(len(ordered))
    last = ordered[rows, count - 1]
    inside = np.arange(ordered.shape[1]) < count[:, None]
    numbers = np.where(inside, ordered, 0.0)
    mean = numbers.sum(axis=1) / count
    quantiles = [ordered[rows, ((count - 1) * share).astype(np.int64)] for share in QUANTILES]
    distinct = 1 + ((ordered[:, 1:] > ordered[:, :-1]) & inside[:, 1:]).sum(axis=1)
    spread = np.sqrt((np.where(inside, numbers - mean[:, None], 0.0) ** 2).sum(axis=1) / count)
    statistics[some] = np.column_stack([ordered[:, 0], last, mean, *quantiles, distinct, spread])
    return statistics
