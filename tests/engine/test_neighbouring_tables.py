"""Pairs of tables: neighbours each, true about the schema, and hard on functions that are not private."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.claims import Relation
from dpaudit.engine.games.functions.neighbouring_tables import TablePair, pairs
from dpaudit.engine.games.functions.where_it_leaks import as_test
from dpaudit.errors import InputError
from dpaudit.mechanisms.queries.schema import Category, Number, Schema
from tests import nightly
from tests.nightly import too

RNG = np.random.default_rng
BOTH = (Relation.ADD_REMOVE, Relation.REPLACE)
KINDS = ((0, 7), (-1.0, 1.0), ["a", "b", "c"])
SCHEMAS = {
    "a range": {"x": (0.0, 1.0)},
    "whole numbers": {"x": (3, 9)},
    "words": {"w": ["a", "b", "c"]},
    "one word": {"w": ["a"]},
    "one number": {"x": (2.0, 2.0)},
    "people": {"age": (0, 100), "sex": ["f", "m"]},
    "regression": {"x": (0.0, 1.0), "y": (0.0, 1.0)},
    "the widest": {"x": (-1.7e308, 1.7e308), "k": (-(2**53), 2**53)},
    "words alone": {f"w{k}": ["new", "", "b", "c"][k % 2 :] for k in range(5)},
    "ten": {f"c{k}": KINDS[k % 3] for k in range(10)},
    "a hundred": {f"c{k}": KINDS[k % 3] for k in range(100)},
}

SCHEMAS_OF_BOTH = [
    *((name, relation) for name in SCHEMAS for relation in BOTH if (name, relation) != ("a hundred", Relation.REPLACE)),
    *too(("a hundred", Relation.REPLACE)),
]
"""A hundred columns take long."""

Rows = list[dict[str, Any]]


def pairs_of(
    columns: Mapping[str, Any], relation: Relation, seed: int = 0, rows: int = 50, **more: Any
) -> list[TablePair]:
    schema, rng = Schema.of(columns), RNG(seed)
    return pairs(schema, schema.draw(rows, rng), relation, rng, **more)


def cell(value: Any) -> Any:
    """Return a form of a cell's value that ignores its type: NaN equals NaN, -0.0 differs from 0.0."""
    return value if value is None or isinstance(value, str) else repr(float(value))


def are_neighbours(first: Rows, second: Rows, relation: Relation, group: int) -> bool:
    """True if `group` rows were appended, or at most `group` adjacent rows replaced, and all others are equal."""
    d, d_prime = (
        [tuple((name, cell(value)) for name, value in row.items()) for row in rows] for rows in (first, second)
    )
    removed, added = Counter(d) - Counter(d_prime), Counter(d_prime) - Counter(d)
    if relation is Relation.ADD_REMOVE:
        return not removed and added.total() == group and d_prime[: len(d)] == d
    places = [place for place, (row, other_row) in enumerate(zip(d, d_prime, strict=True)) if row != other_row]
    return added.total() <= group and bool(places) and max(places) - min(places) < group


def goes_beyond(rows: Rows, schema: Schema) -> bool:
    """True if a cell is outside the schema; a slow check, cell by cell."""

    def inside(column: Number | Category, value: Any) -> bool:
        if isinstance(column, Category):
            return value in column.values
        number = isinstance(value, int | float) and column.low <= value <= column.high
        return number and (not column.whole or value % 1 == 0)

    return not all(inside(schema.columns[name], value) for row in rows for name, value in row.items())


@pytest.mark.parametrize(("name", "relation"), SCHEMAS_OF_BOTH)
def test_every_pair_is_of_neighbours_and_says_whether_it_goes_beyond(name: str, relation: Relation) -> None:
    schema = Schema.of(SCHEMAS[name])
    for group, rows in ((1, 50), (3, 10), (1, 1), (2, 3)) if len(schema.columns) < 100 else ((1, 5), (2, 3)):
        table_pairs = pairs_of(SCHEMAS[name], relation, rows=rows, group=group)
        assert len({pair.name for pair in table_pairs}) == len(table_pairs)
        for pair in table_pairs:
            d, d_prime = pair.d.to_pylist(), pair.d_prime.to_pylist()
            assert pair.d.column_names == pair.d_prime.column_names == list(schema.columns)
            assert are_neighbours(d, d_prime, relation, group), pair.name
            assert pair.beyond == (goes_beyond(d, schema) or goes_beyond(d_prime, schema)), pair.name
        assert [pair.beyond for pair in table_pairs] == sorted(pair.beyond for pair in table_pairs)
    inside = pairs_of(SCHEMAS[name], relation, rows=rows, group=group, beyond=False)
    assert [pair.name for pair in inside] == [pair.name for pair in table_pairs if not pair.beyond]


