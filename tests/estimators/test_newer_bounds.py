"""Newer published bounds that the benchmarks compare with ours, where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.newer_bounds import (
    DELTA,
    GAUSSIAN_EXACT,
    METHODS,
    adaptive_guesses,
    betting_pairs,
    gaussian,
    gaussian_pair_epsilon,
    kernel_pairs,
    last_iterate_epsilon,
    randomised_response,
    shared_quantile,
)
from dpaudit.claims import GaussianDP, SubsampledGaussian
from dpaudit.estimators.scores import Scores

RUNS = 200
LIMIT = int(stats.binom.ppf(1 - 1e-6, RUNS, 0.05))


def above(draw: object, exact: float, confidence: float = 0.95) -> int:
    """Return the number of runs of 300 canaries whose bound of two Gaussians exceeds the truth."""
    rngs = (np.random.default_rng([7, run]) for run in range(RUNS))
    bounds = [gaussian_pair_epsilon(draw(300, rng), delta=DELTA, confidence=confidence) for rng in rngs]  # type: ignore[operator]
    return int((np.array(bounds) > exact).sum())


def test_two_gaussians_hold_for_gaussians_alone() -> None:
    """False failure < 1e-6 for the first line. Randomised response is not Gaussian: nearly every bound is wrong."""
    assert above(gaussian, GAUSSIAN_EXACT[DELTA]) <= LIMIT
    assert above(gaussian, GAUSSIAN_EXACT[DELTA], confidence=0.5) > LIMIT  # a planted defect
    assert above(randomised_response, 1.0) > 0.9 * RUNS


def test_the_bound_of_two_gaussians_is_the_limit_of_a_t_test() -> None:
    """A pooled t statistic whose 5 % quantile at the returned distance is the observed one."""
    scores = gaussian(400, np.random.default_rng(3))
    epsilon = gaussian_pair_epsilon(scores, delta=DELTA, confidence=0.95)
    members, others = scores.score[scores.truth], scores.score[~scores.truth]
    observed = stats.ttest_ind(members, others).statistic
    root = math.sqrt(members.size * others.size / 400)
    distances = np.linspace(0.5, 1.5, 2001)
    limits = stats.nct.sf(observed, 398, distances * root)
    assert GaussianDP(float(np.interp(0.05, limits, distances))).epsilon(DELTA) == pytest.approx(epsilon, abs=1e-3)


def test_luck_that_canaries_share_breaks_the_newer_bounds_and_not_ours() -> None:
    """40 runs, measured rates 39 % and 0 %. False failure < 1e-4 for fewer than 5 bounds too high."""
    tables = [shared_quantile(1_000, np.random.default_rng([9, run])) for run in range(40)]
    exact = GAUSSIAN_EXACT[DELTA]
    too_high = {
        name: sum(method(scores) > exact for scores in tables) for name, delta, method in METHODS if delta == DELTA
    }
    assert too_high["order statistics of 100 %, 2509.08704"] >= 5
    assert too_high["simultaneous-guess-count (ours)"] <= int(stats.binom.ppf(1 - 1e-6, 40, 0.05))


def test_an_adaptive_guess_knows_earlier_bits_only() -> None:
    """An adversary whose guesses are all wrong reverses them after the first one."""
    scores = shared_quantile(100, np.random.default_rng(1))
    changed = Scores(scores.score, np.concatenate([scores.truth[:60], ~scores.truth[60:]]))
    assert np.array_equal(adaptive_guesses(scores).score[:61], adaptive_guesses(changed).score[:61])
    wrong = adaptive_guesses(Scores(scores.score, scores.score < 0))
    assert ((wrong.score > 0) == wrong.truth).sum() == 99


def test_the_last_iterate_of_one_step_or_of_every_row_is_the_claim() -> None:
    """One step has nothing to hide behind; with all rows in each step the sum of the steps is sufficient."""
    assert last_iterate_epsilon(1.0, 0.2, 1, DELTA) == pytest.approx(
        SubsampledGaussian(1.0, 0.2, 1).epsilon(DELTA), rel=0.01
    )
    assert last_iterate_epsilon(4.0, 1.0, 16, DELTA) == pytest.approx(GaussianDP(1.0).epsilon(DELTA), rel=1e-4)
    assert last_iterate_epsilon(1.0, 0.1, 100, DELTA) < 0.9 * SubsampledGaussian(1.0, 0.1, 100).epsilon(DELTA)


def test_bets_reject_large_violations_and_true_claims_rarely() -> None:
    """Ville's inequality: at most 5 % of true claims. False failure < 1e-6 (11 of 30)."""
    rejected = {kernel_pairs: 0, betting_pairs: 0}
    for run in range(30):
        rng = np.random.default_rng([2, run])
        members, others = rng.laplace(1.0, 2.0, 100), rng.laplace(0.0, 2.0, 100)
        for test in rejected:
            rejected[test] += test(members, others, epsilon=0.5) is not None
            if run < 5:
                assert test(members + 20, others, epsilon=0.5) is not None
    assert max(rejected.values()) <= int(stats.binom.ppf(1 - 1e-6, 30, 0.05))
