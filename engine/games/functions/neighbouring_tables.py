"""Pairs of neighbouring tables on which a function of rows is likely to show that it is not as private as it says.

Ordinary rows, the worst case of sums and of medians, one row with all the leverage, categories that come and go,
tables of no row or of one, groups that reach a usual threshold; and, where rows need not keep to the schema, what lies
just outside it, and what is no number or no word. The most general pairs come first. A row is "low" whose numbers are
the least and whose words the first of their columns, "high" that with the largest and the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.claims import Relation
from dpaudit.errors import require
from dpaudit.mechanisms.queries.schema import Category, Number, Schema

Row = dict[str, Any]

SINGLE_COLUMNS = 16
"""Up to here each column has pairs of its own; of more columns, groups have them."""
GROUPS = 8
LARGE = 10
"""How many times as many rows the large tables have, of at most so many:"""
MOST_ROWS = 10_000
JUST_TOO_FEW = (2, 4, 9, 19, 29, 99)
"""One more reaches what code is likely to ask for: 3, 5, 10, 20, 30 or 100 rows, or as many of a group."""
FEW = (2, 4)
LONG_WORD = 1_000
"""Letters of the long word."""


@dataclass(frozen=True, eq=False)
class TablePair:
    """Two neighbouring tables, with their rows in the order in which the function gets them.

    Attributes:
        name: What is peculiar about them, in plain words.
        d, d_prime: Under `add-remove`, `d_prime` has the rows of `d` and some more at its end; under `replace` some
            rows are others, at the same places.
        beyond: Whether a cell lies outside the schema.
    """

    name: str
    d: pa.Table
    d_prime: pa.Table
    beyond: bool


@dataclass(frozen=True, eq=False)
class _Change:
    """What a pair is made of: rows that both tables have, and rows that come, in place of old ones under `replace`."""

    name: str
    others: pa.Table
    new: pa.Table
    old: pa.Table
    place: int | None = None  # of the rows that change, under `replace`; None: at the end


def pairs(
    schema: Schema,
    ordinary: pa.Table,
    relation: Relation,
    rng: np.random.Generator,
    *,
    group: int = 1,
    beyond: bool = True,
) -> list[TablePair]:
    """Pairs of neighbours, each with a name of its own; those beyond the schema are last.

    Args:
        ordinary: Rows as they are expected, of the schema's columns and within it; at least `group`.
        relation: `add-remove`, or `replace`, under which both tables have as many rows.
        group: How many rows come or are replaced, >= 1.
        beyond: Whether there are pairs with cells outside the schema too.
    Raises: InputError, for rows that do not fit the schema and for another relation.
    """
    require(
        relation in (Relation.ADD_REMOVE, Relation.REPLACE),
        "the relation of two tables must be add-remove or replace",
        relation=str(relation),
    )
    require(group >= 1, "group must be at least 1", group=group)
    require(
        ordinary.column_names == list(schema.columns),
        "ordinary rows must have the columns of the schema, in its order",
        rows=", ".join(ordinary.column_names),
        schema=", ".join(schema.columns),
    )
    outside = schema.outside(ordinary)
    require(
        not outside,
        "ordinary rows must lie within the schema",
        do="correct the rows or widen the schema",
        columns=", ".join(outside),
    )
    require(len(ordinary) >= group, "ordinary rows must be at least as many as change", rows=len(ordinary), group=group)
    tables = _Tables(schema, ordinary.cast(schema.arrow()).combine_chunks(), relation, rng, group)
    made = list(_distinct(schema, tables.within(), relation))
    if beyond:  # what a wide schema allows is in none of these
        made += [pair for pair in _distinct(schema, tables.beyond(), relation) if pair.beyond]
    return made


def _distinct(schema: Schema, changes: Iterable[_Change], relation: Relation) -> Iterator[TablePair]:
    """The pairs whose tables differ, from each other and from those of the pairs before."""
    seen = set()
    for change in changes:
        d, d_prime = _neighbours(change, relation)
        written = _written(d), _written(d_prime)
        if written[0] != written[1] and written not in seen:
            seen.add(written)
            yield TablePair(change.name, d, d_prime, bool(schema.outside(d) or schema.outside(d_prime)))


def _neighbours(change: _Change, relation: Relation) -> tuple[pa.Table, pa.Table]:
    """Both tables, of the same types: a type alone must not tell them apart."""
    if relation is Relation.ADD_REMOVE:
        d, d_prime = change.others, _joined(change.others, change.new)
    else:
        place = len(change.others) if change.place is None else change.place
        before, after = change.others.slice(0, place), change.others.slice(place)
        d, d_prime = _joined(before, change.old, after), _joined(before, change.new, after)
    types = pa.unify_schemas([d.schema, d_prime.schema], promote_options="permissive")
    return d.cast(types), d_prime.cast(types)


def _joined(*parts: pa.Table) -> pa.Table:
    """One table; a whole column is float64 where one of its parts is."""
    return pa.concat_tables([part for part in parts if len(part)] or parts[:1], promote_options="permissive")


def _written(table: pa.Table) -> tuple[object, ...]:
    """The very cells and the types of the columns; -0.0 differs from 0.0, NaN from None and not from itself."""
    return tuple(
        tuple(column.to_pylist())
        if column.type == pa.string()
        else (
            str(column.type),
            column.to_numpy().tobytes(),
            column.null_count and column.is_null().to_numpy().tobytes(),
        )
        for column in table.columns
    )


class _Tables:
    """The changes that a schema and some ordinary rows give rise to."""

    def __init__(
        self, schema: Schema, ordinary: pa.Table, relation: Relation, rng: np.random.Generator, group: int
    ) -> None:
        self.schema, self.relation, self.rng, self.group = schema, relation, rng, group
        # Under `replace` the last rows make room for those that change: both tables have as many as were given.
        self.kept = len(ordinary) - (group if relation is Relation.REPLACE else 0)
        self.ordinary = ordinary.slice(0, self.kept)
        self.replaced = ordinary.slice(len(ordinary) - group)
        self.numbers = {name: column for name, column in schema.columns.items() if isinstance(column, Number)}
        self.words = {name: column for name, column in schema.columns.items() if isinstance(column, Category)}
        self.low = self._row(lambda column: column.low, 0)
        self.high = self._row(lambda column: column.high, -1)
        self.middle = self._row(_middle, lambda words: len(words) // 2)
        self.zero = self._row(_nearest_zero, 0)
        self.far = self._row(_farthest, -1)
        self.what = "a row" if group == 1 else f"{group} rows"

    def within(self) -> Iterator[_Change]:
        """Changes that keep to the schema."""
        yield from self._general()
        yield from self._allowed()  # early: a short search tries the first pairs alone
        yield from self._small()
        yield from self._middle_rows()
        yield from self._of_words()
        yield from self._in_another_order()
        yield from self._signs_of_zero()
        for name, columns in self._parts(SINGLE_COLUMNS):
            yield self._extreme(f"all low, {self.what} with {name} high", self.low, self._with(self.low, columns, -1))
        usual = self._usual()
        for name, columns in self._parts(SINGLE_COLUMNS):
            yield self._usual_change(f"ordinary rows, {self.what} with {name} high", self._with(usual, columns, -1))

    def _allowed(self) -> Iterator[_Change]:
        """Changes to unusual values in the columns whose schema allows them: missing ones, or any."""
        usual = self._usual()
        numbers = [name for name, column in self.numbers.items() if column.nullable or column.any]
        words = [name for name, column in self.words.items() if column.nullable or column.any]
        for name, number in _NO_NUMBERS.items():
            values: Row = {column: number(self.numbers[column]) for column in numbers}
            cells = {column: value for column, value in values.items() if self.numbers[column].allows(value)}
            if cells:
                yield self._usual_change(f"ordinary rows, {self.what} {name} where that is allowed", usual | cells)
        for name, word in _NO_WORDS.items():
            spelled = {column: word(self.words[column]) for column in words}
            cells = {column: value for column, value in spelled.items() if self.words[column].allows(value)}
            if cells:
                yield self._usual_change(f"ordinary rows, {self.what} {name} where that is allowed", usual | cells)

    def beyond(self) -> Iterator[_Change]:
        """Changes that go beyond it."""
        usual = self._usual()
        for name, number in _NO_NUMBERS.items() if self.numbers else ():
            cells: Row = {column: number(self.numbers[column]) for column in self.numbers}
            yield self._usual_change(f"ordinary rows, {self.what} {name}", usual | cells)
        for name, word in _NO_WORDS.items() if self.words else ():
            cells = {column: word(self.words[column]) for column in self.words}
            yield self._usual_change(f"ordinary rows, {self.what} {name}", usual | cells)
        fractions = {name: usual[name] + 0.5 for name, number in self.numbers.items() if number.whole}
        if fractions:
            yield self._usual_change(f"ordinary rows, {self.what} with a fraction of a whole number", usual | fractions)
        nothing = dict.fromkeys(self.schema.columns)
        yield self._usual_change(f"ordinary rows, {self.what} without any value", nothing)
        no_number = {name: math.nan if name in self.numbers else None for name in self.schema.columns}
        yield _Change(f"{self.what} with NaN alone", self._same(self.low, 0), *self._moved(self.low, no_number))
        above = self.high | {name: _far_above(number) for name, number in self.numbers.items()}
        yield self._extreme(f"all low, {self.what} far above", self.low, above)
        for name, columns in self._parts(GROUPS):
            cells = {column: no_number[column] for column in columns}
            yield self._usual_change(f"ordinary rows, {self.what} with {name} missing", usual | cells)

    def _general(self) -> Iterator[_Change]:
        yield self._extreme(f"all low, {self.what} high", self.low, self.high)
        yield self._usual_change(f"ordinary rows, {self.what} high", self.high)
        yield self._extreme(f"all at zero, {self.what} at the far corner", self.zero, self.far)
        yield self._extreme(f"all high, {self.what} low", self.high, self.low)
        yield self._usual_change(f"ordinary rows, {self.what} low", self.low)
        more = self.schema.draw(self.group, self.rng)
        yield _Change(f"ordinary rows, {self.what} as ordinary", self.ordinary, more, self.replaced)
        yield self._extreme(f"all in the middle, {self.what} high", self.middle, self.high)
        yield self._extreme(f"all in the middle, {self.what} low", self.middle, self.low)
        yield self._extreme(f"all high, {self.what} high", self.high, self.high)
        for first, ends in (("high", (-1, 0)), ("low", (0, -1))):
            names = list(self.schema.columns)
            zigzag = self._with(self._with(self.zero, names[::2], ends[0]), names[1::2], ends[1])
            yield self._extreme(f"all at zero, {self.what} in turn high and low, {first} first", self.zero, zigzag)
        if self.numbers and self.words:
            extreme = self._with(self._usual(), self.numbers, -1)
            yield self._usual_change(f"ordinary rows, {self.what} with all numbers high", extreme)

    def _small(self) -> Iterator[_Change]:
        yield self._extreme(f"{self.what} high alone", self.low, self.high, 0)
        yield self._extreme(f"{self.what} low alone", self.high, self.low, 0)
        names = list(self.schema.columns)
        for name in (names[-1], names[0])[: len(names) - 1]:  # one of them may be a label, which turns a gradient
            turned = self._with(self.high, [name], 0)
            yield self._extreme(f"{self.what} high but for {name} alone", self.high, turned, 0)
        yield self._extreme(f"one low row, {self.what} high", self.low, self.high, 1)
        yield self._extreme(f"one high row, {self.what} low", self.high, self.low, 1)
        yield self._extreme(f"one low row, {self.what} low", self.low, self.low, 1)
        for few in FEW:  # few enough that a row moves a noisy count as much as a noisy sum: their ratio shows both
            yield self._extreme(f"{few} low rows, {self.what} high", self.low, self.high, few)
        size = max(self.kept, min(LARGE * self.kept, MOST_ROWS))
        many = self.ordinary.take(self.rng.integers(max(self.kept, 1), size=size))
        yield _Change(f"many ordinary rows, {self.what} high", many, *self._moved(self.low, self.high))
        yield self._extreme(f"very many low rows, {self.what} high", self.low, self.high, size)
        for few in JUST_TOO_FEW:  # under `replace`, the number of all is public
            rest = max(0, self.kept - few) if self.relation is Relation.REPLACE else 0
            others = _joined(self._same(self.low, few), self._same(self.high, rest))
            yield _Change(f"{few} low rows, {self.what} more", others, *self._moved(self.high, self.low))

    def _middle_rows(self) -> Iterator[_Change]:
        half = self.kept // 2
        halves = _joined(self._same(self.low, half), self._same(self.high, half))
        yield _Change(f"half low, half high, {self.what} from low to high", halves, *self._moved(self.low, self.high))
        yield _Change(
            f"half low, half high, {self.what} from low to high, in order",
            halves,
            *self._moved(self.low, self.high),
            place=half,
        )
        yield _Change(f"two clusters, {self.what} between them", halves, *self._moved(self.low, self.middle))

    def _of_words(self) -> Iterator[_Change]:
        if not self.words:
            return
        usual, first, last = self._usual(), self._each_word(0), self._each_word(-1)
        alike = f"ordinary rows of one word in each column, {self.what} of"
        yield self._usual_change(f"{alike} the last ones", usual | last, first)
        yield self._usual_change(f"{alike} the first ones", usual | first, last)
        turns = self.schema.table([self.low | self._each_word(place) for place in range(self.kept)])
        yield _Change(f"each word in turn, {self.what} high", turns, *self._moved(self.low, self.high))
        for name, words in list(self.words.items())[: GROUPS // 2]:
            *common, rare = words.values
            if len(common) > 1:  # else all rows but one are of one word, as above
                moved = self._moved(usual | {name: common[0]}, usual | {name: rare})
                only = f"the last word of {name} in no other row, {self.what} with it"
                yield _Change(only, self._without(name), *moved)

    def _without(self, name: str) -> pa.Table:
        """The ordinary rows, with other words in place of the last one of a column."""
        *common, rare = self.words[name].values
        cells = self.ordinary[name].to_pylist()
        changed = [common[place % len(common)] if cell == rare else cell for place, cell in enumerate(cells)]
        place = self.ordinary.column_names.index(name)
        return self.ordinary.set_column(place, name, pa.array(changed, pa.string()))

    def _in_another_order(self) -> Iterator[_Change]:
        if not self.kept:
            return
        copies = self.ordinary.slice(0, 1).take([0] * self.group)
        yield _Change(f"ordinary rows, {self.what} as the first", self.ordinary, copies, self.replaced)
        twice = self.ordinary.take([place // 2 for place in range(self.kept)])
        yield _Change(f"each row twice, {self.what} high", twice, *self._moved(self.low, self.high))
        in_order = self.ordinary.sort_by([(name, "ascending") for name in self.schema.columns])
        yield _Change(f"sorted rows, {self.what} high", in_order, *self._moved(self.low, self.high))
        backwards = self.ordinary.sort_by([(name, "descending") for name in self.schema.columns])
        yield _Change(f"rows sorted downwards, {self.what} low", backwards, *self._moved(self.high, self.low))
        if self.relation is Relation.REPLACE:
            moved = self._moved(self.low, self.high)
            yield _Change(f"ordinary rows, {self.what} high at the start", self.ordinary, *moved, place=0)

    def _signs_of_zero(self) -> Iterator[_Change]:
        real = {name: column for name, column in self.numbers.items() if not column.whole}
        least = math.ulp(0.0)
        for name, value in (("minus zero", -0.0), ("the least above zero", least), ("the least below zero", -least)):
            cells = {column: value for column, number in real.items() if number.low <= value <= number.high}
            if cells:
                yield self._extreme(f"all at zero, {self.what} with {name}", self.zero, self.zero | cells)

    def _extreme(self, name: str, others: Row, new: Row, count: int | None = None) -> _Change:
        """Equal rows, of which some become `new`; or so many `new` ones come."""
        return _Change(name, self._same(others, self.kept if count is None else count), *self._moved(others, new))

    def _usual_change(self, name: str, new: Row, of_all: Mapping[str, Any] | None = None) -> _Change:
        """Ordinary rows, some cells of which may be the same in all, of which some become `new`."""
        others, old = self.ordinary, self.replaced
        for column, cell in (of_all or {}).items():
            place = others.column_names.index(column)
            others = others.set_column(place, column, pa.array([cell] * len(others), others.schema.types[place]))
            old = old.set_column(place, column, pa.array([cell] * len(old), old.schema.types[place]))
        return _Change(name, others, self._same(new, self.group), old)

    def _moved(self, old: Row, new: Row) -> tuple[pa.Table, pa.Table]:
        """The rows that come, and those that go."""
        return self._same(new, self.group), self._same(old, self.group)

    def _same(self, row: Row, count: int) -> pa.Table:
        return self.schema.table([row]).take(pa.array(np.zeros(count, np.int64)))

    def _usual(self) -> Row:
        (row,) = self.replaced.slice(0, 1).to_pylist()
        return dict(row)

    def _each_word(self, place: int) -> Row:
        """A word for each column of words; they start anew after the last."""
        return {name: words.values[place % len(words.values)] for name, words in self.words.items()}

    def _row(self, number: Callable[[Number], float], word: int | Callable[[tuple[str, ...]], int]) -> Row:
        return {
            name: column.cell(number(column))
            if isinstance(column, Number)
            else column.values[word(column.values) if callable(word) else word]
            for name, column in self.schema.columns.items()
        }

    def _with(self, row: Row, columns: Iterable[str], end: int) -> Row:
        """A row with some of its columns at an end: 0 the low one, -1 the high one."""
        ends = (self.low, self.high)[end]
        return row | {name: ends[name] for name in columns}

    def _parts(self, most: int) -> Iterator[tuple[str, list[str]]]:
        """Each column by itself, or groups of neighbouring ones where they are many."""
        names = list(self.schema.columns)
        if len(names) == 1:
            return
        if len(names) <= most:
            yield from ((f"the column {name}", [name]) for name in names)
            return
        size = -(-len(names) // GROUPS)
        for start in range(0, len(names), size):
            part = names[start : start + size]
            yield f"the {len(part)} columns from {part[0]} on", part


def _middle(number: Number) -> float:
    middle = number.low / 2 + number.high / 2
    return min(max(round(middle) if number.whole else middle, number.low), number.high)


def _nearest_zero(number: Number) -> float:
    return min(max(0.0, number.low), number.high)


def _farthest(number: Number) -> float:
    return number.low if -number.low > number.high else number.high


def _far_above(number: Number) -> float:
    return number.cell(number.high + 10 * max(1, number.high - number.low))


def _far_below(number: Number) -> float:
    return number.cell(number.low - 10 * max(1, number.high - number.low))


def _no_such_word(words: Category) -> str:
    """A word that is none of the category's."""
    return next(word for word in ("new", *(f"new {k}" for k in range(len(words.values)))) if word not in words.values)


