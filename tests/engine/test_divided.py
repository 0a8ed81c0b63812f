"""Bounds computed in parts, as units of the run, equal those that the driver computes, digit by digit."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import GenericAlias, SimpleNamespace
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest

from dpaudit import audit, load_spec
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import decode, encode
from dpaudit.actors.work import Work, make_call, unit
from dpaudit.engine.games import two_worlds
from dpaudit.engine.planning import plan
from dpaudit.engine.planning.plan import PlannedAudit, bound_part, make_plan
from dpaudit.engine.run.policy import Policy
from dpaudit.estimators.estimator import CellBounds, Estimator
from dpaudit.estimators.one_run import guess_band
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.order_statistics import OneRunOrderStatistics
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunFDP, OneRunTheorem16
from dpaudit.estimators.private_prediction.answers_estimator import AnsweredQuery, Answers, Cut
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import AsPublished, Bonferroni, Grid
from dpaudit.estimators.two_world.confusion_tables import Bayesian, ClopperPearson, Jeffreys
from dpaudit.estimators.two_world.ratio import KatzLog
from dpaudit.estimators.two_world.two_sample import TwoSampleTally
from dpaudit.mechanisms.compute import Compute
from dpaudit.registry import catalogue, load

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


def as_plain(bound: Any) -> str:
    """Return all fields of a bound with all their digits."""
    with np.printoptions(threshold=10**6, precision=17, floatmode="unique"):
        return repr((bound, dict(bound.series), getattr(bound, "evidence", ())))


ONE = Resources()


@unit
def nothing() -> Iterator[Any]:
    """Stand in for a unit that counts."""
    return iter(())


def counting_units(kind: Any, keys: Iterable[str]) -> dict[str, Unit]:
    """Return units that counted tallies of class `kind`, by key."""
    call = make_call(nothing, returns=GenericAlias(list, kind))
    return {key: Unit(call, "", key=key) for key in keys}


def answered(query: int) -> AnsweredQuery:
    rng = np.random.default_rng(query)
    worlds = (rng.multinomial(2_000, law) for law in ([0.5, 0.3, 0.2], [0.35, 0.4, 0.25]))
    return AnsweredQuery(query, *worlds, np.array([True, False, False]))


TWO_WORLDS: tuple[Any, ...] = (
    *(
        kind(1e-3, selection=selection)
        for kind in (Bayesian, ClopperPearson, Jeffreys, KatzLog)
        for selection in (AsPublished(), Bonferroni(), Grid())
    ),
    KatzLog(1e-3, selection=Bonferroni(), group=3),
)
ONE_RUNS: tuple[Any, ...] = (
    OneRun(),
    OneRun(1e-5, selection=AsPublished()),
    OneRun(1e-5, tau=0.01),
    OneRun(guess="any-tail"),
    OneRunTheorem16(1e-5),
    OneRunFDP(1e-5, selection=AsPublished()),
    OneRunOrderStatistics(),
    SimultaneousGuessCount(),
    SimultaneousGuessCount(1e-3),
    SimultaneousGuessCount(guess="any-tail"),
    SimultaneousGuessCount(1e-6, sharing=50),
)
ANSWERS: tuple[Any, ...] = tuple(Answers(cut=cut) for cut in get_args(Cut))
UNDIVIDED = {
    "band",
    "band-family",
    "bayesian-posterior",
    "betting",
    "coin-averages",
    "fair-coins",
    "discoverable-extraction",
    "exposure",
    "k-cut",
    "label-advantage",
    "random-subset",
    "rare-canaries",
    "ratio",
    "reconstruction",
    "snapshot",
    "step-martingale",
    "two-cut",
    "two-samples",
    "verbatim-extraction",
}
"""Estimators without parts, which take about a second or less (docs/developers/architecture.md)."""


def name_of(estimator: Any) -> str:
    """Return the registered name with the fields that are short to print."""
    values = [str(getattr(estimator, name, "")) for name in ("delta", "cut", "guess", "tau", "group")]
    return " ".join([estimator.registered_name, type(getattr(estimator, "selection", None)).__name__, *values])


def evidence_of(estimator: Any, piece: int) -> Any:
    if estimator in ANSWERS:
        return answered(piece)
    return scores(piece, rows=200 if isinstance(estimator, OneRunOrderStatistics) else 300)


def test_every_registered_estimator_has_parts_or_is_known_to_be_fast() -> None:
    tested = {estimator.registered_name for estimator in (*TWO_WORLDS, *ONE_RUNS, *ANSWERS)}
    assert tested | UNDIVIDED == set(catalogue("estimator"))
    assert not tested & UNDIVIDED
    for name in UNDIVIDED:
        kind = load("estimator", name)
        assert getattr(kind, "part_type", None) in (None, CellBounds)
        if issubclass(kind, Estimator):
            estimator = kind(rate=0.01) if name == "rare-canaries" else kind()
            assert estimator.seconds(1, 1_000_000) < plan.WORTH_S


@pytest.mark.parametrize("estimator", [*TWO_WORLDS, *ONE_RUNS, *ANSWERS], ids=name_of)
def test_bounds_in_parts_have_the_same_digits(estimator: Any) -> None:
    kind = estimator.tally_type
    pieces = [estimator.tally(evidence_of(estimator, piece)) for piece in range(6)]
    stored = {str(at): encode(pieces[2 * at : 2 * at + 2][::-1], kind) for at in range(3)}
    again = {key: decode(table, kind) for key, table in stored.items()}
    tallies = [tally for group in again.values() for tally in group]
    whole = estimator.find(tallies, failed_replays=1)
    guess_band.cached_epsilon.cache_clear()  # another worker has no results of this one
    guess_band._step_levels.cache_clear()
    work, counted = Work(), counting_units(kind, stored)
    units = [
        work.add(
            bound_part,
            estimator,
            tuple(counted[key] for key in keys),
            pieces=7,
            share=share,
            shares=shares,
            label="",
            resources=ONE,
            returns=estimator.part_type,
        )
        for keys, shares in ((("2", "0"), 5), (("1",), 3))
        for share in range(shares)
    ]
    tables = {unit.key: unit.task.run(Inputs({}, {key: stored[key] for key in unit.needs}), ALL) for unit in units}
    for plan_units in (units, units[1:], units[5:]):
        parts = found_parts(plan_units, again.keys(), tables.__getitem__)
        assert len(parts) == len(plan_units)
        assert as_plain(estimator.find(tallies, failed_replays=1, parts=parts)) == as_plain(whole)
    assert len(found_parts(units, again.keys() - {"1"}, tables.__getitem__)) == 5, (
        "a part with a missing tally is not used"
    )
    every = found_parts(units, again.keys(), tables.__getitem__)
    fewer = estimator.find(tallies, failed_replays=2, parts=every)
    assert as_plain(fewer) == as_plain(estimator.find(tallies, failed_replays=2)), "parts of another share of the error"


@pytest.mark.parametrize("estimator", TWO_WORLDS, ids=name_of)
@pytest.mark.parametrize("rows", [300, 40])
def test_thresholds_of_a_single_replay_are_divided(estimator: Any, rows: int) -> None:
    tally = estimator.tally(scores(0, rows=rows))
    whole = estimator.find([tally])
    parts = [estimator.part([tally], pieces=1, share=share, shares=7) for share in range(7)]
    assert sum(part.replay.size for part in parts) == min(7, tally.threshold.size)
    assert as_plain(estimator.find([tally], parts=parts[::-1])) == as_plain(whole)
    assert as_plain(estimator.find([tally], parts=parts[1:])) == as_plain(whole), "an incomplete replay is computed"


def test_of_equal_bounds_the_first_candidate_is_reported() -> None:
    tally = TwoSampleTally(0, 10, 10, np.arange(8.0)[::-1], *np.tile([[2, 9, 9, 3], [2, 1, 1, 3]], 2), 1)
    estimator = ClopperPearson(selection=AsPublished())
    parts = [estimator.part([tally], pieces=1, share=share, shares=4) for share in range(4)]
    ((number, (_, candidate, _)),) = CellBounds.complete(parts)
    assert (number, candidate) == (0, 1)
    assert as_plain(estimator.find([tally], parts=parts)) == as_plain(estimator.find([tally]))


def test_parts_of_a_guess_band_divide_replays_and_orders_of_guesses() -> None:
    estimator = SimultaneousGuessCount(guess="any-tail")
    tallies = [estimator.tally(scores(replay)) for replay in range(4)]
    parts = [estimator.part(tallies, pieces=4, share=share, shares=4) for share in range(4)]
    cells = {(replay, share) for part in parts for replay, share in zip(part.replay, part.share, strict=True)}
    assert cells == {(replay, order) for replay in range(4) for order in range(3)}
    assert {part.replay.size for part in parts} == {3}
    assert set(parts[0].share) == {0}, "both tails first, then each side alone"


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
    monkeypatch.setattr(Estimator, "part_s", 1e-2)
    monkeypatch.setattr(two_worlds, "MIN_PARALLEL_RUNS", 0)
    first = audit(load_spec(SPEC), output=tmp_path / "divided", quiet=True)
    parts = [unit for entry in make_plan(load_spec(SPEC)).audits for unit in entry.bounds]
    assert {unit.function_name for unit in parts} == {"bound_part"}
    assert [sum(name in unit.label for unit in parts) for name in ("guesses", "thresholds")] == [4, 4]
    labels = make_plan(load_spec(SPEC)).table()["label"].to_pylist()
    assert sum("worth of candidate" in label for label in labels) == 4, "two of them without noise"
    assert bounds(tmp_path / "divided") == bounds(tmp_path / "whole")

    lost_units = parts[-1].key
    (tmp_path / "divided" / "units" / f"{lost_units}.parquet").unlink()
    second = audit(load_spec(SPEC), output=tmp_path / "divided", quiet=True)
    assert (first.executed, second.executed) == (first.units, 1)
    assert bounds(tmp_path / "divided") == bounds(tmp_path / "whole")

    divided = make_plan(load_spec(SPEC))
    store = UnitStore(tmp_path / "divided" / "units")
    keys, parts_of_first = set(divided.audits[0].keys), {unit.key for unit in divided.audits[0].bounds}

    def result_of(finished: set[str], failed: set[str]) -> Any:
        return Policy(divided, store)._result(divided.audits[0], finished, failed)

    assert result_of(keys - parts_of_first, set()) is None, "the policy waits for the parts"
    finding = result_of(keys, set()).finding
    without_parts = result_of(keys - parts_of_first, parts_of_first).finding
    assert as_plain(without_parts) == as_plain(finding), "failed parts are computed again"
