"""Detected with 40 of 40 other seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from benchmarks.wide_vectors import banknotes, patients
from dpaudit.actors.seed import Seed
from dpaudit.claims import PureDP, Relation
from dpaudit.engine.attacks.output_set import OutputSet, SummaryView
from dpaudit.engine.attacks.stated_law import stated_odds
from dpaudit.engine.games.neighbours.coupled_seeds import summarised
from dpaudit.engine.games.neighbours.game import Neighbours
from dpaudit.engine.games.neighbours.poisonings.corners import OppositeCorners
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning, Worlds
from dpaudit.engine.games.neighbours.poisonings.rows import CornerFlip
from dpaudit.engine.games.outcomes import MAX_NUMBER, Outcomes, Runs
from dpaudit.engine.games.run_scores import score_trials
from dpaudit.engine.games.search import clips_records, separation
from dpaudit.errors import InputError
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.gaussian_naive_bayes import GaussianNaiveBayes
from dpaudit.mechanisms.learners.logistic_regression import LogisticOutputPerturbation
from dpaudit.mechanisms.queries.row_function import CallOutcome
from tests.nightly import too

QUARTER = GaussianNaiveBayes(4.0, relation=Relation.REPLACE)
"""Mechanism of epsilon 4, tested against a claim of 1."""


def worlds_of(data: Examples, poisoning: Poisoning) -> Worlds:
    return Neighbours().chosen(poisoning, data, Seed(0).rng())


def sample(mechanism: Any, worlds: Worlds, trainings: int, seed: int) -> Outcomes:
    truth = np.random.default_rng(seed).random(trainings) < 0.5
    return summarised(mechanism, worlds, Runs(truth, np.arange(trainings), Seed(seed), (), Compute()))


@pytest.mark.parametrize(
    ("mechanism", "data", "poisoning"),
    [
        (QUARTER, banknotes(100), OppositeCorners(4, 1 / 3, "both")),  # much of it lies at limits
        (QUARTER, patients(13), CornerFlip()),
        (GaussianNaiveBayes(4.0, lower=-1.0, upper=3.0), banknotes(100), CornerFlip()),
        (LogisticOutputPerturbation(8.0), banknotes(100), OppositeCorners(21, 0.5, "class")),
    ],
)
def test_stated_law_matches_the_samples(mechanism: Any, data: Examples, poisoning: Poisoning) -> None:
    """A share expit(o) of releases with log-odds o is of world 1, in four groups; false failure 1 in 10,000."""
    worlds = worlds_of(data, poisoning)
    samples, law = sample(mechanism, worlds, 8_000, 1), stated_odds(mechanism, worlds, Compute())
    assert law is not None
    odds = law(samples.summaries())
    assert odds.std() > 0.1
    for group in np.array_split(np.argsort(odds), 4):
        likely = special.expit(odds[group])
        away = (samples.truth[group] - likely).sum() / np.sqrt((likely * (1 - likely)).sum())
        assert abs(away) < 4.4


@pytest.mark.parametrize("columns", [13, *too(40)])
def test_quarter_of_the_noise_is_detected_in_one_hot_columns(columns: int) -> None:
    """1,500 search and 3,000 fresh trainings reject it with 30 of 30 other seeds, the honest twin with 0 of 10."""
    worlds = worlds_of(patients(columns), CornerFlip())
    for epsilon, refuted in ((4.0, True), (1.0, False)):
        learner = GaussianNaiveBayes(epsilon, relation=Relation.REPLACE)
        search, fresh = (sample(learner, worlds, trainings, 7 + trainings) for trainings in (1_500, 3_000))
        scores = score_trials(OutputSet(), search, fresh, stated_odds(learner, worlds, Compute()))
        estimator = FairCoins(confidence=0.999)
        assert (estimator.find([estimator.tally(scores)]).violation_point(PureDP(1.0)) is not None) == refuted


@pytest.mark.nightly
def test_leak_in_few_of_many_numbers_is_detected_without_a_law() -> None:
    """Two of 160 numbers with Laplace noise tell: the shrunken medians are worth more than all other classifiers.

    In 40 of 40 with other seeds.
    """
    for seed in range(5):
        rng, attack = np.random.default_rng(seed), OutputSet()
        truth = rng.random(1_500) < 0.5
        summaries = rng.laplace(size=(1_500, 160))
        summaries[:, :2] += 0.7 * truth[:, None]
        worth = [candidate.worth(SummaryView(summaries, truth, summaries[:0])) for candidate in attack.candidates()]
        assert attack.best(worth).classifiers == ("shrunken",)


def test_missing_law_is_an_error() -> None:
    truth = np.arange(40) % 2 == 0
    view = SummaryView(np.random.default_rng(0).normal(size=(40, 3)), truth, np.ones((4, 3)))
    with pytest.raises(InputError, match="need a mechanism that states its law"):
        OutputSet(("stated",)).score(view)


def test_wrong_law_is_not_chosen() -> None:
    """The law has the wrong sign for the first number and ignores the second, which is more informative."""
    rng = np.random.default_rng(3)
    truth = rng.random(2_000) < 0.5
    summaries = rng.normal(size=(2_000, 2)) + np.outer(truth, [0.2, 3.0])
    view = SummaryView(summaries[:1_000], truth[:1_000], summaries[1_000:], lambda numbers: -numbers[:, 0])
    assert (((OutputSet().score(view) > 0) == truth[1_000:]).mean()) > 0.9


def of_numbers(numbers: NDArray[np.float64], truth: NDArray[np.bool_]) -> Outcomes:
    return Outcomes.of_numbers(numbers, truth)


def test_low_bit_numbers_can_be_removed() -> None:
    """Three trials: one number with two low-bit numbers, none, and two numbers with one each."""
    results = [
        CallOutcome("a", np.array([1.0, -52, 52]), low_bits=2),
        CallOutcome("b", np.array([2.0])),
        CallOutcome("c", np.array([3.0, 4, -50, 50]), low_bits=2),
    ]
    samples = Outcomes.of(results, np.array([True, False, True]))
    shortened = samples.without_low_bits()
    assert shortened.vector.tolist() == [1, 2, 3, 4]
    assert shortened.width.tolist() == [1, 1, 2]
    assert not shortened.low_bits.any()
    some = samples.where(np.array([False, True, True])).without_low_bits()
    assert (some.vector.tolist(), some.width.tolist()) == ([2, 3, 4], [1, 2])
    assert Outcomes.joined([samples, samples]).without_low_bits().vector.tolist() == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("width", [4_000, 5_000])  # of 64 bits, and of 32
def test_long_summaries_are_classified(width: int) -> None:
    truth, rng = np.arange(60) % 2 == 1, np.random.default_rng(2)
    numbers = rng.laplace(size=(60, width))
    numbers[truth, width - 7] += 9.0
    samples = of_numbers(numbers, truth)
    assert samples.summaries().dtype == (np.float64 if width == 4_000 else np.float32)
    right = (score_trials(OutputSet(), samples, samples).score > 0) == truth
    assert right.mean() > 0.95
    assert separation(samples)[1] > 0.9


@pytest.mark.parametrize("width", [4_000, 5_000])
def test_long_summaries_with_extreme_numbers_do_not_count_as_clipped(width: int) -> None:
    truth = np.arange(8) % 2 == 1
    low, high = (of_numbers(np.full((8, width), sign * MAX_NUMBER), truth) for sign in (-1.0, 1.0))
    assert not clips_records(high, low)
    assert clips_records(high, high)
