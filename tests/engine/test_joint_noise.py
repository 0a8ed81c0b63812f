"""Numbers that share noise move exactly in the direction of their difference; independent noise has none of these."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.engine.games.joint_noise import MAX_MOVE, JointNoise, exact_moves
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.search import paired_coins

Floats = NDArray[np.float64]
RNG = np.random.default_rng


def one_draw(count: int, rng: np.random.Generator) -> Floats:
    """Return three numbers, of which the first two have one draw of noise."""
    first, second = rng.geometric(0.3, (2, count)) - rng.geometric(0.3, (2, count))
    return np.column_stack([first, first, second]).astype(float)


def samples(move: Floats, rng: np.random.Generator, *, shared: bool, pairs: int = 2) -> Outcomes:
    """Return runs on D and D' in turn, two with one seed."""
    noise = one_draw(pairs, rng) if shared else rng.laplace(0, 1, (pairs, 3))
    coins = paired_coins(2 * pairs)
    return Outcomes.of_numbers(np.repeat(noise, 2, axis=0) + coins[:, None] * move, coins, dtype=np.float64)


def test_a_difference_of_numbers_with_one_draw_is_exact() -> None:
    noise = JointNoise.of(one_draw(16, RNG(0)))
    assert noise.shows_directions
    assert noise.is_exact(np.array([1.0, 0.0, 0.0]))
    assert noise.length_of_move(np.array([1.0, 0.0, 0.0])) >= MAX_MOVE
    assert not noise.is_exact(np.array([1.0, 1.0, 0.0]))
    assert not noise.is_exact(np.array([0.0, 0.0, 1.0]))
    assert noise.length_of_move(np.array([1.0, 1.0, 0.0])) < 3


@pytest.mark.parametrize("law", ["laplace", "normal"])
@pytest.mark.parametrize("width", [1, 3, 12])
def test_independent_noise_has_no_exact_direction(law: str, width: int) -> None:
    noise = JointNoise.of(getattr(RNG(width), law)(0, 1, (width + 4, width)))
    assert noise.shows_directions
    assert not any(noise.is_exact(move) for move in np.eye(width))


def test_few_runs_and_answers_of_two_values_show_no_directions() -> None:
    assert not JointNoise.of(RNG(0).normal(size=(16, 20))).shows_directions
    assert not JointNoise.of(RNG(0).integers(0, 2, (40, 5)).astype(float)).shows_directions


def test_one_pair_with_an_exact_move_is_known_from_few_runs_of_all_pairs() -> None:
    """Two runs on each table of 20 pairs: the noise is learned from all of them."""
    rng = RNG(1)
    together, single = np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])
    tried = [samples(single if place == 7 else together, rng, shared=True) for place in range(20)]
    assert exact_moves(tried) == [float(place == 7) for place in range(20)]
    assert exact_moves([samples(single, rng, shared=False) for _ in range(20)]) == [0.0] * 20
    assert exact_moves(tried[:1]) == [0.0]
