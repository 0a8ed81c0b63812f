"""Scope of a claim: numbers up to rounding, rows that the schema allows. Leaks outside it are side findings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit import Claim, check
from dpaudit.actors.seed import Seed
from dpaudit.claims import Relation, Scope, strict_scopes
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.games.digits import REPEATS, STEP, Rounding
from dpaudit.engine.games.functions.game import Tables, call_seeds, run_calls
from dpaudit.engine.games.functions.neighbouring_tables import pairs
from dpaudit.engine.games.run_scores import score_trials
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.errors import InputError
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.queries.schema import Category, Number, Schema
from tests.loops import Cases
from tests.nightly import by_day
from tests.small import calls_cost

Rng = np.random.Generator
UNIT: Mapping[str, Any] = {"x": (0.0, 1.0)}
CALLS = 3_000


# Rounding


def test_whole_numbers_constants_and_repeated_values_are_not_rounded() -> None:
    rng = np.random.default_rng(0)
    noisy = rng.laplace(size=1_000)
    limited = np.maximum(noisy, 0.0)
    columns = np.column_stack([rng.integers(0, 9, 1_000), np.full(1_000, 0.1), limited, noisy, 1e9 + np.round(noisy)])
    rounding = Rounding.learned(columns)
    rounded = rounding.rounded(columns)
    assert rounding.steps[[0, 1, 4]].tolist() == [0, 0, 0]
    assert (rounded[:, [0, 1, 4]] == columns[:, [0, 1, 4]]).all()
    assert (rounded[limited == 0, 2] == 0).all()
    spread = float(np.subtract(*np.quantile(noisy, (0.75, 0.25))))
    assert rounding.steps[3] == pytest.approx(STEP * spread)
    assert (np.abs(rounded[:, 3] - noisy) <= rounding.steps[3] / 2 * (1 + 1e-9)).all()
    on_grid = rounded[:, 3] / rounding.steps[3]
    assert np.abs(on_grid - np.round(on_grid)).max() < 1e-3


def test_rounding_of_a_value_is_independent_of_other_values() -> None:
    """The grid depends on the search samples only, so rounding is post-processing of each release."""
    rng = np.random.default_rng(1)
    rounding = Rounding.learned(np.concatenate([rng.normal(size=(500, 1)), np.full((REPEATS, 1), 0.25)]))
    fresh = np.concatenate([rng.normal(size=(200, 1)), [[0.25], [math.nextafter(0.25, 1)]]])
    alone = np.concatenate([rounding.rounded(row[None]) for row in fresh])
    assert np.array_equal(alone, rounding.rounded(fresh))
    assert alone[-2] == 0.25
    assert not Rounding.learned(np.ones((5, 501))).steps.any()


# Floating-point noise as users write it


def laplace(rows: NDArray[np.float64], rng: Rng) -> float:
    return float(rows.sum() + rng.laplace(0, 1))


def inverse_cdf(rows: NDArray[np.float64], rng: Rng) -> float:
    u = rng.random() - 0.5
    return float(rows.sum() - np.sign(u) * math.log1p(-2 * abs(u)))


def difference_of_exponentials(rows: NDArray[np.float64], rng: Rng) -> float:
    return float(rows.sum() + rng.exponential() - rng.exponential())


def single_precision(rows: NDArray[np.float64], rng: Rng) -> np.float32:
    return np.float32(rows.sum()) + np.float32(rng.laplace(0, 1))


def limited(rows: NDArray[np.float64], rng: Rng) -> float:
    return float(max(0.0, rows.sum() + rng.laplace(0, 1)))


def in_a_text(rows: NDArray[np.float64], rng: Rng) -> str:
    return f"{rows.sum() + rng.laplace(0, 1):.17g} of all"


def half(noise: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with half of its noise: twice the sum has the same privacy."""
    return lambda rows, rng: noise(2 * rows, rng)


FLOATS = (laplace, inverse_cdf, difference_of_exponentials, single_precision, limited, in_a_text)


