"""PATE: cost of its answers, law of its releases, and the learner for tables."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.stats import binom, norm

from dpaudit.claims import ComposedLaplace, GaussianDP
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.learners.pate import (
    PATE,
    Accounting,
    confident_gnmax,
    confident_gnmax_curve,
    confident_gnmax_noise_factor,
    laplace_counts_curve,
    laplace_counts_epsilon,
    laplace_counts_noise,
    laplace_counts_queries,
    sample_classes,
)
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.teachers import vote_counts
from tests.bank.planted_learners import PATEWithoutNoise

FALSE_FAILURE = 1e-9  # of each binomial check below


def plausible(count: int, trials: int, probability: float) -> bool:
    low, high = binom.ppf(np.array([FALSE_FAILURE / 2, 1 - FALSE_FAILURE / 2]), trials, probability)
    return bool(low <= count <= high)


# What answers cost


def test_the_published_criteo_setting_costs_8_07() -> None:
    """200 queries, Laplace scale 20, delta 1e-4: 4 * 200 / 400 + 2 / 20 * sqrt(400 log 1e4) = 8.0697."""
    published = laplace_counts_epsilon(200, 20, 1e-4, "moments")
    assert published == pytest.approx(2 + 0.1 * math.sqrt(400 * math.log(1e4)), rel=1e-14)
    assert round(published, 2) == 8.07


def two_world_delta(noise: float, epsilon: float) -> float:
    """One query: delta of two Laplace counts, one moved up and one down, by a grid over both in units of the noise."""
    width = 1 / 40 / noise
    x = np.arange(-15, 15, width) + width / 2
    up, stays = -np.abs(x - 1 / noise), -np.abs(x)
    p, q = np.add.outer(up, stays), np.add.outer(stays, up)
    return float(np.maximum(np.exp(p) - math.exp(epsilon) * np.exp(q), 0).sum()) * width**2 / 4


def test_one_query_costs_the_exact_delta_of_its_two_counts() -> None:
    """The integral over both noisy counts: 15 scales each way, cells of a 40th of a vote."""
    assert laplace_counts_curve(1, 1.5).delta(0.5) == pytest.approx(two_world_delta(1.5, 0.5), rel=1e-3)


def test_exact_accounting_is_half_of_the_published_one() -> None:
    """The published noise for epsilon 1 at 200 queries spends 0.495; the exact noise is 0.525 of it."""
    published = laplace_counts_noise(1.0, 200, 1e-5, "moments")
    assert laplace_counts_epsilon(200, published, 1e-5) == pytest.approx(0.4951, abs=1e-4)
    assert laplace_counts_noise(1.0, 200, 1e-5) == pytest.approx(0.52513 * published, rel=1e-4)
    for queries, noise, delta in itertools.product([1, 10, 200, 2000], [5.0, 20.0, 200.0], [1e-3, 1e-5, 1e-8]):
        cost = laplace_counts_epsilon(queries, noise, delta)
        assert cost <= min(laplace_counts_epsilon(queries, noise, delta, "moments"), 2 * queries / noise)


def test_the_noise_agrees_with_dp_accounting() -> None:
    """Its epsilon on a grid of 1e-4 nats, pessimistic: above the claim by its grid at most, by far for less noise."""
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    for epsilon in (1.0, 8.0):
        noise = laplace_counts_noise(epsilon, 200, 1e-5)
        for factor, low, high in ((1.0, 0.999, 1.0005), (0.9, 1.09, 1.2)):
            single_query = library.from_laplace_mechanism(factor * noise, value_discretization_interval=1e-4)
            assert low * epsilon < single_query.self_compose(400).get_epsilon_for_delta(1e-5) < high * epsilon


@pytest.mark.parametrize("accounting", ["moments", "exact"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_noise_and_queries_use_up_epsilon(epsilon: float, accounting: Accounting) -> None:
    noise = laplace_counts_noise(epsilon, 200, 1e-5, accounting)
    assert laplace_counts_epsilon(200, noise, 1e-5, accounting) <= epsilon
    assert laplace_counts_epsilon(200, noise * (1 - 1e-7), 1e-5, accounting) > epsilon
    queries = laplace_counts_queries(epsilon, 100.0, 1e-5, accounting)
    assert queries == 0 or laplace_counts_epsilon(queries, 100.0, 1e-5, accounting) <= epsilon
    assert laplace_counts_epsilon(queries + 1, 100.0, 1e-5, accounting) > epsilon


def test_infinite_epsilon_needs_no_noise() -> None:
    assert laplace_counts_noise(math.inf, 200, 1e-5) == 0
    args = {"queries": 10, "answered": 5, "threshold_noise": 1.0, "vote_noise": 1.0, "delta": 1e-5}
    assert confident_gnmax_noise_factor(math.inf, **args) == 0  # type: ignore[arg-type]


def test_gaussian_costs_bound_the_exact_divergence_of_the_release() -> None:
    """Two classes; the vote that moves makes (4, 2) into (3, 3), and the largest count 4 into 3."""
    label = norm.cdf((4 - 2) / (math.sqrt(2) * 1.5)), norm.cdf(0.0)
    answered = norm.sf(3.5 - 4, scale=2.5), norm.sf(3.5 - 3, scale=2.5)
    threshold = confident_gnmax_curve(queries=1, answered=0, threshold_noise=2.5, vote_noise=1.5)
    assert threshold.mu == pytest.approx(1 / 2.5)
    both = confident_gnmax_curve(queries=1, answered=1, threshold_noise=2.5, vote_noise=1.5)
    votes = GaussianDP(math.sqrt(both.mu**2 - threshold.mu**2))
    for (p, q), limit in ((label, votes), (answered, threshold)):
        for epsilon in (0.0, 0.1, 0.5):
            assert p - math.exp(epsilon) * q <= limit.delta(epsilon)
            assert (1 - q) - math.exp(epsilon) * (1 - p) <= limit.delta(epsilon)


def test_confident_gnmax_charges_every_question_and_every_answer() -> None:
    """1 / s1^2 for each of 7 questions, 2 / s2^2 for each of 3 answers."""
    curve = confident_gnmax_curve(queries=7, answered=3, threshold_noise=10.0, vote_noise=4.0)
    assert curve.mu**2 == pytest.approx(7 / 100 + 2 * 3 / 16, rel=1e-14)
    with pytest.raises(InputError, match=r"answered must be in 0\.\.2"):
        confident_gnmax_curve(queries=2, answered=3, threshold_noise=1.0, vote_noise=1.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_noise_factor_meets_epsilon(epsilon: float) -> None:
    """By the formula of Balle and Wang (2018): delta is 1e-5 at epsilon, and no more."""
    args = {"queries": 10_000, "answered": 500, "threshold_noise": 160.0, "vote_noise": 20.0}
    factor = confident_gnmax_noise_factor(epsilon, delta=1e-5, **args)  # type: ignore[arg-type]
    mu = math.sqrt(10_000 / 160**2 + 2 * 500 / 20**2) / factor
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert 1e-5 * (1 - 1e-6) < exact <= 1e-5 * (1 + 1e-9)


# The law of the releases


def test_confident_gnmax_puts_one_gaussian_on_the_largest_count() -> None:
    """Answer rate Phi((max - T) / s1), label rate Phi(gap / (sqrt(2) s2)). Noise on every count would pass far more."""
    trials, rng = 50_000, np.random.default_rng(0)
    votes = np.tile([40, 35, 25], (trials, 1))
    answered = confident_gnmax(votes, threshold=60.0, threshold_noise=20.0, vote_noise=5.0, rng=rng)
    assert plausible(len(answered.queries), trials, norm.sf(1.0))
    vector_noise = (votes + rng.normal(scale=20.0, size=votes.shape)).max(axis=1) > 60
    assert not plausible(int(vector_noise.sum()), trials, norm.sf(1.0))
    two = confident_gnmax(votes[:, :2], threshold=0.0, threshold_noise=1e-9, vote_noise=5.0, rng=rng)
    assert len(two.queries) == trials
    assert plausible(int((two.labels == 0).sum()), trials, norm.cdf(5 / (math.sqrt(2) * 5)))


def test_confident_gnmax_stops_after_enough_answers() -> None:
    votes = np.array([[9, 1], [5, 5], [0, 10], [2, 8]])
    args: dict[str, Any] = {
        "threshold": 6.0,
        "threshold_noise": 0.0,
        "vote_noise": 0.0,
        "rng": np.random.default_rng(0),
    }
    answered = confident_gnmax(votes, **args)
    assert (answered.queries.tolist(), answered.labels.tolist()) == ([0, 2, 3], [0, 1, 1])
    assert confident_gnmax(votes, answers=2, **args).queries.tolist() == [0, 2]


def test_laplace_argmax_wins_as_often_as_it_should() -> None:
    """Two classes, gap d: the wrong one wins with probability e^(-d/b) (1 + d / (2b)) / 2."""
    trials, b, gap = 50_000, 4.0, 3.0
    learner = PATE(8.0, queries=None, noise=b, delta=0.1, answer="argmax", accounting="moments")
    released = learner.answers(np.tile([10, 13], (trials, 1)), np.random.default_rng(1))
    assert plausible(int((released == 0).sum()), trials, math.exp(-gap / b) * (1 + gap / (2 * b)) / 2)


def test_laplace_sample_draws_in_proportion_and_falls_back_to_uniform() -> None:
    trials, rng, without_noise = 50_000, np.random.default_rng(2), PATE(math.inf)
    answers = without_noise.answers(np.tile([30, 0, 70], (trials, 1)), rng)
    assert not (answers == 1).any()
    assert plausible(int((answers == 2).sum()), trials, 0.7)
    nothing = without_noise.answers(np.zeros((trials, 4), np.int64), rng)
    assert all(plausible(int((nothing == label).sum()), trials, 0.25) for label in range(4))


def test_classes_of_weight_zero_are_never_drawn() -> None:
    weights = np.tile([0.0, 0.5, 0.0, 0.5, 0.0], (10_000, 1))
    assert set(sample_classes(weights, np.random.default_rng(0))) == {1, 3}


# The learner


@dataclass(frozen=True)
class Majority:
    """A trainer that predicts the class shares of its training labels and records its training sets."""

    training_sets: list[Examples] = field(default_factory=list)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        self.training_sets.append(train)
        return Shares(np.bincount(train.labels, minlength=train.classes) / len(train))


@dataclass(frozen=True)
class Shares:
    shares: NDArray[np.float64]

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return np.tile(self.shares, (len(features), 1))


def numbered(labels: NDArray[np.int64], classes: int = 3) -> Examples:
    """Examples whose only feature is their row number."""
    return Examples(np.arange(len(labels), dtype=np.float32)[:, None], labels, classes)


def test_teachers_see_disjoint_parts_and_the_student_only_answers() -> None:
    trainer = Majority()
    labels = np.random.default_rng(0).integers(3, size=100)
    learner = PATE(8.0, teachers=7, queries=20, model=trainer)
    learner.fit(numbered(labels), seed=SeedSequence(1), compute=Compute())
    *teachers, student = trainer.training_sets
    rows = np.concatenate([part.features[:, 0] for part in teachers])
    assert len(teachers) == 7
    assert sorted(rows) == list(range(100))
    assert len(student) == 20
    assert len(set(student.features[:, 0])) == 20


@pytest.mark.parametrize("vote", ["argmax", "sampled"])
def test_one_label_moves_at_most_one_vote_on_each_query(vote: str) -> None:
    """Exactly: the L1 distance of 2 that the accounting rests on, for every row and every other label."""
    labels = np.random.default_rng(3).integers(3, size=30)
    learner = PATE(1.0, teachers=5, queries=10, vote=vote, model=Majority())  # type: ignore[arg-type]

    def votes(of: NDArray[np.int64]) -> NDArray[np.int64]:
        taught = learner.train_teachers(
            numbered(of), range(5), seed=SeedSequence(2), compute=Compute(), validation=None
        )
        return vote_counts(taught.votes, 3)

    before, largest = votes(labels), 0
    for row, other in itertools.product(range(30), range(1, 3)):
        changed = labels.copy()
        changed[row] = (changed[row] + other) % 3
        largest = max(largest, int(np.abs(votes(changed) - before).sum(axis=1).max()))
    assert largest == 2


def test_claim_noise_and_queries() -> None:
    learner = PATE(8.07, delta=1e-4, queries=None, noise=20.0, accounting="moments")
    assert (learner.claim().epsilon, learner.claim().delta) == (8.07, 1e-4)
    assert learner.claim().curve == ComposedLaplace(20.0, 400)
    assert learner.affordable_queries() == 200
    assert replace(learner, queries=200, noise=None).affordable_noise() == pytest.approx(20.0, rel=1e-3)
    assert replace(learner, accounting="exact").affordable_queries() == 700
    assert PATE(math.inf).affordable_noise() == 0
    with pytest.raises(InputError, match="set either queries or noise"):
        PATE(1.0, queries=10, noise=3.0)
    with pytest.raises(InputError, match="afford one query"):
        PATE(0.1, queries=None, noise=1.0)
    with pytest.raises(InputError, match="queries must be at most the number of examples, 30, got 200"):
        PATE(1.0, model=Majority()).fit(numbered(np.zeros(30, np.int64)), seed=SeedSequence(0), compute=Compute())


def test_answers_are_noisy_and_the_planted_defect_s_are_not() -> None:
    """At epsilon 0.1 the noise drowns all votes: 200 answers would all be right with probability < 1e-60."""
    labels = np.zeros(400, np.int64)
    for learner, noisy in ((PATE, True), (PATEWithoutNoise, False)):
        trainer = Majority()
        learner(0.1, teachers=10, model=trainer).fit(numbered(labels), seed=SeedSequence(5), compute=Compute())
        assert (trainer.training_sets[-1].labels != 0).any() == noisy
    assert PATEWithoutNoise(0.1).claim() == PATE(0.1).claim()


def test_the_same_seed_gives_the_same_answers() -> None:
    labels, seed = np.random.default_rng(0).integers(3, size=300), SeedSequence(9)
    answers = []
    for _ in range(2):
        trainer = Majority()
        PATE(2.0, teachers=5, model=trainer).fit(numbered(labels), seed=seed, compute=Compute())
        answers.append(trainer.training_sets[-1].labels)
    assert (answers[0] == answers[1]).all()
