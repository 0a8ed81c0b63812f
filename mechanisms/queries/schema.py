"""What rows of a table may hold: a range of numbers, or categories, by column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.errors import InputError, require, shortened
from dpaudit.given import is_number

MAX_COLUMNS = 1_000


@dataclass(frozen=True)
class Number:
    """A column of numbers."""

    low: float  # the least one
    high: float  # the largest one, >= low
    whole: bool = False  # whether all are whole

    def __post_init__(self) -> None:
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        require(finite and self.low <= self.high, "a range must be finite, low to high", low=self.low, high=self.high)

    def holds(self, value: object) -> bool:
        """Whether a cell may have this value."""
        if not is_number(value):
            return False
        number = float(value)  # type: ignore[arg-type]
        return self.low <= number <= self.high and (not self.whole or number.is_integer())


@dataclass(frozen=True)
class Category:
    """A column of words."""

    values: tuple[str, ...]  # all there are, each once

    def __post_init__(self) -> None:
        require(len(self.values) > 0, "a column of categories must have at least one")
        require(len(set(self.values)) == len(self.values), "each category must be named once", given=self.values)

    def holds(self, value: object) -> bool:
        """Whether a cell may have this value."""
        return value in self.values


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in their order."""

    columns: Mapping[str, Number | Category]

    def __post_init__(self) -> None:
        require(0 < len(self.columns) <= MAX_COLUMNS, f"a schema must have 1 .. {MAX_COLUMNS:,} columns")

    @classmethod
    def of(cls, given: object) -> Schema:
        """What is meant: `{"age": (0, 100), "sex": ["f", "m"]}`.

        Two numbers are a range, whole numbers where both are; words are categories.

        Raises: InputError for anything else.
        """
        if isinstance(given, Schema):
            return given
        if not isinstance(given, Mapping):
            raise InputError(
                'a schema must be a mapping such as {"age": (0, 100), "sex": ["f", "m"]}, got ' + shortened(given)
            )
        return cls({_name(name): _column(name, column) for name, column in given.items()})

    def arrow(self) -> pa.Schema:
        """Types of the columns of a table: float64, int64 or string, each of which may be null."""
        return pa.schema([(name, _type(column)) for name, column in self.columns.items()])

    def draw(self, rows: int, rng: np.random.Generator) -> pa.Table:
        """Ordinary rows, each cell uniform."""
        drawn: dict[str, Any] = {}
        for name, column in self.columns.items():
            if isinstance(column, Category):
                drawn[name] = [column.values[place] for place in rng.integers(0, len(column.values), rows).tolist()]
            elif column.whole:
                drawn[name] = rng.integers(int(column.low), int(column.high) + 1, rows)
            else:
                drawn[name] = rng.uniform(column.low, column.high, rows)
        return pa.table(drawn, schema=self.arrow())


def _name(name: object) -> str:
    require(isinstance(name, str) and bool(name), "each column of a schema must have a name", given=name)
    return str(name)


def _column(name: object, given: object) -> Number | Category:
    if isinstance(given, Number | Category):
        return given
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    if len(values) == 2 and all(map(is_number, values)):
        whole = all(isinstance(value, int | np.integer) for value in values)
        return Number(float(values[0]), float(values[1]), whole)
    if values and all(isinstance(value, str) for value in values):
        return Category(tuple(values))
    raise InputError(
        f"column {name!r} of a schema must be a range such as (0, 100) or categories such as ['f', 'm'], got "
        + shortened(given)
    )


def _type(column: Number | Category) -> pa.DataType:
    if isinstance(column, Category):
        return pa.string()
    return pa.int64() if column.whole else pa.float64()
