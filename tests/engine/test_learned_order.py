"""The order of guesses from all attacks on texts: valid at the truth, and as good as the attack that works."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from dpaudit.language_models.canary_texts.view import order_of_all

GAMES = 200


def bound(scores: Scores, *, delta: float = 0.0) -> float:
    estimator = SimultaneousGuessCount(delta=delta, guess="signed")
    return estimator.bound([estimator.tally(scores)]).lower


def attack_scores(coins: NDArray[np.bool_], epsilon: float, rng: np.random.Generator) -> dict[str, Floats]:
    """Return scores of three attacks; the second one is the answer of randomised response at epsilon."""
    right = rng.random(coins.size) < expit(epsilon)
    answer = np.where(right == coins, 1.0, -1.0)
    return {"first": rng.normal(size=coins.size), "second": answer, "third": rng.normal(size=coins.size)}


def test_bound_holds_at_the_truth_with_its_stated_probability() -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(200, 0.05)."""
    rng = np.random.default_rng(0)
    limit = binom.ppf(1 - 1e-6, GAMES, 0.05)
    for epsilon in (0.0, 1.0):
        misses = 0
        for _ in range(GAMES):
            coins = rng.random(100) < 0.5
            misses += bound(order_of_all(attack_scores(coins, epsilon, rng), coins)) > epsilon
        assert misses <= limit, epsilon


def test_the_attack_that_works_is_followed_although_another_one_leads_first() -> None:
    rng = np.random.default_rng(3)
    first, learned, best = [], [], []
    for _ in range(10):
        coins = rng.random(400) < 0.5
        scores = attack_scores(coins, 3.0, rng)
        first.append(bound(Scores(scores["first"], coins), delta=1e-5))
        best.append(bound(Scores(scores["second"], coins), delta=1e-5))
        learned.append(bound(order_of_all(scores, coins), delta=1e-5))
    assert np.median(first) == 0
    assert 0.7 * np.median(best) < np.median(learned) <= 3.0


def test_weak_attacks_together_show_more_than_each_alone() -> None:
    rng = np.random.default_rng(4)
    first, learned = [], []
    for _ in range(10):
        coins = rng.random(1_000) < 0.5
        scores = {str(attack): rng.normal(size=1_000) + 0.7 * coins for attack in range(4)}
        first.append(bound(Scores(scores["0"] - 0.35, coins), delta=1e-5))
        learned.append(bound(order_of_all(scores, coins), delta=1e-5))
    assert np.median(learned) > 1.4 * np.median(first)
