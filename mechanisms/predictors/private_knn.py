"""Private-kNN: each record is kept at random for each answer, the nearest ones vote by their labels."""

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
from dpaudit.mechanisms.predictors.protocol import Added
from dpaudit.mechanisms.predictors.vote_laws import SampledNeighbours, VoteLaw
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register

Ints = NDArray[np.int64]

ROWS = 4096  # Records whose distances to all queries are computed at once


@register("mechanism", "private-knn", source="Zhu et al. (2020), CVPR; Chadha et al. (2024), section 6")
@dataclass(frozen=True)
class PrivateKnn(NoisyVotes):
    """Private-kNN: of the records kept for an answer, the k nearest to the query vote by their labels.

    Features are compared as they are given, by Euclidean distance; representations must be made without these data.

    Attributes:
        neighbours: k >= 1.
        rate: Probability with which a record is kept for an answer, in (0, 1].
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
            "private-knn takes gaussian noise without a threshold: sampling lowers the cost of that alone",
            noise=self.noise,
            threshold=self.threshold,
        )

    def claim(self) -> Claim:
        """What one answer promises, a record added or removed: a Gaussian on a vote that moves, sampled at the rate."""
        curve = SubsampledGaussian(self.sigma / math.sqrt(2), self.rate, 1)
        return Claim.of(curve, relation=Relation.ADD_REMOVE, delta=self.delta)

    def sampled(self) -> float:
        return self.rate

    def depth(self) -> int:
        """How many of the nearest records are looked at: with probability 1 - 1e-30 enough of these are kept."""
        return math.ceil((self.neighbours + 12 * math.sqrt(self.neighbours) + 80) / self.sampled())

    def votes(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> Ints:
        """Labels of the nearest records to each query, nearest first, shape (depth, q); draws nothing."""
        order = np.argsort(squared_distances(data.features, queries), axis=0, kind="stable")
        return np.asarray(data.labels[order[: self.depth()]], np.int64)

    def votes_with_canary(self, more: Added, queries: Features, *, seed: SeedSequence, compute: Compute) -> Ints:
        """The rank of each point among the records of the data, shape (p, q); at equal distance behind them."""
        own = squared_distances(more.records.features, queries)
        there = np.sort(squared_distances(more.data.features, queries), axis=0)
        ranks = [np.searchsorted(column, mine, side="right") for column, mine in zip(there.T, own.T, strict=True)]
        return np.minimum(np.stack(ranks, axis=1).astype(np.int64), min(self.depth(), len(more.data))) + 1

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Known exactly: which records are kept is all that is random."""
        order = np.argsort(moved[0], kind="stable")
        some = order if added else order[:0]
        return SampledNeighbours(
            votes[0], self.neighbours, self.sampled(), classes, ranks=moved[0][some], added=labels[some]
        )

    def histograms(self, votes: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        """One draw of the records kept, shape (n, q) to (q, K)."""
        none = np.zeros((1, 0), np.int64)
        laws = [self.law(column[None], none, none[0], added=False, classes=classes) for column in votes.T]
        return np.concatenate([law.draw(1, rng) for law in laws])


def squared_distances(records: Features, queries: Features) -> NDArray[np.float64]:
    """Squared Euclidean distance of each record to each query, shape (n, q); tables are refused."""
    if isinstance(records, pa.Table) or isinstance(queries, pa.Table):
        raise InputError("private-knn compares arrays of numbers, got a table")
    own, asked = (part.reshape(len(part), -1).astype(np.float64) for part in (records, queries))
    distances = np.empty((len(own), len(asked)))
    squares = np.square(asked).sum(axis=1)
    for first in range(0, len(own), ROWS):
        rows = own[first : first + ROWS]
        # A record that is the query itself must be at distance 0 exactly, hence the rounding below.
        product = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ asked.T + squares
        distances[first : first + ROWS] = np.round(np.maximum(product, 0), 9)
    return distances
