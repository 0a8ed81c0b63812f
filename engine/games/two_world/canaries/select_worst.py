"""The points of the pool that shadow models give away most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.attacks.lira import POINTS_AT_ONCE, log_likelihood_ratio, normals
from dpaudit.engine.games.two_world.canaries.protocol import PointCanary
from dpaudit.engine.games.two_world.views.challenges import Challenges
from dpaudit.engine.games.two_world.views.shadows import Shadows
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("canary", "select-worst", source="arXiv:2206.05199, Algorithm 3 and section 4.1")
@dataclass(frozen=True)
class SelectWorst(PointCanary):
    """SelectWorst: the points on which LiRA, fitted to 80 % of the shadow models, does best on the other 20 %.

    The models audited afterwards are fresh ones: a weight measured here is no evidence.

    Attributes:
        count: How many points, k >= 1.
        weight: "accuracy" of the likelihood test, "auc", or "tpr" at a false-alarm rate of at most `fpr`.
        fpr: In [0, 1); for "tpr".
        test_share: Share of the shadow models that measure, in (0, 1); pairs stay together.
        variance: Of the LiRA fits: "fixed" over points, or "per-point" for some 64 models and more.
    """

    weight: Literal["accuracy", "auc", "tpr"] = "accuracy"
    fpr: float = 0.05
    test_share: float = 0.2
    variance: Literal["fixed", "per-point"] = "fixed"
    needs_shadows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.fpr < 1, "fpr must be in [0, 1)", fpr=self.fpr)
        require(0 < self.test_share < 1, "test_share must be in (0, 1)", test_share=self.test_share)

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        """The k points with the largest weights, ties decided by how far LiRA's scores lie apart; draws nothing."""
        assert shadows is not None
        require(self.count <= len(pool), "count must be at most the rows of the pool", count=self.count)
        weights, gaps = self.weights(shadows)
        rows = np.lexsort((-gaps, -weights))[: self.count]
        return Challenges(pool.take(rows), rows.astype(np.int64), False, weights[rows])

    def weights(self, shadows: Shadows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Each point's weight, and the mean score of members minus that of the others; both shape (points,).

        Raises: InputError when a point is in none or all of the models of one part.
        """
        models = len(shadows.member)
        fitted = 2 * round((1 - self.test_share) * models / 2)  # pairs stay together
        require(
            4 <= fitted <= models - 2,
            "select-worst needs at least 6 shadow models, 2 of them to measure",
            shadows=models,
        )
        fit, test = shadows.of(slice(fitted)), shadows.of(slice(fitted, models))
        everywhere = np.arange(shadows.member.shape[1])
        inside, outside = (normals(fit, everywhere, members=world, variance=self.variance) for world in (True, False))
        parts = []
        for first in range(0, len(everywhere), POINTS_AT_ONCE):
            rows = slice(first, first + POINTS_AT_ONCE)
            measured = test.at(everywhere[rows])
            scores = log_likelihood_ratio(inside.of(rows), outside.of(rows), measured.phi)
            parts.append(self._aggregate(scores, measured.member))
        weights, gaps = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return weights, gaps

    def _aggregate(
        self, scores: NDArray[np.float64], member: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        inside, outside = member.sum(0), (~member).sum(0)
        require(bool((inside > 0).all() and (outside > 0).all()), "each point must be in some models and not in others")
        gaps = np.where(member, scores, 0).sum(0) / inside - np.where(member, 0, scores).sum(0) / outside
        if self.weight == "accuracy":
            return ((scores > 0) == member).mean(0), gaps
        if self.weight == "auc":
            above = (scores[:, None] > scores[None]) + 0.5 * (scores[:, None] == scores[None])
            return (above * (member[:, None] & ~member[None])).sum((0, 1)) / (inside * outside), gaps
        # Alarms at or above each model's score, then the most hits among thresholds with few enough alarms.
        reached = scores[None] >= scores[:, None]
        alarms = (reached & ~member).sum(1) / outside
        hits = (reached & member).sum(1) / inside
        return np.where(alarms <= self.fpr, hits, 0.0).max(0), gaps
