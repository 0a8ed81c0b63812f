"""Schemas: parsed from words, sampled from, and checked against tables."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.engine.request.plain_yaml import parse_yaml
from dpaudit.errors import InputError
from dpaudit.mechanisms.queries.schema import Category, Number, Schema
from tests.loops import Cases

RNG = np.random.default_rng
PEOPLE = Schema.of({"age": (0, 100), "share": (-1.0, 1), "sex": ["f", "m"]})


def test_a_mapping_is_a_schema() -> None:
    assert Schema({"age": Number(0, 100, True), "share": Number(-1, 1), "sex": Category(("f", "m"))}) == PEOPLE
    assert Schema.of(PEOPLE) is PEOPLE
    assert Schema.of({"age": Number(0, 100, True), "share": [-1, 1.0], "sex": ("f", "m")}) == PEOPLE
    assert Schema.of({"age": np.array([0, 100]), "share": (Decimal(-1), 1), "sex": np.array(["f", "m"])}) == PEOPLE
    assert parse_yaml("{age: [0, 100], share: [-1.0, 1.0], sex: [f, m]}") == {
        "age": [0, 100],
        "share": [-1.0, 1.0],
        "sex": ["f", "m"],
    }
    assert PEOPLE.arrow() == pa.schema([("age", pa.int64()), ("share", pa.float64()), ("sex", pa.string())])


def test_invalid_schemas_are_refused() -> None:
    with Cases() as cases:
        for source, sentence in [
            (None, "a schema must be a mapping from columns to ranges or words, got NoneType; write, for example, {"),
            ("age", "a schema must be a mapping from columns to ranges or words, got age; write"),
            ({}, "a schema must have at least one column; write {column: [low, high]}"),
            ({3: [0, 1]}, "the name of a column must be text, not empty, got 3; name each column"),
            ({"": [0, 1]}, "the name of a column must be text, not empty, got ''; name each column"),
            ({"a": []}, "a: a category must have at least one word; list all words of the column"),
            ({"a": ["x", "y", "x"]}, "a: the words of a category must differ, got 'x'; list each once"),
            ({"a": [2, 1]}, "a: low must be at most high, got low = 2.0, high = 1.0; swap them"),
            ({"a": [0, math.nan]}, "a: a bound must be a finite number, got nan; give the widest allowed"),
            ({"a": [-math.inf, 0]}, "a: a bound must be a finite number, got -inf; give the widest allowed"),
            ({"a": [0, 10**400]}, "a: a bound must be a finite number, got 1000"),
            ({"a": [0, 2**60]}, "a: a bound of whole numbers must be whole and at most 2**53 from zero, got 1.15"),
            (
                {"a": [1, 2, 3]},
                "a: must be two numbers, low and high, or a list of words, got [1, 2, 3]; put words that",
            ),
            (
                {"a": [True, False]},
                "a: must be two numbers, low and high, or a list of words, got [True, False]; put words",
            ),
            (
                {"a": ["x", None]},
                "a: must be two numbers, low and high, or a list of words, got ['x', None]; put words",
            ),
            ({"a": "xy"}, "a: must be two numbers, low and high, or a list of words, got xy; put words"),
            ({"a": {"low": 0}}, "a: must have either `range` or `values`, and may have `nullable` and `any`, got {"),
            ({"a": ["0", "\ud800"]}, "a: must be two numbers, low and high, or a list of words, got ['0', "),
            (parse_yaml("a: [0, 1e6]"), "a: a bound must be a number, got the word 1e6; write it with a point"),
            (parse_yaml("a: [1e3, 1e6]"), "a: a bound must be a number, got the word 1e3; write it with a point"),
        ]:
            with cases.case(source, sentence):
                with pytest.raises(InputError) as refused:
                    Schema.of(source)
                assert str(refused.value).startswith(sentence)
                assert "\n" not in str(refused.value)


def test_invalid_columns_are_refused() -> None:
    for wrong in (lambda: Number("0", 1), lambda: Number(0, 0.5, whole=True), lambda: Category("fm")):  # type: ignore[arg-type]
        with pytest.raises(InputError, match="must be"):
            wrong()
    assert Number(1, 1).cell(1) == 1.0
    assert repr(Number(0, 3, whole=True).cell(3.0)) == "3"


def test_drawn_rows_cover_exactly_the_schema() -> None:
    """False failure < 1e-80: of 20,000 rows none would have age 100, or all would have a share above -0.99."""
    rows = PEOPLE.draw(20_000, RNG(0))
    assert rows.schema == PEOPLE.arrow()
    assert PEOPLE.outside(rows) == []
    assert rows.equals(PEOPLE.draw(20_000, RNG(0)))
    ages, shares = rows["age"].to_numpy(), rows["share"].to_numpy()
    assert set(ages) == set(range(101))
    assert shares.min() < -0.99
    assert shares.max() > 0.99
    assert set(rows["sex"].to_pylist()) == {"f", "m"}
    assert len(PEOPLE.draw(0, RNG(0))) == 0


def test_the_widest_ranges_can_be_drawn() -> None:
    widest = Schema.of({"a": (-1.7e308, 1.7e308), "b": (-(2**53), 2**53), "c": (0.5, 0.5), "d": (0.0, 5e-324)})
    rows = widest.draw(1_000, RNG(0))
    assert widest.outside(rows) == []
    assert set(rows["c"].to_pylist()) == {0.5}
    assert len(set(rows["a"].to_pylist())) == 1_000


USUAL = {"age": 3, "share": 0.5, "sex": "f"}


def test_a_table_keeps_its_cells_and_names_columns_outside_the_schema() -> None:
    with Cases() as cases:
        for column, cell, kind, inside in [
            ("age", 0, "int64", True),
            ("age", 100, "int64", True),
            ("age", 101, "int64", False),
            ("age", 7.0, "double", True),
            ("age", 7.5, "double", False),
            ("age", -0.0, "double", True),
            ("age", math.nan, "double", False),
            ("age", math.inf, "double", False),
            ("age", 2**70, "double", False),
            ("age", None, "int64", False),
            ("share", -1, "double", True),
            ("share", -0.0, "double", True),
            ("share", 5e-324, "double", True),
            ("share", math.nextafter(1, 2), "double", False),
            ("share", math.nan, "double", False),
            ("share", -math.inf, "double", False),
            ("share", None, "double", False),
            ("sex", "m", "string", True),
            ("sex", "", "string", False),
            ("sex", "M", "string", False),
            ("sex", None, "string", False),
        ]:
            with cases.case(column, cell, kind, inside):
                table = PEOPLE.table([USUAL, USUAL | {column: cell}, USUAL])
                assert str(table.schema.field(column).type) == kind
                cell = table[column].to_pylist()[1]
                assert repr(cell) == repr(float(cell) if kind == "double" and cell is not None else cell)
                assert PEOPLE.outside(table) == ([] if inside else [column])
                assert PEOPLE.outside(table.slice(0, 1)) == []
                assert PEOPLE.outside(table.slice(0, 0)) == []


def test_a_column_of_another_type_is_outside() -> None:
    table = pa.table({"age": ["3"], "share": pa.nulls(1), "sex": [1]})
    assert PEOPLE.outside(table) == ["age", "share", "sex"]


def test_a_range_of_dates_is_refused_with_its_numbers() -> None:
    """Two dates are a range to their reader; as two words they would be the only cells that are tried."""
    message = r"when: a range of dates must be whole days since 1970-01-01: write \[18262, 18992\]"
    for ends in (["2020-01-01", "2021-12-31"], [datetime.date(2020, 1, 1), datetime.date(2021, 12, 31)]):
        with pytest.raises(InputError, match=message):
            Schema.of({"when": ends})
        with pytest.raises(InputError, match=message):
            Schema.of({"when": {"range": ends}})
    words = Category(("2020-01-01", "2021-12-31"))
    assert Schema.of({"when": {"values": list(words.values)}}).columns == {"when": words}
    for other in (["2020-01-01", "2020-02-30"], ["2020-01-01", "later"], ["2020-01-01", "2020-01-02", "2020-01-03"]):
        assert Schema.of({"when": other}).columns == {"when": Category(tuple(other))}
