"""Learners with vector summaries: exact minimisers, sums and model answers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import SeedSequence
from scipy.optimize import minimize

from dpaudit.claims import Relation
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners import logistic_regression
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import (
    GRADIENT_TOLERANCE,
    LogisticObjectivePerturbation,
    LogisticOutputPerturbation,
    minimiser,
    minimisers,
)
from dpaudit.mechanisms.learners.random_forest import PrivateForest, leaf_counts
from dpaudit.mechanisms.protocols import Learner, SampledLearner

CPU = Compute()
NO_POINTS = np.empty((0, 0), np.float32)


def two_classes(rows: int = 400, features: int = 3) -> Examples:
    rng = np.random.default_rng(0)
    labels = np.arange(rows) % 2
    return Examples(
        np.clip(rng.normal(0.35 + 0.3 * labels[:, None], 0.1, (rows, features)), 0, 1).astype(np.float32), labels, 2
    )


LEARNERS = [
    GaussianNaiveBayes(1e6),
    LogisticOutputPerturbation(1e6, penalty=1e-3, norm=2.0),
    LogisticObjectivePerturbation(1e6, penalty=1e-3, norm=2.0),
    PrivateForest(1e6, trees=15, depth=6),
]


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
def test_with_hardly_any_noise_a_learner_learns(learner: SampledLearner) -> None:
    data = two_classes()
    assert isinstance(learner, SampledLearner)
    assert isinstance(learner, Learner)
    model = learner.fit(data, seed=SeedSequence(1), compute=CPU)
    probabilities = model.probabilities(data.features)
    assert np.allclose(probabilities.sum(1), 1)
    assert (probabilities.argmax(1) == data.labels).mean() > 0.95
    points = np.array([[0.5, 0.4, 0.5]], np.float32)
    first, again = (learner.sample_summaries(data, points, 40, seed=SeedSequence(3), compute=CPU) for _ in range(2))
    assert np.array_equal(first, again)
    assert len(np.unique(first, axis=0)) > 20
    assert learner.sample_summaries(data, points, 0, seed=SeedSequence(3), compute=CPU).shape == (0, first.shape[1])


def test_the_minimiser_is_exact() -> None:
    """Against a slow general method, and by its gradient: off by at most 1e-11 over the penalty."""
    rng = np.random.default_rng(2)
    rows, signs, penalty = rng.normal(size=(50, 4)) / 4, np.where(rng.random(50) < 0.5, 1.0, -1.0), 0.02

    def objective(w: np.ndarray) -> float:
        return float(np.logaddexp(0, -signs * (rows @ w)).mean() + penalty / 2 * w @ w)

    slow = minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
    assert np.abs(minimiser(rows, signs, penalty) - slow).max() < 1e-5
    separable = minimiser(np.array([[1.0], [-1.0]]), np.array([1.0, -1.0]), 1e-4)
    assert separable[0] * 1e-4 == pytest.approx(1 / (1 + np.exp(separable[0])), rel=1e-6)


def test_rows_are_no_longer_than_one_bias_included() -> None:
    rows = LogisticOutputPerturbation(1.0, norm=0.5).rows(np.array([[3.0, 4.0], [0.0, 0.1]], np.float32))
    assert np.linalg.norm(rows, axis=1).max() <= 1 + 1e-12
    assert rows[1] * np.sqrt(2) == pytest.approx([0, 0.2, 1])


def test_replacing_a_record_moves_a_minimiser_within_its_sensitivity() -> None:
    """Sensitivity 2 / (n penalty); the worst of thirty records reaches a sixth of it."""
    learner = LogisticOutputPerturbation(1.0, penalty=0.1)
    rng = np.random.default_rng(0)
    features = (3 * rng.normal(size=(10, 2))).astype(np.float32)
    moved = []
    for _ in range(30):
        labels = rng.integers(0, 2, 10)
        data = Examples(features, labels, 2)
        other = data.with_(labels=np.append(1 - labels[:1], labels[1:]))
        moved.append(np.linalg.norm(learner.noiseless(data, CPU) - learner.noiseless(other, CPU)))
    assert 0.15 * 2 / (10 * 0.1) < max(moved) <= 2 / (10 * 0.1)


def test_naive_bayes_adds_twice_the_noise_for_replaced_records() -> None:
    assert GaussianNaiveBayes(1.0).part_epsilon == 2 * GaussianNaiveBayes(1.0, relation=Relation.REPLACE).part_epsilon
    assert GaussianNaiveBayes(1.0).claim().relation is Relation.ADD_REMOVE
    with pytest.raises(InputError, match="add-remove or replace"):
        GaussianNaiveBayes(1.0, relation=Relation.LABEL)


def test_naive_bayes_hides_the_number_of_records() -> None:
    data = two_classes()
    summaries = GaussianNaiveBayes(1.0).sample_summaries(data, NO_POINTS, 50, seed=SeedSequence(0), compute=CPU)
    assert len(np.unique(summaries[:, :2].sum(1))) > 5


@pytest.mark.parametrize("spread", [0.001, 3.0])
@pytest.mark.parametrize("shared", [0, 20])
def test_minimisers_of_many_tilts_are_those_of_each(
    spread: float, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one factorised Hessian or by Newton's method; at a gradient that the 32 bits of the first step cannot show."""
    monkeypatch.setattr(logistic_regression, "SHARED_STEPS", shared)
    rng = np.random.default_rng(2)
    rows, signs, penalty = rng.normal(size=(60, 4)) / 4, np.where(rng.random(60) < 0.5, 1.0, -1.0), 0.02
    tilts = spread * rng.normal(size=(7, 4))
    minima = minimisers(rows, signs, penalty, tilts, 1e-12)
    signed = rows * signs[:, None]
    gradient = penalty * minima + tilts - (1 / (1 + np.exp(minima @ signed.T))) @ signed / len(rows)
    assert np.linalg.norm(gradient, axis=1).max() <= 1.1e-12
    (still,) = minimisers(rows, signs, penalty, np.zeros((1, 4)), 1e-12)
    assert np.linalg.norm(still - minimiser(rows, signs, penalty)) <= (1e-12 + GRADIENT_TOLERANCE) / penalty


