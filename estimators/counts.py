"""Estimators of tables of counts: column checks, printed tables and one bound a row.

An estimator names the columns that it needs and reads all rows at once. It chooses nothing: the threshold, answer set
or number of guesses of each row must have been fixed beforehand. Reporting the best of several rows is a selection and
needs a correction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import InputError, printable, require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.finding import Validity

Table = Mapping[str, NDArray[Any] | Sequence[Any]]
"""Columns of equal length by name; an estimator ignores columns that it does not read."""

CONFUSION = ("tp", "fp", "tn", "fn")
GUESSES = ("guesses", "correct", "canaries")
RATIO = ("n1", "n0", "trials1", "trials0")
TWO_CUT = ("k1", "n1", "k2", "n2")
K_CUT = ("c1_*", "c2_*")
RANKS = ("rank", "candidates")  # a column `margin` is optional
TEXTS = ("log_probability", "planted")
SPANS = ("longest_span", "planted")  # a column `edit_distance` is optional
"""Names of the columns of tables; "c1_*" stands for one column for each class: c1_cat, c1_dog, ..."""


class Reading(Protocol):
    """Result of one row or of a whole table; `str` prints it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that must be printed with the reading."""


class CountEstimator(ABC):
    """Estimator of a table of counts (registered as "estimator"; some estimators read evidence as well).

    Attributes:
        columns: Required columns; a "*" at the end stands for one column for each class.
        optional_columns: Columns that are read if the table has them.
    """

    columns: ClassVar[tuple[str, ...]]
    optional_columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, table: Table) -> Sequence[Reading]:
        """Return the readings of the rows, in their order.

        Raises: InputError for missing or unequal columns, no rows, or counts out of range.
        """


@dataclass(frozen=True)
class Column:
    """One printed column of a `TextTable`; bounds are rounded towards the side on which they hold as printed."""

    name: str  # heading
    # words, or numbers, printed with six decimals if rounded down or up and with six digits if rounded to nearest
    values: tuple[float | str, ...]
    rounding: Literal["down", "up", "nearest"] = "nearest"  # direction in which numbers are rounded

    def cells(self) -> list[str]:
        """Return the heading and the values as printed."""
        return [self.name, *(self._cell(value) for value in self.values)]

    def _cell(self, value: float | str) -> str:
        if isinstance(value, str):
            return value
        if self.rounding == "nearest":
            return f"{value:.6g}"
        return (format_lower if self.rounding == "down" else format_upper)(value, 6)


@dataclass(frozen=True)
class TextTable:
    """Printed table of intervals, exact values or conversions computed from counts."""

    title: str  # quantity, confidence and the sense in which it holds
    columns: tuple[Column, ...] = ()  # columns of equal length
    notes: tuple[str, ...] = ()  # sentences that must be printed with the table

    def __str__(self) -> str:
        columns = [list(map(printable, column.cells())) for column in self.columns]
        widths = [max(map(len, cells)) for cells in columns]
        rows = zip(*columns, strict=True)
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n  ".join([printable(self.title), *lines])

    def column(self, name: str) -> tuple[float | str, ...]:
        return {column.name: column.values for column in self.columns}[name]


def has_columns(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Return True if the column names match all patterns."""
    names = list(names)
    return all(any(matches(pattern, name) for name in names) for pattern in patterns)


def matches(pattern: str, name: str) -> bool:
    """Return True if a column name matches a pattern; a pattern may end in "*"."""
    return name.startswith(pattern[:-1]) and len(name) >= len(pattern) if pattern.endswith("*") else name == pattern


def count_columns(table: Table, names: Sequence[str]) -> dict[str, Ints]:
    """Return columns of counts, each of shape (rows,), with at least one row.

    Raises: InputError for missing or unequal columns, and for values that are not integers >= 0.
    """
    columns = number_columns(table, names)
    for name, column in columns.items():
        _require_none((column != np.rint(column)) | (column < 0), f"column {name} must hold whole numbers >= 0", column)
        _require_none(column > 2**53, f"column {name} must hold counts <= 2**53", column)
    return {name: column.astype(np.int64) for name, column in columns.items()}


def number_columns(table: Table, names: Sequence[str]) -> dict[str, Floats]:
    """Return columns of finite numbers, each of shape (rows,), with at least one row.

    Raises: InputError for missing or unequal columns, and for values that are not finite numbers.
    """
    missing = [name for name in names if name not in table]
    require(
        not missing, f"the table must have the columns {', '.join(names)}", columns=", ".join(table), do="name them so"
    )
    columns = {name: _numbers(name, table[name]) for name in names}
    shapes = {column.shape for column in columns.values()}
    require(
        len(shapes) == 1 and all(len(shape) == 1 and shape[0] > 0 for shape in shapes),
        "columns of counts must have one length, of at least one row",
        shapes=sorted(shapes),
    )
    return columns


def classes(table: Table, prefix: str, *others: str) -> tuple[str, ...]:
    """Return the class names after `prefix` in the column names, in order; `others` must name the same classes."""
    class_names = tuple(name.removeprefix(prefix) for name in table if matches(f"{prefix}*", name))
    require(
        len(class_names) >= 2,
        f"the table must have a column {prefix}NAME for each class, at least two",
        columns=", ".join(table),
    )
    for other in others:
        other_names = classes(table, other)
        require(
            set(class_names) == set(other_names),
            f"the columns {prefix}* and {other}* must name the same classes",
            first=", ".join(class_names),
            second=", ".join(other_names),
        )
    return class_names


class _RowEstimator(Protocol):
    """Estimator that states the delta, confidence, method and validity of its bounds."""

    @property
    def delta(self) -> float: ...
    @property
    def confidence(self) -> float: ...
    @property
    def method(self) -> str: ...
    @property
    def validity(self) -> Validity: ...


def bound_rows(
    estimator: _RowEstimator,
    lower: Any,
    counts: Mapping[str, Ints],
    *,
    upper: Any = None,
    notes: Sequence[tuple[str, ...]] | None = None,
) -> list[Bound]:
    """Return one `Bound` for each row, from arrays of shape (rows,)."""
    low = np.asarray(lower, dtype=np.float64)
    high = None if upper is None else np.asarray(upper, dtype=np.float64)
    return [
        Bound(
            lower=float(low[row]),
            upper=None if high is None else float(high[row]),
            delta=estimator.delta,
            confidence=estimator.confidence,
            method=estimator.method,
            validity=estimator.validity,
            counts=tuple((name, int(column[row])) for name, column in counts.items()),
            notes=notes[row] if notes else (),
        )
        for row in range(low.size)
    ]


def _numbers(name: str, column: NDArray[Any] | Sequence[Any]) -> Floats:
    try:
        numbers = np.asarray(column).astype(np.float64)
    except (TypeError, ValueError) as err:
        raise InputError(f"column {name} must hold numbers, got {np.asarray(column).dtype}") from err
    _require_none(~np.isfinite(numbers), f"column {name} must hold finite numbers", numbers)
    return numbers


def _require_none(bad: NDArray[np.bool_], must: str, numbers: Floats) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        require(False, must, given=float(numbers.flat[row]), do=f"see row {row + 1}")
