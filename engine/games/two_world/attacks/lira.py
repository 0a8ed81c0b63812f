"""LiRA: how much likelier the target's confidence is under models with the challenge than without; and the points that
it gives away most.

phi, the mean over queries, is taken as normal over models, its deviation as that of residuals from each point's mean.
Source: Carlini et al. (2022), arXiv:2112.03570, sections V and VI; its code differs (medians, deviations of raw scores,
the members' for both worlds, the density instead of the tail in the offline attack).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.canaries import PointCanary
from dpaudit.engine.games.two_world.views import Challenges, ChallengeView, Shadows
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

Variance = Literal["fixed", "per-point"]
SMALLEST_DEVIATION = 1e-6
POINTS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class Normals:
    """One normal law of phi for each point."""

    mean: NDArray[np.float64]  # shape (points,)
    deviation: NDArray[np.float64]  # shape (points,), > 0

    def log_density(self, phi: NDArray[np.float64]) -> NDArray[np.float64]:
        """At phi of shape (..., points), up to a constant."""
        return -0.5 * ((phi - self.mean) / self.deviation) ** 2 - np.log(self.deviation)

    def at(self, rows: slice) -> Normals:
        return Normals(self.mean[rows], self.deviation[rows])


def normals(shadows: Shadows, points: NDArray[np.int64], *, members: bool, variance: Variance) -> Normals:
    """The laws of phi at some points, over the shadow models trained on the point or over those that were not.

    A "fixed" variance pools the squared residuals of all points (each costs its mean one degree of freedom), for few
    models; "per-point" keeps them apart, for some 64 models and more.
    """
    mean, squares, counts = _residuals(shadows.at_points(points), members)
    least, world = (2 if variance == "per-point" else 1), ("trained on" if members else "left out of")
    fewest = int(counts.min())
    require(fewest >= least, f"each challenge must be {world} at least {least} shadow models", fewest=fewest)
    if variance == "fixed":
        everywhere = np.arange(shadows.member.shape[1])
        parts = [
            _residuals(shadows.at_points(everywhere[first : first + POINTS_AT_ONCE]), members)
            for first in range(0, len(everywhere), POINTS_AT_ONCE)
        ]
        freedom = sum(int(np.maximum(count - 1, 0).sum()) for _, _, count in parts)
        require(freedom >= 1, "a fixed variance needs a point with two shadow models", freedom=freedom)
        spread = np.full(len(points), sum(float(part.sum()) for _, part, _ in parts) / freedom)
    else:
        spread = squares / (counts - 1)
    return Normals(mean, np.maximum(np.sqrt(spread), SMALLEST_DEVIATION))


def _residuals(shadows: Shadows, members: bool) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Each point's mean phi over its models of one world, sum of squared residuals, and count; shape (points,)."""
    phi, chosen = shadows.phi, shadows.member == members
    counts = chosen.sum(0)
    mean = np.where(chosen, phi, 0.0).sum(0) / np.maximum(counts, 1)
    squares = (np.where(chosen, phi - mean, 0.0) ** 2).sum(0)
    return mean, squares, counts


@dataclass(frozen=True)
class Lira:
    """What both attacks share.

    Attributes:
        variance: "fixed" over all points, or "per-point" for some 64 shadow models and more.
    """

    variance: Variance = "fixed"
    view: ClassVar[type[ChallengeView]] = ChallengeView
    needs: ClassVar[frozenset[str]] = frozenset({"shadows"})

    def _normals(self, view: ChallengeView, *, members: bool) -> Normals:
        assert view.shadows is not None
        return normals(view.shadows, view.point, members=members, variance=self.variance)


@register("attack", "lira-online", source="Carlini et al. (2022), arXiv:2112.03570, Algorithm 1")
@dataclass(frozen=True)
class LiraOnline(Lira):
    """LiRA: log-likelihood ratio of the target's confidence, from shadow models with and without the challenge."""

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """log N(phi; in) - log N(phi; out), in nats."""
        inside, outside = (self._normals(view, members=world) for world in (True, False))
        return log_likelihood_ratio(inside, outside, view.phi)


@register("attack", "lira-offline", source="Carlini et al. (2022), arXiv:2112.03570, section VI-C")
@dataclass(frozen=True)
class LiraOffline(Lira):
    """LiRA from models without the challenge only: how far in their upper tail the target's confidence lies."""

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """(phi - mean) / deviation: the tail's probability is Phi of it, but does not run into 1."""
        outside = self._normals(view, members=False)
        return np.asarray((view.phi - outside.mean) / outside.deviation)


def log_likelihood_ratio(inside: Normals, outside: Normals, phi: NDArray[np.float64]) -> NDArray[np.float64]:
    """LiRA's score at phi of shape (..., points), in nats."""
    return np.asarray(inside.log_density(phi) - outside.log_density(phi))


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
        """Each point's weight, and the mean score of members minus that of the others; both shape (points,)."""
        models = len(shadows.member)
        fitted = 2 * round((1 - self.test_share) * models / 2)  # pairs stay together
        require(
            4 <= fitted <= models - 2,
            "select-worst needs at least 6 shadow models, 2 of them to measure",
            shadows=models,
        )
        fit, test = shadows.of_models(slice(fitted)), shadows.of_models(slice(fitted, models))
        everywhere = np.arange(shadows.member.shape[1])
        inside, outside = (normals(fit, everywhere, members=world, variance=self.variance) for world in (True, False))
        parts = []
        for first in range(0, len(everywhere), POINTS_AT_ONCE):
            rows = slice(first, first + POINTS_AT_ONCE)
            measured = test.at_points(everywhere[rows])
            scores = log_likelihood_ratio(inside.at(rows), outside.at(rows), measured.phi)
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
