"""Membership in a generator's table: valid bounds, power against leaks, and tables that leak no coin themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpaudit
from dpaudit import Audit, AuditSpec, Claim, Relation, RunOptions
from dpaudit.actors.seed import Seed
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.data.table_rows import SchemaRows
from dpaudit.engine.request.check import CheckOptions, CheckRequest, check_spec
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome, TableRows
from dpaudit.synthetic_tables.games import membership
from dpaudit.synthetic_tables.games.membership import (
    TableMembershipGame,
    TargetRecord,
    draw_table,
)
from dpaudit.synthetic_tables.games.record_view import Pool
from dpaudit.synthetic_tables.mechanisms.fitted_tables import CopiedRows
from dpaudit.synthetic_tables.mechanisms.independent_marginals import IndependentMarginals
from tests.engine.pair_source_kit import played_scores

SCHEMA: dict[str, Any] = {"x": (0, 9), "w": ["a", "b", "c"]}
QUICK = RunOptions("in-process", figures=False, repeats=0)
ALL = Partition(target=1.0, reference=0.0, test=0.0)
RELATIONS = pytest.mark.parametrize("replaces", [False, True])


def pool(rows: int = 60) -> TableRows:
    """Return rows that are alike except for the last one."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.integers(0, 4, rows), "w": rng.choice(["a", "b"], rows)})
    frame.loc[rows - 1, "x"], frame.loc[rows - 1, "w"] = 9, "c"
    loaded = dpaudit.rows(frame, SCHEMA).load()
    assert isinstance(loaded, TableRows)
    return loaded


def bound(mechanism: Any, data: TableRows, *, fits: int, seed: int = 0, replaces: bool = False, **fields: Any) -> float:
    """Return the 95 % bound of an audit with `fits` shadow fits and as many fresh fits."""
    relation = Relation.REPLACE if replaces else Relation.ADD_REMOVE
    game = TableMembershipGame(trials=fits, search=fits, stack=fits, relation=relation, **fields)
    scores = played_scores(game, mechanism, data, attack=OutputSet(classifiers=("linear",)), seed=seed)
    estimator = FairCoins()
    return float(estimator.bound([estimator.tally(scores)]).lower)


# ------------------------------------------------------------------------------------------------- tables and coins


@RELATIONS
def test_tables_of_both_coins_differ_in_the_record_alone(replaces: bool) -> None:
    rows, target = Pool(pool()), TargetRecord(59, 10)
    for number in range(20):
        with_record, without = (
            draw_table(rows, target, coin, Seed(number), replaces=replaces) for coin in (True, False)
        )
        inside, outside = with_record.table.to_pylist(), without.table.to_pylist()
        assert with_record.others.equals(without.others)
        assert len(with_record.others) == 9
        assert len(outside) == 10 - (not replaces)
        (at,) = (place for place, row in enumerate(inside) if row == {"x": 9, "w": "c"})
        assert inside[:at] == outside[:at]
        assert inside[at + 1 :] == outside[at + replaces :]
        assert {"x": 9, "w": "c"} not in outside


@RELATIONS
def test_row_order_and_row_count_tell_nothing(replaces: bool) -> None:
    """The record has any place, and all other rows of the pool are fit_table equally often."""
    rows, target = pool(), TargetRecord(59, 5)
    # Numbered rows, to tell them apart.
    numbered = replace(rows, cells=pa.table({"x": np.arange(60), "w": ["a"] * 60}, schema=rows.schema.arrow()))
    tables = [draw_table(Pool(numbered), target, True, Seed(seed), replaces=replaces) for seed in range(3_000)]
    places = Counter(fit_table.table["x"].to_pylist().index(59) for fit_table in tables)
    assert set(places) == set(range(5))
    assert min(places.values()) > 500
    others = Counter(row for fit_table in tables for row in fit_table.others["x"].to_pylist())
    assert set(others) == set(range(59))
    assert min(others.values()) > 140
    assert max(others.values()) < 270


