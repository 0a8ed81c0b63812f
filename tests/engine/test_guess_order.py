"""The order of guesses is predictable: no guess uses its own coin or a later one, and learning costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpaudit.engine.attacks.guess_order import learned_order
from dpaudit.estimators.one_run.guess_band import (
    SimultaneousGuessCount,
    guess_band_p_value,
    guess_looks,
)
from dpaudit.estimators.scores import Scores
from dpaudit.synthetic_tables.games.pairs import PairFeatures, paired
from tests.synthetic_tables.test_table_pairs import rows

Coins = NDArray[np.bool_]


class Features(NamedTuple):
    """Opinions of experts about pairs, and features that a model learns from."""

    experts: NDArray[np.float64]
    learned: NDArray[np.float64]


Order = Callable[[Features, Coins], Scores]


def features(pairs: int, rng: np.random.Generator, coins: Coins | None = None, leaking: int = 0) -> Features:
    """Return features of pairs; some pairs stand out by one of three attacks, on the side of their coin."""
    experts = rng.normal(size=(pairs, 4))
    learned = rng.normal(size=(pairs, 6))
    if coins is not None:
        experts[:leaking, 2] = np.where(coins[:leaking], 1, -1) * (5 + rng.random(leaking))
    return Features(experts, learned)


def our_order(values: Features, coins: Coins) -> Scores:
    return learned_order(values.experts, values.learned, coins)


def half_guessed(values: Features, coins: Coins) -> Scores:
    return learned_order(values.experts, values.learned, coins, guessed=np.arange(coins.size) % 2 == 0)


def sequence(scores: Scores) -> tuple[NDArray[np.int64], Coins]:
    """Return pairs and guesses in the order of the guesses."""
    order = np.argsort(-np.abs(scores.score), kind="stable")
    return scores.canary[order], scores.score[order] > 0


def is_predictable(order: Order, *, pairs: int = 400, tries: int = 40) -> bool:
    """True if flipping the coin of any pair changes no guess before it, nor its own one.

    The model is fitted for the first time to 200 coins.
    """
    rng = np.random.default_rng(0)
    coins = rng.random(pairs) < 0.5
    values = features(pairs, rng, coins, leaking=12)
    order_before, guesses_before = sequence(order(values, coins))
    for place in rng.integers(0, order_before.size, tries):
        pair = order_before[place]
        flipped = coins.copy()
        flipped[pair] ^= True
        order_after, guesses_after = sequence(order(values, flipped))
        if not np.array_equal(order_after[: place + 1], order_before[: place + 1]):
            return False
        if not np.array_equal(guesses_after[: place + 1], guesses_before[: place + 1]):
            return False
    return True


@pytest.mark.parametrize("order", [our_order, half_guessed])
def test_no_guess_uses_its_own_coin_or_a_later_one(order: Order) -> None:
    assert is_predictable(order)


def rejects_zero(scores: Scores, error: float = 0.05) -> bool:
    """True if the guesses reject an epsilon of 0."""
    pairs, guesses = sequence(scores)
    truth = np.empty(scores.canary.max() + 1, bool)
    truth[scores.canary] = scores.truth
    counts = guess_looks(pairs.size)
    right = np.cumsum(guesses == truth[pairs])[counts - 1]
    return guess_band_p_value(0.0, right, counts) <= error


def false_alarms(order: Order, games: int, pairs: int = 60) -> int:
    """Return how many games with fair coins and features that tell nothing reject an epsilon of 0."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(games):
        values = features(pairs, rng)
        # Pairs of one kind have the same features: what is learned from one of them decides about the other one.
        kinds = np.eye(pairs // 2)[np.arange(pairs) // 2]
        alarms += rejects_zero(order(Features(values.experts, kinds), rng.random(pairs) < 0.5))
    return alarms


def test_learning_from_coins_keeps_the_error() -> None:
    """False failure < 1e-6: the limit is a quantile of Binomial(300, 0.05)."""
    assert false_alarms(our_order, 300) <= binom.ppf(1 - 1e-6, 300, 0.05)


def test_an_attack_that_sees_the_leak_is_followed() -> None:
    """One of three attacks is right about 60 of 400 pairs; the others are noise; which one it is must be learned."""
    rng = np.random.default_rng(1)
    estimator = SimultaneousGuessCount()
    coins = rng.random(400) < 0.5
    values = features(400, rng, coins, leaking=60)
    combined = estimator.bound([estimator.tally(our_order(values, coins))]).lower
    alone = estimator.bound([estimator.tally(Scores(values.experts[:, 2], coins))]).lower
    assert alone > 2
    assert combined > 0.8 * alone


def test_a_diffuse_leak_is_learned() -> None:
    """No pair stands out, but a feature that no leader uses tells every coin a little."""
    rng = np.random.default_rng(2)
    estimator = SimultaneousGuessCount()
    coins = rng.random(2_000) < 0.5
    values = features(2_000, rng)
    values.learned[:, 4] += 0.6 * np.where(coins, 1, -1)
    assert estimator.bound([estimator.tally(our_order(values, coins))]).lower > 0.5


def test_every_pair_is_counted_once() -> None:
    rng = np.random.default_rng(4)
    coins = rng.random(101) < 0.5
    scores = our_order(features(101, rng), coins)
    assert sorted(scores.canary) == list(range(101))
    assert sorted(np.abs(scores.score)) == list(range(1, 102))
    assert np.array_equal(scores.truth, coins[scores.canary])
    guessed = half_guessed(features(101, rng), coins)
    assert sorted(guessed.canary) == list(range(0, 101, 2))


def test_features_change_their_sign_with_the_canaries() -> None:
    """Exchanging the canaries of a pair negates its features, so that a model without intercept is a fair guess."""
    pairs = paired(rows(40), rows(40, 1), rows(5, 2), seed=3)
    rng = np.random.default_rng(0)
    attacks = [rng.normal(size=(80, 2)), rng.normal(size=(80, 1))]
    values = PairFeatures.of(pairs, attacks)
    exchanged_sides = replace(pairs, side=np.where(pairs.side < 0, -1, 1 - pairs.side).astype(np.int8))
    exchanged = PairFeatures.of(exchanged_sides, attacks)
    assert np.allclose(values.opinions, -exchanged.opinions)
    assert np.allclose(values.learned, -exchanged.learned)
    assert values.opinions.shape == (40, 3)
