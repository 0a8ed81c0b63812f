"""ClipBKD: a poisoned point along the direction in which the data vary least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.canaries.protocol import PointCanary, crafted_challenges, features_of
from dpaudit.engine.games.two_world.views.challenges import Challenges
from dpaudit.engine.games.two_world.views.shadows import Shadows
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("canary", "clip-bkd", source="Jagielski et al. (2020), arXiv:2006.07709, Algorithm 2")
@dataclass(frozen=True)
class ClipBackdoor(PointCanary):
    """ClipBKD: the last principal direction, scaled, with the label that a logistic regression finds least likely.

    The direction's sign is arbitrary: here its largest coordinate is positive, so that every library gives the same
    point. Where features never vary, or there are fewer rows than features, many directions have no variance at all and
    the point is one of them. The paper swaps the labels of k copies; here the point itself comes or goes.

    Attributes:
        count: 1: there is one last direction.
        norm: Length of the point, > 0; None takes the median length of the pool's points.
    """

    norm: float | None = None
    crafted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.count == 1, "clip-bkd makes one point", count=self.count)
        require(self.norm is None or self.norm > 0, "norm must be > 0", norm=self.norm)

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        """That point; draws nothing."""
        from sklearn.linear_model import LogisticRegression

        features = features_of(pool)
        flat = features.reshape(len(features), -1).astype(np.float64)
        norm = float(np.median(np.linalg.norm(flat, axis=1))) if self.norm is None else self.norm
        point = norm * last_direction(flat)
        fitted = LogisticRegression(max_iter=1000).fit(flat, pool.labels)
        least = fitted.classes_[fitted.predict_proba(point[None])[0].argmin()]
        crafted = point.reshape(1, *features.shape[1:]).astype(np.float32)
        return crafted_challenges(pool, crafted, np.array([least]), np.array([-1]))


def last_direction(flat: NDArray[np.float64]) -> NDArray[np.float64]:
    """The unit vector of least variance of rows (n, d), its largest coordinate positive; shape (d,)."""
    centred = flat - flat.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    direction = vectors[:, 0]
    signed: NDArray[np.float64] = direction * np.sign(direction[np.abs(direction).argmax()])
    return signed
