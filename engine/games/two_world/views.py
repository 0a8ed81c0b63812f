"""What the adversary of a two-world game sees: challenge points, shadow models' confidences, all trials.

Confidence is phi = log p_y - log(sum of the other probabilities): close to normal over models, and precise at both
ends, where 1 - p is rounded to 0. Source: Carlini et al. (2022), arXiv:2112.03570, sections V and VI-B.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples


@dataclass(frozen=True, eq=False)
class Challenges:
    """k challenge points, each audited by models of its own."""

    examples: Examples  # the points with the labels they are trained with, k rows
    # the row of the pool each one is, or is made from, shape (k,); -1 = from none. Those rows are kept out of the base
    # set.
    rows: NDArray[np.int64]
    crafted: bool  # whether they are made, and so not among the pool's own rows
    # what they were chosen by, larger = more exposed, shape (k,); 0 where nothing was compared
    weight: NDArray[np.float64]

    def points(self, pool: int) -> NDArray[np.int64]:
        """Where they stand in the pool of `pool` rows with the crafted ones behind it, shape (k,)."""
        return pool + np.arange(len(self.rows)) if self.crafted else self.rows


@dataclass(frozen=True, eq=False)
class Shadows:
    """What the shadow models say of every point, and who was trained on it.

    They come in pairs, trained on a random half of the pool and on the other half: each point is in half of them.
    """

    # phi, shape (models, queries, points): row of the pool, crafted challenge points behind it; query 0 = the point as
    # it is. NaN where training failed.
    confidence: NDArray[np.float32]
    member: NDArray[np.bool_]  # whether a model was trained on a point, shape (models, points)

    def __post_init__(self) -> None:
        models, _, points = self.confidence.shape
        require(self.member.shape == (models, points), "member must have one bit a model and point")

    @cached_property
    def phi(self) -> NDArray[np.float64]:
        """Mean over the queries, shape (models, points); for many points take those needed first."""
        return np.asarray(self.confidence.mean(1, dtype=np.float64))

    def at_points(self, points: NDArray[np.int64]) -> Shadows:
        """The same models at some points, in that order."""
        return Shadows(self.confidence[:, :, points], self.member[:, points])

    def of_models(self, models: NDArray[np.int64] | slice) -> Shadows:
        return Shadows(self.confidence[models], self.member[models])


@dataclass(frozen=True, eq=False)
class ChallengeView:
    """T independent trials, one target model each. What an attack does not ask for is empty."""

    target: NDArray[np.float32]  # phi of the target model at its challenge point, shape (T, queries)
    point: NDArray[np.int64]  # which point that is in the shadows' numbering, shape (T,)
    # phi of the target model at points none of the targets were trained on, shape (T, P)
    population: NDArray[np.float32]
    population_points: NDArray[np.int64]  # which points those are, shape (P,)
    shadows: Shadows | None  # what shadow models say of all points; None without
    # inner product of each step's released gradient with the canary's, in units of the clip norm, shape (T, steps)
    gradient_products: NDArray[np.float64]
    # squared norm of the canary's clipped gradient at each step, in the same units, shape (T, steps)
    gradient_norms: NDArray[np.float64]
    shows: ClassVar[str] = "independent trials, each about one challenge"

    @property
    def phi(self) -> NDArray[np.float64]:
        return np.asarray(self.target.mean(1, dtype=np.float64))

    def points(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The different challenge points, and which of them each trial is about."""
        different, place = np.unique(self.point, return_inverse=True)
        return different, place
