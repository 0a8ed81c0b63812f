"""Bounds from a snapshot of votes: a slow twin, error rates where votes have a known law, planted defects."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpaudit.claims import GaussianDP
from dpaudit.errors import InputError
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.private_prediction.noisy_argmax import noisy_argmax_probabilities
from dpaudit.estimators.private_prediction.snapshot import Snapshot, VoteSnapshot
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.selection import Fixed
from dpaudit.estimators.two_world.confusion_tables import ClopperPearson
from dpaudit.estimators.two_world.two_sample import Band, RateRegions
from tests.nightly import by_day

Floats = NDArray[np.float64]
TEACHERS, SIGMA = 9, 3.0


def probabilities(votes: NDArray[np.int64], moved: NDArray[np.bool_], sigma: float = SIGMA) -> Floats:
    """Return the probability of the answer 1 if `votes` of 8 teachers and the one with the record vote for it."""
    table = np.array([[TEACHERS - count, count] for count in range(TEACHERS + 1)])
    return np.asarray(noisy_argmax_probabilities(table, sigma)[:, 1][votes + moved])


def of_worlds(rates: Floats, truth: NDArray[np.bool_]) -> VoteSnapshot:
    return VoteSnapshot(rates[~truth], rates[truth])


def snapshot(runs: int, share: float, rng: np.random.Generator, sigma: float = SIGMA) -> VoteSnapshot:
    """Return the probabilities of `runs` trainings of each world, where others vote for 1 with probability `share`."""
    truth = np.arange(2 * runs) % 2 == 1
    return of_worlds(probabilities(rng.binomial(TEACHERS - 1, share, 2 * runs), truth, sigma), truth)


def true_epsilon(share: float, sigma: float = SIGMA) -> float:
    """Return the epsilon of one answer in this pair of worlds, by the law of the votes."""
    votes = np.arange(TEACHERS)
    weight = stats.binom.pmf(votes, TEACHERS - 1, share)
    p0, p1 = (float(weight @ probabilities(votes, np.full(TEACHERS, world), sigma)) for world in (False, True))
    return max(abs(math.log(p1 / p0)), abs(math.log((1 - p1) / (1 - p0))))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("runs", [10, 300])
def test_bounds_exceed_the_truth_no_more_often_than_stated(share: float, runs: int) -> None:
    """False failure < 1e-6; with a share of 0 the votes are those of a model at temperature 0."""
    games, truth = by_day(300, by_night=5_000), true_epsilon(share)
    bounds = [
        Snapshot().bound([Snapshot().tally(snapshot(runs, share, np.random.default_rng(seed)))])
        for seed in range(games)
    ]
    wrong = sum(bound.lower > truth for bound in bounds)
    assert wrong <= stats.binom.ppf(1 - 1e-6, games, 0.05)


def test_a_snapshot_taken_for_the_law_of_the_votes_exceeds_the_truth() -> None:
    """Plant the defect that SnapAudit's correction is for: 10^5 noisy answers are drawn from the votes of 20 runs."""
    truth, wrong = true_epsilon(0.5), 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        runs = snapshot(20, 0.5, rng)
        chosen = [rng.choice(rates, 100_000) for rates in (runs.without, runs.with_record)]
        answers = np.concatenate([rng.random(100_000) < part for part in chosen]).astype(np.float64)
        estimator = ClopperPearson(selection=Fixed(0.5))
        bootstrapped = estimator.bound([estimator.tally(Scores(answers, np.arange(200_000) >= 100_000))])
        wrong += bootstrapped.lower > truth
    assert wrong > 8


@pytest.mark.parametrize(("sigma", "is_rejected"), [(6.0, False), (3.0, True)])
def test_half_the_noise_is_found_by_a_snapshot_and_not_by_as_many_answers(sigma: float, is_rejected: bool) -> None:
    """The votes are equal but for 2 % of 500 runs of each world; the claim is that of noise of deviation 6."""
    claim, rng, truth = GaussianDP(math.sqrt(2) / 6.0), np.random.default_rng(0), np.arange(1_000) % 2 == 1
    rates = probabilities(np.where(rng.random(1_000) < 0.02, 5, 4), truth, sigma)
    bound = Snapshot().bound([Snapshot().tally(of_worlds(rates, truth))])
    assert (bound.violation_point(claim) is not None) == is_rejected
    answers = Scores((rng.random(1_000) < rates).astype(np.float64), truth)
    counted = Band().bound([Band().tally(answers)])
    assert counted.violation_point(claim) is None


def test_limits_are_those_of_the_inequality_as_written() -> None:
    """A slow twin, run by run."""
    runs = snapshot(12, 0.3, np.random.default_rng(5))
    tally = Snapshot().tally(runs)
    alarm, miss = Snapshot().rates(tally, 0.05)
    expected = []
    for values in (runs.without.tolist(), runs.with_record.tolist()):
        n, mean = len(values), math.fsum(values) / len(values)
        pairs = math.fsum((first - second) ** 2 for first in values for second in values)
        variance, logarithm = pairs / (2 * n * (n - 1)), math.log(2 / (0.05 / 4))
        width = math.sqrt(2 * variance * logarithm / n) + 7 * logarithm / (3 * (n - 1))
        expected.append((max(0.0, mean - width), min(1.0, mean + width)))
    (low0, high0), (low1, high1) = expected
    assert alarm == pytest.approx([high0, 1 - low0], abs=1e-12)
    assert miss == pytest.approx([1 - low1, high1], abs=1e-12)
    (regions,) = Snapshot().bound([tally]).evidence
    assert isinstance(regions, RateRegions)


def test_votes_without_randomness_have_the_width_of_the_inequality_at_variance_0() -> None:
    """500 runs of each world."""
    tally = Snapshot().tally(VoteSnapshot(np.full(500, 0.1), np.full(500, 0.9)))
    bound, width = Snapshot().find([tally]), 7 * math.log(160) / (3 * 499)
    assert isinstance(bound, Bound)
    assert bound.lower == pytest.approx(math.log((0.9 - width) / (0.1 + width)), abs=1e-9)
    assert bound.mu > 2.0
    assert Snapshot().bound([tally], failed_replays=2).lower == 0
    for values in ([0.1, 1.2], [0.1], [math.nan, 0.1]):
        with pytest.raises(InputError, match=r"probabilities in \[0, 1\]"):
            VoteSnapshot(np.array(values), np.array([0.1, 0.2]))
