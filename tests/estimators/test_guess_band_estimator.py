"""The guess band as an estimator: its coverage over replays and at delta > 0, and its tightness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpaudit.errors import InputError
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.one_run.right_guesses import GuessRule
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import ScoreEstimator, Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins, TwoSamples
from dpaudit.estimators.two_world.two_sample import Band
from tests.nightly import by_day


def released(rng: np.random.Generator, rows: int, epsilon: float, revealed: float = 0.0) -> Scores:
    """Return randomised response with some bits revealed: exactly (epsilon, revealed)-DP."""
    truth = rng.random(rows) < 0.5
    answer = np.where(truth ^ (rng.random(rows) >= special.expit(epsilon)), 1.0, -1.0)
    return Scores(np.where(rng.random(rows) < revealed, np.where(truth, 2.0, -2.0), answer), truth)


def bounded(estimator: ScoreEstimator[Any], scores: Scores) -> float:
    """Return the bound from a single game."""
    return estimator.bound([estimator.tally(scores)]).lower


def limit(games: int) -> int:
    """Return the number of games that the false claims of a correct bound exceed with probability < 1e-6."""
    return int(stats.binom.ppf(1 - 1e-6, games, 0.05))


@pytest.mark.parametrize("guess", ["signed", "both-tails"])
def test_bound_holds_and_is_tight_at_the_truth(guess: GuessRule) -> None:
    """100 games of RR(1). False failure < 2e-6."""
    estimator = SimultaneousGuessCount(guess=guess)
    rng = np.random.default_rng(3)
    bounds = np.array([estimator.bound([estimator.tally(released(rng, 300, 1.0))]).lower for _ in range(100)])
    assert np.count_nonzero(bounds > 1.0) <= limit(100)
    assert bounds.mean() > 0.5


@pytest.mark.parametrize(
    "estimator", [SimultaneousGuessCount(delta=0.01), FairCoins(delta=0.01)], ids=["one training", "trials"]
)
def test_bound_holds_with_delta_and_fails_if_delta_is_ignored(estimator: ScoreEstimator[Any]) -> None:
    """The hardest (0.5, 0.01) mechanism, 60 games, by day 30. False failure < 1e-6."""
    rng = np.random.default_rng(4)
    games = [released(rng, 1_000, 0.5, revealed=0.01) for _ in range(by_day(30, by_night=60))]
    assert sum(bounded(estimator, game) > 0.5 for game in games) <= limit(len(games))
    forgotten = SimultaneousGuessCount()
    assert sum(bounded(forgotten, game) > 0.5 for game in games) > limit(len(games))


def test_median_of_replays_holds_if_replays_err_together() -> None:
    """Five releases of the same bits share half of their noise, 30 games. False failure < 1e-6."""
    misses, estimator = 0, SimultaneousGuessCount()
    for seed in np.random.SeedSequence(12).spawn(30):
        rng = np.random.default_rng(seed)
        first = released(rng, 300, 1.0)
        is_true = rng.random(300) < special.expit(1.0)
        other = np.where(first.truth ^ ~is_true, 1.0, -1.0)
        releases = [np.where(rng.random(300) < 0.5, first.score, other) for _ in range(5)]
        tallies = [estimator.tally(Scores(score, first.truth, replay)) for replay, score in enumerate(releases)]
        misses += estimator.bound(tallies).lower > 1.0
    assert misses <= limit(30)


def test_leak_of_few_canaries_is_detected_better_than_by_a_grid() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(512) < 0.5
    leaks = np.where(rng.random(512) < 0.05, 10.0 * (truth - 0.5), rng.normal(0, 0.1, 512))
    scores = Scores(leaks, truth)
    ours, grid = SimultaneousGuessCount(), OneRun()
    assert ours.bound([ours.tally(scores)]).lower > grid.bound([grid.tally(scores)]).lower + 0.2


def test_lost_replays_count_as_0_and_no_replay_is_refused() -> None:
    estimator, rng = SimultaneousGuessCount(), np.random.default_rng(5)
    tallies = [estimator.tally(released(rng, 500, 3.0)) for _ in range(2)]
    assert estimator.bound(tallies, failed_replays=3).lower == 0
    finding = estimator.find(tallies, failed_replays=1)
    assert finding.lower > 0
    assert dict(finding.counts)["lost replays"] == 1
    with pytest.raises(InputError, match="at least one replay"):
        estimator.bound([])


def test_one_run_reads_the_counts_if_delta_may_reveal_many_canaries() -> None:
    """The choice depends on the number of canaries and delta only."""
    game, few = released(np.random.default_rng(6), 1_000, 2.0), 0.05 / 1_000
    for delta in (0.2 / 1_000, 3.0 / 1_000):
        ours, fixed = SimultaneousGuessCount(delta=delta), OneRun(delta=delta)
        assert ours.bound([ours.tally(game)]) == fixed.bound([fixed.tally(game)])
        assert list(ours.series([ours.tally(game)])) == ["fractions", "replays"]
    assert (
        SimultaneousGuessCount(delta=few).bound([SimultaneousGuessCount(delta=few).tally(game)]).method
        == "simultaneous-guess-count"
    )


def test_replays_have_a_figure_and_their_mean_is_stated() -> None:
    rng, estimator = np.random.default_rng(7), SimultaneousGuessCount()
    tallies = [estimator.tally(replace(released(rng, 400, 2.0), replay=replay)) for replay in (2, 0, 1)]
    finding = estimator.find(tallies, failed_replays=2)
    sweep, replays = finding.series["fractions"], finding.series["replays"]
    assert sweep["epsilon"].shape == (100,)
    assert replays["replay"].tolist() == [0, 1, 2]
    assert np.median(replays["epsilon"]) == finding.lower
    alone = [estimator.bound([tally]).lower for tally in sorted(tallies, key=lambda tally: tally.replay)]
    assert replays["alone"].tolist() == alone
    assert f"mean {np.mean(alone):.3f}" in finding.notes[0]


def test_reported_counts_are_those_that_decide_the_bound() -> None:
    """Forty certain guesses are right and the others are random: the bound names forty, not hundreds."""
    truth = np.random.default_rng(8).random(400) < 0.5
    noise = np.random.default_rng(9).normal(0, 1e-3, 400)
    bound = SimultaneousGuessCount().bound(
        [SimultaneousGuessCount().tally(Scores(np.where(np.arange(400) < 40, truth - 0.5, noise), truth))]
    )
    counts = dict(bound.counts)
    assert 36 <= counts["guesses"] <= 44
    assert counts["correct"] >= counts["guesses"] - 3


def test_constant_scores_give_a_bound_of_0() -> None:
    truth = np.arange(972) < 486
    assert bounded(SimultaneousGuessCount(guess="both-tails"), Scores(np.zeros(972), truth)) < 0.2
    assert bounded(FairCoins(), Scores(np.zeros(972), truth)) < 0.2


@pytest.mark.parametrize(("members", "others"), [(50, 50), (500, 500), (100, 400), (1, 3)])
def test_two_samples_draw_as_many_trials_as_coins_allow(members: int, others: int) -> None:
    """The number leaves a sample short with probability at most a twentieth of the error, halved for a median."""
    truth = np.arange(members + others) < members
    scores = Scores(np.random.default_rng(members).normal(size=truth.size), truth)
    guess_count = int(TwoSamples().tally(scores).looks[-1])

    def short(coins: int) -> float:
        return float(stats.binom.sf(members, coins, 0.5) + stats.binom.sf(others, coins, 0.5))

    assert short(guess_count) <= 0.05 * 0.05 / 2 < short(guess_count + 1)


def test_two_samples_do_not_depend_on_the_row_order() -> None:
    rng = np.random.default_rng(4)
    truth = np.arange(400) < 150
    scores, rows = rng.normal(size=400) + truth, rng.permutation(400)
    assert bounded(TwoSamples(), Scores(scores, truth)) == bounded(TwoSamples(), Scores(scores[rows], truth[rows])) > 0


def test_two_samples_lose_less_than_thresholds_alone() -> None:
    """RR(1), 50 + 50 trials: limits for both samples give about 0.1, guesses about 0.5. Standard error below 0.05."""
    rng, truth = np.random.default_rng(6), np.arange(100) < 50
    bounds = []
    for _ in range(60):
        answer = np.where(truth ^ (rng.random(100) >= special.expit(1.0)), 1.0, -1.0)
        bounds.append([bounded(estimator, Scores(answer, truth)) for estimator in (TwoSamples(), Band())])
    both, band = np.mean(bounds, axis=0)
    assert both > 0.35 > 0.25 > band