_NO_NUMBERS: Mapping[str, Callable[[Number], float | None]] = {
    "with NaN": lambda _: math.nan,
    "far above the range": _far_above,
    "far below the range": _far_below,
    "with inf": lambda _: math.inf,
    "with -inf": lambda _: -math.inf,
    "with 1e300": lambda _: 1e300,
    "with -1e300": lambda _: -1e300,
    "1 above the range": lambda number: number.cell(number.high + 1),
    "1 below the range": lambda number: number.cell(number.low - 1),
    "just above the range": lambda number: math.nextafter(number.high, math.inf),
    "just below the range": lambda number: math.nextafter(number.low, -math.inf),
    "without numbers": lambda _: None,
}
_NO_WORDS: Mapping[str, Callable[[Category], str | None]] = {
    "with a new word": _no_such_word,
    "with an empty word": lambda _: "",
    "with a very long word": lambda _: "w" * LONG_WORD,
    "without words": lambda _: None,
}


def as_test(pair: TablePair) -> str:
    """Python source that builds both tables as lists of rows, `d` and `d_prime`, each row a mapping.

    Executed, it gives the very cells: -0.0, NaN, None and whole numbers among them.
    """
    tables = [table.to_pylist() for table in (pair.d, pair.d_prime)]
    floats = {repr(abs(cell)) for rows in tables for row in rows for cell in row.values() if isinstance(cell, float)}
    d, d_prime = ([_row_source(row) for row in rows] for rows in tables)
    used = ", ".join(sorted(floats & {"inf", "nan"}))
    head = f"from math import {used}\n\n" if used else ""
    return f"{head}d = {_rows_source(d)}\nd_prime = {_from_first(d, d_prime)}\n"


