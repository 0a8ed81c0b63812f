"""Orders that share the error: each has its share and no more, none uses a coin too early, and their union is valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from dpaudit.actors.values import decode, encode
from dpaudit.engine.attacks.guess_order import REVEALED, order_of_attacks, revealed_first
from dpaudit.estimators.one_run.guess_band import (
    GuessTally,
    SimultaneousGuessCount,
    _orders,
    guess_band_epsilon,
    guess_band_p_value,
    guess_looks,
)
from dpaudit.estimators.one_run.right_guesses import guess_orders, largest_gap
from dpaudit.estimators.scores import Scores, SharedOrders
from dpaudit.language_models.canary_texts.view import order_of_all

Coins = NDArray[np.bool_]
Floats = NDArray[np.float64]
ATTACKS = 4
Order = Callable[[Floats, Floats, Coins], SharedOrders]


def ours(opinions: Floats, features: Floats, coins: Coins) -> SharedOrders:
    """Return the orders of all attacks, of which three guess alone and one enters the learned order only."""
    return order_of_attacks(opinions, range(ATTACKS), features, coins, alone=range(ATTACKS - 1))


def game(canaries: int, epsilon: float, rng: np.random.Generator, *, paired: bool) -> tuple[Floats, Floats, Coins]:
    """Return opinions, features and coins: two attacks see each coin by randomised response, the others nothing.

    Independent coins have an intercept among the features. Features of pairs have none.
    """
    coins = rng.random(canaries) < 0.5
    released = np.where(rng.random(canaries) < expit(epsilon), coins, ~coins)
    opinions = rng.normal(size=(canaries, ATTACKS))
    opinions[:, 1:3] = np.abs(opinions[:, 1:3]) * np.where(released, 1, -1)[:, None]
    return opinions, opinions if paired else np.column_stack([opinions, np.ones(canaries)]), coins


def rejects(scores: SharedOrders, epsilon: float, error: float = 0.05) -> bool:
    """True if any order rejects an epsilon at its share of the error."""
    orders = _orders(SimultaneousGuessCount().tally(scores))
    return any(guess_band_p_value(epsilon, right, counts) <= share * error for right, counts, share in orders)


def rejections(order: Order, games: int, epsilon: float, *, paired: bool, canaries: int = 40) -> int:
    """Return the number of games in which the exact epsilon is rejected; at most 5 % of them for a valid order."""
    rng = np.random.default_rng([canaries, paired, int(10 * epsilon)])
    return sum(rejects(order(*game(canaries, epsilon, rng, paired=paired)), epsilon) for _ in range(games))


@pytest.mark.parametrize("paired", [True, False])
def test_the_union_of_all_orders_keeps_the_error_at_the_truth(paired: bool) -> None:
    """False failure < 1e-6 by the quantile of a binomial law; docs/data has 4,000 games of each kind."""
    for epsilon in (0.0, 1.0):
        assert rejections(ours, 60, epsilon, paired=paired) <= binom.ppf(1 - 1e-6, 60, 0.05)


def reveals_by_coins(opinions: Floats, features: Floats, coins: Coins) -> SharedOrders:
    """Planted: leave out the canaries about which the second attack is wrong, instead of random ones."""
    orders = ours(opinions, features, coins)
    wrong = np.flatnonzero((opinions[:, 1] > 0) != coins)[: coins.size // 4]
    score = opinions[:, 1].copy()
    score[wrong] = 0.0
    return replace(orders, score=score)


def learns_from_its_own_coin(opinions: Floats, features: Floats, coins: Coins) -> SharedOrders:
    """Planted: a model of all coins, its own among them, orders the guesses."""
    signed = np.where(coins, 1.0, -1.0)
    wide = np.concatenate([features, np.random.default_rng(0).normal(size=(coins.size, 30))], axis=1)
    weights = np.linalg.lstsq(wide, signed, rcond=None)[0]
    return replace(ours(opinions, features, coins), score=wide @ weights)


@pytest.mark.parametrize("planted", [reveals_by_coins, learns_from_its_own_coin])
def test_an_order_that_peeks_is_caught(planted: Order) -> None:
    assert rejections(planted, 60, 1.0, paired=True) > binom.ppf(1 - 1e-6, 60, 0.05)
    assert not is_predictable(planted)


def sequence(scores: SharedOrders) -> tuple[NDArray[np.int64], Coins]:
    """Return canaries and guesses of the learned order, without those that it does not guess."""
    order = np.argsort(-np.abs(scores.score), kind="stable")[: np.count_nonzero(scores.score)]
    return scores.canary[order], scores.score[order] > 0


def is_predictable(order: Order) -> bool:
    """True if no coin changes a guess before it, its own one, which coins are revealed, or an order of one attack."""
    opinions, features, coins = game(300, 1.0, np.random.default_rng(0), paired=True)
    before = order(opinions, features, coins)
    canaries, guesses = sequence(before)
    for place in range(0, canaries.size, 9):
        flipped = coins.copy()
        flipped[canaries[place]] ^= True
        after = order(opinions, features, flipped)
        others, their_guesses = sequence(after)
        same = np.array_equal(others[: place + 1], canaries[: place + 1])
        same &= np.array_equal(their_guesses[: place + 1], guesses[: place + 1])
        same &= np.array_equal(after.score == 0, before.score == 0)
        if not same or not np.array_equal(np.asarray(after.further), np.asarray(before.further)):
            return False
    return True


def test_no_order_uses_a_coin_that_is_not_revealed_yet() -> None:
    assert is_predictable(ours)


def test_revealed_canaries_are_never_guessed_by_the_learned_order() -> None:
    opinions, features, coins = game(400, 3.0, np.random.default_rng(1), paired=True)
    scores = ours(opinions, features, coins)
    revealed = revealed_first(np.arange(400), 400, REVEALED)
    assert revealed.sum() == 20
    assert np.array_equal(scores.score == 0, revealed)
    tally = SimultaneousGuessCount().tally(scores)
    assert tally.looks[-1] == 380
    in_advance = np.arange(400) < 100
    assert not revealed_first(np.arange(100, 400), 400, REVEALED)[~in_advance].any()
    part = order_of_attacks(opinions, range(ATTACKS), features, coins, alone=range(2), guessed=~in_advance)
    assert np.array_equal(part.canary, np.arange(100, 400))
    assert (part.score != 0).all()


def test_each_order_has_its_share_of_the_error() -> None:
    """A slow twin: the right guesses of each order are counted one by one."""
    opinions, features, coins = game(200, 2.0, np.random.default_rng(2), paired=True)
    scores = ours(opinions, features, coins)
    assert scores.further is not None
    assert scores.further.shape == (200, ATTACKS - 1)
    bounds = []
    columns = [scores.score, *scores.further.T]
    for column, share in zip(columns, [0.5, *[0.5 / 3] * 3], strict=True):
        order = [row for row in np.argsort(-np.abs(column), kind="stable") if column[row] != 0]
        right = np.cumsum([(column[row] > 0) == coins[row] for row in order])
        counts = guess_looks(len(order))
        bounds.append(guess_band_epsilon(right[counts - 1], counts, significance=0.05 * share))
    estimator = SimultaneousGuessCount()
    bound = estimator.bound([estimator.tally(scores)])
    assert bound.lower == max(bounds) > 0
    assert "4 orders" in bound.selection


def test_shared_orders_are_stored_with_their_tallies() -> None:
    scores = ours(*game(100, 2.0, np.random.default_rng(3), paired=True))
    single = SharedOrders(scores.score, scores.truth)
    estimator = SimultaneousGuessCount()
    for each in (scores, single):
        (stored,) = decode(encode([each], SharedOrders), SharedOrders)
        (tally,) = decode(encode([estimator.tally(stored)], GuessTally), GuessTally)
        assert estimator.bound([tally]).lower == estimator.bound([estimator.tally(each)]).lower
    assert estimator.tally(single).further is None


@pytest.mark.parametrize(("canaries", "most"), [(50, 2.78), (100, 3.49), (200, 4.19), (400, 4.89), (1_000, 5.8)])
def test_scores_that_tell_all_canaries_apart_come_near_the_maximum(canaries: int, most: float) -> None:
    """The number of members is not half; one of four attacks tells all, and which one must be found."""
    rng = np.random.default_rng(canaries)
    coins = rng.random(canaries) < 0.5 + 0.5 / np.sqrt(canaries)
    telling = 10.0 * coins + rng.normal(size=canaries)
    scores = {"a": rng.normal(size=canaries), "b": telling, "c": coins + rng.normal(size=canaries)}
    learned, alone = SimultaneousGuessCount(), SimultaneousGuessCount(guess="any-tail")
    assert learned.bound([learned.tally(order_of_all(scores, coins))]).lower > most - 0.25
    assert alone.bound([alone.tally(Scores(telling, coins))]).lower > most - 0.25


def test_the_largest_gap_is_sought_near_the_middle_rank() -> None:
    rng = np.random.default_rng(5)
    far = np.where(np.arange(400) < 40, 100.0, 0.0) + rng.normal(size=400)
    centre, is_clear = largest_gap(far)
    assert abs(centre) < 1
    assert not is_clear
    centre, is_clear = largest_gap(np.where(np.arange(400) < 190, 4.0, 0.0) + 0.2 * rng.normal(size=400))
    assert is_clear
    assert 1 < centre < 3
    assert largest_gap(np.array([-np.inf, np.inf])) == (np.inf, False)
    assert guess_orders(far, "any-tail", fixed_shares=True)[2].tolist() == pytest.approx([0.3, 0.2])
