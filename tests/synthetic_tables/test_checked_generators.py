"""Checks of generators of synthetic tables: numbers that follow the seed, and an average record next to the worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit import Claim, Relation, Report, RunOptions, audit
from dpaudit.claims import Scope
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.attacks.output_set import OutputSet, SummaryView
from dpaudit.engine.games.functions.game import RowFunctionGame
from dpaudit.engine.games.functions.neighbouring_tables import ordinary_pair
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.search import steady_move
from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec, matching_tests, within_seconds
from dpaudit.engine.request.function_request import function_on_rows
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.bound import Bound
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.queries.row_function import TableRows
from dpaudit.mechanisms.queries.schema import Schema
from dpaudit.synthetic_tables.mechanisms.independent_marginals import IndependentMarginals
from dpaudit.synthetic_tables.mechanisms.own_generator import OwnGenerator
from tests.synthetic_tables.own_generators import Measured, Resampled

SCHEMA: dict[str, Any] = {"age": [0, 100], "city": ["a", "b"]}
FAST = OutputSet(("laplace", "moved-laplace", "linear", "atoms"))
HERE = RunOptions(runner="in-process", figures=False, repeats=0)


def _samples(first: Any, second: Any) -> Outcomes:
    """Return calls on D and D' in turn, two with each seed."""
    numbers = np.stack([first, second], axis=1).reshape(2 * len(first), -1)
    return Outcomes.of_numbers(numbers, np.arange(len(numbers)) % 2 == 1)


def test_numbers_that_change_steadily_are_known_and_others_are_left_out() -> None:
    rng = np.random.default_rng(0)
    noise, others = rng.laplace(size=(60, 2)), rng.normal(size=(60, 2, 3))
    first = np.column_stack([noise, noise[:, 0] * 2 + others[:, 0, 0], others[:, 0, 1]])
    steady = np.column_stack(
        [noise + np.array([0.0, 3.0]), noise[:, 0] * 2 + 1 + others[:, 0, 0] * 0.8, others[:, 1, 1]]
    )
    assert steady_move(_samples(first, steady)).tolist() == [0.0, 3.0, 0.0, 0.0]
    # Without a steady number, those that follow the seed have their median change.
    loose = steady - np.array([0.0, 3.0, 0.0, 0.0])
    move = steady_move(_samples(first, loose))
    assert move[2] == pytest.approx(1.0, abs=0.2)
    assert move[[0, 1, 3]].tolist() == [0.0, 0.0, 0.0]
    assert not len(steady_move(_samples(first, first)))


def test_normal_noise_of_few_moved_numbers_is_found_among_many() -> None:
    """The log-odds of the only moved number, 2 x - 2 up to rounding, are reached with 60 samples of 40 numbers."""
    rng = np.random.default_rng(1)
    truth = rng.random(60) < 0.5
    search = rng.normal(size=(60, 40))
    search[:, 7] += 2.0 * truth
    fresh = rng.normal(size=(200, 40))
    move = np.where(np.arange(40) == 7, 2.0, np.where(np.arange(40) < 5, 0.01, 0.0))
    view = SummaryView(search, truth, fresh, None, move)
    exact = 2 * fresh[:, 7] - 2
    of_few, of_all = (
        np.corrcoef(OutputSet((name,)).score(view), exact)[0, 1] for name in ("most-moved-normal", "moved-normal")
    )
    assert of_few > 0.999 > 0.95 > of_all


def test_an_average_record_is_the_last_row_of_the_data() -> None:
    schema = Schema.of(SCHEMA)
    rows = schema.draw(20, np.random.default_rng(0))
    added = ordinary_pair(schema, rows, Relation.ADD_REMOVE)
    assert (added.d, added.d_prime) == (rows.slice(0, 19), rows)
    replaced = ordinary_pair(schema, rows, Relation.REPLACE, 2)
    assert replaced.d == rows.slice(0, 18)
    assert replaced.d_prime == pa.concat_tables([rows.slice(0, 16), rows.slice(18)]).combine_chunks()
    with pytest.raises(InputError, match="at least 4 ordinary rows, got 3"):
        ordinary_pair(schema, rows.slice(0, 3), Relation.REPLACE, 2)
    with pytest.raises(InputError, match="need the worst record"):
        RowFunctionGame(record="average", beyond=True)


def _spec(mechanism: Any, calls: Mapping[str, int], *, without: tuple[str, ...] = ()) -> Any:
    """Return the spec of a check with few calls."""
    spec = check_spec(CheckRequest(mechanism), CheckOptions(effort="quick", run=HERE))
    assert spec.together is not None
    audits = tuple(
        replace(each, attack=FAST, game=replace(each.game, **calls)) for each in spec.audits if each.name not in without
    )
    names = {each.name for each in audits}
    together = replace(
        spec.together,
        again={name: factors for name, factors in spec.together.again.items() if name in names},
        side={name: scope for name, scope in spec.together.side.items() if name in names},
    )
    return replace(spec, audits=audits, together=together)


