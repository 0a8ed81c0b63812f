"""The strongest game for a kind of learner: one table for `check` and the page."""

from __future__ import annotations

from typing import Any

import pytest

from dpaudit import Claim, Relation, from_callable, from_steps, from_summary
from dpaudit.engine.request.check import CheckRequest, check_spec, matching_tests
from dpaudit.engine.request.strongest_games import LEARNER_KINDS, strongest_game
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.registry import load
from tests.engine.own_learners import output_perturbed, output_perturbed_model

ADDED, REPLACED = Claim(1.0, relation=Relation.ADD_REMOVE), Claim(1.0, relation=Relation.REPLACE)


def no_steps(X: Any, y: Any, seed: int, canary: Any) -> None:
    """A loop without steps."""


@pytest.mark.parametrize(
    ("mechanism", "claim", "game"),
    [
        (from_summary(output_perturbed, REPLACED), REPLACED, "neighbours"),
        (from_callable(output_perturbed_model, ADDED), ADDED, "neighbours"),
        (from_steps(no_steps, noise_multiplier=1.0, steps=3), ADDED, "dp-sgd-steps"),
        (DpSgd(1.0), ADDED, "dp-sgd-steps"),
        (GaussianNaiveBayes(1.0), ADDED, "neighbours"),
    ],
)
def test_strongest_game_runs_before_games_with_more_than_one_training(mechanism: Any, claim: Any, game: str) -> None:
    assert strongest_game(mechanism, claim.relation) == game
    chosen = [planned for planned in matching_tests(mechanism, claim)[0] if planned.test.price > 1]
    places = [place for place, planned in enumerate(chosen) if planned.game == game]
    assert places == list(range(len(places)))
    assert places


def test_every_game_of_the_table_is_played_by_check() -> None:
    for kind in LEARNER_KINDS:
        for relation, game in kind.games.items():
            tests = load("game", game).traits.check_tests
            assert any(relation in test.relations for test in tests)


def test_a_budget_of_trainings_still_pays_for_cheap_games() -> None:
    spec = check_spec(CheckRequest(from_callable(output_perturbed_model, REPLACED), budget="3000 trainings"))
    names = [entry.name for entry in spec.audits]
    assert names.index("neighbours") < names.index("mia")
    assert {"label-canaries", "label-crafted", "mia"} < set(names)


def test_mechanism_that_trains_nothing_has_no_strongest_game() -> None:
    assert strongest_game(object(), Relation.LABEL) == ""


@pytest.mark.parametrize(("seconds", "trainings"), [(0.001, 12_000), (0.03, 6_000), (10.0, 3_000)])
def test_slow_learner_gets_fewer_trainings(monkeypatch: pytest.MonkeyPatch, seconds: float, trainings: int) -> None:
    """Trainings are halved until they fit the default budget of ten minutes, but not below 2,400."""
    monkeypatch.setattr(check_spec.__module__ + ".training_seconds", lambda mechanism, target: seconds)
    spec = check_spec(CheckRequest(from_summary(output_perturbed, REPLACED)))
    (entry,) = spec.audits
    assert entry.game.trials + entry.game.search == trainings