def _row_source(row: Row) -> str:
    return "{" + ", ".join(f"{name!r}: {_cell_source(cell)}" for name, cell in row.items()) + "}"


def _cell_source(cell: object) -> str:
    if isinstance(cell, str) and len(cell) == LONG_WORD and len(set(cell)) == 1:
        return f"{cell[0]!r} * {LONG_WORD}"
    return repr(cell)


def _rows_source(rows: Sequence[str]) -> str:
    """A list of rows, with equal ones that follow each other written once."""
    runs = [(row, len(list(run))) for row, run in groupby(rows)]
    parts = []
    for several, some in groupby(runs, key=lambda run: run[1] > 1):
        if several:
            parts += [f"[{row}] * {count}" for row, count in some]
            continue
        single = [row for row, _ in some]
        parts.append(f"[{single[0]}]" if len(single) == 1 else "[\n" + "".join(f"    {row},\n" for row in single) + "]")
    return " + ".join(parts) or "[]"


def _from_first(d: Sequence[str], d_prime: Sequence[str]) -> str:
    """The second list, by what it has in common with the first where that is shorter."""
    if d and d_prime[: len(d)] == d:
        return f"d + {_rows_source(d_prime[len(d) :])}"
    changed = [place for place, (one, other) in enumerate(zip(d, d_prime, strict=False)) if one != other]
    if len(d) == len(d_prime) and changed[-1] - changed[0] < len(d) // 2:
        start, end = changed[0], changed[-1] + 1
        before, after = f"d[:{start}] + " if start else "", f" + d[{end}:]" if end < len(d) else ""
        return before + _rows_source(d_prime[start:end]) + after
    return _rows_source(d_prime)
