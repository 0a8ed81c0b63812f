"""Two neighbouring data sets: what a learner is trained on in either world of the game `neighbours`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples


@dataclass(frozen=True, eq=False)
class Worlds:
    """D and D' as marked rows of one table, so that a row of both is held once, and the order is that of the data.

    Attributes:
        rows: All rows of either; features of shape (n, d).
        in_d: Which are in D, shape (n,).
        in_d_prime: Which are in D', shape (n,).
        points: What trained models are asked about, where no parameters are seen, shape (m, d).
    """

    rows: Examples
    in_d: NDArray[np.bool_]
    in_d_prime: NDArray[np.bool_]
    points: NDArray[np.float32] = field(metadata={"stored": "float32"})

    def __post_init__(self) -> None:
        count = len(self.rows)
        require(self.in_d.shape == (count,) == self.in_d_prime.shape, "each row must be marked for both worlds")
        require(bool(self.in_d.any() and self.in_d_prime.any()), "each world must have a row")

    @cached_property
    def zero(self) -> Examples:
        """D."""
        return self.rows.take(self.in_d)

    @cached_property
    def one(self) -> Examples:
        """D'."""
        return self.rows.take(self.in_d_prime)

    def world(self, truth: bool) -> Examples:
        """D' where the coin says True."""
        return self.one if truth else self.zero

    def places(self, truth: bool) -> NDArray[np.int64]:
        """Which rows the world has, ascending."""
        return np.flatnonzero(self.in_d_prime if truth else self.in_d)


def features_of(data: Examples) -> NDArray[np.float32]:
    """Features as an array of shape (n, d).

    Raises: InputError when they are a table, or images.
    """
    require(
        isinstance(data.features, np.ndarray) and data.features.ndim == 2, "features must be an array of shape (n, d)"
    )
    assert isinstance(data.features, np.ndarray)
    return data.features


def replaced(
    data: Examples, rows: NDArray[np.int64], zero: Examples | None, one: Examples | None, points: NDArray[np.float32]
) -> Worlds:
    """Worlds that differ in some rows of the data.

    Args:
        data: n rows.
        rows: Those that differ, shape (k,), all different.
        zero: What stands in their places in D, k rows; None leaves the places out.
        one: What stands there in D'.
        points: As in `Worlds`.
    """
    kept = np.setdiff1d(np.arange(len(data)), rows)
    parts = [data.take(kept), *(part for part in (zero, one) if part is not None)]
    counts = [len(part) for part in parts]
    place = np.concatenate([kept, *(rows for part in (zero, one) if part is not None)])
    mark = np.repeat([0, *([1] if zero is not None else []), *([2] if one is not None else [])], counts)
    order = np.lexsort((mark, place))
    together = data.with_(
        features=np.concatenate([features_of(part) for part in parts])[order],
        labels=np.concatenate([part.labels for part in parts])[order],
    )
    return Worlds(together, mark[order] != 2, mark[order] != 1, points)
