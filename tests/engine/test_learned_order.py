"""The learned order of guesses: predictable, valid at the truth, and better than its fixed order alone."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from dpaudit.engine.games.learned_order import learned_order
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores

GAMES = 200


def bound(scores: Scores, *, delta: float = 0.0) -> float:
    estimator = SimultaneousGuessCount(delta=delta, guess="signed")
    return estimator.bound([estimator.tally(scores)]).lower


def signals(coins: np.ndarray[tuple[int], np.dtype[np.bool_]], epsilon: float, rng: np.random.Generator) -> Floats:
    """Return features of randomised response at epsilon: its answer, hidden among noise by random scales and order."""
    right = rng.random(coins.size) < expit(epsilon)
    answer = np.where(right == coins, 1.0, -1.0)
    return np.column_stack([rng.normal(size=coins.size), answer, rng.normal(size=coins.size), np.ones(coins.size)])


def test_bound_holds_at_the_truth_with_its_stated_probability() -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(200, 0.05)."""
    rng = np.random.default_rng(0)
    limit = binom.ppf(1 - 1e-6, GAMES, 0.05)
    for epsilon in (0.0, 1.0):
        misses = 0
        for game in range(GAMES):
            coins = rng.random(100) < 0.5
            features = signals(coins, epsilon, rng)
            misses += bound(learned_order(features[:, 0], features, coins, seed=game)) > epsilon
        assert misses <= limit, epsilon


def test_an_order_that_looks_at_its_own_coin_is_caught_by_the_same_test() -> None:
    """A model fitted on all coins, whose own guesses it then orders, exceeds the truth far too often."""
    rng = np.random.default_rng(1)
    misses = 0
    for _ in range(60):
        coins = rng.random(100) < 0.5
        features = rng.normal(size=(100, 30))
        weights = np.linalg.lstsq(features, np.where(coins, 1.0, -1.0), rcond=None)[0]
        misses += bound(Scores(features @ weights, coins)) > 0
    assert misses > binom.ppf(1 - 1e-6, 60, 0.05)


def test_no_guess_depends_on_its_own_coin_or_on_later_ones() -> None:
    rng = np.random.default_rng(2)
    coins = rng.random(200) < 0.5
    features = signals(coins, 1.0, rng)
    scores = learned_order(features[:, 0], features, coins, seed=0)
    order = scores.canary[np.argsort(-np.abs(scores.score))]
    guesses = scores.score[np.argsort(scores.canary)] > 0
    for place in range(0, 150, 10):  # the last ones were given up
        flipped = coins.copy()
        flipped[order[place]] ^= True
        again = learned_order(features[:, 0], features, flipped, seed=0)
        first = order[: place + 1]
        assert again.canary[np.argsort(-np.abs(again.score))][: place + 1].tolist() == first.tolist()
        assert ((again.score[np.argsort(again.canary)] > 0) == guesses)[first].all()


def test_coins_that_are_given_up_count_as_wrong_guesses() -> None:
    rng = np.random.default_rng(2)
    coins = rng.random(200) < 0.5
    scores = learned_order(rng.normal(size=200), rng.normal(size=(200, 2)), coins, seed=0)
    given_up = np.argsort(np.abs(scores.score))[:20]
    assert ((scores.score > 0) != scores.truth)[given_up].all()
    assert sorted(scores.canary.tolist()) == list(range(200))


def test_it_learns_which_feature_tells_the_coins() -> None:
    rng = np.random.default_rng(3)
    fixed, learned = [], []
    for game in range(10):
        coins = rng.random(400) < 0.5
        features = signals(coins, 3.0, rng)
        fixed.append(bound(Scores(features[:, 0], coins)))
        learned.append(bound(learned_order(features[:, 0], features, coins, seed=game), delta=1e-5))
    assert np.median(fixed) == 0
    assert 1.0 < np.median(learned) <= 3.0


def test_a_clear_fixed_order_gives_nothing_up() -> None:
    coins = np.random.default_rng(4).random(300) < 0.5
    fixed = np.where(coins, 1.0, -1.0)
    scores = learned_order(fixed, np.ones((300, 1)), coins, seed=0)
    assert ((scores.score > 0) == scores.truth).all()
    assert bound(scores) > math.log(50)
