"""Adversaries of Private-kNN: by how often a record votes, its chances to be near each of the natural queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.engine.games.predictions.adversaries import Crafted, Target
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.private_knn import PrivateKnn, squared_distances
from dpaudit.mechanisms.predictors.protocol import AddedRecords
from dpaudit.mechanisms.predictors.vote_laws import inclusion
from dpaudit.registry import register

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def expected_hits(predictor: PrivateKnn, target: Target, candidates: Examples) -> Floats:
    """E(x) of each candidate, shape (n,): at most rate x queries.

    Source: Chadha et al. (2024), appendix D.3.
    """
    more = AddedRecords.alone(target.data, candidates)
    ranks = predictor.votes_with_canary(more, target.queries.features, seed=SeedSequence(0), compute=target.compute)
    # Few ranks are different: a table spares an incomplete beta function for each of millions.
    chance = inclusion(np.arange(1, ranks.max() + 1), neighbours=predictor.neighbours, rate=predictor.rate)
    return np.asarray(chance[ranks - 1].sum(axis=1))


def least_expected(target: Target, queries: Ints | slice = slice(None)) -> int:
    """The class with the most votes but one on some queries together."""
    votes = target.votes[queries].sum(axis=0)
    return int(np.argsort(votes, kind="stable")[-2])


@register("adversary", "pois-nat-q-best-test", source="Chadha et al. (2024), appendix D.3: Pois-NatQ (Test)")
@dataclass(frozen=True)
class PoisNatQBestTest:
    """The query with the largest expected number of votes, with the label that has the most votes but one on it."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        predictor = target.required(PrivateKnn, adversary="pois-nat-q-best-test")
        hits = expected_hits(predictor, target, target.queries)
        best = int(hits.argmax())
        return Crafted.of_one(target, target.queries.take([best]).with_(labels=target.second[[best]]))


@register("adversary", "pois-nat-q-best-train", source="Chadha et al. (2024), appendix D.3: Pois-NatQ (Train)")
@dataclass(frozen=True)
class PoisNatQBestTrain:
    """The record with the largest expected number of votes, with the label that has the most votes but one over all."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        predictor = target.required(PrivateKnn, adversary="pois-nat-q-best-train")
        hits = expected_hits(predictor, target, target.data)
        best, label = int(hits.argmax()), least_expected(target)
        return Crafted.of_one(target, target.data.take([best]).with_(labels=np.array([label])))


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
        """Draws nothing."""
        predictor = target.required(PrivateKnn, adversary="pois-nat-q-embedding")
        features = target.data.features
        if not isinstance(features, np.ndarray):
            raise SpecError("the adversary pois-nat-q-embedding needs arrays of numbers, got a table")
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
