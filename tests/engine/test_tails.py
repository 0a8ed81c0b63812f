"""Rare leaks: the tail of a single number, which is seldom informative but then identifies the world."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpaudit.claims import PureDP
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.search import number_excess, score_excess, separation
from dpaudit.estimators.scores import scored

CLEAR = 2.5
"""Excess in standard deviations that chance rarely gives, although it is the largest of many."""


def samples(zero_numbers: np.ndarray, one_numbers: np.ndarray) -> Outcomes:
    """Return samples of equally many calls on D and D', in turn."""
    numbers = np.stack([zero_numbers, one_numbers], axis=1).reshape(2 * len(zero_numbers), -1)
    return Outcomes.of_numbers(numbers, np.arange(len(numbers)) % 2 == 1)


def test_rare_event_in_one_world_exceeds_a_claim() -> None:
    rng = np.random.default_rng(0)
    plain, other = rng.laplace(size=(2, 400, 2))
    pairs = samples(plain, other + np.array([0.9, 0.0]))
    rare = other.copy()
    rare[:24, 1] = 50.0  # 6 % of the calls, on one table alone
    assert number_excess(PureDP(1.0), pairs) < 2.5
    assert number_excess(PureDP(1.0), samples(plain, rare)) > 4
    assert number_excess(PureDP(1.0), samples(rare, plain)) > 4
    assert separation(samples(plain, rare))[1] < separation(pairs)[1]


def test_equal_numbers_are_one_event() -> None:
    """In any order: half of the calls return 0 in both worlds."""
    zero = np.repeat([0.0, 1.0], 50)[:, None]
    for side in (zero, zero[::-1]):
        assert number_excess(PureDP(1.0), samples(zero, side)) < 0
    assert number_excess(PureDP(1.0), samples(np.zeros((100, 1)), np.zeros((100, 1)))) == -math.inf


@pytest.mark.parametrize("swapped", [False, True])
def test_both_tails_of_scores_count(swapped: bool) -> None:
    truth = np.arange(400) % 2 == 1
    score = np.where(truth & (np.arange(400) < 60), 9.0, 0.0) * (-1 if swapped else 1)
    assert score_excess(PureDP(1.0), scored(0, truth, score)) > 4
    assert score_excess(PureDP(1.0), scored(0, truth, np.zeros(400))) == -math.inf


def test_tight_claim_is_rarely_exceeded() -> None:
    """Laplace noise at epsilon 1: the largest excess over tails and levels is clear in a fifth of the samples."""
    rng = np.random.default_rng(1)
    moved = np.array([[[0.0]], [[1.0]]])
    pairs = [samples(*(rng.laplace(size=(2, 200, 1)) + moved)) for _ in range(100)]
    assert np.mean([number_excess(PureDP(1.0), pair) > CLEAR for pair in pairs]) < 0.35
    half = [samples(*(rng.laplace(size=(2, 200, 1)) / 2 + moved)) for _ in range(100)]
    assert np.mean([number_excess(PureDP(1.0), pair) > CLEAR for pair in half]) > 0.9


def test_missing_numbers_have_the_lowest_excess() -> None:
    assert number_excess(PureDP(1.0), samples(np.zeros((1, 1)), np.ones((1, 1)))) == -math.inf


def test_number_with_nan_in_one_world_is_compared() -> None:
    """One of a hundred numbers is sometimes NaN."""
    first, second = np.random.default_rng(2).laplace(size=(2, 300, 100))
    second[:30, 77] = np.nan
    assert number_excess(PureDP(1.0), samples(first, second)) > CLEAR
