"""A game of two worlds whose exact epsilon is known: its bound is valid, and a defect is found."""

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
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.games.outcomes import Outcomes, Runs
from dpaudit.engine.games.protocol import LEARNERS, GameTraits
from dpaudit.engine.games.run_scores import log_odds_of_endings
from dpaudit.engine.games.trials import scored_trials
from dpaudit.engine.games.two_worlds import TwoWorlds
from dpaudit.errors import SpecError
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


@dataclass(frozen=True)
class OneRow:
    """One row in world 1, and none in world 0."""

    place: int


@dataclass(frozen=True)
class Neighbours(TwoWorlds):
    """A game with one row or none."""

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins.",
        views={LEARNERS: SummaryView},
        attack="output-set",
        estimator="band",
        independent_trials=True,
    )

    search: int = 2_000

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[OneRow]:
        yield OneRow(0)

    def run(self, mechanism: Any, pair: OneRow, runs: Runs) -> Outcomes:
        def summary(world: bool, seed: Seed) -> NDArray[np.float64]:
            train = runs.rows[0].take(np.array([pair.place])[: int(world)])
            return np.full(3, mechanism.fit(train, seed=seed.sequence(), compute=runs.compute))

        return runs.each(summary)


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