@pytest.mark.parametrize("relation", BOTH)
def test_the_list_is_short_and_the_same_for_a_seed(relation: Relation) -> None:
    """The nightly run includes the schema with a hundred columns."""
    for name, columns in SCHEMAS.items():
        if len(columns) >= 100 and not nightly.on():
            continue
        table_pairs = pairs_of(columns, relation, rows=9)
        beyond = sum(pair.beyond for pair in table_pairs)
        assert beyond <= 30
        assert len(table_pairs) - beyond <= 64
        again = pairs_of(columns, relation, rows=9)
        assert [as_test(pair) for pair in again] == [as_test(pair) for pair in table_pairs], name
    table_pairs, other_pairs = pairs_of(SCHEMAS["people"], relation), pairs_of(SCHEMAS["people"], relation, seed=1)
    assert [pair.name for pair in table_pairs] == [pair.name for pair in other_pairs]
    assert any(as_test(first) != as_test(second) for first, second in zip(table_pairs, other_pairs, strict=True))


def far_apart(statistic: Callable[[Rows], Any], table_pairs: list[TablePair]) -> float:
    """Return the largest difference of the statistic over the pairs; infinite where other results or errors differ."""

    def outcome(table: pa.Table) -> Any:
        try:
            return statistic(table.to_pylist())
        except Exception as err:
            return type(err).__name__

    largest = 0.0
    for pair in table_pairs:
        first, second = outcome(pair.d), outcome(pair.d_prime)
        if isinstance(first, int | float) and isinstance(second, int | float) and math.isfinite(first + second):
            largest = max(largest, abs(first - second))
        elif repr(first) != repr(second):
            return math.inf
    return largest


def column(rows: Rows, name: str) -> list[Any]:
    return [row[name] for row in rows]


def slope(rows: Rows) -> float:
    x, y = np.array(column(rows, "x")), np.array(column(rows, "y"))
    return float(x @ y / (x @ x + 1e-9))


def spread(rows: Rows) -> float:
    return statistics.pstdev(column(rows, "age"))


@pytest.mark.parametrize(
    ("schema", "statistic", "difference", "relations"),
    [
        ("people", lambda rows: sum(column(rows, "age")), 100, BOTH),
        ("people", len, 1, BOTH[:1]),
        ("people", lambda rows: statistics.median(column(rows, "age")), 100, BOTH[1:]),
        ("people", lambda rows: statistics.median_low(column(rows, "age") or [0]), 100, BOTH),
        ("people", lambda rows: max(column(rows, "age"), default=0), 100, BOTH),
        ("people", lambda rows: statistics.fmean(column(rows, "age")), math.inf, BOTH[:1]),
        ("people", lambda rows: len({row["age"] for row in rows} if len(rows) > 9 else ()), 1, BOTH),
        ("people", lambda rows: sorted(set(column(rows, "sex"))), math.inf, BOTH),
        ("people", lambda rows: max(Counter(column(rows, "age")).values()) if rows else 0, 1, BOTH),
        ("people", lambda rows: rows and rows[-1]["age"], math.inf, BOTH[:1]),
        ("people", lambda rows: rows[0]["age"], 100, BOTH[1:]),
        ("people", lambda rows: sum(row["age"] for row in rows if row["sex"] == "f"), 100, BOTH[:1]),
        ("people", lambda rows: min(1, min(map(spread, [rows]))) if len(rows) > 9 else 0, 1, BOTH),
        ("people", lambda rows: 0 if len(rows) < 10 else 1, 1, BOTH[:1]),
        ("people", lambda rows: [word for word in "fm" if column(rows, "sex").count(word) >= 5], math.inf, BOTH),
        ("regression", slope, 0.9999, BOTH),
        ("a range", lambda rows: sum(math.copysign(1, x) < 0 for x in column(rows, "x")), 1, BOTH),
        ("a range", lambda rows: 1 / (sum(1 for x in column(rows, "x") if 0 < x < 1e-300) - 1), math.inf, BOTH),
        ("words", lambda rows: "c" in column(rows, "w") if len(rows) > 9 else 0, 1, BOTH),
    ],
)
def test_the_worst_that_a_row_can_do_within_the_schema_is_among_them(
    schema: str, statistic: Callable[[Rows], Any], difference: float, relations: tuple[Relation, ...]
) -> None:
    for relation in relations:
        assert far_apart(statistic, pairs_of(SCHEMAS[schema], relation, beyond=False)) >= difference
        assert far_apart(lambda rows: 0.5, pairs_of(SCHEMAS[schema], relation)) == 0


def clipped(rows: Rows) -> float:
    """Right for numbers of any size, but not for NaN and None."""
    return sum(min(max(row["age"], 0), 100) for row in rows)


def in_order(rows: Rows) -> float:
    return sum(row["age"] if row["age"] is not None and 0 < row["age"] < 100 else 0 for row in rows)


