"""Argument checks, broadcasting and unboxing for functions of counts.

Scalar arguments give a Python float. All other arguments give arrays of the broadcast shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import InputError, require

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class Interval(NamedTuple):
    """Ends of a confidence or credible interval, rounded outwards; a one-sided lower bound has `upper = inf`."""

    lower: float | Floats
    upper: float | Floats


def as_counts(name: str, values: ArrayLike) -> Ints:
    """Return `values` as integers >= 0 of the same shape.

    Floats without a fraction are accepted, because tables read from files may hold them.
    """
    numbers = np.asarray(values)
    require(numbers.size > 0, f"{name} must not be empty", shape=numbers.shape)
    require(numbers.dtype.kind in "iuf", f"{name} must be an integer count", dtype=numbers.dtype)
    _require_all(numbers >= 0, f"{name} must be >= 0", numbers)  # refuses NaN as well
    _require_all(numbers <= 2**53, f"{name} must be <= 2**53", numbers)
    _require_all(numbers == np.floor(numbers), f"{name} must be an integer count", numbers)
    return numbers.astype(np.int64)


def as_confidence(values: ArrayLike) -> Floats:
    """Return `values` as probabilities strictly between 0 and 1."""
    level = as_reals("confidence", values)
    _require_all((level > 0) & (level < 1), "confidence must be in (0, 1)", level)
    return level


def as_delta(values: ArrayLike) -> Floats:
    """Return `values` as probabilities in [0, 1)."""
    delta = as_reals("delta", values)
    _require_all((delta >= 0) & (delta < 1), "delta must be in [0, 1)", delta)
    return delta


def as_reals(name: str, values: ArrayLike) -> Floats:
    """Return `values` as a non-empty array of floats of the same shape."""
    numbers = np.asarray(values, dtype=np.float64)
    require(numbers.size > 0, f"{name} must not be empty", shape=numbers.shape)
    return numbers


def successes_of_trials(
    k: ArrayLike, n: ArrayLike, *, names: tuple[str, str] = ("k", "n"), fewest: int = 1
) -> tuple[Ints, Ints]:
    """Return `k` and `n` as counts with k <= n and n >= `fewest`."""
    successes, trials = as_counts(names[0], k), as_counts(names[1], n)
    common_shape(successes, trials, names=names)
    _require_all(trials >= fewest, f"{names[1]} must be >= {fewest}", trials)
    counts: dict[str, Any] = dict(zip(names, (successes, trials), strict=True))
    require(bool(np.all(successes <= trials)), f"{names[0]} must be <= {names[1]}", **counts)
    return successes, trials


def common_shape(*arrays: NDArray[Any], names: tuple[str, ...] = ("arguments",)) -> tuple[int, ...]:
    """Return the shape that the arrays broadcast to."""
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise InputError(f"{', '.join(names)} must have shapes that broadcast, got shapes {shapes}") from None


def elementwise(function: Callable[..., Floats], *arrays: NDArray[Any]) -> float | Floats:
    """Return `function` of the broadcast, flattened arrays in their common shape; a float for scalars."""
    shape = common_shape(*arrays)
    values = function(*(np.broadcast_to(array, shape).ravel() for array in arrays))
    return unboxed(values.reshape(shape))


def rowwise(function: Callable[..., float], *arrays: NDArray[Any]) -> float | Floats:
    """Return `function` of the values at each place of the broadcast arrays in their common shape."""

    def values(*columns: NDArray[Any]) -> Floats:
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return np.array([function(*row) for row in rows], np.float64)

    return elementwise(values, *arrays)


def unboxed(values: Floats) -> float | Floats:
    """Return a Python float for a zero-dimensional value, else the array."""
    return float(values) if np.ndim(values) == 0 else values


def require_levels(delta: float, confidence: float) -> None:
    """Raise InputError unless an estimator's delta is in [0, 1) and its confidence in (0, 1)."""
    require(0 <= delta < 1, "delta must be in [0, 1)", delta=delta)
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)


def require_one_of(name: str, value: str, choices: Collection[str]) -> None:
    """Raise InputError, listing the choices, if `value` is not one of them."""
    require(value in choices, f"{name} must be one of {', '.join(choices)}", given=value)


def _require_all(holds: NDArray[np.bool_], must: str, values: NDArray[Any]) -> None:
    if not np.all(holds):
        first = values[()] if values.ndim == 0 else values[~holds][0]
        require(False, must, given=math.nan if first != first else first)
