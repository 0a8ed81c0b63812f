"""Pairs of neighbouring tables that a function on rows is tried on: ordinary, extreme and hostile ones, from a schema.

Differential privacy holds for every pair of neighbours, so each may be tried. Those within the schema are what
callers may have; those beyond it are what the function must bear if its promise is about every record.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.claims import Relation
from dpaudit.errors import require
from dpaudit.mechanisms.queries.schema import Category, Number, Schema

Row = Mapping[str, Any]
BY_COLUMN = 6
"""Columns that are tried one by one, at most; all of them together in any case."""
SCALED_UP = 10
"""How much larger the large table is."""
SMALLEST = 5e-324
LONG = "x" * 10_000
NEW = "a new category"


@dataclass(frozen=True, eq=False)
class TablePair:
    """Two neighbouring tables."""

    name: str  # how they differ, in words
    d: pa.Table
    d_prime: pa.Table
    beyond: bool  # whether a cell lies outside of the schema


@dataclass(frozen=True)
class _Case:
    """Rows of both tables, and the row that differs: it is added, or takes the other one's place."""

    name: str
    both: Sequence[Row]
    row: Row  # of D'
    instead_of: Row  # of D, where rows are replaced


def pairs(
    schema: Schema,
    ordinary: pa.Table,
    relation: Relation,
    rng: np.random.Generator,
    *,
    group: int = 1,
    beyond: bool = True,
) -> list[TablePair]:
    """Neighbours to be tried, the most general first.

    Under add-remove D' is D and `group` rows more, at its end; under replace the last `group` rows differ.

    Args:
        schema: What rows may hold.
        ordinary: Rows of the schema, >= 1.
        relation: Add-remove or replace.
        rng: Orders ordinary rows.
        group: Rows of one person, >= 1.
        beyond: Whether pairs that the schema does not allow are among them, at the end.
    """
    require(relation is not Relation.LABEL, "relation must be add-remove or replace", relation=relation)
    require(ordinary.num_rows > 0, "ordinary must have at least one row")
    rows = ordinary.take(rng.permutation(ordinary.num_rows)).to_pylist()
    cases = [(case, False) for case in _within(schema, rows)]
    cases += [(case, True) for case in _beyond(schema, rows)] if beyond else []
    found: dict[str, TablePair] = {}
    for case, outside in cases:
        old = [case.instead_of] * group if relation is Relation.REPLACE else []
        new = [case.row] * group
        if repr(old) == repr(new):
            continue
        tables = [[*case.both, *old], [*case.both, *new]]
        d, d_prime = _tables(schema, tables)
        found.setdefault(repr(tables), TablePair(case.name, d, d_prime, outside))
    return list(found.values())


def as_test(pair: TablePair) -> str:
    """Python source of both tables as lists of mappings, `d` and `d_prime`, to paste into a test."""
    names = {name: table.to_pylist() for name, table in (("d", pair.d), ("d_prime", pair.d_prime))}
    lines = [f"{name} = {_source(rows)}" for name, rows in names.items()]
    words = " ".join(lines)
    needed = [name for name in ("inf", "nan") if name in words]
    return "\n".join([*([f"from math import {', '.join(needed)}"] if needed else []), *lines])


def _source(rows: Sequence[Row]) -> str:
    runs = [(words, len(list(group))) for words, group in itertools.groupby(map(repr, rows))]
    parts, single = [], []
    for words, count in runs:
        if count == 1:
            single.append(words)
            continue
        parts += [f"[{', '.join(single)}]"] if single else []
        parts.append(f"[{words}] * {count}")
        single = []
    parts += [f"[{', '.join(single)}]"] if single else []
    return " + ".join(parts) or "[]"


def _tables(schema: Schema, pair: Sequence[Sequence[Row]]) -> list[pa.Table]:
    """Both tables, of the same types: a column of whole numbers that holds others in one is of floats in both."""
    fields = [
        field.with_type(pa.float64())
        if pa.types.is_integer(field.type) and any(isinstance(row[field.name], float) for rows in pair for row in rows)
        else field
        for field in schema.arrow()
    ]
    return [
        pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in fields})
        for rows in pair
    ]


def _row(schema: Schema, place: float) -> dict[str, Any]:
    """A row whose cells lie at a share of the way from the low to the high end of each column, or its categories."""
    return {name: _cell(column, place) for name, column in schema.columns.items()}


def _cell(column: Number | Category, place: float) -> Any:
    if isinstance(column, Category):
        return column.values[min(int(place * len(column.values)), len(column.values) - 1)]
    value = column.low + place * (column.high - column.low)
    return int(value) if column.whole else value


def _nearest_to_zero(schema: Schema) -> dict[str, Any]:
    row = _row(schema, 0.0)
    for name, column in schema.columns.items():
        if isinstance(column, Number):
            value = min(max(0.0, column.low), column.high)
            row[name] = math.ceil(value) if column.whole else value
    return row


