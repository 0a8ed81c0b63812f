"""Closeness of a table to one record: rows that agree with it in some columns, and the rows closest to it.

Source: the query-based attack of Houssiau et al. (2022), "TAPAS", counts synthetic rows that agree with the target in
sets of columns. Stadler et al. (2022), "Synthetic Data - Anonymisation Groundhog Day", use statistics of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.mechanisms.queries.schema import Number

MAX_PAIRS = 20
"""Largest number of pairs of columns that are counted: those in which the fewest rows agree with the record."""
WINDOW_SHARE = 0.1
"""Share of the pool's rows that agree with a record in a column of numbers."""
NEAREST = (1, 2, 3, 5)
"""Ranks of the closest rows whose distance is read."""
OUTLIER_RANK = 5
"""An outlier is far from its nearest rows up to this rank."""
MAX_COMPARED = 1_000
"""Largest number of pool rows with which each row is compared to find an outlier."""
BLOCK_ROWS = 2_048
"""Number of rows whose distances are computed together."""
SPAN_QUANTILES = (0.05, 0.95)
"""Quantiles of a column of numbers whose difference has distance 1."""


@dataclass(frozen=True, eq=False)
class Closeness:
    """Closeness of the rows of a table to a record.

    Attributes:
        counts: Numbers of rows that agree with the record in each column, in both columns of each pair, and in at least
            k columns for each k from 3; shape (counts,), the same for every table and record.
        nearest: Distances of the closest rows at the ranks `NEAREST`, shape (4,); 1 where there are fewer rows. The
            distance is Gower's: the mean over columns of 0 or 1 for words and of at most 1 for numbers.
    """

    counts: NDArray[np.float64]
    nearest: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordView:
    """Reads tables around one record.

    Attributes:
        values: The record's cells: a number, a word or None for each column.
        windows: Largest distance at which a number agrees with the record's, shape (columns,); 0 for words.
        spans: Distance of two numbers that counts as 1, shape (columns,); 1 for words.
        pairs: Pairs of columns that are counted, the rarest agreement first, shape (pairs, 2).
    """

    names: tuple[str, ...]
    values: tuple[float | str | None, ...]
    windows: NDArray[np.float64]
    spans: NDArray[np.float64]
    pairs: NDArray[np.int64]

    def closeness(self, table: pa.Table) -> Closeness:
        """Return what a table shows of the record."""
        distances = self._distances(table)
        agrees = distances <= self.windows
        both = (agrees[:, self.pairs[:, 0]] & agrees[:, self.pairs[:, 1]]).sum(0)
        in_common = agrees.sum(1)
        at_least = [np.count_nonzero(in_common >= least) for least in range(3, len(self.names) + 1)]
        counts = np.concatenate([agrees.sum(0), both, at_least]).astype(np.float64)
        gower = np.minimum(distances / self.spans, 1.0).mean(1)
        ranked = np.sort(np.append(gower, np.ones(max(NEAREST))))
        return Closeness(counts, ranked[np.array(NEAREST) - 1])

    def _distances(self, table: pa.Table) -> NDArray[np.float64]:
        """Return the distance of each cell from the record's, shape (rows, columns); inf for cells of another kind."""
        columns = [
            np.full(len(table), np.inf) if name not in table.column_names else _distances(table[name], value)
            for name, value in zip(self.names, self.values, strict=True)
        ]
        return np.column_stack(columns)


def _distances(column: pa.ChunkedArray, value: float | str | None) -> NDArray[np.float64]:
    """Return 0 for an equal word or a missing cell if `value` is missing, |number - value|, and inf otherwise."""
    if value is None:
        same = _is_missing(column)
    elif isinstance(value, str):
        same = np.asarray(pc.fill_null(pc.equal(column.cast(pa.string()), value), False))
    else:
        return np.nan_to_num(np.abs(_numbers(column) - value), nan=np.inf)
    return np.where(same, 0.0, np.inf)