def lower_bound(function: Callable[..., Any], *, full_digits: bool, seed: int = 0) -> float:
    """Return the bound of one test of a function on an empty table and one with a row at 1."""
    mechanism = OwnFunction(function, form="array", claimed=Claim(1.0, relation=Relation.ADD_REMOVE))
    schema = Schema.of(UNIT)
    rows = schema.table([])
    tables = Tables("", rows.cast(schema.arrow()), schema.table([{"x": 1.0}]), 0)
    results = []
    for part in ("search", "fresh"):
        part_seed = Seed(seed).child(part)
        truth = part_seed.rng().random(CALLS) < 0.5
        results.append(
            run_calls(mechanism, tables, truth, call_seeds(part_seed.child("calls"), CALLS), Compute()).value
        )
    estimator = FairCoins(confidence=0.999)
    scores = score_trials(OutputSet(), results[0], results[1], full_digits=full_digits)
    return estimator.bound([estimator.tally(scores)]).lower


def test_only_the_digits_of_honest_float_noise_exceed_the_claim() -> None:
    with Cases() as cases:
        for function in by_day(FLOATS[::2], by_night=FLOATS):
            with cases.case(function.__name__):
                assert lower_bound(function, full_digits=False) < 1.0
        for function in by_day((laplace,), by_night=(laplace, inverse_cdf, limited)):
            with cases.case("digits of", function.__name__):
                assert lower_bound(function, full_digits=True) > 2.0


def test_half_the_noise_is_found_without_the_digits() -> None:
    """The bound is below the true epsilon and above the claim."""
    with Cases() as cases:
        for function in by_day(FLOATS[1::2], by_night=FLOATS):
            with cases.case(function.__name__):
                assert 1.2 < lower_bound(half(function), full_digits=False) < 2.0


# A check


HERE = RunOptions(runner="in-process", figures=False)


def fails_on_nan(rows: NDArray[np.float64], rng: Rng) -> int:
    return round(rows.sum() + rng.laplace(0, 1))


def without_noise(rows: NDArray[np.float64], rng: Rng) -> int:
    return round(rows.sum())