def test_objective_noise_without_enough_penalty_has_more_of_it() -> None:
    """n penalty = 0.01 costs 2 log(26) = 6.5: with epsilon 1 the extra penalty makes eps' half of it."""
    extra, scale = LogisticObjectivePerturbation(1.0, penalty=1e-4).noise(100, 1)
    assert extra == pytest.approx(0.25 / (100 * np.expm1(0.25)) - 1e-4)
    assert scale == pytest.approx(4.0)
    assert LogisticObjectivePerturbation(10.0, penalty=1e-1).noise(100, 2)[0] == 0


def test_a_single_leaf_has_the_law_of_a_leaf_in_a_whole_tree() -> None:
    """Chance that a spread-out record answers with its own class: 20,000 leaves alone against 2,000 of whole forests.

    Both estimate one chance; they differ by more than 5 standard deviations once in 10^6.
    """
    rng = np.random.default_rng(1)
    data = Examples(rng.random((60, 3)).astype(np.float32), rng.integers(0, 2, 60), 2)
    learner, point = PrivateForest(3.0, trees=2, depth=4), data.features[:1]
    assert isinstance(point, np.ndarray)
    alone = learner.sample_summaries(data, point, 20_000, seed=SeedSequence(5), compute=CPU).reshape(-1, 2, 2)[..., 1]
    models = [learner.fit(data, seed=seed, compute=CPU) for seed in SeedSequence(6).spawn(2_000)]
    whole = np.array([model.votes(point)[0] for model in models])
    for tree in range(2):
        first, second = alone[:, tree].mean(), whole[:, tree].mean()
        error = np.sqrt(first * (1 - first) * (1 / len(alone) + 1 / len(whole)))
        assert abs(first - 0.5) > 0.02  # there is something to differ from
        assert abs(first - second) < 5 * error


def test_records_of_a_leaf_are_those_within_all_its_limits() -> None:
    """Ties included: values on a lower limit are in, on an upper one out, on the range's own end in."""
    rng = np.random.default_rng(3)
    features, labels = rng.integers(0, 5, (50, 3)) / 4, rng.integers(0, 3, 50)
    split = rng.integers(0, 3, (200, 2))
    low, high = (np.sort(rng.integers(0, 5, (200, 2, 2)), -1) / 4).transpose(2, 0, 1)
    counts = leaf_counts(np.ascontiguousarray(features.T), labels, 3, split, low, high, 1.0)
    values = features[:, split]
    inside = ((values >= low) & ((values < high) | (high == 1.0))).all(2)
    assert inside.any()
    assert np.array_equal(counts, np.stack([inside[labels == label].sum(0) for label in range(3)], 1))


def test_a_record_stays_in_its_tree_with_any_other_records() -> None:
    data, learner = two_classes(), PrivateForest(1.0, trees=5)
    trees = learner.tree_of(learner.clipped(data.features))
    fewer = learner.tree_of(learner.clipped(data.take(np.arange(3, 400)).features))
    assert np.array_equal(trees[3:], fewer)
    assert np.bincount(trees, minlength=5).min() > 40
