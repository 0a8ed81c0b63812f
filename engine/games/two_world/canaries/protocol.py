"""Canaries: which points a two-world game is played with (registered as "canary").

The adversary chooses them knowing the pool and shadow models, never the models that are audited, so any choice is
valid; a good one shows more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views.challenges import Challenges
from dpaudit.engine.games.two_world.views.shadows import Shadows
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples


@runtime_checkable
class Canary(Protocol):
    """Chooses or makes challenge points."""

    @property
    def crafted(self) -> bool:
        """Whether the points are made rather than taken from the pool."""
        ...

    @property
    def needs_shadows(self) -> bool:
        """Whether the choice looks at shadow models."""
        ...

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        """The challenge points; shadow models are given when it `needs_shadows`.

        Raises: InputError when the pool does not fit.
        """
        ...


@runtime_checkable
class GradientCanary(Protocol):
    """Makes a gradient that takes part in DP-SGD as if it were an example's, clipped as those are."""

    def gradient(self, parameters: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """A vector of norm 1 in units of the clip norm, shape (parameters,)."""
        ...


@dataclass(frozen=True)
class PointCanary:
    """What canaries that take or make points share.

    Attributes:
        count: Number of challenge points, each trial being about one drawn at random, >= 1.
    """

    count: int = 1
    crafted: ClassVar[bool] = False
    needs_shadows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.count >= 1, "count must be >= 1", count=self.count)


def features_of(pool: Examples) -> NDArray[np.float32]:
    """The pool's features as an array, which crafted points need.

    Raises: InputError when they are a table.
    """
    require(isinstance(pool.features, np.ndarray), "crafted points need features in an array, these are columns")
    assert isinstance(pool.features, np.ndarray)
    return pool.features


def crafted_challenges(
    pool: Examples, features: NDArray[np.float32], labels: NDArray[np.int64], rows: NDArray[np.int64]
) -> Challenges:
    """Crafted challenge points."""
    examples = pool.with_(features=np.ascontiguousarray(features, np.float32), labels=labels.astype(np.int64))
    return Challenges(examples, rows.astype(np.int64), True, np.zeros(len(rows)))
