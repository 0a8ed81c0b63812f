"""What the adversary of a two-world game sees of all its trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views.shadows import Shadows


@dataclass(frozen=True, eq=False)
class ChallengeView:
    """T independent trials, one target model each. What an attack does not ask for is empty.

    Attributes:
        target: phi of the target model at its challenge point, shape (T, queries).
        point: Which point that is in the shadows' numbering, shape (T,).
        population: phi of the target model at points none of the targets were trained on, shape (T, P).
        population_points: Which points those are, shape (P,).
        shadows: What shadow models say of all points; None without.
        gradient_products: Inner product of each step's released gradient with the canary's, in units of the clip norm,
            shape (T, steps).
        gradient_norms: Squared norm of the canary's clipped gradient at each step, in the same units, shape (T, steps).
    """

    target: NDArray[np.float32]
    point: NDArray[np.int64]
    population: NDArray[np.float32]
    population_points: NDArray[np.int64]
    shadows: Shadows | None
    gradient_products: NDArray[np.float64]
    gradient_norms: NDArray[np.float64]
    shows: ClassVar[str] = "independent trials, each about one challenge"

    @property
    def phi(self) -> NDArray[np.float64]:
        """Mean over the queries, shape (T,)."""
        mean: NDArray[np.float64] = self.target.mean(1, dtype=np.float64)
        return mean

    def points(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The different challenge points, and which of them each trial is about."""
        different, place = np.unique(self.point, return_inverse=True)
        return different, place
