"""The columns of a table and their allowed values: ranges of numbers, and words.

`{"age": (0, 100), "sex": ["f", "m"]}`: two numbers are a closed range, of whole numbers if both are whole; words are
the categories. `{"age": {"range": (0, 100), "nullable": True}}` also allows missing values, and
`{"age": {"range": (0, 100), "any": True}}` allows every value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import InputError, require, shortened
from dpaudit.field_checks import check_fields, is_number, try_convert

LARGEST_WHOLE = 2**53
"""All whole numbers up to this one are exact as floats."""


@dataclass(frozen=True)
class Number:
    """A column of numbers.

    Attributes:
        low, high: The closed range: finite, low <= high; of a whole column whole, at most 2**53 from zero.
        whole: True if only whole numbers are allowed.
        nullable: True if missing values (null and NaN) are allowed.
        any: True if every value is allowed; the range then describes ordinary rows.
    """

    low: float
    high: float
    whole: bool = False
    nullable: bool = False
    any: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for end in (self.low, self.high):
            require(math.isfinite(end), "a bound must be a finite number", do="give the widest allowed", bound=end)
            fits = not self.whole or (end == math.floor(end) and abs(end) <= LARGEST_WHOLE)
            must = "a bound of whole numbers must be whole and at most 2**53 from zero"
            require(fits, must, do="write 0.0 for 0 where the numbers are real ones", bound=end)
        require(self.low <= self.high, "low must be at most high", do="swap them", low=self.low, high=self.high)

    def cell(self, value: float) -> float:
        """Return a value in the column's type."""
        return int(value) if self.whole else float(value)

    def allows(self, cell: float | None) -> bool:
        """True if a single value is allowed in the column."""
        if self.any:
            return True
        if cell is None or math.isnan(cell):
            return self.nullable
        return self.low <= cell <= self.high and (not self.whole or cell == math.floor(cell))

    def different(self, count: int) -> list[float]:
        """Return at most `count` >= 1 different cells of the range in increasing order; the last is its high end."""
        if self.whole:
            low, steps = int(self.low), min(count - 1, int(self.high) - int(self.low))
            return [*range(low, low + steps), int(self.high)]
        share = np.arange(count - 1) / max(1, count - 1)
        between = np.clip(self.low * (1 - share) + self.high * share, self.low, self.high)
        cells: list[float] = np.unique([*between, self.high]).tolist()
        return cells

    def holds(self, column: pa.ChunkedArray) -> bool:
        """True if every cell of the column is allowed."""
        if self.any:
            return True
        if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            return False
        if column.null_count and not self.nullable:
            return False
        cells: NDArray[Any] = column.drop_null().to_numpy()
        if self.nullable:
            cells = cells[~np.isnan(cells)]
        inside = (cells >= self.low) & (cells <= self.high)
        return bool(inside.all() and (not self.whole or (cells == np.floor(cells)).all()))


@dataclass(frozen=True)
class Category:
    """A column of words.

    Attributes:
        values: The allowed words, at least one, all different.
        nullable: True if missing values are allowed.
        any: True if every word is allowed; `values` then describe ordinary rows.
    """

    values: tuple[str, ...]
    nullable: bool = False
    any: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require(bool(self.values), "a category must have at least one word", do="list all words of the column")
        repeated = [word for place, word in enumerate(self.values) if word in self.values[:place]]
        require(not repeated, "the words of a category must differ", do="list each once", repeated=", ".join(repeated))

    def allows(self, cell: str | None) -> bool:
        """True if a single value is allowed in the column."""
        return self.any or (self.nullable if cell is None else cell in self.values)

    def different(self, count: int) -> list[str]:
        """Return at most `count` >= 1 different words, the last of `values` last; more than `values` if `any`."""
        *first, last = self.values
        if self.any:
            first += [word for word in map("other {}".format, range(count)) if word not in self.values]
        return [*first[: count - 1], last]

    def holds(self, column: pa.ChunkedArray) -> bool:
        """True if every cell of the column is allowed."""
        return self.any or all(self.allows(cell) for cell in column.unique().to_pylist())


