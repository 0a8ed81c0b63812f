"""Reports by trasgodp 2.1.0, insurance-fairness-ldp 0.1.1 and sdsa 1.2.1. Rows: "array", each row a user.

trasgodp takes the column of all users, so all reports are returned; otherwise that of the last user.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars
from insurance_fairness_ldp import KaryRandomisedResponse
from sdsa.dp.laplace import LaplaceParams, apply_laplace
from trasgodp.categorical import (
    dp_exponential_array,
    dp_randomized_response_binary_array,
    dp_randomized_response_kary_array,
)
from trasgodp.numerical import dp_clip_gaussian_array, dp_clip_laplace_array

WORDS = ("a", "b", "c", "d")


def _values(rows: Any, low: int, high: int) -> list[int]:
    """The first column, as whole numbers of the domain."""
    return [int(value) for value in np.clip(np.nan_to_num(rows[:, 0]), low, high)]


def _numbers(rows: Any) -> Any:
    return np.clip(np.nan_to_num(rows[:, 0]), 0.0, 1.0)


def _words(rows: Any, count: int) -> list[str]:
    return [WORDS[value] for value in _values(rows, 0, count - 1)]


def _places(words: Any) -> list[int]:
    return [WORDS.index(str(word)) for word in words]


def clipped_laplace(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return dp_clip_laplace_array(_numbers(rows), epsilon, 0.0, 1.0)


def clipped_gaussian(rows: Any, rng: Any, epsilon: float = 1.0, delta: float = 1e-3) -> Any:
    return dp_clip_gaussian_array(_numbers(rows), epsilon, 0.0, 1.0, delta)


def binary_response(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return _places(dp_randomized_response_binary_array(_words(rows, 2), epsilon))


def categorical_response(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return _places(dp_randomized_response_kary_array(_words(rows, 4), epsilon))


def exponential(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return _places(dp_exponential_array(_words(rows, 4), epsilon))


def fair_response(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    words = _words(rows, 4)[-1:]
    client = KaryRandomisedResponse(epsilon, WORDS)
    return _places(client.privatise(words, random_state=int(rng.integers(2**31)))) if words else None


def sanitised_column(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """The value of the last user in a column of numbers in [0, 1]; its noise cannot be seeded."""
    column = polars.Series("x", _numbers(rows)[-1:], dtype=polars.Float64)
    return apply_laplace(column, LaplaceParams(epsilon, 0.0, 1.0)).to_numpy()
