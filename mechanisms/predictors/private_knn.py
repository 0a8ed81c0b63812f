"""Private-kNN: the labels of the nearest records in a random sample, drawn for each answer, are the votes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.errors import InputError, require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.predictors.ensemble import NoisyVotes
from dpaudit.mechanisms.predictors.protocol import AddedRecords
from dpaudit.mechanisms.predictors.vote_laws import SampledNeighbours, VoteLaw
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register

Ints = NDArray[np.int64]

_CHUNK = 4096  # records whose distances to all queries are computed at once


@register("mechanism", "private-knn", source="Zhu et al. (2020), CVPR; Chadha et al. (2024), section 6")
@dataclass(frozen=True)
class PrivateKnn(NoisyVotes):
    """Private-kNN: of the records sampled for an answer, the k nearest to the query vote by their labels.

    Features are compared by Euclidean distance, without further processing. Learned representations must come from
    other data.

    Attributes:
        neighbours: k >= 1.
        rate: Probability that a record is sampled for an answer, in (0, 1].
    """

    sigma: float = 30.0
    neighbours: int = 200
    rate: float = 0.2

    deterministic = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "neighbours")
        require(0 < self.rate <= 1, "rate must be in (0, 1]", rate=self.rate)
        require(
            self.noise == "gaussian" and self.threshold is None,
            "private-knn needs gaussian noise without a threshold: sampling amplifies the privacy of no other noise",
            noise=self.noise,
            threshold=self.threshold,
        )

    def claim(self) -> Claim:
        """Return the claim of one answer: adding or removing a record moves a vote, under subsampled Gaussian noise."""
        curve = SubsampledGaussian(self.sigma / math.sqrt(2), self.rate, 1)
        return Claim.of(curve, relation=Relation.ADD_REMOVE, delta=self.delta)

    def sampled(self) -> float:
        return self.rate

    def depth(self) -> int:
        """Return how many of the nearest records suffice: k of them are sampled with probability 1 - 1e-30."""
        return math.ceil((self.neighbours + 12 * math.sqrt(self.neighbours) + 80) / self.sampled())

    def votes(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> Ints:
        """Return the labels of the records nearest to each query, nearest first, shape (depth, q); not random."""
        order = np.argsort(squared_distances(data.features, queries), axis=0, kind="stable")
        return np.asarray(data.labels[order[: self.depth()]], np.int64)

    def votes_with_canary(
        self, canaries: AddedRecords, queries: Features, *, seed: SeedSequence, compute: Compute
    ) -> Ints:
        """Return the rank of each point among the records, shape (p, q); records of equal distance come first."""
        canary_distances = squared_distances(canaries.records.features, queries)
        data_distances = np.sort(squared_distances(canaries.data.features, queries), axis=0)
        columns = zip(data_distances.T, canary_distances.T, strict=True)
        ranks = [np.searchsorted(records, points, side="right") for records, points in columns]
        return np.minimum(np.stack(ranks, axis=1).astype(np.int64), min(self.depth(), len(canaries.data))) + 1

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Return the exact law: only the sample is random."""
        order = np.argsort(moved[0], kind="stable")
        added_order = order if added else order[:0]
        return SampledNeighbours(
            votes[0], self.neighbours, self.sampled(), classes, ranks=moved[0][added_order], added=labels[added_order]
        )

    def histograms(self, votes: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        """Draw one sample of the records for each query, shape (n, q) to (q, K)."""
        none = np.zeros((1, 0), np.int64)
        laws = [self.law(column[None], none, none[0], added=False, classes=classes) for column in votes.T]
        return np.concatenate([law.draw(1, rng) for law in laws])


def squared_distances(records: Features, queries: Features) -> NDArray[np.float64]:
    """Return the squared Euclidean distance of each record to each query, shape (n, q); refuse tables."""
    if isinstance(records, pa.Table) or isinstance(queries, pa.Table):
        raise InputError("private-knn compares arrays of numbers, got a table")
    points, query_points = (part.reshape(len(part), -1).astype(np.float64) for part in (records, queries))
    distances = np.empty((len(points), len(query_points)))
    squares = np.square(query_points).sum(axis=1)
    for first in range(0, len(points), _CHUNK):
        rows = points[first : first + _CHUNK]
        # Rounded below, so that a record equal to the query is at distance exactly 0.
        product = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ query_points.T + squares
        distances[first : first + _CHUNK] = np.round(np.maximum(product, 0), 9)
    return distances