@dataclass(frozen=True)
class Schema:
    """The ordered columns of a table, at least one."""

    columns: Mapping[str, Number | Category]

    def __post_init__(self) -> None:
        require(bool(self.columns), "a schema must have at least one column", do="write {column: [low, high]}")

    @classmethod
    def of(cls, description: object) -> Schema:
        """Build a schema from a mapping of each column to two numbers, a list of words, a Number or a Category.

        Raises: InputError, which names the column.
        """
        if isinstance(description, Schema):
            return description
        if not isinstance(description, Mapping):
            got = shortened(description if isinstance(description, str) else type(description).__name__)
            raise InputError(f"a schema must be a mapping from columns to ranges or words, got {got}; {_FOR_EXAMPLE}")
        columns = {}
        for name, value in description.items():
            fits, text = try_convert(name, str)
            require(fits and text, "the name of a column must be text, not empty", do="name each column", name=name)
            try:
                columns[text] = _column(value)
            except InputError as err:
                raise InputError(f"{shortened(text)}: {err}") from err
        return cls(columns)

    def to_words(self) -> dict[str, dict[str, Any]]:
        """Return a description of lists, numbers and words, from which `of` builds this schema."""
        words: dict[str, dict[str, Any]] = {}
        for name, column in self.columns.items():
            if isinstance(column, Category):
                words[name] = {"values": list(column.values)}
            else:
                words[name] = {"range": [column.cell(column.low), column.cell(column.high)]}
            words[name] |= {flag: True for flag in ("nullable", "any") if getattr(column, flag)}
        return words

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema; columns are nullable and float64, int64 or string."""
        return pa.schema([(name, _arrow_type(column)) for name, column in self.columns.items()])

    def draw(self, rows: int, rng: np.random.Generator) -> pa.Table:
        """Draw rows of independent cells, uniform over the range or the words."""
        cells: dict[str, Any] = {}
        for name, column in self.columns.items():
            if isinstance(column, Category):
                cells[name] = [column.values[place] for place in rng.integers(len(column.values), size=rows)]
            elif column.whole:
                cells[name] = rng.integers(int(column.low), int(column.high), size=rows, endpoint=True)
            else:
                share = rng.random(rows)
                between = column.low * (1 - share) + column.high * share  # high - low may be beyond the largest float
                cells[name] = np.clip(between, column.low, column.high)
        return pa.table(cells, schema=self.arrow())

    def table(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Build a table from rows, whose cells may lie outside the schema.

        A whole column is int64, or float64 if a cell is no whole number of 64 bits (such as NaN, inf or -0.0).
        """
        arrays = {}
        for name, column in self.columns.items():
            cells = [row[name] for row in rows]
            kind = _arrow_type(column)
            fits = (cell is None or (isinstance(cell, int) and -(2**63) <= cell < 2**63) for cell in cells)
            if isinstance(column, Number) and not (column.whole and all(fits)):
                kind, cells = pa.float64(), [None if cell is None else float(cell) for cell in cells]
            arrays[name] = pa.array(cells, kind, from_pandas=False)  # NaN is no null
        return pa.table(arrays)

    @property
    def allows_everything(self) -> bool:
        """True if no row lies outside the schema."""
        return all(column.any for column in self.columns.values())

    def outside(self, table: pa.Table) -> list[str]:
        """Return the columns that have a cell outside the schema."""
        return [name for name, column in self.columns.items() if not column.holds(table[name])]


_FOR_EXAMPLE = 'write, for example, {"age": [0, 100], "sex": ["f", "m"]}'
_NUMBER_WITHOUT_POINT = re.compile(r"[-+]?\d+[eE][-+]?\d+")
"""Numbers that YAML reads as words."""


def _column(value: object, *, may_be_range: bool = True) -> Number | Category:
    if isinstance(value, Number | Category):
        return value
    if isinstance(value, Mapping):
        return _described(value)
    if isinstance(value, Sequence | np.ndarray) and np.shape(value) != () and not isinstance(value, str | bytes):
        cells = list(value)
        numbers = [is_number(cell) for cell in cells]
        if all(numbers) and len(cells) == 2:
            low, high = map(_bound, cells)
            return Number(low, high, whole=all(isinstance(cell, Integral) for cell in cells))
        days = [_days(cell) for cell in cells] if may_be_range and len(cells) == 2 else [None]
        if None not in days:
            raise InputError(
                f"a range of dates must be whole days since 1970-01-01: write {days}, and turn the numbers into dates "
                f"in the function. If these are two words, write {{values: [{cells[0]}, {cells[1]}]}}"
            )
        words = [try_convert(cell, str) for cell in cells]
        points = [cell for fits, cell in words if fits and _NUMBER_WITHOUT_POINT.fullmatch(cell)]
        if points and len(cells) == 2:
            raise InputError(f"a bound must be a number, got the word {points[0]}; write it with a point, as in 1.0e+3")
        if all(fits for fits, _ in words):
            return Category(tuple(word for _, word in words))
    raise InputError(
        f"must be two numbers, low and high, or a list of words, got {shortened(value)}; put words that look like "
        "numbers or booleans (1, yes, no) in quotation marks"
    )


def _days(cell: object) -> int | None:
    """Return the days from 1970-01-01 to a date such as 2020-01-31; None for other cells."""
    try:
        return (
            date.fromisoformat(str(cell)).toordinal() - date(1970, 1, 1).toordinal() if len(str(cell)) == 10 else None
        )
    except ValueError:
        return None


def _described(value: Mapping[Any, Any]) -> Number | Category:
    """Return the column that a mapping with `range` or `values` and flags describes."""
    unknown = sorted(str(key) for key in value.keys() - {"range", "values", "nullable", "any"})
    if unknown or ("range" in value) == ("values" in value):
        raise InputError(
            f"must have either `range` or `values`, and may have `nullable` and `any`, got {shortened(dict(value))}; "
            'write {"range": [0, 100], "nullable": true}'
        )
    column = _column(value["range" if "range" in value else "values"], may_be_range="range" in value)
    if isinstance(column, Category) is not ("values" in value):
        raise InputError(f"`range` must be two numbers and `values` words, got {shortened(dict(value))}")
    flags = {name: value.get(name, False) for name in ("nullable", "any")}
    for name, flag in flags.items():
        require(isinstance(flag, bool), f"{name} must be true or false", given=flag)
    return replace(column, **flags)


def _bound(cell: Any) -> float:
    try:
        return float(cell)
    except (ValueError, OverflowError) as err:
        raise InputError(f"a bound must be a finite number, got {shortened(cell)}; give a smaller one") from err


def _arrow_type(column: Number | Category) -> pa.DataType:
    if isinstance(column, Category):
        return pa.string()
    return pa.int64() if column.whole else pa.float64()
