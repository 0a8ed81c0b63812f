"""A record anywhere in the space of features that votes on as many natural queries of Private-kNN as can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpaudit.engine.games.predictions.adversaries.hits import expected_hits, least_expected, neighbours_of
from dpaudit.engine.games.predictions.adversaries.protocol import Crafted, Target
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.private_knn import squared_distances
from dpaudit.registry import register

NAME = "pois-nat-q-embedding"


@register("adversary", "pois-nat-q-embedding", source="Chadha et al. (2024), appendix D.3: Pois-NatQ (Embedding)")
@dataclass(frozen=True)
class PoisNatQEmbedding:
    """For each class, the mean of the records nearest to its queries, as often as they are; the one with most votes.

    Attributes:
        nearest: Records that are nearest to each query, s >= 1.
    """

    nearest: int = 100

    def __post_init__(self) -> None:
        require(self.nearest >= 1, "nearest must be >= 1", nearest=self.nearest)

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        """Draws nothing.

        Raises: SpecError for features that cannot be averaged.
        """
        predictor = neighbours_of(target, adversary=NAME)
        features = target.data.features
        if not isinstance(features, np.ndarray):
            raise SpecError(f"the adversary {NAME} needs arrays of numbers, got a table")
        near = np.argsort(squared_distances(features, target.queries.features), axis=0, kind="stable")[: self.nearest]
        points, labels = [], []
        for label in np.unique(target.queries.labels):
            own = np.flatnonzero(target.queries.labels == label)
            weights = np.bincount(near[:, own].ravel(), minlength=len(features)).astype(np.float64)
            points.append(np.tensordot(weights / weights.sum(), features.astype(np.float64), axes=1))
            labels.append(least_expected(target, own))
        made = Examples(
            np.stack(points).astype(np.float32), np.array(labels, np.int64), target.data.classes, target.data.name
        )
        best = int(expected_hits(predictor, target, made).argmax())
        return Crafted.of_one(target, made.take([best]))
