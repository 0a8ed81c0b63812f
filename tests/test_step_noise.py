"""Claimed noise of steps: the sensitivity by all patterns of participation, and decoding as a matrix product."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import linalg

from dpaudit.claims.step_noise import CorrelatedNoise, DiscreteGaussianNoise, GaussianNoise, LaplaceNoise, MatrixNoise
from dpaudit.errors import InputError


def strategy(noise: CorrelatedNoise) -> np.ndarray:
    column = np.zeros(noise.steps)
    column[: len(noise.coefficients)] = noise.coefficients
    return np.asarray(linalg.toeplitz(column, np.zeros(noise.steps)))


@pytest.mark.parametrize(("participations", "separation"), [(1, 1), (2, 3), (3, 2), (9, 3)])
def test_sensitivity_is_the_largest_of_all_patterns(participations: int, separation: int) -> None:
    noise = CorrelatedNoise(1.0, [1.0, 0.7, 0.4, 0.1], 8, participations, separation)
    matrix, largest = strategy(noise), 0.0
    for count in range(1, participations + 1):
        for steps in itertools.combinations(range(8), count):
            if all(later - step >= separation for step, later in itertools.pairwise(steps)):
                largest = max(largest, float(np.linalg.norm(matrix[:, list(steps)].sum(1))))
    assert noise.sensitivity == pytest.approx(largest)
    assert noise.deviation == pytest.approx(largest)


def test_lambda_cgd_adds_differences_of_neighbouring_noise() -> None:
    noise = CorrelatedNoise.with_factor(0.9, 1.0, steps=6)
    expected = np.eye(6) - 0.9 * np.eye(6, k=-1)
    np.testing.assert_allclose(np.linalg.inv(strategy(noise)), expected, atol=1e-12)


def test_weights_are_rows_of_the_strategy_from_their_end() -> None:
    noise = CorrelatedNoise(1.0, [1.0, 0.5, 0.25], 5)
    for step in range(5):
        weights = noise.weights(step)
        np.testing.assert_allclose(weights, strategy(noise)[step, : step + 1][::-1][: weights.size])


def test_claim_of_a_step() -> None:
    assert GaussianNoise(2.0).curve(0).delta(0.0) == pytest.approx(0.19741, abs=1e-4)
    assert LaplaceNoise(1.0).curve(0).delta(0.0) == pytest.approx(1 - np.exp(-0.5), abs=1e-3)
    noise = CorrelatedNoise.with_factor(0.9, 1.0, steps=400)
    assert noise.sensitivity == pytest.approx(2.294, abs=1e-3)
    assert str(noise.curve(0)) == "0.43589-GDP"


def total_variation(shift: tuple[int, ...], sigma: float) -> float:
    """Return it between discrete Gaussian noise and the same noise shifted: by the law of <z, shift>."""
    reach = int(9 * sigma) + 1
    chances = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    law = np.ones(1)
    for number in shift:
        spread_out = np.zeros(2 * reach * number + 1)
        spread_out[::number] = chances / chances.sum()
        law = np.convolve(law, spread_out)
    products = np.arange(law.size) - reach * sum(shift)
    squared = sum(number**2 for number in shift)
    return float(law[products <= squared / 2].sum() - law[products + squared <= squared / 2].sum())


@pytest.mark.parametrize("sigma", [4.0, 5.0, 8.0])
def test_the_claim_of_discrete_noise_covers_all_shifts(sigma: float) -> None:
    for count in (1, 2, 3):
        for shift in itertools.combinations_with_replacement(range(1, 6), count):
            norm = float(np.linalg.norm(shift))
            claimed = DiscreteGaussianNoise(sigma / norm, 1 / norm).curve(0).delta(0.0)
            assert total_variation(shift, sigma) <= claimed <= 1.01 * GaussianNoise(sigma / norm).curve(0).delta(0.0)


def patterns(steps: int, participations: int, separation: int) -> list[list[int]]:
    return [
        list(chosen)
        for count in range(1, participations + 1)
        for chosen in itertools.combinations(range(steps), count)
        if all(later - step >= separation for step, later in itertools.pairwise(chosen))
    ]


@pytest.mark.parametrize("signed", [False, True], ids=["entries >= 0", "entries of both signs"])
@pytest.mark.parametrize(("participations", "separation"), [(1, 1), (2, 3), (3, 2)])
def test_sensitivity_of_any_matrix_is_the_largest_of_all_patterns(
    participations: int, separation: int, signed: bool
) -> None:
    """The slow twin tries all participations and, for entries of both signs, all signs of the contributions."""
    rng = np.random.default_rng(participations)
    is_largest = []
    for _ in range(5):
        matrix = np.tril(rng.normal(size=(8, 8)) if signed else rng.random((8, 8))) + 2 * np.eye(8)
        noise = MatrixNoise(
            1.0, matrix * np.sign(np.diag(matrix)), participations=participations, separation=separation
        )
        largest = 0.0
        for steps in patterns(8, participations, separation):
            for signs in itertools.product((1, -1) if signed else (1,), repeat=len(steps)):
                largest = max(largest, float(np.linalg.norm(noise.strategy[:, steps] @ signs)))
        assert noise.sensitivity <= largest * (1 + 1e-9)
        assert noise.sensitivity >= 0.95 * largest
        is_largest.append(noise.sensitivity >= largest * (1 - 1e-9))
    assert sum(is_largest) >= 3  # the search may end below the largest, and then the claim is weaker
    assert noise.deviation == noise.sensitivity


def test_a_toeplitz_matrix_is_correlated_noise() -> None:
    toeplitz = CorrelatedNoise(0.7, [1.0, 0.7, 0.4, 0.1], 8, 3, 2)
    matrix = MatrixNoise(0.7, strategy(toeplitz), participations=3, separation=2)
    assert matrix.deviation == pytest.approx(toeplitz.deviation)
    for step in range(8):
        weights = toeplitz.weights(step)
        np.testing.assert_allclose(matrix.weights(step)[: weights.size], weights)
    assert str(matrix) == str(toeplitz)


@pytest.mark.parametrize("honaker", [False, True])
def test_noise_of_a_tree(honaker: bool) -> None:
    tree = MatrixNoise.of_tree(1.0, 12, honaker=honaker)
    assert tree.noise is not None
    prefix = np.cumsum(tree.noise, axis=0)
    variances = (prefix**2).sum(1)
    of_node = [1, 2 / 3, 4 / 7, 8 / 15] if honaker else [1, 1, 1, 1]  # Honaker's, from below: 2^h / (2^(h + 1) - 1)
    expected = [sum(of_node[bit] for bit in range(4) if step >> bit & 1) for step in range(1, 13)]
    np.testing.assert_allclose(variances, expected)
    np.testing.assert_allclose(tree.noise @ tree.strategy, np.eye(12), atol=1e-12)
    decoder = np.array([np.pad(tree.weights(step)[::-1], (0, 11 - step)) for step in range(12)])
    np.testing.assert_allclose(decoder @ tree.noise @ tree.noise.T @ decoder.T, np.eye(12), atol=1e-12)
    assert tree.sensitivity == pytest.approx(2)  # four levels
    twice = MatrixNoise.of_tree(1.0, 12, participations=2, separation=4)
    assert twice.sensitivity == pytest.approx(np.sqrt(3 + 3 + 4))  # steps of one subtree of eight
    assert MatrixNoise.of_tree(1.0, 12, stated_sensitivity=5.0).deviation == 5.0


def test_factors_and_strategies_of_jax_privacy() -> None:
    strategy_of_ten = strategy(CorrelatedNoise(1.0, [1.0, 0.5], 10))
    prefix = np.tril(np.ones((10, 10)))
    noise = MatrixNoise.of_factors(2.0, prefix @ np.linalg.inv(strategy_of_ten), strategy_of_ten)
    for step in range(10):
        np.testing.assert_allclose(noise.weights(step), MatrixNoise(2.0, strategy_of_ten).weights(step), atol=1e-12)

    class Streaming:
        def materialize(self, steps: int) -> np.ndarray:
            return strategy_of_ten[:steps, :steps]

    assert MatrixNoise(2.0, Streaming(), 6).steps == 6
    with pytest.raises(InputError, match="lower-triangular matrix with a positive diagonal"):
        MatrixNoise(1.0, strategy_of_ten.T)
    with pytest.raises(InputError, match="must undo it"):
        MatrixNoise(1.0, strategy_of_ten, noise=strategy_of_ten)
    with pytest.raises(InputError, match="product with an inverse"):
        MatrixNoise.of_factors(1.0, prefix, prefix[:, :4])
    with pytest.raises(InputError, match="described for fewer steps"):
        noise.weights(10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"multiplier": 0.0, "coefficients": [1.0], "steps": 3}, "multiplier must be > 0"),
        ({"multiplier": 1.0, "coefficients": [], "steps": 3}, "first column"),
        ({"multiplier": 1.0, "coefficients": [1.0, 2.0], "steps": 3}, "must not increase"),
        ({"multiplier": 1.0, "coefficients": [1.0], "steps": 0}, "steps must be >= 1"),
        ({"multiplier": 1.0, "coefficients": [1.0], "steps": 3, "separation": 0}, "separation must be >= 1"),
    ],
)
def test_wrong_noise_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CorrelatedNoise(**fields)
    with pytest.raises(InputError, match="multiplier must be > 0"):
        GaussianNoise(0.0)
    with pytest.raises(InputError, match="scale must be > 0"):
        LaplaceNoise(-1.0)
    with pytest.raises(InputError, match="grid must be > 0, at most multiplier / 4"):
        DiscreteGaussianNoise(1.0, 0.3)
