"""The game `teacher-votes`: a coin decides the votes of one teacher of PATE, and all noisy counts are seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.stats import laplace

from dpaudit import Audit, Verdict, audit
from dpaudit.actors.seed import Seed
from dpaudit.claims import PrivacyCurve
from dpaudit.engine.data.bundled import Iris
from dpaudit.engine.data.partition import Partition
from dpaudit.engine.games.predictions.teacher_votes import (
    CountLikelihood,
    NoisyCounts,
    TeacherVotesGame,
    VotesOfWorlds,
    release_counts,
    votes_of_worlds,
)
from dpaudit.errors import SpecError
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.pate import PATE, laplace_counts_noise
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.mechanisms.teachers import TeacherVotes

ROWS = Iris().load()
COINS = 40_000


class HalfTheNoise(PATE):
    """DEFECT ON PURPOSE: half of the noise."""

    def affordable_noise(self) -> float:
        return super().affordable_noise() / 2


class NoiseForFewerQueries(PATE):
    """DEFECT ON PURPOSE: the noise of a quarter of the queries, whose cost alone is accounted."""

    def affordable_noise(self) -> float:
        assert self.queries is not None
        return laplace_counts_noise(self.epsilon, self.queries // 4, self.delta)


class SharedRows(PATE):
    """DEFECT ON PURPOSE: each teacher also learns from the rows of the next one, so a label reaches two teachers."""

    def train_teachers(
        self, train: Examples, numbers: range, *, seed: SeedSequence, compute: Compute, validation: Examples | None
    ) -> TeacherVotes:
        rows = np.arange(len(train))
        parts = np.array_split(rows, self.teachers)
        votes = []
        for number in numbers:
            rows_of = np.concatenate([parts[number], parts[(number + 1) % self.teachers]])
            votes.append(np.full(self.affordable_queries(), train.labels[rows_of].sum() % train.classes))
        return TeacherVotes(np.stack(votes).astype(np.int64))


@dataclass(frozen=True)
class NoSeed(PATE):
    """Teachers whose votes do not follow from the seed alone."""

    def train_teachers(
        self, train: Examples, numbers: range, *, seed: SeedSequence, compute: Compute, validation: Examples | None
    ) -> TeacherVotes:
        shape = len(numbers), self.affordable_queries()
        return TeacherVotes(np.random.default_rng().integers(0, train.classes, shape))


def learner(kind: type[PATE], epsilon: float = 2.0) -> PATE:
    return kind(epsilon, teachers=6, queries=40, model=LogisticRegression())


def votes_of(mechanism: PATE) -> VotesOfWorlds:
    return votes_of_worlds(mechanism, ROWS, Compute(), labels=3, seed=Seed(1))


def bound_of(mechanism: PATE, votes: VotesOfWorlds) -> tuple[Bound, PrivacyCurve]:
    scores = release_counts(mechanism, CountLikelihood(), votes, first=0, last=COINS, seed=Seed(2))
    estimator = SimultaneousGuessCount(delta=1e-5)
    return estimator.find([estimator.tally(scores)]), learner(PATE).claim().curve


def test_the_worlds_differ_in_the_votes_of_one_teacher_on_every_query() -> None:
    votes = votes_of(learner(PATE))
    assert votes.world_0.shape == (40, 3)
    assert (votes.world_0.sum(axis=1) == 6).all()
    assert (np.sort(votes.world_1 - votes.world_0, axis=1) == [-1, 0, 1]).all()


def test_teachers_that_one_label_reaches_vote_together() -> None:
    votes = votes_of(learner(SharedRows))
    assert np.abs(votes.world_1 - votes.world_0).sum(axis=1).max() == 4


def test_teachers_with_other_randomness_than_the_seed_do_not_count_as_reached() -> None:
    votes = votes_of(learner(NoSeed))
    assert (np.abs(votes.world_1 - votes.world_0).sum(axis=1) == 2).all()


def test_scores_are_likelihood_ratios_in_units_of_the_noise() -> None:
    rng, scale = np.random.default_rng(3), 1.7
    votes = VotesOfWorlds(np.array([[3, 1, 0], [0, 2, 2]]), np.array([[2, 2, 0], [0, 3, 1]]))
    counts = votes.world_0 + rng.laplace(scale=scale, size=(50, 2, 3))
    slow = [
        sum(
            float(laplace.logpdf(x, present, scale) - laplace.logpdf(x, absent, scale))
            for x, present, absent in zip(release.ravel(), votes.world_1.ravel(), votes.world_0.ravel(), strict=True)
        )
        for release in counts
    ]
    assert CountLikelihood().score(NoisyCounts(counts, votes)) / scale == pytest.approx(slow, abs=1e-9)
    counts[0] = np.nan
    assert CountLikelihood().score(NoisyCounts(counts, votes))[0] == 0


def test_honest_votes_show_much_of_their_claim() -> None:
    bound, curve = bound_of(learner(PATE), votes_of(learner(PATE)))
    assert bound.violation_point(curve) is None
    assert 0.9 < bound.lower < 2.0


@pytest.mark.parametrize("kind", [HalfTheNoise, NoiseForFewerQueries, SharedRows])
def test_defects_of_noise_accounting_and_teachers_are_found(kind: type[PATE]) -> None:
    mechanism = learner(kind)
    bound, curve = bound_of(mechanism, votes_of(mechanism))
    assert bound.violation_point(curve) is not None


def test_an_audit_states_the_most_that_it_can_show(tmp_path: Path) -> None:
    part = Partition(target=1.0, reference=0.0, test=0.0)
    entry = Audit(learner(PATE), ROWS, TeacherVotesGame(coins=5_000), split=part, proxy=None)
    (row,) = audit(entry, output=tmp_path, quiet=True).results
    assert row.verdict is Verdict.NO_VIOLATION
    assert row.sensitivity.maximum is not None
    assert row.epsilon < 2 < 5 < row.sensitivity.maximum.lower
    assert "a teacher may vote in any way" in row.assumes


class OwnAnswers(PATE):
    """Releases answers in another way than from the noisy counts."""

    def answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return np.zeros(len(votes), np.int64)


@pytest.mark.parametrize("mechanism", [{"name": "non-private", "model": "mlp"}, learner(OwnAnswers)])
def test_learners_without_such_votes_are_refused(mechanism: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="noisy votes of teachers"):
        audit(Audit(mechanism, ROWS, "teacher-votes"), output=tmp_path, quiet=True)


def test_votes_without_noise_show_all_coins() -> None:
    mechanism = replace(learner(PATE), epsilon=math.inf)
    scores = release_counts(mechanism, CountLikelihood(), votes_of(mechanism), first=0, last=99, seed=Seed(1))
    assert ((scores.score > 0) == scores.truth).all()
