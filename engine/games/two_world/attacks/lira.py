"""LiRA: likelihood ratio of the target's confidence with and without the challenge; and the points it detects best.

phi, averaged over queries, is modelled as normal over models. Its deviation is that of residuals from the mean of each
point. Source: Carlini et al. (2022), arXiv:2112.03570, sections V and VI. The authors' code differs: it uses medians,
deviations of raw scores, those of members for both worlds, and the density in the offline attack.
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
    """Normal law of phi at each point."""

    mean: NDArray[np.float64]  # shape (points,)
    deviation: NDArray[np.float64]  # shape (points,), > 0

    def log_density(self, phi: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log-densities at phi, shape (..., points), up to a constant."""
        return -0.5 * ((phi - self.mean) / self.deviation) ** 2 - np.log(self.deviation)

    def at(self, rows: slice) -> Normals:
        return Normals(self.mean[rows], self.deviation[rows])


def normals(shadows: Shadows, points: NDArray[np.int64], *, members: bool, variance: Variance) -> Normals:
    """Return the laws of phi at some points, over shadow models trained on the point or over the others.

    A "fixed" variance pools the squared residuals of all points, with one degree of freedom less for each point.
    "per-point" estimates separate variances, which needs about 64 models.
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
    """Return each point's mean phi over models of one world, sum of squared residuals, and count; shape (points,)."""
    phi, chosen = shadows.phi, shadows.member == members
    counts = chosen.sum(0)
    mean = np.where(chosen, phi, 0.0).sum(0) / np.maximum(counts, 1)
    squares = (np.where(chosen, phi - mean, 0.0) ** 2).sum(0)
    return mean, squares, counts


@dataclass(frozen=True)
class Lira:
    """Base of both attacks.

    Attributes:
        variance: "fixed" for all points together, or "per-point", which needs about 64 shadow models.
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
        """Return log N(phi; in) - log N(phi; out), in nats."""
        inside, outside = (self._normals(view, members=world) for world in (True, False))
        return log_likelihood_ratio(inside, outside, view.phi)


@register("attack", "lira-offline", source="Carlini et al. (2022), arXiv:2112.03570, section VI-C")
@dataclass(frozen=True)
class LiraOffline(Lira):
    """LiRA from models without the challenge only: position of the target's confidence in their upper tail."""

    def score(self, view: ChallengeView) -> NDArray[np.float64]:
        """Return (phi - mean) / deviation; its normal probability would be rounded to 1."""
        outside = self._normals(view, members=False)
        return np.asarray((view.phi - outside.mean) / outside.deviation)


def log_likelihood_ratio(inside: Normals, outside: Normals, phi: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return LiRA's score at phi, shape (..., points), in nats."""
    return np.asarray(inside.log_density(phi) - outside.log_density(phi))


@register("canary", "select-worst", source="arXiv:2206.05199, Algorithm 3 and section 4.1")
@dataclass(frozen=True)
class SelectWorst(PointCanary):
    """SelectWorst: points on which LiRA performs best, fitted on 80 % of the shadow models and tested on 20 %.

    The weights are no evidence; the audited models are trained afterwards.

    Attributes:
        count: Number of points, k >= 1.
        weight: "accuracy" of the likelihood test, "auc", or "tpr" at a false positive rate of at most `fpr`.
        fpr: False positive rate for "tpr", in [0, 1).
        test_share: Share of the shadow models used for testing, in (0, 1); pairs stay together.
        variance: Variance of the LiRA fits: "fixed", or "per-point", which needs about 64 models.
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
        """Return the k points with the largest weights; the gap between LiRA's mean scores breaks ties."""
        assert shadows is not None
        require(self.count <= len(pool), "count must be at most the rows of the pool", count=self.count)
        weights, gaps = self.weights(shadows)
        rows = np.lexsort((-gaps, -weights))[: self.count]
        return Challenges(pool.take(rows), rows.astype(np.int64), False, weights[rows])

    def weights(self, shadows: Shadows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return weights of all points, and mean scores of members minus those of others; both shape (points,)."""
        models = len(shadows.member)
        fitted = 2 * round((1 - self.test_share) * models / 2)  # pairs stay together
        require(
            4 <= fitted <= models - 2,
            "select-worst needs at least 6 shadow models, 2 of them for testing",
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
        # False positives at each model's score, then the most hits among thresholds with few enough of them.
        reached = scores[None] >= scores[:, None]
        alarms = (reached & ~member).sum(1) / outside
        hits = (reached & member).sum(1) / inside
        return np.where(alarms <= self.fpr, hits, 0.0).max(0), gaps