def test_every_fit_of_an_average_record_has_another_record() -> None:
    rows, target = Pool(pool()), TargetRecord(-1, 5)
    assert len({draw_table(rows, target, True, Seed(seed), replaces=False).record for seed in range(300)}) > 55


def test_the_outlier_is_the_farthest_row() -> None:
    game, rows, rng = TableMembershipGame(), (pool(),), np.random.default_rng(0)
    (target,) = game.pairs(None, rows, rng)
    assert target == TargetRecord(59, 30)
    (note,) = game.notes(NoisyCount(1.0), rows, [target], 1, None)
    assert "row 59" in note
    assert "x=9, w=c" in note
    assert list(replace(game, row=3).pairs(None, rows, rng)) == [TargetRecord(3, 30)]


def test_an_outlier_may_have_missing_cells() -> None:
    frame = pd.DataFrame({"x": [1.0, 1.1, 1.2, np.nan, 1.05], "w": ["a", "a", "a", None, "a"]})
    loaded = dpaudit.rows(frame).load()
    assert isinstance(loaded, TableRows)
    assert Pool(loaded).outlier() == 3
    closeness = Pool(loaded).around(3).closeness(loaded.cells)
    assert closeness.nearest[0] == 0
    assert closeness.counts[:2].tolist() == [1, 1]


# --------------------------------------------------------------------------------------------------------- validity


class Function:
    """A function on rows that knows its claim."""

    def claim(self) -> Claim:
        return Claim(1.0)

    def alternatives(self) -> Sequence[Mapping[str, Any]]:
        return ({},)


@dataclass(frozen=True)
class RowOrder(Function):
    """Returns the first row and the number of rows, and no other."""

    def outcomes(
        self, rows: pa.Table, seeds: Sequence[int], settings: Mapping[str, Any], limits: CallLimits
    ) -> Sequence[CallOutcome]:
        numbers = np.array([float(len(rows)), *(float(value) for value in rows["x"].to_pylist()[:1])])
        return [CallOutcome("numbers", numbers) for _ in seeds]


def test_a_function_of_row_count_is_seen_under_add_remove_and_not_under_replace() -> None:
    rows = pool()
    rows = replace(rows, cells=pa.table({"x": [1] * 60, "w": ["a"] * 60}, schema=rows.schema.arrow()))
    bounds = [
        bound(RowOrder(), rows, rows=10, replaces=replaces, knows_others=False, row=0, fits=200)
        for replaces in (False, True)
    ]
    assert bounds[0] > 3
    assert bounds[1] == 0


@dataclass(frozen=True)
class NoisyCount(Function):
    """Returns the number of rows with the word c, with Laplace noise of exact epsilon."""

    epsilon: float

    def outcomes(
        self, rows: pa.Table, seeds: Sequence[int], settings: Mapping[str, Any], limits: CallLimits
    ) -> Sequence[CallOutcome]:
        count = rows["w"].to_pylist().count("c")
        noise = [np.random.default_rng(seed).laplace(scale=1 / self.epsilon, size=1) for seed in seeds]
        return [CallOutcome("numbers", count + each) for each in noise]


def test_bounds_rarely_exceed_an_exact_epsilon() -> None:
    """More than 6 of 30 audits at 95 % exceed the truth with probability 0.001; hardly any noise is always seen."""
    fields: dict[str, Any] = {"rows": 12, "row": 59, "fits": 60}
    bounds = [bound(NoisyCount(0.05), pool(), seed=seed, **fields) for seed in range(30)]
    assert sum(lower > 0.05 for lower in bounds) <= 6
    assert all(bound(NoisyCount(10.0), pool(), seed=seed, **fields) > 1 for seed in range(2))


# ------------------------------------------------------------------------------------------------------------ power


def test_copied_rows_give_an_outlier_away_more_than_an_average_record() -> None:
    copies = CopiedRows(SCHEMA, share=0.9)  # of 30 rows, so that the record is in a table with probability 0.6
    outlier = bound(copies, pool(), rows=30, row=59, fits=250)
    average = bound(copies, pool(), rows=30, target="average", fits=250)
    assert outlier > average + 0.4


