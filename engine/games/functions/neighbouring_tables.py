"""Pairs of neighbouring tables on which a function of rows is likely to violate its privacy claim.

They cover ordinary rows, the worst cases of sums and medians, one row with all the leverage and rare categories. Other
tables have no row or one row, or a group that reaches a common threshold. Where rows need not fit the schema, values
just outside it, NaN and missing values are added. The most general pairs come first. A "low" row has the smallest
number and the first word of each column, a "high" row the largest and the last.

Neighbours may differ in a group of rows, which are equal in some pairs and spread over the words and the ranges in
others. Where a column names the person of each row, they differ in all rows of one person, and no person has more rows
than stated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.claims import Relation
from dpaudit.errors import require
from dpaudit.mechanisms.queries.schema import Category, Number, Schema

Row = dict[str, Any]

MAX_SINGLE_COLUMNS = 16
"""Largest number of columns that are changed one by one; more columns are changed in groups."""
MAX_GROUPS = 8
LARGE_FACTOR = 10
"""Size of large tables, as a multiple of the number of ordinary rows, up to:"""
MAX_ROWS = 10_000
SIZES_BELOW_THRESHOLD = (2, 4, 9, 19, 29, 99)
"""One row more reaches a common minimum of rows, in all or in a group: 3, 5, 10, 20, 30 or 100."""
SMALL_SIZES = (2, 4)
LONG_WORD_LENGTH = 1_000
"""Number of letters of the long word."""
ROWS_OF_A_PERSON = 20
"""Number of rows of the person in whose rows two tables differ, if any number is allowed."""
SMALLER_NUMBERS_OF_ROWS = (3, 1)
"""Further numbers of rows of that person."""
MAX_SMALLER_CHANGES = 8
"""Largest number of pairs for each of these numbers."""
MAX_SPECIAL_ORDERS = 3
"""Largest number of pairs whose rows stand among the others, and of pairs in which all persons are alike."""
MAX_SPREAD_COLUMNS = 4
"""Largest number of columns over whose words a group of rows is spread one by one."""


@dataclass(frozen=True, eq=False)
class TablePair:
    """Two neighbouring tables, with rows in the order in which the function gets them.

    Attributes:
        name: Description of their special property.
        d, d_prime: Under `add-remove`, `d_prime` has the rows of `d` in their order and more, at its end or, for some
            pairs of persons, among them. Under `replace`, some rows differ and the positions are the same.
        beyond: True if a cell lies outside the schema.
    """

    name: str
    d: pa.Table
    d_prime: pa.Table
    beyond: bool


@dataclass(frozen=True, eq=False)
class _Change:
    """A difference between two tables."""

    name: str
    others: pa.Table  # rows of both tables
    new: pa.Table  # further rows of D'
    old: pa.Table  # further rows of D, under `replace` only
    place: int | None = None  # position of the rows that differ, under `replace`; None for the end
    mixed: bool = False  # True if the rows that differ stand among the others, one of them first
    owners: _Owners | None = None  # persons of the rows, if not the usual ones


@dataclass(frozen=True)
class _Owners:
    """Persons of the rows of a change."""

    old: Any
    new: Any
    rows: int = 1  # consecutive rows of each other person


def pairs(
    schema: Schema,
    ordinary: pa.Table,
    relation: Relation,
    rng: np.random.Generator,
    *,
    group: int | None = None,
    person: str = "",
    beyond: bool = True,
) -> list[TablePair]:
    """Return distinct pairs of neighbours with unique names; those beyond the schema are last.

    Args:
        schema: Columns of the tables.
        ordinary: Typical rows that fit the schema; at least `group`.
        relation: `add-remove` or `replace`, under which both tables have equally many rows.
        rng: Source of random rows.
        group: Number of rows that are added or replaced, >= 1; with `person`, the most rows of a person. None for one
            row, or for any number of rows of a person.
        person: Column that names the person of each row: neighbours differ in all rows of one person. Under `replace`,
            as many rows replace them, of the same person or of another one who has no other row. "" if rows belong to
            no persons.
        beyond: True to include pairs with cells outside the schema.
    Raises: InputError for rows that do not fit the schema, for another relation, and for a person that is no column.
    """
    require(
        relation in (Relation.ADD_REMOVE, Relation.REPLACE),
        "the relation of two tables must be add-remove or replace",
        relation=str(relation),
    )
    require(group is None or group >= 1, "group must be at least 1", group=group)
    require_person(person, schema.columns)
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
    size = group or (min(ROWS_OF_A_PERSON, max(1, len(ordinary))) if person else 1)
    require(
        len(ordinary) >= size,
        "there must be at least `group` ordinary rows",
        do="raise `rows` of the data or lower `group`",
        rows=len(ordinary),
        group=size,
    )
    ordinary = ordinary.cast(schema.arrow()).combine_chunks()
    if not person:
        maker = _PairMaker(schema, ordinary, relation, rng, size)
        changes = maker.within()
    else:
        maker = _PersonPairMaker(schema, ordinary, relation, rng, size, person, group)
        fewer = [
            _PersonPairMaker(schema, ordinary, relation, rng, number, person, group)
            for number in SMALLER_NUMBERS_OF_ROWS
            if number < size
        ]
        changes = chain(maker.within(), *(islice(smaller.within(), MAX_SMALLER_CHANGES) for smaller in fewer))
    table_pairs = list(_distinct(schema, changes, relation))
    if beyond:  # a wide schema may allow some of these values; such pairs are dropped
        table_pairs += [pair for pair in _distinct(schema, maker.beyond(), relation) if pair.beyond]
    return table_pairs


def ordinary_pair(schema: Schema, ordinary: pa.Table, relation: Relation, group: int = 1) -> TablePair:
    """Return ordinary rows without and with their last `group` rows; under `replace`, these replace the ones before.

    Raises: InputError if there are too few rows.
    """
    fewest = 2 * group if relation is Relation.REPLACE else group
    require(len(ordinary) >= fewest, f"there must be at least {fewest} ordinary rows", rows=len(ordinary))
    ordinary = ordinary.cast(schema.arrow()).combine_chunks()
    last = len(ordinary) - group
    rows = "a row" if group == 1 else f"{group} rows"
    if relation is Relation.REPLACE:
        d, d_prime = ordinary.slice(0, last), _joined(ordinary.slice(0, last - group), ordinary.slice(last))
        return TablePair(f"ordinary rows, {rows} replaced by as ordinary ones", d, d_prime, False)
    return TablePair(f"ordinary rows, {rows} as ordinary", ordinary.slice(0, last), ordinary, False)


def require_person(person: str, columns: Iterable[str]) -> None:
    """Raise InputError if a person is named by a column that the schema does not have."""
    require(
        not person or person in columns,
        "person must name a column of the schema",
        do="name the column that says whose row it is",
        person=person,
        columns=", ".join(columns),
    )


def _distinct(schema: Schema, changes: Iterable[_Change], relation: Relation) -> Iterator[TablePair]:
    """Yield pairs of unequal tables, each pair once."""
    earlier = set()
    for change in changes:
        d, d_prime = _neighbours(change, relation)
        content = _comparable(d), _comparable(d_prime)
        if content[0] != content[1] and content not in earlier:
            earlier.add(content)
            yield TablePair(change.name, d, d_prime, bool(schema.outside(d) or schema.outside(d_prime)))


def _neighbours(change: _Change, relation: Relation) -> tuple[pa.Table, pa.Table]:
    """Return both tables, cast to the same types so that no type distinguishes them."""
    if change.mixed:
        # The rows that differ, which follow the others, are spread evenly among them, one of them first.
        others, changed = len(change.others), len(change.new)
        places = np.concatenate([np.arange(others), np.arange(changed) * others / max(1, changed) - 0.5])
        order = pa.array(np.argsort(places, kind="stable"))
        d = change.others if relation is Relation.ADD_REMOVE else _joined(change.others, change.old).take(order)
        d_prime = _joined(change.others, change.new).take(order)
    elif relation is Relation.ADD_REMOVE:
        d, d_prime = change.others, _joined(change.others, change.new)
    else:
        place = len(change.others) if change.place is None else change.place
        before, after = change.others.slice(0, place), change.others.slice(place)
        d, d_prime = _joined(before, change.old, after), _joined(before, change.new, after)
    types = pa.unify_schemas([d.schema, d_prime.schema], promote_options="permissive")
    return d.cast(types), d_prime.cast(types)


def _joined(*parts: pa.Table) -> pa.Table:
    """Return one table; a column is float64 if it is in one of the parts."""
    return pa.concat_tables([part for part in parts if len(part)] or parts[:1], promote_options="permissive")


def _comparable(table: pa.Table) -> tuple[object, ...]:
    """Return cells and column types for comparison: -0.0 differs from 0.0, NaN from None, and NaN equals itself."""
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


class _PairMaker:
    """Builds the changes for a schema and some ordinary rows."""

    def __init__(
        self,
        schema: Schema,
        ordinary: pa.Table,
        relation: Relation,
        rng: np.random.Generator,
        group: int,
        most_others: int = MAX_ROWS,
        rows_of: str = "",
    ) -> None:
        self.schema, self.relation, self.rng, self.group = schema, relation, rng, group
        # Under `replace` the last rows are those that change, so that both tables have `len(ordinary)` rows.
        self.count = min(len(ordinary) - (group if relation is Relation.REPLACE else 0), most_others)
        self.ordinary = ordinary.slice(0, self.count)
        self.replaced = ordinary.slice(len(ordinary) - group)
        self.numbers = {name: column for name, column in schema.columns.items() if isinstance(column, Number)}
        self.words = {name: column for name, column in schema.columns.items() if isinstance(column, Category)}
        self.low = self._row(lambda column: column.low, 0)
        self.high = self._row(lambda column: column.high, -1)
        self.middle = self._row(_middle, lambda words: len(words) // 2)
        self.zero = self._row(lambda column: min(max(0.0, column.low), column.high), 0)
        self.far = self._row(lambda column: column.low if -column.low > column.high else column.high, -1)
        self.rows = ("a row" if group == 1 else f"{group} rows") + rows_of

    def within(self) -> Iterator[_Change]:
        """Yield changes within the schema."""
        yield from self._general()
        yield from self._odd_values(allowed=True)  # early: a short search tries the first pairs alone
        yield from self._few_or_many_rows()
        yield from self._middle_rows()
        yield from self._category_rows()
        yield from self._orders()
        yield from self._signs_of_zero()
        for name, columns in self._column_groups(MAX_SINGLE_COLUMNS):
            ends = self._with_ends(self.low, columns, -1)
            yield self._extreme(f"all low, {self.rows} with {name} high", self.low, ends)
        usual = self._ordinary_row()
        for name, columns in self._column_groups(MAX_SINGLE_COLUMNS):
            ends = self._with_ends(usual, columns, -1)
            yield self._usual_change(f"ordinary rows, {self.rows} with {name} high", ends)

    def _odd_values(self, *, allowed: bool) -> Iterator[_Change]:
        """Yield changes to missing or arbitrary values in all columns, or in those whose schema allows them."""
        usual, where = self._ordinary_row(), " where that is allowed" if allowed else ""
        kinds: tuple[tuple[Mapping[str, Any], Mapping[str, Callable[[Any], Any]]], ...] = (
            (self.numbers, _ODD_NUMBERS),
            (self.words, _ODD_WORDS),
        )
        for columns, values in kinds:
            if allowed:
                columns = {name: column for name, column in columns.items() if column.nullable or column.any}
            for words, value_of in values.items():
                cells = {name: value_of(column) for name, column in columns.items()}
                if allowed:
                    cells = {name: value for name, value in cells.items() if columns[name].allows(value)}
                if cells:
                    yield self._usual_change(f"ordinary rows, {self.rows} {words}{where}", usual | cells)

    def beyond(self) -> Iterator[_Change]:
        """Yield changes to values outside the schema."""
        usual = self._ordinary_row()
        yield from self._odd_values(allowed=False)
        fractions = {name: usual[name] + 0.5 for name, number in self.numbers.items() if number.whole}
        if fractions:
            yield self._usual_change(f"ordinary rows, {self.rows} with a fraction of a whole number", usual | fractions)
        nothing = dict.fromkeys(self.schema.columns)
        yield self._usual_change(f"ordinary rows, {self.rows} without any value", nothing)
        no_number = {name: math.nan if name in self.numbers else None for name in self.schema.columns}
        yield _Change(f"{self.rows} with NaN alone", self._copies(self.low, 0), *self._new_and_old(self.low, no_number))
        above = self.high | {name: _far_above(number) for name, number in self.numbers.items()}
        yield self._extreme(f"all low, {self.rows} far above", self.low, above)
        for name, columns in self._column_groups(MAX_GROUPS):
            cells = {column: no_number[column] for column in columns}
            yield self._usual_change(f"ordinary rows, {self.rows} with {name} missing", usual | cells)

    def _general(self) -> Iterator[_Change]:
        yield self._extreme(f"all low, {self.rows} high", self.low, self.high)
        yield self._usual_change(f"ordinary rows, {self.rows} high", self.high)
        yield from self._spread_rows()
        yield self._extreme(f"all at zero, {self.rows} at the far corner", self.zero, self.far)
        yield self._extreme(f"all high, {self.rows} low", self.high, self.low)
        yield self._usual_change(f"ordinary rows, {self.rows} low", self.low)
        more = self.schema.draw(self.group, self.rng)
        yield _Change(f"ordinary rows, {self.rows} as ordinary", self.ordinary, more, self.replaced)
        yield self._extreme(f"all in the middle, {self.rows} high", self.middle, self.high)
        yield self._extreme(f"all in the middle, {self.rows} low", self.middle, self.low)
        yield self._extreme(f"all high, {self.rows} high", self.high, self.high)
        for first, ends in (("high", (-1, 0)), ("low", (0, -1))):
            names = list(self.schema.columns)
            zigzag = self._with_ends(self._with_ends(self.zero, names[::2], ends[0]), names[1::2], ends[1])
            yield self._extreme(f"all at zero, {self.rows} in turn high and low, {first} first", self.zero, zigzag)
        if self.numbers and self.words:
            extreme = self._with_ends(self._ordinary_row(), self.numbers, -1)
            yield self._usual_change(f"ordinary rows, {self.rows} with all numbers high", extreme)

    def _spread_rows(self) -> Iterator[_Change]:
        """Yield changes to rows that differ from each other, if there are several."""
        if self.group == 1:
            return
        old = self._copies(self.low, self.group)
        for name, rows in self._over_words():
            new = self.schema.table(rows)
            yield _Change(f"ordinary rows, {self.rows} {name}", self.ordinary, new, old)
            yield _Change(f"{self.rows} {name} alone", self._copies(self.low, 0), new, old)
        low = self._copies(self.low, self.count)
        for name, rows in self._over_numbers():
            yield _Change(f"all low, {self.rows} {name}", low, self.schema.table(rows), old)

    def _over_words(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield descriptions and rows that are spread over the words of the columns, with high numbers."""
        several = {name: words for name, words in self.words.items() if len(words.values) > 1}
        if len(several) > 1:
            cells = product(*(words.values for words in several.values()))
            combinations = list(islice(cells, MAX_ROWS))
            step = max(1, len(combinations) // self.group)
            rows = [
                self.high | dict(zip(several, combinations[place * step % len(combinations)], strict=True))
                for place in range(self.group)
            ]
            yield "over the combinations of words", rows
        for name in islice(several, MAX_SPREAD_COLUMNS):
            yield f"over the words of {name}", [self.high | self._spread_words([name], k) for k in range(self.group)]
        if len(several) > 1:
            together = [self.high | self._spread_words(several, place) for place in range(self.group)]
            yield "over the words of all columns together", together

    def _spread_words(self, columns: Iterable[str], place: int) -> Row:
        """Return the words of a row of a group, which are spread evenly over the words of each column."""
        values = {name: self.words[name].values for name in columns}
        return {name: words[place * max(1, len(words) // self.group) % len(words)] for name, words in values.items()}

    def _over_numbers(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield descriptions and rows that are spread over the ranges of the columns."""
        ends = (self.high, self.low)
        yield "in turn high and low", [ends[place % 2] for place in range(self.group)]
        names = [*self.words, *self.numbers]
        if len(names) > 1:
            corners = [self._with_ends(self.low, [names[-1 - k % len(names)]], -1) for k in range(self.group)]
            yield "each high in another column", corners
        if self.numbers:
            cells = {name: number.different(self.group) for name, number in self.numbers.items()}
            between = [
                self.high | {name: values[place % len(values)] for name, values in cells.items()}
                for place in range(self.group)
            ]
            yield "over the range of numbers", between

    def _few_or_many_rows(self) -> Iterator[_Change]:
        yield self._extreme(f"{self.rows} high alone", self.low, self.high, 0)
        yield self._extreme(f"{self.rows} low alone", self.high, self.low, 0)
        names = list(self.schema.columns)
        for name in (names[-1], names[0])[: len(names) - 1]:  # one of them may be a label, which reverses a gradient
            turned = self._with_ends(self.high, [name], 0)
            yield self._extreme(f"{self.rows} high but for {name} alone", self.high, turned, 0)
        yield self._extreme(f"one low row, {self.rows} high", self.low, self.high, 1)
        yield self._extreme(f"one high row, {self.rows} low", self.high, self.low, 1)
        yield self._extreme(f"one low row, {self.rows} low", self.low, self.low, 1)
        for size in SMALL_SIZES:  # in small tables a row moves a noisy count as much as a noisy sum, and so their ratio
            yield self._extreme(f"{size} low rows, {self.rows} high", self.low, self.high, size)
        size = max(self.count, min(LARGE_FACTOR * self.count, MAX_ROWS))
        many = self.ordinary.take(self.rng.integers(max(self.count, 1), size=size))
        yield _Change(f"many ordinary rows, {self.rows} high", many, *self._new_and_old(self.low, self.high))
        yield self._extreme(f"very many low rows, {self.rows} high", self.low, self.high, size)
        for size in SIZES_BELOW_THRESHOLD:  # under `replace`, the number of all is public
            rest = max(0, self.count - size) if self.relation is Relation.REPLACE else 0
            others = _joined(self._copies(self.low, size), self._copies(self.high, rest))
            yield _Change(f"{size} low rows, {self.rows} more", others, *self._new_and_old(self.high, self.low))

    def _middle_rows(self) -> Iterator[_Change]:
        half = self.count // 2
        halves = _joined(self._copies(self.low, half), self._copies(self.high, half))
        name, moved = f"half low, half high, {self.rows} from low to high", self._new_and_old(self.low, self.high)
        yield _Change(name, halves, *moved)
        yield _Change(f"{name}, in order", halves, *moved, place=half)
        yield _Change(f"two clusters, {self.rows} between them", halves, *self._new_and_old(self.low, self.middle))

    def _category_rows(self) -> Iterator[_Change]:
        if not self.words:
            return
        usual, first, last = self._ordinary_row(), self._words_at(0), self._words_at(-1)
        alike = f"ordinary rows of one word in each column, {self.rows} of"
        yield self._usual_change(f"{alike} the last ones", usual | last, first)
        yield self._usual_change(f"{alike} the first ones", usual | first, last)
        turns = self.schema.table([self.low | self._words_at(place) for place in range(self.count)])
        yield _Change(f"each word in turn, {self.rows} high", turns, *self._new_and_old(self.low, self.high))
        for name, words in list(self.words.items())[: MAX_GROUPS // 2]:
            *common, rare = words.values
            if len(common) > 1:  # otherwise all other rows have the same word, as above
                moved = self._new_and_old(usual | {name: common[0]}, usual | {name: rare})
                cells = [
                    common[k % len(common)] if cell == rare else cell
                    for k, cell in enumerate(self.ordinary[name].to_pylist())
                ]
                others = self.ordinary.set_column(
                    self.ordinary.column_names.index(name), name, pa.array(cells, pa.string())
                )
                yield _Change(f"the last word of {name} in no other row, {self.rows} with it", others, *moved)

    def _orders(self) -> Iterator[_Change]:
        if not self.count:
            return
        copies = self.ordinary.slice(0, 1).take([0] * self.group)
        yield _Change(f"ordinary rows, {self.rows} as the first", self.ordinary, copies, self.replaced)
        twice = self.ordinary.take([place // 2 for place in range(self.count)])
        yield _Change(f"each row twice, {self.rows} high", twice, *self._new_and_old(self.low, self.high))
        in_order = self.ordinary.sort_by([(name, "ascending") for name in self.schema.columns])
        yield _Change(f"sorted rows, {self.rows} high", in_order, *self._new_and_old(self.low, self.high))
        backwards = self.ordinary.sort_by([(name, "descending") for name in self.schema.columns])
        yield _Change(f"rows sorted downwards, {self.rows} low", backwards, *self._new_and_old(self.high, self.low))
        if self.relation is Relation.REPLACE:
            moved = self._new_and_old(self.low, self.high)
            yield _Change(f"ordinary rows, {self.rows} high at the start", self.ordinary, *moved, place=0)

    def _signs_of_zero(self) -> Iterator[_Change]:
        real = {name: column for name, column in self.numbers.items() if not column.whole}
        least = math.ulp(0.0)
        for name, value in (("minus zero", -0.0), ("the least above zero", least), ("the least below zero", -least)):
            cells = {column: value for column, number in real.items() if number.low <= value <= number.high}
            if cells:
                yield self._extreme(f"all at zero, {self.rows} with {name}", self.zero, self.zero | cells)

    def _extreme(self, name: str, others: Row, new: Row, count: int | None = None) -> _Change:
        """Return a change of `group` rows to `new` among `count` equal rows; None for as many as ordinary rows."""
        equal = self._copies(others, self.count if count is None else count)
        return _Change(name, equal, *self._new_and_old(others, new))

    def _usual_change(self, name: str, new: Row, of_all: Mapping[str, Any] | None = None) -> _Change:
        """Return a change of `group` ordinary rows to `new`; all rows have the cells `of_all`."""
        others, old = self.ordinary, self.replaced
        for column, cell in (of_all or {}).items():
            place = others.column_names.index(column)
            others = others.set_column(place, column, pa.array([cell] * len(others), others.schema.types[place]))
            old = old.set_column(place, column, pa.array([cell] * len(old), old.schema.types[place]))
        return _Change(name, others, self._copies(new, self.group), old)

    def _new_and_old(self, old: Row, new: Row) -> tuple[pa.Table, pa.Table]:
        """Return `group` copies of the new and of the old row."""
        return self._copies(new, self.group), self._copies(old, self.group)

    def _copies(self, row: Row, count: int) -> pa.Table:
        return self.schema.table([row]).take(pa.array(np.zeros(count, np.int64)))

    def _ordinary_row(self) -> Row:
        (row,) = self.replaced.slice(0, 1).to_pylist()
        return dict(row)

    def _words_at(self, place: int) -> Row:
        """Return the word at a position for each column of words; positions wrap around."""
        return {name: words.values[place % len(words.values)] for name, words in self.words.items()}

    def _row(self, number: Callable[[Number], float], word: int | Callable[[tuple[str, ...]], int]) -> Row:
        return {
            name: column.cell(number(column))
            if isinstance(column, Number)
            else column.values[word(column.values) if callable(word) else word]
            for name, column in self.schema.columns.items()
        }

    def _with_ends(self, row: Row, columns: Iterable[str], end: int) -> Row:
        """Return the row with some columns set to the low (0) or high (-1) end."""
        ends = (self.low, self.high)[end]
        return row | {name: ends[name] for name in columns}

    def _column_groups(self, max_single: int) -> Iterator[tuple[str, list[str]]]:
        """Yield a name and the columns: single columns, or groups of adjacent columns if there are many."""
        names = list(self.schema.columns)
        if len(names) == 1:
            return
        if len(names) <= max_single:
            yield from ((f"the column {name}", [name]) for name in names)
            return
        size = -(-len(names) // MAX_GROUPS)
        for start in range(0, len(names), size):
            part = names[start : start + size]
            yield f"the {len(part)} columns from {part[0]} on", part


class _PersonPairMaker(_PairMaker):
    """Builds the changes of all rows of a person: those of a group of rows, and some that only persons allow.

    Each of the other rows has another person, as far as there are enough.
    """

    def __init__(
        self,
        schema: Schema,
        ordinary: pa.Table,
        relation: Relation,
        rng: np.random.Generator,
        size: int,
        column: str,
        most: int | None,
    ) -> None:
        """Build the changes of `size` rows; `column` names the person, who has at most `most` rows in a table."""
        self.column = column
        self.persons: Sequence[Any] = schema.columns[column].different(MAX_ROWS)
        self.rows_each = MAX_ROWS if most is None else most
        most_others = (len(self.persons) - 1) * self.rows_each
        super().__init__(schema, ordinary, relation, rng, size, most_others, " of a person")
        self.numbers.pop(column, None)
        self.words.pop(column, None)

    def within(self) -> Iterator[_Change]:
        return self._owned(super().within())

    def beyond(self) -> Iterator[_Change]:
        yield from self._owned(super().beyond())
        column = self.schema.columns[self.column]
        new = _new_word(column) if isinstance(column, Category) else _far_above(column)
        high = self._usual_change(f"ordinary rows, {self.rows} beyond the schema", self.high)
        new_person = replace(high, owners=_Owners(new, new))
        new_row, old_row = high.new.slice(0, 1), high.old.slice(0, 1)
        name = "ordinary rows, a row without a person"
        without = replace(high, name=name, new=new_row, old=old_row, owners=_Owners(None, None))
        yield from self._owned([new_person, without])

    def _spread_rows(self) -> Iterator[_Change]:
        spread = list(super()._spread_rows())
        yield from spread
        among = [change for change in spread if len(change.others)][:MAX_SPECIAL_ORDERS]
        alone = [change for change in spread if not len(change.others)][:MAX_SPECIAL_ORDERS]
        for change in among:
            yield replace(change, name=f"{change.name}, among the others", mixed=True)
        first, last = self.persons[0], self.persons[-1]
        for change in alone:
            alike = _joined(*[change.new] * max(1, self.count // self.group))
            owners = _Owners(last, last, self.group)
            yield replace(change, name=f"{change.name} but for persons alike", others=alike, owners=owners)
        for change in (*among[:1], *alone[:1], self._extreme(f"all low, {self.rows} high", self.low, self.high)):
            yield replace(change, name=f"{change.name}, the first person", owners=_Owners(first, first))
            if self.relation is Relation.REPLACE and first != last:
                others = change.others.slice(0, (len(self.persons) - 2) * self.rows_each)
                by_another = f"{change.name}, by another person"
                yield replace(change, name=by_another, others=others, owners=_Owners(first, last))

    def _owned(self, changes: Iterable[_Change]) -> Iterator[_Change]:
        """Yield the changes in which no person has more rows than allowed, with the person of each row."""
        usual = _Owners(self.persons[-1], self.persons[-1])
        for change in changes:
            owners = change.owners or usual
            rest = [person for person in self.persons if person not in (owners.old, owners.new)]
            count = len(change.others)
            ids = [rest[place // owners.rows % len(rest)] for place in range(count)] if rest else []
            if len(ids) < count or max(Counter(ids).values(), default=0) > self.rows_each:
                continue
            yield replace(
                change,
                others=self._with_persons(change.others, ids),
                new=self._with_persons(change.new, [owners.new] * len(change.new)),
                old=self._with_persons(change.old, [owners.old] * len(change.old)),
            )

    def _with_persons(self, rows: pa.Table, persons: Sequence[Any]) -> pa.Table:
        """Return the rows with other persons."""
        place = rows.column_names.index(self.column)
        cells = self.schema.table([{**self.low, self.column: person} for person in persons])[self.column]
        return rows.set_column(place, self.column, cells)


def _middle(number: Number) -> float:
    middle = number.low / 2 + number.high / 2
    return min(max(round(middle) if number.whole else middle, number.low), number.high)


def _far_above(number: Number) -> float:
    return number.cell(number.high + 10 * max(1, number.high - number.low))


def _new_word(words: Category) -> str:
    return next(word for word in ("new", *(f"new {k}" for k in range(len(words.values)))) if word not in words.values)


_ODD_NUMBERS: Mapping[str, Callable[[Number], float | None]] = {
    "with NaN": lambda _: math.nan,
    "far above the range": _far_above,
    "far below the range": lambda number: number.cell(number.low - 10 * max(1, number.high - number.low)),
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
_ODD_WORDS: Mapping[str, Callable[[Category], str | None]] = {
    "with a new word": _new_word,
    "with an empty word": lambda _: "",
    "with a very long word": lambda _: "w" * LONG_WORD_LENGTH,
    "without words": lambda _: None,
}
