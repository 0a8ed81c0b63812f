"""Claimed noise of steps: the sensitivity by all patterns of participation, and decoding as a matrix product."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import linalg

from dpaudit.claims.step_noise import CorrelatedNoise, GaussianNoise, LaplaceNoise
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
