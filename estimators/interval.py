"""The two ends of an interval, and what every function of counts here shares: checking, broadcasting, unboxing.

Scalars in give Python floats out; anything else gives arrays of the broadcast shape.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import require

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]


class Interval(NamedTuple):
    """Ends of a confidence or credible interval; one-sided lower bounds have `upper = inf`.

    Attributes:
        lower: Lower end, rounded down where a bound on epsilon rests on it.
        upper: Upper end, rounded up likewise.
    """

    lower: float | Floats
    upper: float | Floats


def unboxed(values: Floats) -> float | Floats:
    """A Python float when there is one value without a shape, else the array."""
    return float(values) if np.ndim(values) == 0 else values


def as_counts(name: str, values: ArrayLike) -> Counts:
    """Integers >= 0 of the same shape; floats without a fraction are taken, so that tables read from files work."""
    given = np.asarray(values)
    require(given.size > 0, f"{name} must not be empty", shape=given.shape)
    require(given.dtype.kind in "iuf", f"{name} must be an integer count", dtype=given.dtype)
    _all(given >= 0, f"{name} must be >= 0", given)  # refuses NaN as well
    _all(given <= 2**53, f"{name} must be <= 2**53", given)
    _all(given == np.floor(given), f"{name} must be an integer count", given)
    return given.astype(np.int64)


def as_confidence(values: ArrayLike) -> Floats:
    """Probabilities strictly between 0 and 1."""
    given = np.asarray(values, dtype=np.float64)
    require(given.size > 0, "confidence must not be empty", shape=given.shape)
    _all((given > 0) & (given < 1), "confidence must be in (0, 1)", given)
    return given


def as_delta(values: ArrayLike) -> Floats:
    """Probabilities in [0, 1)."""
    given = np.asarray(values, dtype=np.float64)
    require(given.size > 0, "delta must not be empty", shape=given.shape)
    _all((given >= 0) & (given < 1), "delta must be in [0, 1)", given)
    return given


def successes_of_trials(k: ArrayLike, n: ArrayLike, *, names: tuple[str, str] = ("k", "n")) -> tuple[Counts, Counts]:
    """`k` and `n` as counts with k <= n and n >= 1."""
    successes, trials = as_counts(names[0], k), as_counts(names[1], n)
    together(successes, trials, names=names)
    _all(trials >= 1, f"{names[1]} must be >= 1", trials)
    require(bool(np.all(successes <= trials)), f"{names[0]} must be <= {names[1]}", successes=successes, trials=trials)
    return successes, trials


def together(*arrays: NDArray[np.generic], names: tuple[str, ...]) -> tuple[int, ...]:
    """The shape the arrays broadcast to."""
    shapes = [array.shape for array in arrays]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        require(False, f"{', '.join(names)} must have shapes that broadcast", shapes=shapes)
        raise


def require_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuses a word that is not among the choices, and lists them."""
    require(value in choices, f"{name} must be one of {', '.join(choices)}", given=value)


def _all(holds: NDArray[np.bool_], must: str, given: NDArray[np.generic]) -> None:
    if not np.all(holds):
        first = given[()] if given.ndim == 0 else given[~holds][0]
        require(False, must, given=math.nan if first != first else first)