def _within(schema: Schema, rows: Sequence[Row]) -> Iterator[_Case]:
    low, high, middle, zero = _row(schema, 0.0), _row(schema, 1.0), _row(schema, 0.5), _nearest_to_zero(schema)
    n, last = len(rows), rows[-1]
    columns = list(schema.columns)
    half = [low] * (n // 2) + [high] * (n // 2)
    yield _Case("all at zero, one row high", [zero] * n, high, zero)
    yield _Case("ordinary rows, one row high", rows, high, last)
    yield _Case("no other row, one row high", [], high, low)
    yield _Case("all low, one row high", [low] * n, high, low)
    yield _Case("ordinary rows, one row low", rows, low, last)
    yield _Case("all high, one row low", [high] * n, low, high)
    yield _Case("one other row, low, one row high", [low], high, low)
    yield _Case("half low, half high, one row high", half, high, low)
    yield _Case("all alike, one row more of them", [last] * n, last, high)
    yield _Case("no other row, one row low", [], low, middle)
    yield _Case("half low, half high, one row in the middle", half, middle, low)
    yield _Case("ten times as many ordinary rows, one row high", list(rows) * SCALED_UP, high, last)
    yield _Case("ordinary rows, one more like the last", rows, last, middle)
    yield _Case("all low but one, one row high", [*[low] * n, high], high, low)
    yield _Case("ordinary rows in order, one row high", sorted(rows, key=repr), high, last)
    for name in columns[:BY_COLUMN] if len(columns) > 1 else ():
        yield _Case(f"all at zero, one row high in {name}", [zero] * n, {**zero, name: high[name]}, zero)
        yield _Case(f"ordinary rows, one row high in {name}", rows, {**middle, name: high[name]}, middle)
        yield _Case(f"ordinary rows, one row low in {name}", rows, {**middle, name: low[name]}, middle)
    alternate = {name: (high if place % 2 else low)[name] for place, name in enumerate(columns)}
    if len(columns) > 1:
        yield _Case("all in the middle, one row low and high by turns", [middle] * n, alternate, middle)
    words = {name: column.values for name, column in schema.columns.items() if isinstance(column, Category)}
    for name, values in list(words.items())[:BY_COLUMN]:
        for word in dict.fromkeys((values[-1], values[0])):
            other = next((value for value in values if value != word), word)
            others = [{**row, name: other} for row in rows]
            yield _Case(f"no other row has {name} {word!r}", others, {**last, name: word}, {**last, name: other})
    reals = [name for name, column in schema.columns.items() if isinstance(column, Number) and not column.whole]
    for said, value in (("-0.0", -0.0), ("the smallest number", SMALLEST)):
        fit = [name for name in reals if schema.columns[name].holds(value)]
        if fit:
            yield _Case(f"all at zero, one row {said}", [zero] * n, {**zero, **dict.fromkeys(fit, value)}, zero)


def _beyond(schema: Schema, rows: Sequence[Row]) -> Iterator[_Case]:
    """Rows with cells that the schema does not allow: in all columns of a kind, then column by column."""
    middle, last = _row(schema, 0.5), rows[-1]
    numbers = {name: column for name, column in schema.columns.items() if isinstance(column, Number)}
    words = [name for name, column in schema.columns.items() if isinstance(column, Category)]
    hostile: list[tuple[str, dict[str, Any]]] = []
    if numbers:
        hostile += [(said, {name: of(column) for name, column in numbers.items()}) for said, of in NUMBERS.items()]
    if words:
        hostile += [(said, dict.fromkeys(words, value)) for said, value in WORDS.items()]
    if numbers and words:
        hostile.append(("nothing anywhere", dict.fromkeys(schema.columns, None)))
    whole = [name for name, column in numbers.items() if column.whole]
    if whole:
        hostile.append(("a fraction", {name: numbers[name].low + 0.5 for name in whole}))
    for said, cells in hostile:
        yield _Case(f"ordinary rows, one row with {said}", rows, {**middle, **cells}, last)
    for said, cells in hostile[:2]:
        yield _Case(f"no other row, one row with {said}", [], {**middle, **cells}, middle)
    if len(schema.columns) > 1:
        for said, cells in hostile:
            for name in list(cells)[:BY_COLUMN] if said in ("NaN", "far out of range", NEW) else ():
                yield _Case(f"ordinary rows, one row with {said} in {name}", rows, {**middle, name: cells[name]}, last)


def _alike(column: Number, value: float) -> float:
    """A whole number in a column of such: its type alone must not tell."""
    return int(value) if column.whole else value


NUMBERS: Mapping[str, Any] = {
    "NaN": lambda column: math.nan,
    "far out of range": lambda column: _alike(column, column.high + 10 * max(column.high - column.low, 1.0)),
    "nothing": lambda column: None,
    "inf": lambda column: math.inf,
    "just out of range": lambda column: _alike(column, column.high + max((column.high - column.low) / 10, 1.0)),
    "far below range": lambda column: _alike(column, column.low - 10 * max(column.high - column.low, 1.0)),
    "-inf": lambda column: -math.inf,
    "1e300": lambda column: 1e300,
    "the next number out of range": lambda column: math.nextafter(column.high, math.inf),
}
"""Cells that no column of numbers allows, from the column."""
WORDS: Mapping[str, str | None] = {NEW: NEW, "no word": None, "an empty word": "", "a long word": LONG}
"""Cells that no column of categories allows."""
