"""Attacker's view of a two-world game: challenge points, confidences of shadow models, all trials; attack by the loss.

Confidence is phi = log p_y - log(sum of the other probabilities). It is nearly normal over models and precise at both
ends, even where 1 - p rounds to 0. Source: Carlini et al. (2022), arXiv:2112.03570, sections V and VI-B.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.protocol import LossView
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class Challenges:
    """k challenge points, each audited by separate models."""

    examples: Examples  # the points with their training labels, k rows
    # row of the pool that is the point or its source, shape (k,); -1 if there is none. The base set excludes these rows
    rows: NDArray[np.int64]
    crafted: bool  # True if the points are crafted, so that they are not in the pool
    weight: NDArray[np.float64]  # criterion of the choice, larger if more exposed, shape (k,); 0 if there is none

    def points(self, pool: int) -> NDArray[np.int64]:
        """Return positions of the points in a pool of `pool` rows, followed by crafted points, shape (k,)."""
        return pool + np.arange(len(self.rows)) if self.crafted else self.rows


@dataclass(frozen=True, eq=False)
class Shadows:
    """Confidences and memberships of shadow models at every point.

    Models come in pairs, trained on a random half of the pool and on the other half, so each point is in half of them.
    """

    # phi, shape (models, queries, points), at rows of the pool, then crafted challenge points. Query 0 is the point
    # itself. NaN for failed models.
    confidence: NDArray[np.float32]
    member: NDArray[np.bool_]  # True if the model was trained on the point, shape (models, points)

    def __post_init__(self) -> None:
        models, _, points = self.confidence.shape
        require(self.member.shape == (models, points), "member must have one bit a model and point")

    @cached_property
    def phi(self) -> NDArray[np.float64]:
        """Mean of phi over queries, shape (models, points); select points first if there are many."""
        return np.asarray(self.confidence.mean(1, dtype=np.float64))

    def at_points(self, points: NDArray[np.int64]) -> Shadows:
        """Return the models at some points, in their order."""
        return Shadows(self.confidence[:, :, points], self.member[:, points])

    def of_models(self, models: NDArray[np.int64] | slice) -> Shadows:
        return Shadows(self.confidence[models], self.member[models])


@dataclass(frozen=True, eq=False)
class ChallengeView(LossView):
    """T independent trials with one target model each. Arrays that the attack does not need are empty."""

    target: NDArray[np.float32]  # phi of the target model at its challenge point, shape (T, queries)
    point: NDArray[np.int64]  # position of that point in `shadows`, shape (T,)
    population: NDArray[np.float32]  # phi of the target model at points that no trial trains on, shape (T, P)
    population_points: NDArray[np.int64]  # positions of these points, shape (P,)
    shadows: Shadows | None  # shadow models at all points; None without shadow models
    # inner product of each step's released gradient with the canary's, in units of the clipping norm, shape (T, steps)
    gradient_products: NDArray[np.float64]
    # squared norm of the canary's clipped gradient at each step, in the same units, shape (T, steps)
    gradient_norms: NDArray[np.float64]
    shows: ClassVar[str] = "independent trials, each about one challenge"

    @property
    def phi(self) -> NDArray[np.float64]:
        return np.asarray(self.target.mean(1, dtype=np.float64))

    @property
    def log_probability(self) -> NDArray[np.float64]:
        """Mean of log p_y = -log(1 + e^-phi) over queries, in nats, shape (T,)."""
        return np.asarray(log_probability(self.target).mean(1))

    def points(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the distinct challenge points, and the index of each trial's point among them."""
        different, place = np.unique(self.point, return_inverse=True)
        return different, place


def log_probability(phi: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return log p_y = -log(1 + e^-phi), in nats."""
    return -np.logaddexp(0.0, -phi.astype(np.float64))


@register("attack", "loss", source="Yeom et al. (2018), arXiv:1709.01604")
@dataclass(frozen=True)
class LossThreshold:
    """Attack by the loss on a point: a smaller loss indicates membership. It needs no shadow models."""

    view: ClassVar[type[LossView]] = LossView
    needs: ClassVar[frozenset[str]] = frozenset()

    def score(self, view: LossView) -> NDArray[np.float64]:
        """Return minus the log-loss, in nats: the mean over queries, or relative to the median canary of one run."""
        return view.log_probability