@pytest.fixture
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan 1,250 calls of each test, as for slow calls; exact answers need no more."""
    calls_cost(monkeypatch, 0.015)


def checked(function: Callable[..., Any], folder: Path, **options: Any) -> Any:
    usual: dict[str, Any] = {"schema": UNIT, "claim": 1.0, "form": "array", "run": HERE, "effort": "quick"}
    return check(function, quiet=True, output=folder, **(usual | options)).joint.answer


def test_honest_float_noise_is_no_violation_and_its_digits_are_named(tmp_path: Path) -> None:
    answer = checked(laplace, tmp_path / "run")
    assert answer.verdict is Verdict.NO_VIOLATION
    assert Scope.FLOATING_POINT in answer.side
    assert "Round results to a fixed step" in answer.line("floating-point")


def test_strict_includes_a_side_finding_in_the_verdict(tmp_path: Path) -> None:
    answer = checked(laplace, tmp_path / "run", strict="floating-point")
    assert answer.verdict is Verdict.VIOLATION
    assert answer.test.name == "row-function, floating-point"
    assert answer.side == ()


@pytest.mark.usefixtures("few_calls")
def test_rows_beyond_the_schema_are_a_side_finding(tmp_path: Path) -> None:
    """NaN makes the sum NaN: honest within the schema."""
    answer = checked(fails_on_nan, tmp_path / "run")
    assert answer.verdict is Verdict.NO_VIOLATION
    assert answer.side == (Scope.BEYOND_SCHEMA,)


@pytest.mark.usefixtures("few_calls")
def test_missing_values_that_the_schema_allows_belong_to_the_claim(tmp_path: Path) -> None:
    nullable = {"x": {"range": (0.0, 1.0), "nullable": True}}
    assert checked(fails_on_nan, tmp_path / "run", schema=nullable).verdict is Verdict.VIOLATION


def test_a_schema_that_allows_everything_has_no_rows_beyond_it() -> None:
    anything = Schema.of({"x": {"range": [0, 1], "any": True}, "word": {"values": ["a", "b"], "any": True}})
    assert anything.allows_everything
    rng = np.random.default_rng(0)
    table_pairs = pairs(anything, anything.draw(20, rng), Relation.ADD_REMOVE, rng)
    assert not any(pair.beyond for pair in table_pairs)
    pair_names = " ".join(pair.name for pair in table_pairs)
    for name in ("NaN", "far above the range", "a new word", "without words"):
        assert f"{name} where that is allowed" in pair_names


def test_columns_of_a_schema_are_checked() -> None:
    assert Schema.of({"x": {"range": [0.0, 1.0], "nullable": True}}).columns["x"] == Number(0.0, 1.0, nullable=True)
    assert Schema.of({"x": {"values": ["a", "b"]}}).columns["x"] == Category(("a", "b"))
    wrong = {
        "must have either `range` or `values`": {"nullable": True},
        "`range` must be two numbers": {"range": ["a", "b"]},
        "nullable must be true or false": {"range": [0, 1], "nullable": "yes"},
        "missing": {"range": [0, 1], "missing": True},
    }
    with Cases() as cases:
        for words, schema in wrong.items():
            with cases.case(words), pytest.raises(InputError, match=re.escape(words)):
                Schema.of({"x": schema})


def test_values_of_strict() -> None:
    assert strict_scopes("all") == (Scope.FLOATING_POINT, Scope.BEYOND_SCHEMA)
    assert strict_scopes("beyond-schema, floating-point") == (Scope.FLOATING_POINT, Scope.BEYOND_SCHEMA)
    assert strict_scopes(("beyond-schema",)) == (Scope.BEYOND_SCHEMA,)
    assert strict_scopes("") == strict_scopes(()) == ()
    with pytest.raises(InputError, match="strict must name floating-point, beyond-schema or all, got 'digits'"):
        strict_scopes("digits")


@pytest.mark.usefixtures("few_calls")
def test_an_effort_gives_the_same_answer_twice(tmp_path: Path) -> None:
    """Effort fixes the number of calls; time has no influence."""
    lines = [checked(without_noise, tmp_path / name).text() for name in ("first", "second")]
    assert lines[0] == lines[1]
    assert lines[0].startswith("VIOLATION")


def hides_its_answer(rows: NDArray[np.float64], rng: Rng) -> dict[str, Any]:
    """Return the exact sum in a function, which no test calls."""
    total = float(rows.sum())
    return {"rows": "private", "read": lambda: total}


def prints_its_answer(rows: list[str], rng: Rng) -> int:
    print(rows[-1])
    return 3


def always_three(rows: list[str], rng: Rng) -> int:
    return 3


@pytest.mark.usefixtures("few_calls")
def test_equal_results_state_no_maximum(tmp_path: Path) -> None:
    """Unread parts that differ are named; a constant that was read whole passes, without a maximum."""
    few: dict[str, Any] = {"schema": {"x": ["a", "b"]}, "form": "list", "relation": "replace", "budget": "1s"}
    answer = checked(prints_its_answer, tmp_path / "prints", **few)
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert answer.line("reason").endswith("what the calls printed may differ")
    assert answer.line("sensitivity") == "unknown: all results were the same"
    constant = checked(always_three, tmp_path / "constant", **few)
    assert constant.verdict is Verdict.NO_VIOLATION
    assert constant.line("sensitivity") == answer.line("sensitivity")


async def awaited(rows: NDArray[np.float64], rng: Rng) -> float:
    return float(rows.sum())


@pytest.mark.usefixtures("few_calls")
def test_an_unreadable_result_does_not_pass(tmp_path: Path) -> None:
    answer = checked(hides_its_answer, tmp_path / "run")
    assert answer.verdict is Verdict.INCONCLUSIVE
    assert answer.rule == "unreadable-results"
    assert "function" in answer.line("reason")


@pytest.mark.usefixtures("few_calls")
def test_the_result_of_a_coroutine_is_audited(tmp_path: Path) -> None:
    assert checked(awaited, tmp_path / "run").verdict is Verdict.VIOLATION
