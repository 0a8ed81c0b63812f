"""Learners that are summed up as vectors: exact minimisers, sums, and what models answer."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import SeedSequence
from scipy.optimize import minimize

from dpaudit.claims import Relation
from dpaudit.errors import InputError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticOutputPerturbation, minimiser
from dpaudit.mechanisms.protocols import Compute, Learner, SampledLearner

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
    first, again = (learner.sample_summaries(data, NO_POINTS, 5, seed=SeedSequence(3), compute=CPU) for _ in range(2))
    assert np.array_equal(first, again)
    assert len(np.unique(first[:, -1])) == 5
    assert learner.sample_summaries(data, NO_POINTS, 0, seed=SeedSequence(3), compute=CPU).shape == (0, first.shape[1])


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


def test_replacing_a_record_moves_a_minimiser_by_no_more_than_the_noise_pays_for() -> None:
    """2 / (n penalty), reached to a sixth by the worst of thirty records tried."""
    learner = LogisticOutputPerturbation(1.0, penalty=0.1)
    rng = np.random.default_rng(0)
    features = (3 * rng.normal(size=(10, 2))).astype(np.float32)
    moved = []
    for _ in range(30):
        labels = rng.integers(0, 2, 10)
        data = Examples(features, labels, 2)
        other = data.with_(labels=np.append(1 - labels[:1], labels[1:]))
        moved.append(np.linalg.norm(learner.exact(data, CPU) - learner.exact(other, CPU)))
    assert 0.15 * 2 / (10 * 0.1) < max(moved) <= 2 / (10 * 0.1)


def test_naive_bayes_adds_twice_the_noise_for_replaced_records() -> None:
    assert GaussianNaiveBayes(1.0, relation=Relation.REPLACE).sum_scale(4) == 2 * GaussianNaiveBayes(1.0).sum_scale(4)
    assert GaussianNaiveBayes(1.0).claim().relation is Relation.ADD_REMOVE
    with pytest.raises(InputError, match="add-remove or replace"):
        GaussianNaiveBayes(1.0, relation=Relation.LABEL)


def test_naive_bayes_does_not_tell_how_many_records_there_are() -> None:
    data = two_classes()
    drawn = GaussianNaiveBayes(1.0).sample_summaries(data, NO_POINTS, 50, seed=SeedSequence(0), compute=CPU)
    assert len(np.unique(drawn[:, :2].sum(1))) > 5
