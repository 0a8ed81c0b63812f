"""Checks of functions on rows: correct verdicts for any type of result, and clear errors for unsuitable arguments.

A check of an honest function is wrong with probability 0.001 at most; seeds are fixed.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dpaudit
from dpaudit import AuditError, Claim, Relation, Report, RunOptions, Verdict, check
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Call
from dpaudit.claims import GaussianDP, Scope, claim_under, parse_claim
from dpaudit.engine.cli.options import parse_settings
from dpaudit.engine.data.table_rows import SchemaRows
from dpaudit.engine.games.functions.game import RowFunctionGame
from dpaudit.engine.planning import plan as planning
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.request.check import (
    CheckOptions,
    CheckRequest,
    PlannedTest,
    check_spec,
)
from dpaudit.engine.request.function_request import function_on_rows
from dpaudit.engine.request.timing import call_cost
from dpaudit.errors import InputError, SpecError
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.queries.row_function import CallLimits
from tests.nightly import by_day, too
from tests.small import calls_cost

SCHEMA = {"age": (0, 100), "sex": ["f", "m"]}
HERE = RunOptions(runner="in-process", figures=False)


def _ages(rows: Any) -> Any:
    """Return the ages, clipped to 0-100; missing ages become 0."""
    ages = rows["age"].to_numpy(dtype=float)
    return np.clip(np.nan_to_num(ages, nan=0.0, posinf=100.0, neginf=0.0), 0, 100)


def _geometric(rng: np.random.Generator, scale: float) -> int:
    """Return two-sided geometric noise; as an integer it leaks nothing through low bits."""
    share = 1 - np.exp(-1 / scale)
    return int(rng.geometric(share)) - int(rng.geometric(share))


def right_sum(rows: Any, rng: np.random.Generator) -> int:
    return int(np.ceil(_ages(rows)).sum()) + _geometric(rng, 100)


def right_mean(rows: Any, rng: np.random.Generator) -> float:
    """Half of epsilon 1 for the sum and half for the number of rows."""
    total = int(np.ceil(_ages(rows)).sum()) + _geometric(rng, 200)
    return total / max(1, len(rows) + _geometric(rng, 2))


def half_the_noise(rows: Any, rng: np.random.Generator) -> int:
    return int(np.ceil(_ages(rows)).sum()) + _geometric(rng, 50)


def scaled_by_the_private_n(rows: Any, rng: np.random.Generator) -> float:
    ages = _ages(rows)
    return float(ages.mean() + rng.laplace(0, 100 / len(ages))) if len(ages) else 0.0


def warns_of_one_row(rows: Any, rng: np.random.Generator) -> int:
    if (rows["age"] == 100).any():
        warnings.warn("somebody is very old", stacklevel=2)
    return _geometric(rng, 1)


def checked(function: Callable[..., Any], folder: Path, **more: Any) -> Report:
    return check(function, claim=1.0, schema=SCHEMA, output=folder, quiet=True, run=HERE, **more)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    few_calls(monkeypatch)


def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the number of calls, also on a busy machine: 687 of the claim by day, 2,750 by night."""
    calls_cost(monkeypatch, by_day(0.07, by_night=0.02))