def test_an_attack_that_knows_the_other_rows_sees_more() -> None:
    rows = pool(200)
    generator = IndependentMarginals(4.0, SCHEMA, count=60, bins=5)
    informed, uninformed = (
        bound(generator, rows, rows=60, row=4, knows_others=knows, fits=200, seed=1) for knows in (True, False)
    )
    # The noisy counts add up to the number of rows, which both know.
    assert informed > uninformed + 0.7


# -------------------------------------------------------------------------------------------------------- whole runs


def test_an_audit_reports_record_and_utility(tmp_path: Path) -> None:
    data = dpaudit.rows(pool(150).cells)
    game = TableMembershipGame(trials=120, search=120, rows=20)
    mechanism = IndependentMarginals(4.0, SCHEMA, noise_factor=0.1)
    split = Partition(target=0.8, reference=0.0, test=0.2)
    audit = Audit(mechanism=mechanism, data=data, game=game, attack=OutputSet(("linear",)), split=split)
    spec = AuditSpec((audit,), run=QUICK)
    report = dpaudit.audit(spec, output=tmp_path / "run", quiet=True)
    (result,) = report.results
    assert result.epsilon > 0.5
    text = " ".join(result.chosen)
    assert "target record" in text
    assert "schema was inferred" in text
    assert {"mean_two_way_distance", "real_mean_two_way_distance", "test_accuracy"} <= set(result.metrics)
    assert result.claimed.relation is Relation.ADD_REMOVE


def test_functions_on_rows_are_audited_too(tmp_path: Path) -> None:
    mechanism = OwnFunction(noisy_count, Claim(8.0, relation=Relation.REPLACE))
    data = dpaudit.rows(pool().cells, SCHEMA)
    game = TableMembershipGame(trials=150, search=150, rows=20)
    audit = Audit(mechanism=mechanism, data=data, game=game, split=ALL, attack=OutputSet(("linear",)))
    spec = AuditSpec((audit,), run=QUICK)
    (result,) = dpaudit.audit(spec, output=tmp_path / "run", quiet=True).results
    assert result.epsilon > 1
    assert result.claimed.relation is Relation.REPLACE


def noisy_count(rows: Any, rng: np.random.Generator) -> float:
    return float((rows["w"] == "c").sum() + rng.laplace(scale=0.3))


# ---------------------------------------------------------------------------------------------------- specs and check


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"rows": 1}, "rows must be >= 2"), ({"row": -1}, "row must be >= 0"), ({"relation": Relation.LABEL}, "relation")],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TableMembershipGame(**fields)


@pytest.mark.parametrize("fields", [{"rows": 60}, {"row": 60}])
def test_a_pool_that_is_too_small_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    mechanism, data = CopiedRows(SCHEMA), dpaudit.rows(pool().cells, SCHEMA)
    spec = AuditSpec((Audit(mechanism=mechanism, data=data, game=TableMembershipGame(**fields), split=ALL),))
    with pytest.raises(SpecError, match="must have more rows than a table"):
        dpaudit.audit(spec, output=tmp_path, quiet=True)


def test_check_plays_it_with_rows_of_the_user_only() -> None:
    mechanism = IndependentMarginals(1.0, SCHEMA)
    with_rows = check_spec(CheckRequest(mechanism, dpaudit.rows(pool().cells, SCHEMA)), CheckOptions())
    names = [audit.name for audit in with_rows.audits]
    assert {"table-membership, outlier", "table-membership, average"} <= set(names)
    generated = check_spec(CheckRequest(mechanism, SchemaRows(SCHEMA)), CheckOptions())
    assert not [audit.name for audit in generated.audits if "membership" in audit.name]
    assert membership.TABLE_GENERATORS.protocol in {
        test.capability.protocol for test in TableMembershipGame.traits.check_tests
    }