SIDE = ("row-function, beyond-schema", "row-function, floating-point")


def _checked(mechanism: Any, folder: Path, trials: int) -> Report:
    spec = _spec(mechanism, {"search": 240, "trials": trials}, without=SIDE)
    assert spec.together.side == {"row-function, average-record": Scope.AVERAGE_RECORD}
    return audit(spec, output=folder, quiet=True)


def test_an_average_record_is_reported_whatever_the_verdict(tmp_path: Path) -> None:
    for noise, verdict in ((1.0, Verdict.NO_VIOLATION), (0.02, Verdict.VIOLATION)):
        report = _checked(IndependentMarginals(1.0, SCHEMA, noise_factor=noise), tmp_path / f"{noise}", 400)
        assert report.joint is not None
        assert report.joint.verdict is verdict
        worst, average = report.joint.tests
        assert average.scope is Scope.AVERAGE_RECORD
        assert average.finding is not None
        line = report.joint.answer.line("average-record")
        assert ("for an ordinary row, in place of the worst one" in line) == (verdict is Verdict.NO_VIOLATION)
        assert ("gives away more than the claim allows" in line) == (verdict is Verdict.VIOLATION)
        assert isinstance(worst.finding, Bound)
        assert worst.finding.lower <= 1.0 / noise


def test_resampled_rows_of_a_user_are_rejected(tmp_path: Path) -> None:
    mechanism, rows = function_on_rows(Resampled, SCHEMA, claim=1.0)
    assert isinstance(mechanism, OwnGenerator)
    game = RowFunctionGame(search=120, trials=120)
    spec = check_spec(CheckRequest(mechanism, rows), CheckOptions(effort="quick", run=HERE))
    alone = replace(spec, audits=(replace(spec.audits[0], attack=FAST, game=game),), together=None, confidence=0.95)
    (result,) = audit(alone, output=tmp_path, quiet=True).results
    assert result.verdict is Verdict.VIOLATION


def test_slow_fits_leave_the_test_of_the_claim_with_fewer_calls_and_more_time() -> None:
    matching, *_ = matching_tests(IndependentMarginals(1.0, SCHEMA), Claim(1.0, relation=Relation.ADD_REMOVE))
    tests = [planned for planned in matching if not planned.test.real_rows]  # a schema has none
    (alone,), reasons = within_seconds(tests, 2.0, 600.0)
    assert (alone.name, alone.test.trainings) == ("row-function", 360)
    assert len(reasons) == len(tests) - 1
    (fewer,), _ = within_seconds([alone.with_slow_calls()], 2.0, 600.0)
    assert 100 <= fewer.test.trainings <= 180
    assert fewer.with_call_limit(2.0).test.game["call_limit_s"] == 16.0
    assert "call_limit_s" not in fewer.with_call_limit(0.1).test.game
    several, _ = within_seconds(tests, 0.2, 600.0)
    assert several[0].name == "row-function"


def test_a_generator_states_its_claim_in_its_settings_and_persons_have_no_average_record() -> None:
    with pytest.raises(SpecError, match="must have a claim"):
        function_on_rows(Resampled, SCHEMA)
    with pytest.raises(InputError, match=r"settings must be the arguments of Measured.*depth"):
        function_on_rows(Measured, SCHEMA, claim=1.0, settings={"depth": 2})
    generator = IndependentMarginals(1.0, SCHEMA | {"person": [0, 9]})
    spec = check_spec(CheckRequest(generator, person="person"), CheckOptions(effort="quick", run=HERE))
    assert spec.together is not None
    assert Scope.AVERAGE_RECORD not in spec.together.side.values()


def test_generators_get_no_table_without_rows() -> None:
    """An error for an empty table says nothing about a record; functions on rows are called on such tables."""
    schema = Schema.of(SCHEMA)
    rng = np.random.default_rng(0)
    rows = TableRows(schema.draw(20, rng), schema)
    generator, function = IndependentMarginals(1.0, SCHEMA), OwnFunction(len_of_rows, claimed=Claim(1.0))
    fewest = [
        min(min(len(tables.d), len(tables.d_prime)) for tables in RowFunctionGame().pairs(mechanism, (rows,), rng))
        for mechanism in (generator, function)
    ]
    assert fewest == [1, 0]


def len_of_rows(rows: Any, rng: Any) -> int:
    return len(rows)
