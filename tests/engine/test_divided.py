"""Bounds computed in parts, as units of the run, equal those that the driver computes, digit by digit."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import GenericAlias, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit import audit, load_spec
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import decode, encode
from dpaudit.actors.work import Work, make_call, unit
from dpaudit.engine.games.neighbours import world_scores
from dpaudit.engine.planning import plan
from dpaudit.engine.planning.plan import PlannedAudit, bound_replays, bound_thresholds, make_plan
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunFDP
from dpaudit.estimators.scores import ScoreEstimator, Scores
from dpaudit.estimators.selection import AsPublished, Bonferroni
from dpaudit.estimators.two_world.confusion_tables import Bayesian, ClopperPearson
from dpaudit.mechanisms.compute import Compute

SPEC = {
    "name": "divided",
    "seed": 3,
    "run": {"runner": "in-process", "figures": False},
    "audits": [
        {
            "name": "guesses",
            "mechanism": {"name": "randomized-response", "epsilon": 2.0},
            "data": {"name": "gaussian-mixture", "rows": 600, "classes": 3},
            "proxy": "true-posterior",
            "game": {"name": "label-inference", "replays": 6},
            "split": {"target": 0.5, "reference": 0.4, "test": 0.1},
        },
        {
            "name": "thresholds",
            "mechanism": {"name": "gaussian-naive-bayes", "epsilon": 1.0},
            "data": "iris",
            "game": {"name": "neighbours", "trials": 300, "search": 200, "poisoning": "class-flip"},
            "attack": {"name": "output-set", "classifiers": ["linear", "additive"]},
            "estimator": {"name": "bayesian", "selection": "as-published"},
        },
    ],
}
ALL = Compute(threads=1)


def scores(replay: int, shift: float = 1.5, rows: int = 300) -> Scores:
    rng = np.random.default_rng(replay)
    truth = rng.random(rows) < 0.5
    return Scores(rng.normal(size=rows) + shift * (truth - 0.5), truth, replay)


def as_plain(bound: Bound) -> str:
    """Return all fields of a bound with all their digits."""
    with np.printoptions(threshold=10**6, precision=17, floatmode="unique"):
        return repr((bound, dict(bound.series), bound.evidence))


ONE = Resources()


@unit
def nothing() -> Iterator[Any]:
    """Stand in for a unit that counts."""
    return iter(())


def counting_units(kind: Any, keys: Iterable[str]) -> dict[str, Unit]:
    """Return units that counted tallies of class `kind`, by key."""
    call = make_call(nothing, returns=GenericAlias(list, kind))
    return {key: Unit(call, "", key=key) for key in keys}


@pytest.mark.parametrize(
    "estimator",
    [
        OneRun(),
        OneRun(1e-5, selection=AsPublished()),
        OneRun(1e-5, tau=0.01),
        OneRunFDP(1e-5, selection=AsPublished()),
        SimultaneousGuessCount(),
        SimultaneousGuessCount(1e-3),  # delegates to one-run
    ],
    ids=["grid", "as published with delta", "shift", "f-dp", "guess band", "guess band left to one-run"],
)
def test_bounds_by_replays_give_the_same_digits(estimator: ScoreEstimator[Any]) -> None:
    kind = estimator.tally_type
    stored = {str(part): encode([estimator.tally(scores(2 * part + at)) for at in (1, 0)], kind) for part in range(4)}
    whole = estimator.find([tally for table in stored.values() for tally in decode(table, kind)], failed_replays=1)
    work, counted = Work(), counting_units(kind, stored)
    units = [
        work.add(bound_replays, estimator, tuple(counted[key] for key in keys), replays=9, label="", resources=ONE)
        for keys in (("2",), ("3", "0"), ("1",))
    ]
    tables = {unit.key: unit.task.run(Inputs({}, {key: stored[key] for key in unit.needs}), ALL) for unit in units}
    again = {key: decode(table, kind) for key, table in stored.items()}
    for plan_units in (units, units[1:]):
        parts = found_parts(plan_units, again.keys(), tables.__getitem__)
        assert len(parts) == len(plan_units)
        finding = estimator.find([tally for group in again.values() for tally in group], failed_replays=1, parts=parts)
        assert as_plain(finding) == as_plain(whole), "a missing part is computed"
    assert len(found_parts(units, again.keys() - {"2"}, tables.__getitem__)) == 2, (
        "a part with a missing tally is not used"
    )


@pytest.mark.parametrize(
    "estimator",
    [Bayesian(selection=AsPublished()), ClopperPearson(1e-3, selection=Bonferroni())],
    ids=["bayesian", "clopper-pearson"],
)
@pytest.mark.parametrize("rows", [300, 4])
def test_bounds_by_thresholds_give_the_same_digits(estimator: Any, rows: int) -> None:
    kind = estimator.tally_type
    stored = encode([estimator.tally(scores(0, rows=rows))], kind)
    whole = estimator.find(decode(stored, kind))
    work, counted = Work(), counting_units(kind, ["all"])["all"]
    units = [
        work.add(bound_thresholds, estimator, counted, part=part, parts=7, label="", resources=ONE) for part in range(7)
    ]
    tables: dict[str, pa.Table] = {unit.key: unit.task.run(Inputs({}, {"all": stored}), ALL) for unit in units}
    again = decode(stored, kind)
    for plan_units in (units[::-1], units[2:]):
        parts = found_parts(plan_units, {"all"}, tables.__getitem__)
        assert as_plain(estimator.find(again, parts=parts)) == as_plain(whole)


def found_parts(units: Sequence[Unit], counted: Collection[str], read_table: Callable[[str], pa.Table]) -> list[Any]:
    """Return the parts of the bounds of an audit with these finished units."""
    entry: Any = SimpleNamespace(bounds=units)
    return PlannedAudit.bound_parts(entry, {unit.key for unit in units}, set(counted), read_table)


def bounds(folder: Path) -> list[Any]:
    """Return the results of `bounds.json` without the number of units."""
    report: list[Any] = json.loads((folder / "bounds.json").read_text())["results"]
    return [{name: value for name, value in result.items() if name != "units"} for result in report]


def test_a_run_with_parts_gives_the_same_bounds_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit(load_spec(SPEC), output=tmp_path / "whole", quiet=True)
    assert not any(entry.bounds for entry in make_plan(load_spec(SPEC)).audits), (
        "the driver computes small bounds itself"
    )
    monkeypatch.setattr(plan, "WORTH_S", 0.0)
    monkeypatch.setattr(plan, "PART_S", 1e-4)
    monkeypatch.setattr(world_scores, "MIN_PARALLEL_SAMPLES", 0)
    first = audit(load_spec(SPEC), output=tmp_path / "divided", quiet=True)
    parts = [unit for entry in make_plan(load_spec(SPEC)).audits for unit in entry.bounds]
    assert {unit.function_name for unit in parts} == {"bound_replays", "bound_thresholds"}
    assert len(parts) > 3
    labels = make_plan(load_spec(SPEC)).table()["label"].to_pylist()
    assert sum("worth of candidate" in label for label in labels) == 4, "two of them without noise"
    assert bounds(tmp_path / "divided") == bounds(tmp_path / "whole")

    lost_units = parts[-1].key
    (tmp_path / "divided" / "units" / f"{lost_units}.parquet").unlink()
    second = audit(load_spec(SPEC), output=tmp_path / "divided", quiet=True)
    assert (first.executed, second.executed) == (first.units, 1)
    assert bounds(tmp_path / "divided") == bounds(tmp_path / "whole")
