"""Generators of users and libraries: made, fitted and drawn from in each call, with a summary of fixed width."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.claims import Claim
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.queries.row_function import CallLimits, TableGenerator
from dpaudit.mechanisms.queries.schema import Schema
from dpaudit.synthetic_tables.mechanisms.own_generator import OwnGenerator
from dpaudit.synthetic_tables.mechanisms.table_summary import TableSummary
from tests.mechanisms.user_code import noisy_count
from tests.synthetic_tables import own_generators
from tests.synthetic_tables.own_generators import LosesColumn, Measured, NoSample, OneStep, Resampled, ReturnsNumber

SCHEMA: dict[str, Any] = {"age": [0, 100], "city": ["a", "b"]}
ROWS = pa.table({"age": [1, 1, 1], "city": ["b", "b", "b"]})
HERE = str(Path(__file__).parents[2])


def _values(
    generator: OwnGenerator, rows: pa.Table = ROWS, **settings: Any
) -> tuple[str, dict[str, float], list[float]]:
    """Return ending, named numbers of the summary, and the numbers after it."""
    (outcome,) = generator.outcomes(rows, [5], settings, CallLimits())
    names = TableSummary(Schema.of(SCHEMA)).names
    numbers = outcome.numbers.tolist()
    return outcome.ending, dict(zip(names, numbers, strict=False)), numbers[len(names) :]


def test_every_form_of_a_table_has_the_same_summary() -> None:
    generator = OwnGenerator(Resampled, SCHEMA, Claim(1.0), count=4)
    assert isinstance(generator, TableGenerator)
    for form in ("frame", "arrow", "array", "records", "columns"):
        ending, values, others = _values(generator, form=form)
        assert ending.startswith("synthetic table {")
        assert ("age: int64" in ending) == (form in ("frame", "arrow"))
        assert values["number of rows"] == values["count of city, cell 1"] == values["count of age, cell 0"] == 4
        assert values["count of city, cell 0"] == 0
        assert values["maximum of age"] == values["mean of age"] == 1
        assert not others


def test_a_table_may_be_empty_or_beyond_the_schema() -> None:
    _, values, _ = _values(OwnGenerator(Resampled, SCHEMA, Claim(1.0), count=4), ROWS.slice(0, 0))
    assert values["number of rows"] == 0
    ending, values, _ = _values(OwnGenerator(OneStep, SCHEMA, Claim(1.0)))
    assert ending == (
        "synthetic table {}; words of age outside the schema: old; words of city outside the schema: zz; further "
        "columns: more"
    )
    assert values["count of age outside its schema"] == 2  # 150 and a word
    assert values["count of age missing"] == values["count of city missing"] == 1
    assert values["count of city outside its schema"] == 1
    (from_object,) = OwnGenerator(f"{own_generators.__name__}:ready_made", SCHEMA).outcomes(ROWS, [5], {}, CallLimits())
    assert from_object.ending == ending


def test_seeds_reach_all_methods_and_measurements_follow_the_summary() -> None:
    generator = OwnGenerator(functools.partial(Measured, scale=0.5), SCHEMA, Claim(1.0))
    assert generator.alternatives() == [{"scale": 0.5}]
    first, again, other = generator.outcomes(ROWS, [1, 1, 2], {"scale": 0.5}, CallLimits())
    assert first.numbers.tolist() == again.numbers.tolist() != other.numbers.tolist()
    assert "measurements: dict{'count': float, 'states': list of 2 int}" in first.ending
    assert first.low_bits == 2  # of the only float
    width = len(TableSummary(Schema.of(SCHEMA)).names)
    count, *states = first.numbers[width : len(first.numbers) - 2]
    assert states[0] != states[1]
    assert count == pytest.approx(3 + 0.5 * np.random.default_rng(int(states[1])).laplace())
    released = generator.generate(ROWS, 7, 1, {"scale": 0.5}, CallLimits())
    assert released.table.schema.types == Schema.of(SCHEMA).arrow().types
    assert len(released.table) == 7
    assert released.measurements.tolist() == [count, *states]
    (fixed,) = OwnGenerator(Measured, SCHEMA, settings={"seed": 3}).outcomes(ROWS, [1], {"seed": 3}, CallLimits())
    assert fixed.numbers[width + 1] == 3


def test_another_python_gives_the_same_outcomes() -> None:
    name = f"{own_generators.__name__}:Measured"
    other = OwnGenerator(name, SCHEMA, Claim(1.0), python=sys.executable, folder=HERE)
    this = OwnGenerator(name, SCHEMA, Claim(1.0))
    pairs = zip(*(each.outcomes(ROWS, [4, 9], {}, CallLimits()) for each in (other, this)), strict=True)
    for first, second in pairs:
        assert (first.ending, first.low_bits) == (second.ending, second.low_bits)
        assert first.numbers.tolist() == second.numbers.tolist()
    assert OwnGenerator.takes(name, sys.executable, HERE)
    assert not OwnGenerator.takes("tests.mechanisms.user_code:noisy_count", sys.executable, HERE)
    with pytest.raises(InputError, match=r"must have the methods fit\(rows\) and sample\(count\).*NoSample in"):
        OwnGenerator(f"{own_generators.__name__}:NoSample", SCHEMA, python=sys.executable, folder=HERE)


def test_what_is_wrong_with_a_generator_is_said_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"NoSample has no sample\(count\)"):
        OwnGenerator.takes(NoSample)
    assert not OwnGenerator.takes(noisy_count)
    with pytest.raises(InputError, match=r"an object of Resampled; pass its class"):
        OwnGenerator(Resampled(), SCHEMA)
    with pytest.raises(InputError, match=r"settings must be the arguments of Resampled: .*'depth'"):
        OwnGenerator(Resampled, SCHEMA, settings={"depth": 3})
    with pytest.raises(InputError, match=r"count must be in 1 .. 30,000 for 2 columns, got 50000"):
        OwnGenerator(Resampled, SCHEMA, count=50_000)
    for code, fault in (
        (ReturnsNumber, "sample must return a table: .* got an object of int"),
        (LosesColumn, r"must return all columns of the schema, got none named city"),
    ):
        generator = OwnGenerator(code, SCHEMA, Claim(1.0))
        (outcome,) = generator.outcomes(ROWS, [0], {}, CallLimits())
        assert outcome.ending.startswith("raises GeneratorError")
        with pytest.raises(TrainingError, match=fault):
            generator.generate(ROWS, 5, 0, {}, CallLimits())
