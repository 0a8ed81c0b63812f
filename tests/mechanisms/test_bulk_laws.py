"""Trainings drawn at once have the law of trainings one after another: two samples of the noise, recovered exactly.

What each learner adds is found again from what it releases and the data: lengths of the noise of both regressions
(Gamma), absolute noise on the sums of naive Bayes (exponential). Sums of such numbers are Gamma, so the ratio of two
samples' means follows an F distribution, exactly. It leaves its limits with probability 1e-6 where the laws are one; a
scale that is 5 % off in one of them is missed with probability below 1e-4, which is computed and tried. A forest shows
its noise in what leaves answer, and its splits in who shares a leaf: both samples are compared with the exact chance of
the less frequent answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom, f

from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticObjectivePerturbation, LogisticOutputPerturbation
from dpaudit.mechanisms.learners.random_forest import PrivateForest
from tests import nightly

FALSE_FAILURE, MISSED = 1e-6, 1e-4
ERROR = 1.05
CPU = Compute()
NO_POINTS = np.empty((0, 0), np.float32)
FEATURES = 30
Floats = NDArray[np.float64]


def rows_of_two_classes(features: int) -> Examples:
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    return Examples((0.2 * rng.normal(labels[:, None], 1, (40, features))).astype(np.float32), labels, 2)


DATA = rows_of_two_classes(FEATURES)


def output_noise(learner: LogisticOutputPerturbation, released: Floats) -> Floats:
    """Return the lengths of the noise on the exact minimiser, each a sum of 31 exponential numbers."""
    lengths: Floats = np.linalg.norm(released - learner.noiseless(DATA, CPU).ravel(), axis=1)
    return lengths


def objective_noise(learner: LogisticObjectivePerturbation, released: Floats) -> Floats:
    """Return the lengths of b with its minimum at the release: minus the gradient without b, times n."""
    rows, signs = learner.rows(DATA.features), np.where(DATA.labels == 1, 1.0, -1.0)
    extra, _ = learner.noise(len(rows), 1)
    signed = rows * signs[:, None]
    gradient = (learner.penalty + extra) * released - expit(-(released @ signed.T)) @ signed / len(rows)
    lengths: Floats = np.linalg.norm(len(rows) * gradient, axis=1)
    return lengths


def sums_noise(learner: GaussianNaiveBayes, released: Floats) -> Floats:
    """Return the total absolute noise on the sums of features and classes: 60 exponential numbers of one scale."""
    sums = learner.sums(DATA)
    # Released are counts, sums and squares, in this order; no mean is cut off where the range is this wide.
    sums_released = released[:, 2 : 2 + sums.total.size]
    noise: Floats = np.abs(sums_released - sums.total.ravel()).sum(1)
    return noise


@dataclass(frozen=True)
class Case:
    """A learner, the function that recovers its noise, and the number of exponential numbers per training."""

    learner: Any
    noise: Callable[[Any, Floats], Floats]
    shape: int
    alone: int
    bulk: int


CASES = [
    pytest.param(
        Case(LogisticOutputPerturbation(1.0, penalty=0.05), output_noise, FEATURES + 1, 1_050, 40_000),
        marks=pytest.mark.nightly,
        id="LogisticOutputPerturbation",
    ),
    Case(LogisticObjectivePerturbation(4.0, penalty=0.05), objective_noise, FEATURES + 1, 1_150, 15_000),
    Case(GaussianNaiveBayes(40.0, lower=-50.0, upper=50.0), sums_noise, 2 * FEATURES, 560, 20_000),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.learner).__name__)
def test_trainings_at_once_have_the_law_of_trainings_one_by_one(case: Case) -> None:
    bulk = case.learner.sample_summaries(DATA, NO_POINTS, case.bulk, seed=SeedSequence(1), compute=CPU)
    alone = np.concatenate(
        [
            case.learner.sample_summaries(DATA, NO_POINTS, 1, seed=seed, compute=CPU)
            for seed in SeedSequence(2).spawn(case.alone)
        ]
    )
    first, second = case.noise(case.learner, bulk), case.noise(case.learner, alone)
    degrees = 2 * case.shape * case.bulk, 2 * case.shape * case.alone
    low, high = f.ppf(FALSE_FAILURE / 2, *degrees), f.isf(FALSE_FAILURE / 2, *degrees)
    assert low < first.mean() / second.mean() < high
    # The same numbers 5 % larger or smaller are told from them.
    assert f.cdf(high / ERROR, *degrees) < MISSED
    assert ERROR * first.mean() / second.mean() > high
    assert first.mean() / second.mean() / ERROR < low


MANY, APART = 3, 0.4
"""Records of class 1 at a point; one of class 0 lies so far from it, which one split separates as often."""
TREES, FORESTS = 200, 600 if nightly.on() else 60
EPSILON = 0.75


def less_frequent(epsilon: float) -> float:
    """Chance that the leaf of the point answers 0: half of e^(-epsilon gap), in its leaf 3 against 1 or 3 against 0."""
    together, alone = (0.5 * np.exp(-epsilon * gap) for gap in (MANY - 1, MANY))
    return float((1 - APART) * together + APART * alone)


def about(points: NDArray[np.float32]) -> Examples:
    """Return the records near each point."""
    places = np.concatenate([np.repeat(points, MANY), points + np.float32(APART)])
    labels = np.concatenate([np.ones(MANY * points.size, np.int64), np.zeros(points.size, np.int64)])
    return Examples(places[:, None], labels, 2)


def forests_one_by_one(trees: int, forests: int) -> int:
    """Return the number of trees, in forests with different records per tree, with answer 0 at their points."""
    learner = PrivateForest(EPSILON, trees=trees, depth=1)
    tried = np.random.default_rng(3).uniform(0, 1 - APART, 20 * trees * trees).astype(np.float32)
    tree_index, other = (
        learner.tree_of(learner.clipped(place[:, None])) for place in (tried, tried + np.float32(APART))
    )
    _, first = np.unique(np.where(tree_index == other, tree_index, trees), return_index=True)
    points = tried[first[:trees]]
    places, wrong_answers = learner.clipped(points[:, None]), 0
    for seed in SeedSequence(4).spawn(forests):
        model = learner.fit(about(points), seed=seed, compute=CPU)
        answers = [model.answers[tree, model.leaves(places[[tree]], tree)[0]] for tree in range(trees)]
        wrong_answers += trees - int(np.sum(answers))
    return wrong_answers


def forests_at_once(count: int) -> int:
    """Return how many of `count` trees, drawn at once, answer 0 at the point of the same records."""
    data = about(np.array([0.25], np.float32))
    learner = PrivateForest(EPSILON, trees=1, depth=1)
    summaries = learner.sample_summaries(data, data.features[:1], count, seed=SeedSequence(5), compute=CPU)
    return int(summaries[:, 0].sum())


@pytest.mark.parametrize(
    ("sample", "trees", "error"),
    [
        pytest.param(
            lambda: forests_one_by_one(TREES, FORESTS),
            TREES * FORESTS,
            ERROR if nightly.on() else 1.2,
            id="one by one",
        ),
        pytest.param(lambda: forests_at_once(400_000), 400_000, ERROR, id="at once"),
    ],
)
def test_forests_at_once_and_one_by_one_have_the_exact_law(sample: Callable[[], int], trees: int, error: float) -> None:
    low, high = binom.ppf([FALSE_FAILURE / 2, 1 - FALSE_FAILURE / 2], trees, less_frequent(EPSILON))
    assert low <= sample() <= high
    # A scale that is 5 % off is seen, either way; of the few forests one by one that are played by day, one of 20 %.
    assert binom.sf(low - 1, trees, less_frequent(error * EPSILON)) < MISSED
    assert binom.cdf(high, trees, less_frequent(EPSILON / error)) < MISSED