def _is_missing(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.is_null(column, nan_is_null=True))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return numbers, NaN where a cell is missing or no number."""
    try:
        return np.asarray(column.cast(pa.float64()), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.full(len(column), np.nan)


@dataclass(frozen=True, eq=False)
class Pool:
    """Real rows from which the tables of all fits are drawn."""

    rows: TableRows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.rows.schema.columns)

    @property
    def is_number(self) -> tuple[bool, ...]:
        """True for columns of numbers."""
        return tuple(isinstance(column, Number) for column in self.rows.schema.columns.values())

    @cached_property
    def cells(self) -> pa.Table:
        """All rows, in the types of the schema."""
        return self.rows.cells.combine_chunks()

    @cached_property
    def numbers(self) -> dict[str, NDArray[np.float64]]:
        """Columns of numbers by name, NaN where missing."""
        return {
            name: _numbers(self.cells[name]) for name, number in zip(self.names, self.is_number, strict=True) if number
        }

    @cached_property
    def spans(self) -> NDArray[np.float64]:
        """Distance of two numbers that counts as 1, shape (columns,); 1 for words."""
        return np.array([_span(self.numbers[name]) if name in self.numbers else 1.0 for name in self.names])

    def take(self, places: NDArray[np.int64]) -> pa.Table:
        """Return the rows at these places, in their order."""
        return self.cells.take(pa.array(places))

    def around(self, place: int) -> RecordView:
        """Return the view of the record at `place`."""
        row = self.cells.slice(place, 1).to_pylist()[0]
        values = tuple(_cell(row[name]) for name in self.names)
        windows = np.zeros(len(self.names))
        for column, (name, value) in enumerate(zip(self.names, values, strict=True)):
            if name in self.numbers and isinstance(value, float):
                away = np.abs(self.numbers[name] - value)
                windows[column] = np.nanquantile(away, WINDOW_SHARE)
        view = RecordView(self.names, values, windows, self.spans, np.empty((0, 2), np.int64))
        agrees = (view._distances(self._compared) <= windows).astype(np.float64)
        pairs = np.column_stack(np.triu_indices(len(self.names), 1))
        rarest = np.argsort((agrees.T @ agrees)[pairs[:, 0], pairs[:, 1]], kind="stable")[:MAX_PAIRS]
        return replace(view, pairs=pairs[rarest])

    def record_numbers(self, place: int) -> NDArray[np.float64]:
        """Return the cells of the record at `place` as numbers, shape (columns,); words by code, missing numbers 0."""
        numbers: NDArray[np.float64] = np.nan_to_num(np.array([self.codes[name][place] for name in self.names]))
        return numbers

    @cached_property
    def _compared(self) -> pa.Table:
        """Evenly spaced rows, at most `MAX_COMPARED`."""
        return self.take(self._compared_places)

    def outlier(self) -> int:
        """Return the place of the row with the lowest local density: the farthest from its nearest rows.

        The mean distance to the `OUTLIER_RANK` nearest of at most `MAX_COMPARED` rows decides; the first of equals.
        """
        rank = min(OUTLIER_RANK, len(self._compared_places) - 1)
        if not rank:
            return 0
        blocks = [np.arange(first, min(first + BLOCK_ROWS, len(self))) for first in range(0, len(self), BLOCK_ROWS)]
        nearest = [np.partition(self._gower(block), rank - 1, axis=1)[:, :rank].mean(1) for block in blocks]
        return int(np.argmax(np.concatenate(nearest)))

    def _gower(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the distances of rows from the compared rows, shape (rows, compared); inf from the row itself."""
        compared = self._compared_places
        total = np.zeros((len(places), len(compared)), np.float32)
        for name, span in zip(self.names, self.spans, strict=True):
            cells = self.codes[name]
            away = np.abs(cells[places, None] - cells[None, compared]) / span
            if name in self.numbers:
                # Two missing numbers are equal, and one is as far as possible from any number.
                missing = np.isnan(cells)
                away = np.where(missing[places, None] & missing[None, compared], 0.0, np.nan_to_num(away, nan=1.0))
            total += np.minimum(away, 1.0)
        total[places[:, None] == compared[None]] = np.inf
        total /= np.float32(len(self.names))
        return total

    @cached_property
    def codes(self) -> dict[str, NDArray[np.float64]]:
        """All columns by name: numbers, and words as whole numbers, -1 where missing."""
        words = (name for name in self.names if name not in self.numbers)
        return {name: _codes(self.cells[name]) for name in words} | self.numbers

    @cached_property
    def _compared_places(self) -> NDArray[np.int64]:
        """Places of evenly spaced rows, at most `MAX_COMPARED`."""
        return np.unique(np.linspace(0, len(self) - 1, min(len(self), MAX_COMPARED)).astype(np.int64))


def _codes(words: pa.ChunkedArray) -> NDArray[np.float64]:
    indices = words.combine_chunks().dictionary_encode().indices
    return np.asarray(pc.fill_null(indices, -1), np.float64)


def _cell(cell: float | str | None) -> float | str | None:
    """Return a cell; None if it is missing."""
    if cell is None or isinstance(cell, str):
        return cell
    return None if np.isnan(cell) else float(cell)


def _span(numbers: NDArray[np.float64]) -> float:
    present = numbers[~np.isnan(numbers)]
    if not len(present):
        return 1.0
    low, high = np.quantile(present, SPAN_QUANTILES)
    return float(high - low) or float(present.max() - present.min()) or 1.0
