"""Bounds from several coins a step: a slow twin, the error under any dependence of coins, and what pooling breaks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpaudit.claims.curve import GaussianDP
from dpaudit.errors import InputError
from dpaudit.estimators.one_run.coin_averages import BETS, START, CoinAverages, CoinTally
from dpaudit.estimators.scores import StepScores

MU = 1.0
ACCURACY = float(stats.norm.cdf(MU / 2))


def slow_wealth(right: list[list[bool]], accuracy: float) -> float:
    """Return the largest wealth: each coin of a step is bet on with an equal part of the capital."""
    largest = 1.0
    capital = dict(zip(BETS, START, strict=True))
    for step in right:
        for bet in BETS:
            paid = [(1 - bet) + (bet / accuracy if guess else 0.0) for guess in step]
            capital[bet] *= sum(paid) / len(paid)
        largest = max(largest, sum(capital.values()))
    return largest


def test_wealth_is_that_of_the_slow_twin() -> None:
    rng = np.random.default_rng(0)
    for coins in (1, 3, 20):
        for accuracy in (0.55, 0.7, 0.95):
            right = rng.random((30, coins)) < 0.8
            expected = math.log(slow_wealth(right.tolist(), accuracy))
            assert CoinTally(right.mean(1)).log_wealth(accuracy) == pytest.approx(expected, abs=1e-9)


def test_bound_is_the_largest_rejected_accuracy() -> None:
    tally = CoinTally(np.random.default_rng(1).binomial(20, 0.85, 100) / 20)
    odds = tally.odds(0.05)
    rejected, not_rejected = 1 / (1 + math.exp(-odds)), 1 / (1 + math.exp(-odds - 1e-6))
    assert tally.log_wealth(rejected) >= math.log(20) > tally.log_wealth(not_rejected)


@pytest.mark.parametrize("together", [False, True], ids=["independent", "all right or all wrong"])
def test_error_at_the_truth_whatever_the_coins_have_in_common(together: bool) -> None:
    rng = np.random.default_rng(2)
    rejected, pooled = 0, 0
    for _ in range(600):
        right = rng.random((40, 1 if together else 20)) < ACCURACY
        share = right.mean(1)
        rejected += CoinTally(share).p_value(2 * ACCURACY - 1) <= 0.05
        correct = round(20 * share.sum())
        pooled += stats.binom.sf(correct - 1, 800, ACCURACY) <= 0.05
    assert stats.binom.sf(rejected - 1, 600, 0.05) > 1e-3
    # Counts that are pooled over the coins of a step reject too often if these are right or wrong together.
    assert (stats.binom.sf(pooled - 1, 600, 0.05) < 1e-6) == together


def test_twenty_coins_show_half_of_the_noise_in_forty_eight_steps() -> None:
    rng = np.random.default_rng(3)
    twenty_coins = [
        CoinTally(rng.binomial(20, stats.norm.cdf(1.0), 48) / 20).p_value(2 * ACCURACY - 1) <= 1e-3 for _ in range(100)
    ]
    one_coin = [
        CoinTally(rng.binomial(1, stats.norm.cdf(1.0), 48) / 1.0).p_value(2 * ACCURACY - 1) <= 1e-3 for _ in range(100)
    ]
    assert np.mean(twenty_coins) > 0.6 > 0.2 > np.mean(one_coin)


def test_estimator_counts_coins_by_step() -> None:
    rng = np.random.default_rng(4)
    truth = rng.random(60) < 0.5
    score = np.where(truth, 1.0, -1.0)
    score[-3:] = 0  # no guess is a wrong guess
    order = rng.permutation(60)
    bound = CoinAverages(delta=1e-5).bound(
        [CoinAverages().tally(StepScores(score[order], truth[order], canary=order, coins=3))]
    )
    assert dict(bound.counts) == {"steps": 20, "coins": 60, "correct": 57}
    assert bound.violation_point(GaussianDP(0.5)) is not None
    assert bound.violation_point(GaussianDP(5.0)) is None
    with pytest.raises(InputError, match="same number of coins"):
        StepScores(score, truth, coins=7)