@pytest.mark.parametrize("relation", BOTH)
def test_what_the_schema_does_not_allow_is_among_them_too(relation: Relation) -> None:
    table_pairs = pairs_of(SCHEMAS["people"], relation)
    inside = [pair for pair in table_pairs if not pair.beyond]
    for guarded, difference in (
        (clipped, 100),
        (lambda rows: sum(row["age"] > 100 for row in rows), 0),
        (lambda rows: sum(row["age"] % 1 for row in rows), 0),
        (lambda rows: sum(row["sex"] not in ("f", "m") for row in rows), 0),
        (lambda rows: sum(len(row["sex"]) > 10 for row in rows), 0),
        (lambda rows: sum(row["sex"][0] == "f" for row in rows), 1),
    ):
        assert far_apart(guarded, inside) == difference
        assert far_apart(guarded, table_pairs) > difference
    assert far_apart(in_order, table_pairs) == far_apart(in_order, inside) < 100


def test_trainings_that_leak_by_one_row_at_the_corner_are_among_them() -> None:
    """Fifty rows at zero, one of which becomes (1, 1): diffprivlib's issue 104 shows on them."""
    tables = [
        (pair.d.to_pylist(), pair.d_prime.to_pylist()) for pair in pairs_of(SCHEMAS["regression"], Relation.REPLACE)
    ]
    zero, corner = {"x": 0.0, "y": 0.0}, {"x": 1.0, "y": 1.0}
    assert ([zero] * 50, [zero] * 49 + [corner]) in tables


def test_rows_of_ones_own_are_taken_as_they_are() -> None:
    schema = Schema.of(SCHEMAS["people"])
    table = pa.table({"age": pa.array([5, 6, 7], pa.int32()), "sex": pa.array(["f", "f", "m"]).dictionary_encode()})
    table_pairs = pairs(schema, table, Relation.ADD_REMOVE, RNG(0), beyond=False)
    ordinary = next(pair for pair in table_pairs if pair.name == "ordinary rows, a row high")
    assert ordinary.d.schema == schema.arrow()
    assert ordinary.d.to_pylist() == table.to_pylist()
    assert ordinary.d_prime.to_pylist() == [*table.to_pylist(), {"age": 100, "sex": "m"}]


@pytest.mark.parametrize(
    ("columns", "relation", "group", "sentence"),
    [
        (
            {"age": [5]},
            "replace",
            1,
            "ordinary rows must have the columns of the schema, in its order, got rows = 'age',",
        ),
        ({"age": [101], "sex": ["f"]}, "replace", 1, "ordinary rows must lie within the schema, got 'age'; correct"),
        ({"age": [1], "sex": [None]}, "replace", 1, "ordinary rows must lie within the schema, got 'sex'; correct"),
        ({"age": [1], "sex": ["f"]}, "replace", 2, "there must be at least `group` ordinary rows, got rows = 1,"),
        ({"age": [1], "sex": ["f"]}, "replace", 0, "group must be at least 1, got 0"),
        (
            {"age": [1], "sex": ["f"]},
            "label",
            1,
            "the relation of two tables must be add-remove or replace, got 'label'",
        ),
    ],
)
def test_what_makes_no_pairs_is_refused(columns: dict[str, Any], relation: str, group: int, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        pairs(Schema.of(SCHEMAS["people"]), pa.table(columns), Relation(relation), RNG(0), group=group)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(("name", "relation"), SCHEMAS_OF_BOTH)
def test_the_source_gives_back_the_very_cells(name: str, relation: Relation) -> None:
    for pair in pairs_of(SCHEMAS[name], relation, rows=9, group=2):
        tables: dict[str, Rows] = {}
        exec(as_test(pair), tables)
        for rows, table in ((tables["d"], pair.d), (tables["d_prime"], pair.d_prime)):
            assert repr(rows) == repr(table.to_pylist()), pair.name


def test_the_source_reads_well() -> None:
    sources = {pair.name: as_test(pair) for pair in pairs_of(SCHEMAS["regression"], Relation.REPLACE)}
    assert sources["all low, a row high"] == (
        "d = [{'x': 0.0, 'y': 0.0}] * 50\nd_prime = d[:49] + [{'x': 1.0, 'y': 1.0}]\n"
    )
    assert sources["a row with NaN alone"] == (
        "from math import nan\n\nd = [{'x': 0.0, 'y': 0.0}]\nd_prime = [{'x': nan, 'y': nan}]\n"
    )


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE])
def test_a_high_row_comes_to_few_low_ones_whose_number_it_moves_as_well(relation: Relation) -> None:
    """In a noisy sum over a noisy count, many rows hide the count's noise, and no rows hide the sum's noise."""
    schema = Schema.of({"x": (0.0, 1.0)})
    by_name = {pair.name: pair for pair in pairs(schema, schema.draw(50, RNG(0)), relation, RNG(0), beyond=False)}
    for few in (2, 4):
        pair = by_name[f"{few} low rows, a row high"]
        assert pair.d["x"].to_pylist() == [0.0] * (few + (relation is Relation.REPLACE))
        assert pair.d_prime["x"].to_pylist() == [0.0] * few + [1.0]
