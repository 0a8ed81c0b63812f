"""Sequential audits: stopped as early as possible, equal on any backend, resumed after an interrupt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow.dataset as pads
import pytest

from dpaudit import Audit, AuditSpec, RunOptions, Verdict, audit, load_spec
from dpaudit.actors.backend import InProcess
from dpaudit.actors.events import Event, EventKind, EventStream, read_events
from dpaudit.actors.schedule import run_units
from dpaudit.actors.seed import Seed
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work, unit
from dpaudit.claims import Claim, Relation
from dpaudit.engine.answer.gather import SequentialReader
from dpaudit.engine.games.protocol import Capability, GameTraits, Played, Setting, StopRule
from dpaudit.engine.games.two_world.views import ChallengeView
from dpaudit.engine.planning.plan import make_plan
from dpaudit.engine.run.driver import report_again
from dpaudit.errors import InputError, SpecError
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import TrainingError
from tests.actors.tasks import Add

pytestmark = pytest.mark.usefixtures("code_read_once")

STACK = 8
REFUTED = StopRule()


@dataclass(frozen=True)
class Leaks:
    """A mechanism that releases the bit times `gap`, plus normal noise of standard deviation 1."""

    gap: float
    fails_at: int = -1

    def claim(self) -> Claim:
        return Claim(1.0, relation=Relation.ADD_REMOVE)


@unit
def play_trials(mechanism: Leaks, *, first: int, last: int, seed: Seed) -> Iterator[Scores]:
    """Play a stack of trials, each with its own coin."""
    if first == mechanism.fails_at:
        raise TrainingError("loss is NaN")
    numbers = np.arange(first, last)
    rngs = [seed.child(int(number)).rng() for number in numbers]
    truth = np.array([rng.random() < 0.5 for rng in rngs])
    score = np.array([rng.normal() for rng in rngs]) + mechanism.gap * truth
    yield scored(0, truth, score, numbers)


@dataclass(frozen=True)
class Coins:
    """A game of independent trials without cost."""

    trials: int = 400  # 50 training units, and 50 that count
    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing.",
        views={Capability(Leaks, "leaks"): ChallengeView},
        attack="loss",
        estimator="betting",
        independent_trials=True,
    )

    def play(self, setting: Setting, work: Work) -> Played:
        seed = setting.seed.child("trials")
        units = work.split(
            play_trials,
            self.trials,
            STACK,
            setting.mechanism,
            seed=seed,
            label="trials",
            resources=setting.resources,
        )
        return Played(units, trainings=units)


def spec(
    gap: float = 4.0,
    *,
    stop: StopRule | None = REFUTED,
    runner: Literal["ray", "in-process"] = "in-process",
    fails_at: int = -1,
) -> AuditSpec:
    entry = Audit(Leaks(gap, fails_at), "iris", Coins(), proxy=None, estimator="betting", stop=stop, name="coins")
    return AuditSpec((entry,), seed=3, run=RunOptions(runner=runner, workers=2))


def finished(folder: Path) -> int:
    return len(list((folder / "units").glob("*.parquet")))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    audit(spec(), output=folder)
    return folder


def test_a_leak_stops_the_audit_and_saves_the_remaining_units(stopped: Path) -> None:
    result = report_again(stopped).results[0]
    assert result.verdict is Verdict.VIOLATION
    assert result.stopped is not None
    assert result.stopped.reason == "the claim is rejected"
    assert result.stopped.planned == 50
    assert result.stopped.trainings <= 10, "about 30 trials are needed"
    assert finished(stopped) == 2 * result.stopped.trainings
    assert not result.failures
    assert f"{50 - result.stopped.trainings} saved" in result.text(verbose=True)
    assert f"{50 - result.stopped.trainings} saved" in (stopped / "report.html").read_text()
    skipped_counts = [
        event.count for event in read_events(stopped / "events.jsonl") if event.kind is EventKind.UNITS_SPARED
    ]
    assert skipped_counts == [100 - finished(stopped)]


def test_the_bound_uses_the_first_sufficient_trials(stopped: Path, tmp_path: Path) -> None:
    """One stack less is not enough, and a stop rule applied after a full run stops at the same trial."""
    audit(spec(stop=None), output=tmp_path)
    assert finished(tmp_path) == 100
    short, full = report_again(stopped).results[0].finding, audit(spec(), output=tmp_path).results[0].finding
    assert short == full
    assert short is not None
    used = dict(short.counts)["trials"]
    rows = pads.dataset(next((tmp_path / "scores").iterdir()), format="parquet").count_rows()
    assert rows == used
    one_less = audit(spec(stop=StopRule(most_trials=used - STACK)), output=tmp_path).results[0]
    assert one_less.comparison is not None
    assert one_less.comparison.observed <= 1.0
    assert one_less.stopped is not None
    assert one_less.stopped.reason == f"the budget of {used - STACK} trials is spent"


def test_an_interrupted_audit_resumes_to_the_same_result(stopped: Path, tmp_path: Path) -> None:
    finished_units = 0

    def interrupt(event: Event) -> None:
        nonlocal finished_units
        finished_units += event.kind is EventKind.UNIT_DONE
        if finished_units == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(spec(), output=tmp_path, listeners=[interrupt])
    half = report_again(tmp_path).results[0]
    assert half.verdict is not Verdict.VIOLATION
    assert half.stopped is not None
    assert half.stopped.reason == ""
    report = audit(spec(), output=tmp_path)
    assert report.executed == finished(stopped) - 5
    assert report.results[0].finding == report_again(stopped).results[0].finding


def test_an_audit_of_a_private_mechanism_runs_to_the_end(tmp_path: Path) -> None:
    result = audit(spec(gap=0.3), output=tmp_path).results[0]
    assert result.verdict is Verdict.NO_VIOLATION
    assert str(result.stopped) == "50 of 50 training units run, 0 saved"


def test_a_requested_bound_stops_the_audit(tmp_path: Path) -> None:
    result = audit(spec(stop=StopRule(refuted=False, epsilon=1.5)), output=tmp_path).results[0]
    assert result.comparison is not None
    assert result.comparison.observed >= 1.5
    assert result.stopped is not None
    assert result.stopped.reason == "the bound reached 1.500"


def test_trials_after_a_failed_unit_are_not_read(tmp_path: Path) -> None:
    """Earlier trials still count: an anytime-valid bound may stop anywhere, but must not skip failures."""
    result = audit(spec(fails_at=2 * STACK), output=tmp_path).results[0]
    assert result.comparison is not None
    assert dict(result.finding.counts)["trials"] == 2 * STACK
    assert result.stopped is not None
    assert result.stopped.reason.startswith("a unit failed")
    assert [failure.label for failure in result.failures] == ["trials 17-24", "counting trials 17-24"]


def test_another_audit_keeps_the_units_it_needs(tmp_path: Path) -> None:
    """Both audits share the trials; the one without a stop rule needs all of them."""
    entry = spec().audits[0]
    both = replace(spec(), audits=(entry, replace(entry, name="all", stop=None)))
    short, full = audit(both, output=tmp_path).results
    assert finished(tmp_path) == 100
    assert short.comparison is not None
    assert full.comparison is not None
    assert dict(full.finding.counts)["trials"] == 400 > dict(short.finding.counts)["trials"]


def test_two_world_games_score_stack_by_stack() -> None:
    entry = {
        "data": "digits",
        "mechanism": {"name": "non-private", "model": {"name": "mlp"}},
        "game": {"name": "ind-mia", "trials": 100, "stack": 8},
        "attack": "loss",
        "estimator": "betting",
        "claim": {"epsilon": 1.0, "relation": "add-remove"},
    }
    together, by_stack = (make_plan(load_spec({**entry, **more})) for more in ({}, {"stop": {"epsilon": 2}}))
    assert len(together.audits[0].scores) == 1
    assert len(by_stack.audits[0].scores) == len(by_stack.audits[0].trainings) == 13
    assert {unit.key for unit in together.units if "training" in unit.label} <= {unit.key for unit in by_stack.units}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimator": "band"}, "stop needs `estimator: betting`"),
        ({"game": "membership", "claim": {"epsilon": 1, "relation": "add-remove"}}, "a game of independent trials"),
        ({"stop": {"refuted": False}}, "must name at least one of"),
        ({"stop": {"epsilon": 0}}, "epsilon of a stop rule must be > 0, got 0"),
        ({"stop": {"most_trials": 1}}, "most_trials of a stop rule must be >= 2, got 1"),
        ({"stop": {"trials": 1}}, "no field 'trials'"),
    ],
)
def test_an_invalid_stop_rule_is_refused(change: dict[str, object], message: str) -> None:
    entry = {
        "data": "iris",
        "mechanism": {"name": "non-private"},
        "game": "ind-mia",
        "estimator": "betting",
        "stop": {"refuted": True},
        "claim": {"epsilon": 1, "relation": "add-remove"},
    }
    with pytest.raises((SpecError, InputError), match=message):
        load_spec({**entry, **change})


def test_the_scheduler_skips_unneeded_units(tmp_path: Path) -> None:
    """Running units finish, waiting units are not started. Dependents of finished units go first."""
    firsts = [Unit(Add(number), f"first {number}") for number in range(5)]
    seconds = [Unit(Add(10 * number), f"second {number}", needs=(firsts[number].key,)) for number in range(5)]
    collected: list[Event] = []

    def skip(finished: Any, failed: Any) -> Any:
        return {unit.key for unit in (*firsts, *seconds)} if seconds[1].key in finished else frozenset()

    outcome = run_units(
        [*firsts, *seconds], InProcess({}), UnitStore(tmp_path), EventStream(collected.append), skip=skip
    )
    started = [event.label for event in collected if event.kind is EventKind.UNIT_STARTED]
    assert started == ["first 0", "second 0", "first 1", "second 1"]
    assert outcome.skipped == {unit.key for unit in (*firsts[2:], *seconds[2:])}
    assert not outcome.failed


def test_a_test_that_is_unlikely_to_reject_stops_half_way(tmp_path: Path) -> None:
    result = audit(spec(0.0, stop=StopRule(hopeless=True)), output=tmp_path).results[0]
    assert result.verdict is not Verdict.VIOLATION
    assert result.stopped is not None
    assert "unlikely" in result.stopped.reason
    assert 25 <= result.stopped.trainings < 50
    leaking = audit(spec(4.0, stop=StopRule(hopeless=True)), output=tmp_path / "leak").results[0]
    assert leaking.verdict is Verdict.VIOLATION


def test_a_confirmatory_run_is_not_stopped_as_hopeless(tmp_path: Path) -> None:
    """Skipping only in the first pass adds no false alarms and loses no confirmation of a true one."""
    entry = make_plan(spec(0.0, stop=StopRule(hopeless=True))).audits[0]
    audit(spec(0.0, stop=None), output=tmp_path)
    store = UnitStore(tmp_path / "units")
    result, confirming = (
        SequentialReader(each, store) for each in (entry, replace(entry, confirms="first", confirmatory=True))
    )
    for reader in (result, confirming):
        reader.advance(set(entry.tallies), set())
    assert len(result.tallies) < len(entry.tallies)
    assert confirming.tallies == entry.tallies
