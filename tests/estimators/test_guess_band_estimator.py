"""The guess band as an estimator: its coverage over replays and at delta > 0, and its tightness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpaudit.actors.values import decode, encode
from dpaudit.errors import InputError
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.one_run.guess_band import GuessTally, SimultaneousGuessCount, guess_band_epsilon
from dpaudit.estimators.one_run.right_guesses import GuessRule, as_signed, guess_orders
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.fair_coins import FairCoins, TwoSamples
from dpaudit.estimators.two_world.two_sample import Band
from tests.nightly import by_day


def released(rng: np.random.Generator, rows: int, epsilon: float, revealed: float = 0.0) -> Scores:
    """Return randomised response with some bits revealed: exactly (epsilon, revealed)-DP."""
    truth = rng.random(rows) < 0.5
    answer = np.where(truth ^ (rng.random(rows) >= special.expit(epsilon)), 1.0, -1.0)
    return Scores(np.where(rng.random(rows) < revealed, np.where(truth, 2.0, -2.0), answer), truth)


def bounded(estimator: Estimator[Any, Any], scores: Scores) -> float:
    """Return the bound from a single game."""
    return estimator.bound([estimator.tally(scores)]).lower


def limit(games: int) -> int:
    """Return the number of games that the false claims of a correct bound exceed with probability < 1e-6."""
    return int(stats.binom.ppf(1 - 1e-6, games, 0.05))


@pytest.mark.parametrize("guess", ["signed", "both-tails", "any-tail"])
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
def test_bound_holds_with_delta_and_fails_if_delta_is_ignored(estimator: Estimator[Any, Any]) -> None:
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


def test_many_canaries_at_delta_show_more_than_one_number_of_guesses() -> None:
    """A tenth of 20,000 coins is revealed; `one-run` must choose a number of guesses beforehand."""
    rng = np.random.default_rng(6)
    truth = rng.random(20_000) < 0.5
    sure = 5 * np.where(truth, 1, -1) * (rng.random(20_000) < 0.1)
    game = Scores(sure + rng.normal(0, 0.1, 20_000), truth)
    ours, fixed = SimultaneousGuessCount(1e-5, 0.999), OneRun(1e-5, 0.999)
    assert ours.bound([ours.tally(game)]).lower > 4.5
    assert fixed.bound([fixed.tally(game)]).lower < 0.5


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


def standing_out(rng: np.random.Generator, rows: int, side: bool, share: float = 0.1, law: str = "outliers") -> Scores:
    """Return scores in which this share of one side stands out and none of the other does: epsilon is infinite."""
    truth = rng.random(rows) < 0.5
    far = (5 + rng.random(rows)) * (1 if side else -1)
    score = np.where((truth == side) & (rng.random(rows) < share), far, rng.normal(size=rows))
    if law == "ranks":
        score = np.argsort(np.argsort(score)).astype(float)
    elif law == "probabilities":
        score = special.expit(score)
    return Scores(score, truth)


ONE_SIDED: dict[str, dict[str, Any]] = {
    "a tenth of the members": {"side": True},
    "a tenth of the non-members": {"side": False},
    "a twentieth of the members": {"side": True, "share": 0.05},
    "a fiftieth of the non-members": {"side": False, "share": 0.02},
}


@pytest.mark.parametrize("kind", ONE_SIDED)
@pytest.mark.parametrize("estimator", [SimultaneousGuessCount, TwoSamples], ids=["one run", "two samples"])
def test_a_side_that_stands_out_loses_little_to_the_rule_known_beforehand(
    kind: str, estimator: type[SimultaneousGuessCount] | type[TwoSamples]
) -> None:
    """The median of 9 tables of 4,000 rows; at most a tenth is lost, and both tails alone show less than half."""
    best_rule: GuessRule = "member-only" if ONE_SIDED[kind]["side"] else "non-member-only"
    bounds = []
    for seed in range(9):
        scores = standing_out(np.random.default_rng(seed), 4_000, **ONE_SIDED[kind])
        rules: tuple[GuessRule, ...] = ("any-tail", best_rule, "both-tails")
        bounds.append([bounded(SimultaneousGuessCount(guess=guess), scores) for guess in rules])
        if estimator is TwoSamples:
            bounds[-1][0] = bounded(TwoSamples(), scores)
    default, best, both = np.median(bounds, axis=0)
    assert default > 0.9 * best
    assert both < 0.5 * best


@pytest.mark.parametrize("law", ["ranks", "probabilities"])
def test_a_side_is_found_whatever_the_scale_of_the_scores(law: str) -> None:
    """Ranks have no outliers, and probabilities are skewed: the sides alone share half of the error."""
    scores = standing_out(np.random.default_rng(1), 4_000, side=True, law=law)
    one_side, default = (bounded(SimultaneousGuessCount(guess=guess), scores) for guess in ("member-only", "any-tail"))
    assert default > 0.8 * one_side


def test_little_is_lost_where_both_tails_tell() -> None:
    """Normals 2 apart, Laplace noise and randomised response, 1,000 canaries, 12 tables."""
    laws = {
        "normal": lambda rng, sign: sign + rng.normal(size=sign.size),
        "Laplace": lambda rng, sign: sign + rng.laplace(size=sign.size),
        "response": lambda rng, sign: sign * np.where(rng.random(sign.size) < special.expit(1.0), 1.0, -1.0),
    }
    for law in laws.values():
        bounds = []
        for seed in range(12):
            rng = np.random.default_rng(seed)
            truth = rng.random(1_000) < 0.5
            scores = Scores(law(rng, np.where(truth, 1.0, -1.0)), truth)
            rules: tuple[GuessRule, ...] = ("any-tail", "both-tails")
            bounds.append([bounded(SimultaneousGuessCount(guess=guess), scores) for guess in rules])
        default, both = np.mean(bounds, axis=0)
        assert default > 0.9 * both


@pytest.mark.parametrize("estimator", [SimultaneousGuessCount(guess="any-tail"), OneRun(guess="any-tail")])
def test_bound_holds_if_one_side_stands_out_as_far_as_epsilon_allows(estimator: Estimator[Any, Any]) -> None:
    """Members stand out e times as often as non-members, exactly 1-DP; 80 games. False failure < 1e-6."""
    rng, misses = np.random.default_rng(21), 0
    for _ in range(80):
        truth = rng.random(300) < 0.5
        often = 0.2 * np.where(truth, 1.0, np.exp(-1.0))
        misses += bounded(estimator, Scores(rng.normal(size=300) + 6 * (rng.random(300) < often), truth)) > 1.0
    assert misses <= limit(80)


def test_orders_share_the_error_and_at_delta_the_shares_do_not_depend_on_the_scores() -> None:
    rng = np.random.default_rng(0)
    tables = {
        "smooth": rng.uniform(size=500),
        "outliers": np.append(rng.normal(size=490), np.full(10, 9.0)),
        "levels": rng.integers(0, 3, 500).astype(float),
        "skewed": rng.exponential(size=500),
        "infinite": np.append(rng.normal(size=498), [np.inf, -np.inf]),
        "half infinite": np.where(np.arange(500) < 250, np.inf, rng.normal(size=500)),
    }
    shares = {name: guess_orders(score, "any-tail", fixed_shares=False)[2].sum() for name, score in tables.items()}
    assert shares["levels"] == 0 < shares["outliers"] == shares["infinite"] < shares["smooth"] == shares["skewed"] < 1
    assert shares["half infinite"] == shares["smooth"]
    fixed = {tuple(guess_orders(score, "any-tail", fixed_shares=True)[2]) for score in tables.values()}
    assert len(fixed) == 1
    assert guess_orders(tables["smooth"], "signed", fixed_shares=False)[2].size == 0


def test_side_guesses_are_stored_and_read() -> None:
    scores = standing_out(np.random.default_rng(2), 400, side=True)
    estimator = SimultaneousGuessCount(guess="any-tail")
    tallies = [estimator.tally(scores), SimultaneousGuessCount().tally(replace(scores, replay=1))]
    decoded = decode(encode(tallies, GuessTally), GuessTally)
    assert estimator.bound(decoded) == estimator.bound(tallies)
    assert decoded[0].further is not None
    assert decoded[1].further is None
    assert "each side alone" in estimator.bound(decoded).selection


def test_each_order_of_guesses_and_each_test_has_its_share_of_the_error_and_no_more() -> None:
    """A side decides the bound of these scores; the shares of all orders, and of all tests, sum to 1."""
    scores, error = standing_out(np.random.default_rng(3), 1_000, side=False, law="ranks"), 0.05
    tally = SimultaneousGuessCount(guess="any-tail").tally(scores)
    assert tally.further is not None
    shares = [1 - tally.further.share.sum(), *tally.further.share]
    right, guess_counts = [tally.right, *tally.further.right], [tally.looks, *tally.further.guess_counts]
    expected = [
        guess_band_epsilon(*counts, significance=share * error)
        for *counts, share in zip(right, guess_counts, shares, strict=True)
    ]
    assert int(np.argmax(expected)) == 2
    assert bounded(SimultaneousGuessCount(guess="any-tail"), scores) == expected[2]
    assert guess_band_epsilon(right[2], guess_counts[2], significance=error) > expected[2]
    for tests in (FairCoins, TwoSamples):
        drawing = getattr(tests, "drawing_share", 0.0)
        assert tests.guess_share + tests.band_share + tests.accuracy_share + drawing == pytest.approx(1)


def test_levels_on_both_sides_of_the_middle_are_equally_sure() -> None:
    """The smaller side of responses is not guessed first; a side that stands out is."""
    for ones, equal in ((500, True), (490, True), (530, True), (531, True), (533, False), (100, False)):
        signed, _ = as_signed(np.repeat([0.0, 1.0], [1_000 - ones, ones]), "both-tails")
        assert (np.unique(np.abs(signed)).size == 1) is equal, ones
        assert np.array_equal(signed > 0, np.repeat([False, True], [1_000 - ones, ones]))
    signed, _ = as_signed(np.repeat([0.0, 1.0, 2.0, 3.0], [240, 255, 245, 260]), "both-tails")
    assert np.unique(np.abs(signed)).size == 2


def test_a_response_about_exactly_half_of_the_rows_is_no_more_often_wrong_than_stated() -> None:
    """With the smaller side guessed first, 8 % of these bounds exceeded the true epsilon."""
    rng, epsilon, tables, rows = np.random.default_rng(0), 5.0, 1_500, 1_000
    estimator, wrong = SimultaneousGuessCount(guess="any-tail"), 0
    for _ in range(tables):
        truth = rng.permutation(np.arange(rows) < rows // 2)
        answers = np.where(rng.random(rows) < special.expit(epsilon), truth, ~truth)
        wrong += bounded(estimator, Scores(answers.astype(float), truth)) > epsilon
    assert wrong <= stats.binom.isf(1e-3, tables, 0.05)
