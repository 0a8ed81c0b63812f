"""Bounds under a family: much tighter and valid inside the family, wrong outside, as their validity states."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from dpaudit.claims import GaussianDP, PureDP, SubsampledGaussian
from dpaudit.errors import InputError
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.family import BandFamily, bound_under_family, family_of
from dpaudit.estimators.two_world.two_sample import Band
from tests.nightly import by_day


def gaussian(rng: np.random.Generator, rows: int) -> Scores:
    truth = np.arange(rows) % 2 == 0  # as many in each world every time: their limits are computed once
    return Scores(rng.normal(0, 1, rows) + truth, truth)


def test_bound_inside_the_family_is_much_tighter_and_holds() -> None:
    """100 games of mu = 1, by day 25. False failure < 1e-6."""
    games = by_day(25, by_night=100)
    truth, estimator = GaussianDP(1.0).epsilon(1e-5), BandFamily()
    rng = np.random.default_rng(0)
    tallies = [estimator.tally(gaussian(rng, 500)) for _ in range(games)]
    bounds = np.array([estimator.bound([tally]).lower for tally in tallies])
    assert np.count_nonzero(bounds > truth) <= stats.binom.ppf(1 - 1e-6, games, 0.05)
    free = np.array([estimator.band.bound([tally]).lower for tally in tallies[:10]])
    assert bounds[:10].mean() > free.mean() + 1
    assert estimator.bound(tallies[:1]).validity is Validity.CONDITIONAL_ON_FAMILY


def test_bound_outside_the_family_is_always_wrong() -> None:
    """Randomised response of pure epsilon 1 analysed as a Gaussian: wrong in 20 of 20 games, by day in 6 of 6."""
    estimator, rng = BandFamily(), np.random.default_rng(1)
    for _ in range(by_day(6, by_night=20)):
        truth = rng.random(1_000) < 0.5
        answered = np.where(truth ^ (rng.random(1_000) >= special.expit(1.0)), 1.0, -1.0)
        assert estimator.bound([estimator.tally(Scores(answered, truth))]).lower > 2


def test_curve_of_the_accountant_bounds_the_noise() -> None:
    rng, trials, rate, steps, noise = np.random.default_rng(2), 1_024, 0.1, 20, 0.8
    truth, score = rng.random(trials) < 0.5, np.zeros(trials)
    for _ in range(steps):
        release = rng.normal(0, noise, trials) + (truth & (rng.random(trials) < rate))
        score += np.log1p(-rate + rate * np.exp((2 * release - 1) / (2 * noise**2)))
    claim = SubsampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps)
    band = Band(delta=1e-5)
    bound = band.bound([band.tally(Scores(score, truth))])
    family_bound = bound_under_family(bound, family_of(claim))
    assert family_bound is not None
    assert family_bound.family == "DP-SGD (sampled at 0.1, 20 steps)"
    assert bound.lower + 0.5 < family_bound.epsilon <= claim.epsilon(1e-5)
    assert 0.8 < float(family_bound.member.split("<=")[1]) < 1.6


def test_claim_determines_the_family_and_delta_is_required() -> None:
    assert family_of(PureDP(1.0)).name == "Gaussian"
    with pytest.raises(InputError, match="delta must be in"):
        BandFamily(delta=0.0)


def test_constant_scores_give_a_bound_of_0() -> None:
    estimator = BandFamily()
    truth = np.arange(200) < 100
    assert estimator.bound([estimator.tally(Scores(np.zeros(200), truth))]).lower == 0