@pytest.fixture(scope="module")
def of_an_honest_one(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The check of an honest function."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        few_calls(monkeypatch)
        return checked(right_mean, tmp_path_factory.mktemp("honest"))


def joint(report: Report) -> Verdict:
    assert report.joint is not None
    return report.joint.verdict


def test_an_honest_function_is_not_convicted(of_an_honest_one: Report) -> None:
    assert joint(of_an_honest_one) is Verdict.NO_VIOLATION, of_an_honest_one.text()
    assert all(result.epsilon <= 1 for result in of_an_honest_one.results)


@pytest.mark.parametrize(
    ("function", "phrase"),
    [
        (half_the_noise, ""),
        (scaled_by_the_private_n, ""),
        (warns_of_one_row, "warns"),
    ],
)
def test_a_function_that_leaks_is_convicted(function: Callable[..., Any], phrase: str, tmp_path: Path) -> None:
    report = checked(function, tmp_path)
    assert joint(report) is Verdict.VIOLATION, report.text()
    assert phrase in report.text(verbose=True)
    tables_differ(report.text(verbose=True))


def tables_differ(text: str) -> None:
    """The tables of a report run in a test."""
    (source, *_) = [line.partition("paste into a test: ")[2] for line in text.splitlines() if "to paste" in line]
    tables: dict[str, Any] = {}
    exec(source, tables)
    d, d_prime = tables["d"], tables["d_prime"]
    assert d != d_prime
    assert d == d_prime[: len(d)] or len(d) == len(d_prime)


def test_each_scope_has_an_error_of_its_own_unless_strict_names_it() -> None:
    mechanism, rows = function_on_rows(right_sum, SCHEMA, claim=1.0)
    usual, strict = (
        check_spec(CheckRequest(mechanism, rows), CheckOptions(run=HERE, strict=named)) for named in ((), ("all",))
    )
    assert usual.together is not None
    assert strict.together is not None
    assert usual.together.scope(usual.audits[0].name) is Scope.CLAIM
    sides = {usual.together.scope(audit.name) for audit in usual.audits[1:]}
    assert sides == {Scope.BEYOND_SCHEMA, Scope.FLOATING_POINT}
    assert strict.together.side == {}
    assert [audit.estimator.confidence for audit in usual.audits] == pytest.approx([0.95] * 3)
    assert [audit.estimator.confidence for audit in strict.audits] == pytest.approx([1 - 0.05 / 3] * 3)


def noisy(rows: Any, rng: np.random.Generator, *, scale: float = 1.0, exact: bool = False) -> Any:
    count = len(rows)
    return count if exact else count + _geometric(rng, scale)


def test_the_settings_are_searched_too(tmp_path: Path) -> None:
    report = checked(noisy, tmp_path, settings={"scale": [1.0, 2.0], "exact": [False, True]})
    assert joint(report) is Verdict.VIOLATION
    assert "exact = True" in report.text(verbose=True)


ELSEWHERE = """
def count(rows, rng, twice=False):
    return len(rows) + (rng.random() < 0.5) * (2 if twice else 1)
def dies(rows, rng):
    import os
    if rng.random() < 0.05:
        os._exit(7)
    return rng.random() < 0.5
"""


def seeds(units: Iterable[Unit]) -> set[str]:
    """Return the seeds of the units that draw random numbers."""
    call_seeds = (dict(unit.task.arguments).get("seed") for unit in units if isinstance(unit.task, Call))
    return {str(seed) for seed in call_seeds if seed is not None}


def reused(plan: Plan) -> list[str]:
    """Return the seeds of fresh calls that the search used, and search units that a confirmatory run adds."""
    units = {unit.key: unit for unit in plan.units}
    first = {entry.audit.name: entry for entry in plan.audits if not entry.confirms}
    messages = []
    for entry in plan.audits:
        fresh = seeds(units[key] for key in entry.trainings)
        if not entry.confirms:
            continue
        before = first[entry.confirms]
        messages += [f"first seed {seed}" for seed in sorted(fresh & seeds(units[key] for key in before.trainings))]
        scores = ("score_runs", "locate")
        search_units = (
            {unit.key for unit in entry.units if unit.function_name not in scores}
            - set(entry.trainings)
            - set(entry.tallies)
        )
        messages += [f"new: {units[key].label}" for key in sorted(search_units - before.keys)]
    return messages


def test_a_confirmatory_run_has_the_tables_of_the_first_pass_and_calls_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mechanism, rows = function_on_rows(right_sum, SCHEMA, claim=1.0)
    spec = check_spec(CheckRequest(mechanism, rows), CheckOptions(run=HERE))
    plan = make_plan(spec)
    assert sum(bool(entry.confirms) for entry in plan.audits) == 3  # rows of the schema, rows beyond it, and low digits
    assert not reused(plan)
    planned = planning._plan_audit

    def with_the_first_seed(spec: Any, audit: Any, parts: Any, seed: Any, *rest: Any) -> Any:
        return planned(spec, audit, parts, Seed(spec.seed), *rest)

    monkeypatch.setattr(planning, "_plan_audit", with_the_first_seed)
    assert any(words.startswith("first seed") for words in reused(make_plan(spec)))


def slow_for_one_row(rows: Any, rng: np.random.Generator) -> int:
    """An honest count that takes a millisecond longer where a person is 100 years old."""
    time.sleep(0.001 * bool((rows["age"] == 100).any()))
    return len(rows) + int(rng.geometric(0.632) - rng.geometric(0.632))


def test_time_counts_only_where_it_is_asked_for(tmp_path: Path) -> None:
    for timed, expected in ((False, Verdict.NO_VIOLATION), (True, Verdict.VIOLATION)):
        output = tmp_path / str(timed)
        asked_for = {"claim": 1.0, "schema": {"age": (0, 100)}, "quiet": True, "run": HERE}
        report = check(slow_for_one_row, time=timed, output=output, **asked_for)
        assert joint(report) is expected
        assert ("time: true" in (output / "spec.yaml").read_text()) is timed


@pytest.mark.parametrize("python", ["", sys.executable])
def test_a_timed_call_has_one_number_more(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    lengths = []
    for timed in (False, True):
        mechanism, rows = function_on_rows(
            "elsewhere:count", SCHEMA, claim=1.0, form="records", python=python, folder=str(tmp_path), time=timed
        )
        (outcome,) = mechanism.outcomes(rows.load(seed=0).cells, [3], {}, CallLimits())
        lengths.append(len(outcome.numbers))
    assert lengths[1] == lengths[0] + 1


# Claims


@pytest.mark.parametrize(
    ("value", "epsilon", "delta"),
    [(2, 2.0, 0.0), ((1.0, 1e-5), 1.0, 1e-5), ("1", 1.0, 0.0), ("1, 1e-5", 1.0, 1e-5), ("epsilon=3", 3.0, 0.0)],
)
def test_claims_in_words(value: Any, epsilon: float, delta: float) -> None:
    claim = parse_claim(value, Relation.REPLACE)
    assert (claim.epsilon, claim.delta, claim.relation) == (epsilon, delta, Relation.REPLACE)


@pytest.mark.parametrize("options", [{"claim": 1}, {"claim": "rho=0.5"}, {}, {"form": "list"}])
def test_a_function_without_a_schema_is_told_to_give_one(options: dict[str, Any]) -> None:
    for mechanism in (stated, "tests.engine.test_row_function:stated")[: 2 if options else 1]:
        with pytest.raises(
            SpecError, match=r"schema.* Give `schema`, the values .* schema=\{'age': \(0, 100\)"
        ) as refused:
            dpaudit.check(mechanism, quiet=True, **options)
        assert (
            "got stated without" in str(refused.value)
            if mechanism is stated
            else "got stated" not in str(refused.value)
        )


def test_a_claim_has_a_run_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders: list[Path] = []
    monkeypatch.setattr("dpaudit.engine.run.checking.audit", lambda spec, *, output, **_: folders.append(output))
    monkeypatch.setattr("dpaudit.engine.run.checking.with_wall_time", lambda began, report: report)
    for claim in (
        1.0,
        2.0,
        (1.0, 1e-5),
        "mu=1",
        Claim(1.0, relation=Relation.ADD_REMOVE),
        Claim(2.0, 1e-5, Relation.ADD_REMOVE),
    ):
        check(right_sum, claim=claim, schema=SCHEMA, quiet=True)
    check(stated, schema=SCHEMA, quiet=True)
    check(stated, schema=SCHEMA, quiet=True, claim=1.0, name="mine")
    assert len(set(folders)) == len(folders)
    starts = ("check-right-sum-1-0", "check-stated", "mine")
    assert all(folder.name.startswith(start) for folder, start in zip((folders[0], *folders[-2:]), starts, strict=True))


def test_an_estimator_is_told_how_to_be_wrapped() -> None:
    from sklearn.linear_model import LogisticRegression

    for claim in (None, 1.0, Claim(1.0)):
        with pytest.raises(SpecError, match=r"scikit-learn estimator LogisticRegression.*dpaudit\.from_sklearn\("):
            check(LogisticRegression(), claim=claim, quiet=True)
    with pytest.raises(SpecError, match=r"did you mean 'lp-1st'\?"):
        check("LP-1s", quiet=True)


def test_claims_that_are_curves() -> None:
    assert parse_claim("mu=1, delta=1e-6", Relation.REPLACE).curve == GaussianDP(1.0)
    zcdp = parse_claim("rho=0.5", Relation.ADD_REMOVE)
    # The usual conversion, rho + 2 sqrt(rho log(1 / delta)), is never below ours.
    assert 0 < zcdp.epsilon <= 0.5 + 2 * np.sqrt(0.5 * np.log(1e5))
    assert zcdp.curve.renyi(7.0) == pytest.approx(3.5)


@pytest.mark.parametrize("value", ["", "x", "rho=1, mu=1", "1, 2, 3, 4", [1], None, "rho=a"])
def test_claims_that_are_none(value: Any) -> None:
    with pytest.raises(AuditError):
        parse_claim(value, Relation.REPLACE)


def stated(rows: Any, rng: np.random.Generator, epsilon: float = 0.7, delta: float = 1e-6) -> int:
    return 0


class Sums:
    """A callable object that holds its noise."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, rows: Any, rng: np.random.Generator) -> int:
        return int(np.ceil(_ages(rows)).sum()) + _geometric(rng, self.scale)


def total(rows: Any, rng: np.random.Generator, scale: float = 100, epsilon: float = 1.0) -> int:
    return Sums(scale / epsilon)(rows, rng)


too_little = functools.partial(total, scale=20)
an_object = Sums(20)
CALLABLE = [too_little, an_object, an_object.__call__, functools.partial(Sums(100)), f"{__name__}:too_little"]


@pytest.mark.parametrize("function", [an_object, *too(too_little, an_object.__call__)])
def test_whatever_can_be_called_is_checked(function: Callable[..., Any], tmp_path: Path) -> None:
    assert joint(checked(function, tmp_path)) is Verdict.VIOLATION


def test_what_can_be_called_may_be_named_and_a_spec_never_names_another() -> None:
    mechanisms = [OwnFunction(function, Claim(1.0)) for function in (*CALLABLE, f"{__name__}:an_object")]
    named = [location(mechanism.function) for mechanism in mechanisms]
    of_objects = f"{__name__}:Sums.<object>.__call__"
    assert named == [f"{__name__}:total", *[of_objects] * 3, f"{__name__}:total", of_objects]
    assert mechanisms[0].settings == mechanisms[4].settings == {"scale": [20]}
    with pytest.raises(InputError, match="must name a class or function"):  # not the same method of no object
        OwnFunction(of_objects)


def test_a_check_is_named_after_what_is_called() -> None:
    mechanisms = [OwnFunction(function, Claim(1.0, relation=Relation.REPLACE)) for function in CALLABLE]
    specs = [
        check_spec(CheckRequest(mechanism, SchemaRows(SCHEMA)), CheckOptions(run=HERE)) for mechanism in mechanisms
    ]
    assert [spec.name for spec in specs] == ["check total", *["check Sums"] * 3, "check total"]


def test_claims_about_zero_out_neighbours_are_tested_by_replaced_rows_at_twice_the_epsilon() -> None:
    mechanism, rows = function_on_rows(right_sum, SCHEMA, claim=1.0, relation="zero-out")
    plan = make_plan(check_spec(CheckRequest(mechanism, rows), CheckOptions(run=HERE)))
    audits = [planned.audit for planned in plan.audits]
    assert {audit.game.traits.relation for audit in audits} == {Relation.REPLACE}
    assert claim_under(mechanism.claim(), Relation.REPLACE).claim.epsilon == 2


def test_objects_that_hold_other_numbers_share_no_results() -> None:
    rows = SchemaRows(SCHEMA)
    keys = []
    for scale in (20, 100):
        mechanism, _ = function_on_rows(Sums(scale), SCHEMA, claim=1.0)
        plan = make_plan(check_spec(CheckRequest(mechanism, rows), CheckOptions(run=HERE)))
        keys.append({unit.key for unit in plan.units if unit.function_name in ("try_pairs", "make_runs")})
    assert keys[0]
    assert not keys[0] & keys[1]


def test_the_keywords_of_a_partial_are_settings() -> None:
    mechanism, _ = function_on_rows(
        functools.partial(total, epsilon=2.0, scale=[1, 2]), SCHEMA, settings={"scale": [3, 4]}
    )
    assert mechanism.claim().epsilon == 2.0
    assert mechanism.alternatives() == [{"epsilon": 2.0, "scale": 3}, {"epsilon": 2.0, "scale": 4}]
    assert OwnFunction(functools.partial(total, scale=[1, 2])).alternatives() == [{"scale": (1, 2)}]
    with pytest.raises(InputError, match="keyword arguments only"):
        OwnFunction(functools.partial(total, None))


def test_a_function_that_fails_alike_on_all_tables_is_refused_before_anything_runs() -> None:
    def typo(rows: Any, rng: np.random.Generator) -> float:
        return float(rows["agee"].sum() + rng.laplace())

    def few(rows: Any, rng: np.random.Generator) -> float:
        return float(rows["age"].iloc[:2].sum() + rng.laplace()) if len(rows) < 3 else 1 / 0

    def with_a_limit(rows: Any, rng: np.random.Generator) -> list[float]:
        return [float(len(rows) + rng.laplace()), np.inf]  # a fault in each call, and noisy numbers beside it

    for function, runs in ((typo, False), (few, True), (with_a_limit, True)):
        mechanism, rows = function_on_rows(function, SCHEMA, claim=1.0)
        if runs:
            seconds, numbers = call_cost(mechanism, rows.load(seed=0), Relation.ADD_REMOVE)
            assert seconds > 0
            assert numbers >= 1
            continue
        with pytest.raises(SpecError, match=r"rows of its schema \(age.*It failed on all .* tables: KeyError: 'agee'"):
            call_cost(mechanism, rows.load(seed=0), Relation.ADD_REMOVE)


def test_calls_are_timed_on_whole_tables() -> None:
    sizes: list[int] = []

    def count_rows(rows: Any, rng: np.random.Generator) -> int:
        sizes.append(len(rows))
        return 0

    mechanism, rows = function_on_rows(count_rows, SCHEMA, claim=1.0)
    seconds, numbers = call_cost(mechanism, rows.load(seed=0), Relation.ADD_REMOVE)
    assert seconds > 0
    assert numbers == 1
    assert len(set(sizes)) > 3  # the tables of the search, not those of the data alone


def test_a_call_that_does_not_end_is_stopped_and_makes_no_other_call_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.engine.request.timing.FIRST_CALL_S", 0.2)

    def never_ends(rows: Any, rng: np.random.Generator) -> int:
        while True:
            pass

    def ends_with_rows(rows: Any, rng: np.random.Generator) -> int:
        return len(rows) if len(rows) != 51 else never_ends(rows, rng)

    mechanism, rows = function_on_rows(never_ends, SCHEMA, claim=1.0)
    with pytest.raises(SpecError, match=r"a call must end within 0\.2 s under this budget\. .* endless loop"):
        call_cost(mechanism, rows.load(seed=0), Relation.ADD_REMOVE)
    with pytest.raises(SpecError, match=r"within 0\.5 s"):
        call_cost(mechanism, rows.load(seed=0), Relation.ADD_REMOVE, "", None, 50.0)
    mechanism, rows = function_on_rows(ends_with_rows, SCHEMA, claim=1.0)
    seconds, _ = call_cost(mechanism, rows.load(seed=0), Relation.ADD_REMOVE)
    assert seconds < 0.1


def test_units_are_short_where_a_call_gives_many_numbers() -> None:
    choices = [PlannedTest("row-function", test) for test in RowFunctionGame.traits.check_tests]
    for numbers, stack in ((1, None), (8_192, None), (8_193, 1_024), (65_664, 128), (1 << 30, 2)):
        for choice in choices:
            assert choice.with_result_size(numbers).test.game.get("stack") == stack


def test_the_claim_that_the_code_states() -> None:
    mechanism, _ = function_on_rows(stated, SCHEMA)
    assert mechanism.claim() == Claim(0.7, 1e-6, Relation.ADD_REMOVE)
    mechanism, _ = function_on_rows(stated, SCHEMA, settings={"epsilon": 2.0, "delta": 0.0}, relation="replace")
    assert mechanism.claim() == Claim(2.0, relation=Relation.REPLACE)
    with pytest.raises(SpecError, match="a function must have a claim"):
        function_on_rows(right_sum, SCHEMA)


# What does not fit


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": {}}, "at least one column"),
        ({"schema": {"age": (1, 0)}}, "low must be at most high"),
        ({"schema": {"age": "old"}}, "two numbers"),
        (
            {"relation": "label"},
            "neighbours: row-function: for claims about add-remove or replace or zero-out neighbours$",
        ),
        ({"form": "table"}, "form"),
        ({"settings": {"nothing": 1}}, "nothing"),
        ({"settings": {"scale": []}}, "settings must come to"),
        ({"python": "/no/python", "function": "a:b"}, "must be a Python that can be started"),
        ({"python": sys.executable}, "module:name"),
        ({"python": sys.executable, "function": "no_such_module:f"}, "no_such_module"),
        ({"claim": "rho=0"}, "must be > 0"),
        ({"strict": "everything"}, "strict must name floating-point, beyond-schema or all, got 'everything'"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"function": noisy, "claim": 1.0, "schema": SCHEMA, **change}
    with pytest.raises(AuditError, match=words) as caught:
        check(arguments.pop("function"), output=tmp_path / "run", quiet=True, run=HERE, **arguments)
    assert "\n" not in str(caught.value)


def test_settings_of_a_command_line() -> None:
    settings = parse_settings("bounds_X=(0,1);fit_intercept=true,false;name='a,b',c; n = 1, 2.5 ;none=null")
    assert settings == {
        "bounds_X": [(0, 1)],
        "fit_intercept": [True, False],
        "name": ["a,b", "c"],
        "n": [1, 2.5],
        "none": [None],
    }
    with pytest.raises(SpecError, match="settings must be like"):
        parse_settings("bounds")


def test_pairs_with_each_of_the_settings_are_offered() -> None:
    mechanism = OwnFunction(
        noisy, Claim(1.0, relation=Relation.REPLACE), settings={"exact": [False, True], "scale": 2.0}
    )
    rows = SchemaRows(SCHEMA).load(seed=3)
    for beyond in (False, True):
        game = RowFunctionGame(relation=Relation.REPLACE, group=1, beyond=beyond)
        every = list(game.pairs(mechanism, (rows,), np.random.default_rng(0)))
        assert len({pair.name for pair in every}) == len(every)
        assert {pair.settings for pair in every} == {0, 1}
        assert all(pair.d.num_rows == pair.d_prime.num_rows for pair in every)
        assert all(pair.d.schema == pair.d_prime.schema for pair in every)


def test_a_check_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from dpaudit.engine.cli.main import main

    (tmp_path / "mine_own.py").write_text("def count(rows, rng):\n    return len(rows)\n")
    (tmp_path / "schema.yaml").write_text("age: [0, 100]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["check", "mine_own:count", "--schema", "schema.yaml", "--claim", "1", "--form", "list", "--runner"]
    result = CliRunner().invoke(
        main, [*arguments, "in-process", "-o", os.fspath(tmp_path / "run"), "--fail-on-violation"]
    )
    assert "VIOLATION" in result.output, result.output
    refused = CliRunner().invoke(main, ["check", "mine_own:count", "--claim", "1"])
    assert "the option --schema '{age: [0, 100]}'" in refused.output


def test_rows_keep_their_cells() -> None:
    rows = SchemaRows({"x": (0.0, 1.0)}, rows=4).load(seed=1)
    assert rows.take([3, 0]).cells.equals(rows.cells.take(pa.array([3, 0])))
    assert rows.take(np.array([True, False, False, True])).cells.num_rows == 2
    assert rows.digest != rows.take([0]).digest
    assert RowFunctionGame(group=2).for_claim(Claim(1.0, relation=Relation.REPLACE)).traits.relation is Relation.REPLACE
    with pytest.raises(InputError, match="group must be >= 1"):
        RowFunctionGame(group=0)
