"""PATE: what its answers cost, the law of its releases, and the learner for tables."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import binom, norm

from dpaudit.claims import Claim
from dpaudit.claims.renyi import rdp_to_epsilon
from dpaudit.errors import InputError
from dpaudit.mechanisms.accounting.gnmax import (
    ORDERS,
    confident_gnmax,
    confident_gnmax_epsilon,
    confident_gnmax_noise_factor,
    confident_gnmax_rdp,
    gnmax_rdp_data_independent,
    laplace_argmax,
    laplace_counts_epsilon,
    laplace_counts_noise,
    laplace_counts_queries,
    laplace_sample,
    sampled_classes,
)
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.planted.learners import PATEWithoutNoise
from dpaudit.mechanisms.protocols import Compute, Model

FALSE_FAILURE = 1e-9  # of each binomial check below


def plausible(count: int, trials: int, probability: float) -> bool:
    low, high = binom.ppf(np.array([FALSE_FAILURE / 2, 1 - FALSE_FAILURE / 2]), trials, probability)
    return bool(low <= count <= high)


def renyi(order: float, p: list[float], q: list[float]) -> float:
    """Renyi divergence of two distributions given as lists."""
    return math.log(sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (order - 1)


# What answers cost


def test_the_published_criteo_setting_costs_8_07() -> None:
    """200 queries, Laplace scale 20, delta 1e-4: 4 * 200 / 400 + 2 / 20 * sqrt(400 log 1e4) = 8.0697."""
    assert laplace_counts_epsilon(200, 20, 1e-4) == pytest.approx(2 + 0.1 * math.sqrt(400 * math.log(1e4)), rel=1e-14)
    assert round(laplace_counts_epsilon(200, 20, 1e-4), 2) == 8.07


@pytest.mark.parametrize("queries", [1, 2, 5])
def test_optimal_composition_is_the_enumerated_worst_case(queries: int) -> None:
    """The worst case of pure mechanisms is binary randomised response: all 2^T outputs, hockey-stick divergence."""
    each, delta = 0.4, 1e-3
    total = laplace_counts_epsilon(queries, 2 / each, delta, "optimal")
    keep = math.exp(each) / (1 + math.exp(each))
    worlds = [
        (
            keep ** sum(bits) * (1 - keep) ** (queries - sum(bits)),
            (1 - keep) ** sum(bits) * keep ** (queries - sum(bits)),
        )
        for bits in itertools.product([0, 1], repeat=queries)
    ]
    assert sum(max(0.0, p - math.exp(total) * q) for p, q in worlds) == pytest.approx(delta, rel=1e-9)


def test_optimal_composition_is_never_the_larger() -> None:
    for queries, noise, delta in itertools.product([1, 10, 200, 2000], [5.0, 20.0, 200.0], [1e-3, 1e-5, 1e-8]):
        published = laplace_counts_epsilon(queries, noise, delta)
        assert laplace_counts_epsilon(queries, noise, delta, "optimal") <= min(published, 2 * queries / noise)


@pytest.mark.parametrize("accounting", ["moments", "optimal"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_noise_and_queries_are_what_epsilon_affords(epsilon: float, accounting: str) -> None:
    noise = laplace_counts_noise(epsilon, 200, 1e-5, accounting)  # type: ignore[arg-type]
    assert laplace_counts_epsilon(200, noise, 1e-5, accounting) <= epsilon  # type: ignore[arg-type]
    assert laplace_counts_epsilon(200, noise * (1 - 1e-9), 1e-5, accounting) > epsilon  # type: ignore[arg-type]
    queries = laplace_counts_queries(epsilon, 100.0, 1e-5, accounting)  # type: ignore[arg-type]
    assert queries == 0 or laplace_counts_epsilon(queries, 100.0, 1e-5, accounting) <= epsilon  # type: ignore[arg-type]
    assert laplace_counts_epsilon(queries + 1, 100.0, 1e-5, accounting) > epsilon  # type: ignore[arg-type]


def test_infinite_epsilon_needs_no_noise() -> None:
    assert laplace_counts_noise(math.inf, 200, 1e-5) == 0
    args = {"asked": 10, "answered": 5, "threshold_noise": 1.0, "vote_noise": 1.0, "delta": 1e-5}
    assert confident_gnmax_noise_factor(math.inf, **args) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_gaussian_costs_bound_the_exact_divergence_of_what_is_released(order: float) -> None:
    """Two classes; the vote that moves makes (4, 2) into (3, 3), and the largest count 4 into 3."""
    label = [norm.cdf((4 - 2) / (math.sqrt(2) * 1.5)), norm.cdf(0.0)]
    answered = [norm.sf(3.5 - 4, scale=2.5), norm.sf(3.5 - 3, scale=2.5)]
    orders = np.array([order])
    threshold = confident_gnmax_rdp(orders, asked=1, answered=0, threshold_noise=2.5, vote_noise=1.5)[0]
    assert threshold == pytest.approx(order / (2 * 2.5**2))
    for (p, q), limit in ((label, gnmax_rdp_data_independent(orders, 1.5)[0]), (answered, threshold)):
        assert 0 < renyi(order, [p, 1 - p], [q, 1 - q]) <= limit
        assert 0 < renyi(order, [q, 1 - q], [p, 1 - p]) <= limit


def test_confident_gnmax_charges_every_question_and_every_answer() -> None:
    """a / (2 s1^2) for each of 7 questions, a / s2^2 for each of 3 answers."""
    found = confident_gnmax_rdp(np.array([2.0, 5.0]), asked=7, answered=3, threshold_noise=10.0, vote_noise=4.0)
    np.testing.assert_allclose(found, [2 * (7 / 200 + 3 / 16), 5 * (7 / 200 + 3 / 16)], rtol=1e-14)
    with pytest.raises(InputError, match=r"answered must be in 0\.\.asked"):
        confident_gnmax_rdp(ORDERS, asked=2, answered=3, threshold_noise=1.0, vote_noise=1.0)


@pytest.mark.parametrize("sigma", [0.8, 2.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_converted_epsilon_holds_for_the_gaussian_mechanism(sigma: float, delta: float) -> None:
    """The exact delta of N(0, sigma^2) against N(1, sigma^2) at that epsilon (Balle and Wang, 2018) is within delta."""
    epsilon = rdp_to_epsilon(ORDERS, ORDERS / (2 * sigma**2), delta)
    exact = norm.cdf(1 / (2 * sigma) - epsilon * sigma) - math.exp(epsilon) * norm.cdf(
        -1 / (2 * sigma) - epsilon * sigma
    )
    classical = 1 / (2 * sigma**2) + math.sqrt(2 * math.log(1 / delta)) / sigma
    assert exact <= delta
    assert 0.5 * classical < epsilon < classical


def test_the_orders_are_fine_enough() -> None:
    """Within 1e-6 relative of a continuous search over the order."""

    def at(log_excess: float, rate: float) -> float:
        order = 1 + math.exp(log_excess)
        return rate * order + math.log1p(-1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)

    for rate in (1e-4, 1e-2, 1.0, 20.0):
        best = minimize_scalar(at, bounds=(-6, 13), args=(rate,), method="bounded", options={"xatol": 1e-10}).fun
        assert best * (1 - 1e-9) <= rdp_to_epsilon(ORDERS, rate * ORDERS, 1e-5) <= best * (1 + 1e-5)


def test_noise_factor_meets_epsilon() -> None:
    args = {"asked": 10_000, "answered": 500, "delta": 1e-5}
    factor = confident_gnmax_noise_factor(1.0, threshold_noise=160.0, vote_noise=20.0, **args)  # type: ignore[arg-type]

    def cost(scale: float) -> float:
        return confident_gnmax_epsilon(threshold_noise=160 * scale, vote_noise=20 * scale, **args)  # type: ignore[arg-type]

    assert cost(factor) <= 1.0 < cost(factor * (1 - 1e-9))


# The law of the releases


def test_confident_gnmax_puts_one_gaussian_on_the_largest_count() -> None:
    """Answer rate Phi((max - T) / s1), label rate Phi(gap / (sqrt(2) s2)). Noise on every count would pass far more."""
    trials, rng = 50_000, np.random.default_rng(0)
    votes = np.tile([40, 35, 25], (trials, 1))
    found = confident_gnmax(votes, threshold=60.0, threshold_noise=20.0, vote_noise=5.0, rng=rng)
    assert plausible(len(found.queries), trials, norm.sf(1.0))
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
    found = confident_gnmax(votes, **args)
    assert (found.queries.tolist(), found.labels.tolist()) == ([0, 2, 3], [0, 1, 1])
    assert confident_gnmax(votes, answers=2, **args).queries.tolist() == [0, 2]


def test_laplace_argmax_wins_as_often_as_it_should() -> None:
    """Two classes, gap d: the wrong one wins with probability e^(-d/b) (1 + d / (2b)) / 2."""
    trials, b, gap = 50_000, 4.0, 3.0
    released = laplace_argmax(np.tile([10, 13], (trials, 1)), b, np.random.default_rng(1))
    assert plausible(int((released == 0).sum()), trials, math.exp(-gap / b) * (1 + gap / (2 * b)) / 2)


def test_laplace_sample_draws_in_proportion_and_falls_back_to_uniform() -> None:
    trials, rng = 50_000, np.random.default_rng(2)
    drawn = laplace_sample(np.tile([30, 0, 70], (trials, 1)), 0.0, rng)
    assert not (drawn == 1).any()
    assert plausible(int((drawn == 2).sum()), trials, 0.7)
    nothing = laplace_sample(np.zeros((trials, 4), np.int64), 0.0, rng)
    assert all(plausible(int((nothing == label).sum()), trials, 0.25) for label in range(4))


def test_classes_of_weight_zero_are_never_drawn() -> None:
    weights = np.tile([0.0, 0.5, 0.0, 0.5, 0.0], (10_000, 1))
    assert set(sampled_classes(weights, np.random.default_rng(0))) == {1, 3}


# The learner


@dataclass(frozen=True)
class Majority:
    """A trainer that predicts the class shares of its training labels, and notes what it was given."""

    seen: list[Examples] = field(default_factory=list)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        self.seen.append(train)
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
    *teachers, student = trainer.seen
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
        examples = numbered(of)
        return learner._votes(examples, examples.take(np.arange(10)), SeedSequence(2), Compute(), None)

    before, largest = votes(labels), 0
    for row, other in itertools.product(range(30), range(1, 3)):
        changed = labels.copy()
        changed[row] = (changed[row] + other) % 3
        largest = max(largest, int(np.abs(votes(changed) - before).sum(axis=1).max()))
    assert largest == 2


def test_claim_and_what_it_affords() -> None:
    learner = PATE(8.07, delta=1e-4, queries=None, noise=20.0)
    assert learner.claim() == Claim(8.07, 1e-4)
    assert learner.affordable_queries() == 200
    assert PATE(8.07, delta=1e-4, queries=200).affordable_noise() == pytest.approx(20.0, rel=1e-3)
    assert PATE(math.inf).affordable_noise() == 0
    with pytest.raises(InputError, match="one of queries and noise"):
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
        assert (trainer.seen[-1].labels != 0).any() == noisy
    assert PATEWithoutNoise(0.1).claim() == PATE(0.1).claim()


def test_the_same_seed_gives_the_same_answers() -> None:
    labels, seed = np.random.default_rng(0).integers(3, size=300), SeedSequence(9)
    answers = []
    for _ in range(2):
        trainer = Majority()
        PATE(2.0, teachers=5, model=trainer).fit(numbered(labels), seed=seed, compute=Compute())
        answers.append(trainer.seen[-1].labels)
    assert (answers[0] == answers[1]).all()
