"""Tables of counts in, readings out: what the estimators that read counts share.

An estimator of counts names the columns it needs and reads all rows of a table at once. Nothing is chosen here: each
row's threshold, set of answers or number of guesses must have been fixed beforehand. The best of several rows is a
choice, and needs a correction.
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
"""Columns of one length by name; columns that an estimator does not read are ignored."""

CONFUSION = ("tp", "fp", "tn", "fn")
GUESSES = ("guesses", "correct", "canaries")
RATIO = ("n1", "n0", "trials1", "trials0")
TWO_CUT = ("k1", "n1", "k2", "n2")
K_CUT = ("c1_*", "c2_*")
"""Names that the columns of tables go by; "c1_*" stands for one column a class: c1_cat, c1_dog, ..."""


class Reading(Protocol):
    """What one row, or a table as a whole, shows; `str` prints it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences a reader must see beside it."""


class CountEstimator(ABC):
    """From a table of counts to readings (registered as "estimator"; some of them read evidence as well).

    Attributes:
        columns: The columns it needs, a "*" at the end standing for one column a class.
        optional_columns: The columns it reads where the table has them.
    """

    columns: ClassVar[tuple[str, ...]]
    optional_columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, table: Table) -> Sequence[Reading]:
        """What the rows show, in their order.

        Raises: InputError for missing or unequal columns, no rows, or counts out of range.
        """


@dataclass(frozen=True)
class Column:
    """One printed column of a `TextTable`; bounds are rounded to the side on which they hold as printed."""

    name: str  # its heading
    # words, or numbers, which are printed with six decimals (rounded) or six digits (nearest)
    values: tuple[float | str, ...]
    rounding: Literal["down", "up", "nearest"] = "nearest"  # the direction in which numbers are rounded

    def cells(self) -> list[str]:
        """The heading and the values as they are printed."""
        return [self.name, *(self._cell(value) for value in self.values)]

    def _cell(self, value: float | str) -> str:
        if isinstance(value, str):
            return value
        if self.rounding == "nearest":
            return f"{value:.6g}"
        return (format_lower if self.rounding == "down" else format_upper)(value, 6)


@dataclass(frozen=True)
class TextTable:
    """Something read off counts, printed as columns: intervals, exact values, conversions."""

    title: str  # what it is, at which confidence and in what sense that holds
    columns: tuple[Column, ...] = ()  # equally long columns
    notes: tuple[str, ...] = ()  # sentences a reader must see beside it

    def __str__(self) -> str:
        columns = [list(map(printable, column.cells())) for column in self.columns]
        widths = [max(map(len, cells)) for cells in columns]
        rows = zip(*columns, strict=True)
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n  ".join([printable(self.title), *lines])

    def column(self, name: str) -> tuple[float | str, ...]:
        return {column.name: column.values for column in self.columns}[name]


def has_columns(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Whether a table with columns of these names has all that an estimator needs."""
    names = list(names)
    return all(any(matches(pattern, name) for name in names) for pattern in patterns)


def matches(pattern: str, name: str) -> bool:
    """Whether a column of this name is meant; a "*" ends the pattern or is not in it."""
    return name.startswith(pattern[:-1]) and len(name) >= len(pattern) if pattern.endswith("*") else name == pattern


def count_columns(table: Table, names: Sequence[str]) -> dict[str, Ints]:
    """Columns of counts, each of shape (rows,), at least one row.

    Raises: InputError for missing or unequal columns, and for values that are not whole or below 0.
    """
    return {name: _whole(name, column) for name, column in number_columns(table, names).items()}


def number_columns(table: Table, names: Sequence[str]) -> dict[str, Floats]:
    """Columns of finite numbers, each of shape (rows,), at least one row.

    Raises: InputError for missing or unequal columns, and for values that are no finite numbers.
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
    """What follows the prefix in the names of the table's columns, in their order; the same for each other prefix."""
    named = tuple(name.removeprefix(prefix) for name in table if matches(f"{prefix}*", name))
    require(
        len(named) >= 2,
        f"the table must have a column {prefix}NAME for each class, at least two",
        columns=", ".join(table),
    )
    for other in others:
        second = classes(table, other)
        require(
            set(named) == set(second),
            f"the columns {prefix}* and {other}* must name the same classes",
            first=", ".join(named),
            second=", ".join(second),
        )
    return named


def query_names(table: Table, rows: int) -> list[str]:
    """What the rows of a table of queries are called."""
    return [f"query {name}" for name in (table["query"] if "query" in table else range(1, rows + 1))]


def per_class(table: Table, prefix: str, named: Sequence[str]) -> Ints:
    """The counts of all classes, shape (rows, classes)."""
    return np.stack(list(count_columns(table, [prefix + name for name in named]).values()), axis=1)


class _Bounding(Protocol):
    """An estimator that says of its bounds where they are stated, and in what sense they hold."""

    @property
    def delta(self) -> float: ...
    @property
    def confidence(self) -> float: ...
    def method(self) -> str: ...
    def validity(self) -> Validity: ...


def bound_rows(
    estimator: _Bounding,
    lower: Any,
    counts: Mapping[str, Ints],
    *,
    upper: Any = None,
    notes: Sequence[tuple[str, ...]] | None = None,
) -> list[Bound]:
    """One `Bound` a row from arrays of shape (rows,)."""
    low = np.asarray(lower, dtype=np.float64)
    high = None if upper is None else np.asarray(upper, dtype=np.float64)
    return [
        Bound(
            lower=float(low[row]),
            upper=None if high is None else float(high[row]),
            delta=estimator.delta,
            confidence=estimator.confidence,
            method=estimator.method(),
            validity=estimator.validity(),
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
    _refuse(~np.isfinite(numbers), f"column {name} must hold finite numbers", numbers)
    return numbers


def _whole(name: str, numbers: Floats) -> Ints:
    must = f"column {name} must hold whole numbers >= 0"
    _refuse((numbers != np.rint(numbers)) | (numbers < 0), must, numbers)
    _refuse(numbers > 2**53, f"column {name} must hold counts <= 2**53", numbers)
    return numbers.astype(np.int64)


def _refuse(bad: NDArray[np.bool_], must: str, numbers: Floats) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        require(False, must, given=float(numbers.flat[row]), do=f"see row {row + 1}")
