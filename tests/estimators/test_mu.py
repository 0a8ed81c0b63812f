"""Limits on mu of Gaussian DP from bounds on epsilon: coverage, a slow twin, and a planted defect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpaudit import estimate
from dpaudit.claims import GaussianDP
from dpaudit.estimators.bound import mu_of_rates, mu_of_total_variation
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins, GuessAccuracy
from dpaudit.estimators.two_world.two_sample import Band, RateRegions
from tests.nightly import by_day

CONFIDENCE = 0.9


def gaussian(mu: float, trials: int, seed: int) -> Scores:
    """Return scores of a Gaussian mechanism with fair coins."""
    rng = np.random.default_rng([seed, trials])
    truth = rng.random(trials) < 0.5
    return Scores(rng.normal(size=trials) + mu * truth, truth)


def bound_of(estimator: Any, scores: Scores) -> Any:
    return estimator.find([estimator.tally(scores)])


@pytest.mark.parametrize("estimator", [FairCoins(confidence=CONFIDENCE), Band(confidence=CONFIDENCE, delta=1e-3)])
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_the_limit_exceeds_the_true_mu_no_more_often_than_stated(estimator: Any, mu: float) -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of a binomial."""
    games = by_day(60, by_night=2000)
    limits = np.array([bound_of(estimator, gaussian(mu, 400, seed)).mu for seed in range(games)])
    assert (limits > mu).sum() <= stats.binom.ppf(1 - 1e-6, games, 1 - CONFIDENCE)
    assert np.median(limits) > (1.2 if mu == 2 else 0)


def test_limits_without_confidence_would_be_too_large() -> None:
    """Plant the defect that shares of a sample are taken for rates; most of the games then exceed the true mu."""
    exceeding = 0
    for seed in range(40):
        scores = gaussian(1.0, 400, seed)
        thresholds = np.quantile(scores.score, np.linspace(0.05, 0.95, 19))[:, None]
        alarm = (scores.score[~scores.truth] >= thresholds).mean(axis=1)
        miss = (scores.score[scores.truth] < thresholds).mean(axis=1)
        valid = (alarm > 0) & (miss > 0)
        exceeding += bool(mu_of_rates(alarm[valid], miss[valid]).max() > 1.0)
    assert exceeding > 25


def test_the_limit_is_that_of_a_search_over_whole_curves() -> None:
    """A slow twin: each curve is compared with every pair of rates by its own trade-off function."""
    bound = bound_of(Band(confidence=CONFIDENCE), gaussian(1.5, 500, 3))
    (regions,) = bound.evidence
    assert isinstance(regions, RateRegions)
    ((alarms, misses),) = regions.rates

    def is_rejected(mu: float) -> bool:
        curve = GaussianDP(mu)
        return any(curve.miss_rate(alarm) > miss for alarm, miss in zip(alarms.tolist(), misses.tolist(), strict=True))

    low, high = 1e-3, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    assert bound.mu == pytest.approx(low, abs=1e-7)
    assert bound.mu <= low


def test_every_smaller_mu_is_rejected_and_larger_ones_are_not_by_the_verdict_itself() -> None:
    bound = bound_of(FairCoins(confidence=CONFIDENCE), gaussian(2.0, 800, 1))
    assert bound.mu > 1.0
    assert bound.violation_point(GaussianDP(0.98 * bound.mu)) is not None
    assert bound.violation_point(GaussianDP(1.001 * bound.mu)) is None


def test_a_bound_at_a_delta_rejects_the_mu_of_its_point() -> None:
    """An epsilon at delta = 1e-3 that exceeds that of mu = 1 by a little gives a limit of a little above 1."""
    epsilon = GaussianDP(1.0).epsilon(1e-3)
    bound = replace(bound_of(Band(delta=1e-3), gaussian(0.1, 100, 0)), lower=epsilon * 1.0001, evidence=())
    assert bound.mu == pytest.approx(1.0, abs=1e-3)
    assert bound.mu >= 1.0
    assert replace(bound, lower=epsilon * 0.9999).mu < 1.0
    assert replace(bound, delta=0.0).mu == 0.0  # no Gaussian has a finite epsilon there


def test_total_variation_and_rates_agree() -> None:
    distance = GaussianDP(0.7).delta(0.0)
    assert mu_of_total_variation(distance) == pytest.approx(0.7, abs=1e-6)
    assert mu_of_total_variation(0.0) == 0.0
    rates = special.ndtr(-0.5), special.ndtr(0.5 - 2.0)
    assert mu_of_rates(np.array([rates[0]]), np.array([rates[1]])) == pytest.approx([2.0], abs=1e-6)
    assert mu_of_rates(np.array([1.0]), np.array([0.5])) == 0.0
    accuracy = GuessAccuracy(np.array([90]), np.array([100]), 0.05, failed_replays=2)
    assert accuracy.mu == 0.0  # the median of one replay and two failed ones


def test_bounds_that_reject_no_claim_reject_no_mu() -> None:
    bound = bound_of(FairCoins(), gaussian(2.0, 800, 1))
    assert replace(bound, validity=Validity.AS_PUBLISHED).mu == 0.0
    scores = gaussian(2.0, 800, 1)
    assert estimate(scores.score, scores.truth, method="fair-coins").mu > 0.5
