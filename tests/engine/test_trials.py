"""Games of independent trials other than membership: each run releases a vector, and the attack learns on search
trials."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit import Audit, AuditSpec, Claim, Examples, Relation, RunOptions, Verdict, audit
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work, unit
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.games.neighbours.world_scores import log_odds_of_endings
from dpaudit.engine.games.protocol import LEARNERS, GameTraits, Played, Setting
from dpaudit.engine.games.trials import TrialGame, grouped_for_reading, scored_trials
from dpaudit.errors import SpecError
from dpaudit.estimators.scores import Scores
from dpaudit.mechanisms.compute import Compute

EPSILON = 1.0


@dataclass(frozen=True)
class NoisyCount:
    """A learner whose model is one number: 0 or 1 plus Laplace noise of scale 1 / truth, so its exact epsilon is
    `truth`."""

    truth: float = EPSILON

    def claim(self) -> Claim:
        return Claim(EPSILON, relation=Relation.ADD_REMOVE)

    def fit(self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None) -> Any:
        return len(train) + np.random.default_rng(seed).laplace(0, 1 / self.truth)


@dataclass(frozen=True, eq=False)
class SummaryView:
    """The attack's view: summaries and worlds of search trials, and summaries of fresh trials."""

    search: NDArray[np.float64]
    search_truth: NDArray[np.bool_]
    fresh: NDArray[np.float64]
    shows: ClassVar[str] = "summaries of independent runs"


@dataclass(frozen=True)
class MeanDifference:
    """An attack that learns the direction from the mean of world 0 to that of world 1."""

    view: ClassVar[type[SummaryView]] = SummaryView

    def score(self, view: SummaryView) -> NDArray[np.float64]:
        direction = view.search[view.search_truth].mean(0) - view.search[~view.search_truth].mean(0)
        scores: NDArray[np.float64] = view.fresh @ direction
        return scores


@dataclass(frozen=True, eq=False)
class Trials:
    """Results of trials: their numbers, their coins, and a summary of three numbers for each."""

    number: NDArray[np.int64]
    truth: NDArray[np.bool_]
    summary: NDArray[np.float64]


@unit
def run_trials(mechanism: Any, compute: Compute, *, first: int, last: int, seed: Seed) -> Trials:
    """Run trials by their numbers: draw a coin, train with or without a row, and summarise the model."""
    row = Examples(np.zeros((1, 1), np.float32), np.zeros(1, np.int64), 2)
    numbers = range(first, last)
    truth = np.array([seed.child(number).rng().random() < 0.5 for number in numbers])
    counts = [
        mechanism.fit(row.take(np.array([world])), seed=seed.child(number, 0).sequence(), compute=compute)
        for number, world in zip(numbers, truth, strict=True)
    ]
    return Trials(np.array(numbers), truth, np.tile(np.array(counts)[:, None], 3))


@unit
def score_summaries(attack: Any, search: tuple[Trials, ...], fresh: tuple[Trials, ...]) -> Iterator[Scores]:
    """Score fresh trials by the attack, which learns on search trials of other units."""
    number, truth = (np.concatenate([getattr(stack, name) for stack in fresh]) for name in ("number", "truth"))
    view = SummaryView(
        np.concatenate([stack.summary for stack in search]),
        np.concatenate([stack.truth for stack in search]),
        np.concatenate([stack.summary for stack in fresh]),
    )
    yield scored_trials(attack, view, number=number, truth=truth, failed=np.zeros(len(truth), np.bool_))


@dataclass(frozen=True)
class Neighbours(TrialGame):
    """A game with one row or none, and equal numbers of search and fresh trials."""

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins.",
        views={LEARNERS: SummaryView},
        attack="tests.engine.test_trials:MeanDifference",
        estimator="band",
        independent_trials=True,
    )

    def play(self, setting: Setting, work: Work) -> Played:
        search, fresh = (self._trials(setting, work, name) for name in ("search", "fresh"))
        scores = tuple(
            work.add(
                score_summaries,
                setting.attack,
                search,
                trials,
                label=f"scores of {trials[0].label}",
                resources=setting.resources.without_gpu,
            )
            for trials in grouped_for_reading(fresh, setting)
        )
        return Played(scores, trainings=fresh)

    def _trials(self, setting: Setting, work: Work, name: str) -> tuple[Unit, ...]:
        return work.split(
            run_trials,
            self.trials,
            self.stack,
            setting.mechanism,
            seed=setting.seed.child(name),
            label=name,
            resources=setting.resources,
        )


def audited(folder: Path, mechanism: Any, **fields: Any) -> Any:
    entry = Audit(mechanism, Iris(), game=Neighbours(trials=2_000, stack=1_000), **fields)
    spec = AuditSpec((entry,), seed=5, confidence=1 - 1e-6, run=RunOptions(runner="in-process", figures=False))
    return audit(spec, output=folder).results[0]


def test_a_learned_attack_is_valid_on_fresh_trials(tmp_path: Path) -> None:
    """False failure <= 1e-6 for the upper side, by the bound's own confidence; the seed is fixed."""
    result = audited(tmp_path, NoisyCount())
    assert 0.3 < result.finding.lower <= EPSILON
    assert result.verdict is Verdict.NO_VIOLATION


def test_a_planted_defect_is_found_in_the_same_game(tmp_path: Path) -> None:
    """With one third of the noise, the true epsilon is 3 times the claim. The seed is fixed."""
    assert audited(tmp_path, NoisyCount(truth=3.0)).verdict is Verdict.VIOLATION


def test_an_attack_with_another_view_is_refused() -> None:
    with pytest.raises(SpecError, match=r"lira-online sees independent trials.* shows summaries of independent runs"):
        AuditSpec((Audit(NoisyCount(), Iris(), game=Neighbours(), attack="lira-online"),))


def test_a_failed_trial_counts_for_world_1_or_the_learned_world() -> None:
    class Sees:
        def score(self, view: Any) -> NDArray[np.float64]:
            return np.array([0.5, -0.5])

    truth, failed = np.array([True, True, False, False]), np.array([False, True, False, True])
    scores = scored_trials(Sees(), None, number=np.arange(4), truth=truth, failed=failed)
    assert scores.score.tolist() == [0.5, np.inf, -0.5, np.inf]
    errors = np.array(["ValueError", "ValueError", "3 numbers", "KeyError"])
    learned = log_odds_of_endings(
        np.array(["ValueError", "new", "KeyError"]), errors, np.array([True, True, True, False])
    )
    assert learned.tolist() == pytest.approx([np.log(2.5 / 0.5), 0.0, np.log(0.5 / 1.5)])
    of_failed = np.array([9.0, 0.1, 9.0, -0.1])
    scores = scored_trials(Sees(), None, number=np.arange(4), truth=truth, failed=failed, failed_score=of_failed)
    assert scores.score.tolist() == pytest.approx([0.5, 0.1, -0.5, -0.1])
