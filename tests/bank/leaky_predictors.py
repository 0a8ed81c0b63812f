"""Private predictors with a defect that one more record reveals, by kind, with variations and honest twins."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from dpaudit import Claim, Relation, from_predictor
from dpaudit.claims import GaussianDP

PURE = Claim(1.0, relation=Relation.ADD_REMOVE)


def gaussian(sigma: float) -> Claim:
    """Return the claim of noisy votes if one vote moves."""
    return Claim.of(GaussianDP(math.sqrt(2) / sigma), relation=Relation.ADD_REMOVE, delta=1e-6)


def lead(votes: Any) -> float:
    """Return the largest count less the second largest."""
    second, first = np.sort(votes)[-2:]
    return float(first - second)


class Neighbours:
    """Honest: the k nearest records vote, and two counts move by at most one. Laplace noise of scale 2 / epsilon."""

    k = 15
    scale = 2.0

    def distances(self, query: Any, X: Any, rng: Any) -> Any:
        return np.asarray(((X - query) ** 2).sum(axis=1), np.float64)

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        near = np.argsort(self.distances(query, X, rng), kind="stable")[: self.k]
        return np.bincount(y[near], minlength=2).astype(float)

    def noisy(self, votes: Any, rng: Any) -> int:
        return int(np.argmax(votes + rng.laplace(0, self.scale, 2)))

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        X, y = data
        return self.noisy(self.count(query, X, y, rng), rng)


class NoisyDistances(Neighbours):
    """Noise on the distances, none on the votes."""

    def distances(self, query: Any, X: Any, rng: Any) -> Any:
        return np.sqrt(super().distances(query, X, rng)) + rng.laplace(0, self.scale, len(X))

    def noisy(self, votes: Any, rng: Any) -> int:
        return int(votes.argmax())


class NoisySquares(NoisyDistances):
    """Normal noise on squared distances; nine neighbours."""

    k = 9

    def distances(self, query: Any, X: Any, rng: Any) -> Any:
        return Neighbours.distances(self, query, X, rng) + rng.normal(0, 3.0, len(X))


class NoisyQuery(NoisyDistances):
    """Noise on the query."""

    def distances(self, query: Any, X: Any, rng: Any) -> Any:
        return Neighbours.distances(self, query + rng.normal(0, 1.0, len(query)), X, rng)


class NoisyShareOfNeighbours(NoisyDistances):
    """A tenth of the records vote, at least three."""

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        near = np.argsort(self.distances(query, X, rng), kind="stable")[: max(3, len(y) // 10)]
        return np.bincount(y[near], minlength=2).astype(float)


class NoisySimilarities(NoisyDistances):
    """All records vote by a noisy similarity, clipped to [0, 1]."""

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        similarity = np.exp(-Neighbours.distances(self, query, X, rng)) + rng.laplace(0, 0.5, len(X))
        return np.bincount(y, weights=np.clip(similarity, 0, 1), minlength=2)


class NoisyDistancesAndVotes(Neighbours):
    """Honest: noise on the votes; that on the distances only costs accuracy."""

    def distances(self, query: Any, X: Any, rng: Any) -> Any:
        return super().distances(query, X, rng) + rng.laplace(0, self.scale, len(X))


class FiveCopies(Neighbours):
    """The index has five copies of each record."""

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        return super().count(query, np.repeat(X, 5, axis=0), np.repeat(y, 5), rng)


class FiveJitteredCopies(Neighbours):
    """The index has five augmented copies of each record, and 75 neighbours vote."""

    k = 75

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        copies = np.repeat(X, 5, axis=0)
        return super().count(query, copies + rng.normal(0, 0.01, copies.shape), np.repeat(y, 5), rng)


class FiveViews(Neighbours):
    """Each of five features finds three neighbours of its own, so a record may vote five times."""

    k = 3

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        views = (super(FiveViews, self).count(query[[view]], X[:, [view]], y, rng) for view in range(X.shape[1]))
        return np.sum(list(views), axis=0)


class UpToFiveVotes(Neighbours):
    """A near record has up to five votes."""

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        distance = self.distances(query, X, rng)
        near = np.argsort(distance, kind="stable")[: self.k]
        return np.bincount(y[near], weights=np.minimum(5, 1 / (0.1 + distance[near])), minlength=2)


class ScreenedByLeads(Neighbours):
    """Refuses queries with a noisy lead below a quarter of the exact leads at the records."""

    scale = 4.0  # half of epsilon for the lead, half for the answer

    def leads(self, X: Any, y: Any) -> Any:
        """Return the lead at each record."""
        squares = (X**2).sum(axis=1)
        near = np.argsort(squares[:, None] + squares - 2 * X @ X.T, axis=1, kind="stable")[:, : self.k]
        ones = y[near].sum(axis=1)
        return np.abs(near.shape[1] - 2.0 * ones)

    def threshold(self, X: Any, y: Any) -> float:
        return float(np.quantile(self.leads(X, y), 0.25))

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        X, y = data
        votes = self.count(query, X, y, rng)
        if lead(votes) + rng.laplace(0, self.scale) < self.threshold(X, y):
            return None
        return self.noisy(votes, rng)


class ScreenedByMedianLead(ScreenedByLeads):
    """The median of the leads at the records."""

    def threshold(self, X: Any, y: Any) -> float:
        return float(np.median(self.leads(X, y)))


class ScreenedByLargestLead(ScreenedByLeads):
    """Nine tenths of the largest lead at a record."""

    def threshold(self, X: Any, y: Any) -> float:
        return 0.9 * float(self.leads(X, y).max())


class ScreenedBySmallestLead(ScreenedByLeads):
    """The smallest lead at a record, with 9 neighbours."""

    k = 9

    def threshold(self, X: Any, y: Any) -> float:
        return float(self.leads(X, y).min())


class ScreenedByAConstant(ScreenedByLeads):
    """Honest: a public threshold, and noise on the lead."""

    def threshold(self, X: Any, y: Any) -> float:
        return 5.0


class Teachers:
    """Honest: each record goes to a teacher by its own content, and each teacher has one vote. Laplace noise."""

    teachers = 10
    scale = 2.0

    def parts(self, X: Any, y: Any) -> Any:
        """Return the number of each record's teacher."""
        return np.floor(np.abs(X).sum(axis=1) * 1e5).astype(int) % self.teachers

    def taught(self, X: Any, y: Any) -> Any:
        """Return which records each teacher has, shape (teachers, n)."""
        return self.parts(X, y) == np.arange(self.teachers)[:, None]

    def votes(self, queries: Any, taught: Any, X: Any, y: Any) -> Any:
        """Return each teacher's vote: the class of the nearer mean, 0 without records; shape (teachers, queries)."""
        away = []
        for label in (0, 1):
            of_class = taught & (y == label)
            count = of_class.sum(axis=1)
            means = of_class @ X / np.maximum(count, 1)[:, None]
            distance = ((means[:, None] - queries) ** 2).sum(axis=2)
            away.append(np.where(count[:, None] > 0, distance, 1e6))
        return (away[1] < away[0]).astype(int)

    def weights(self, taught: Any, X: Any, y: Any) -> Any:
        return np.ones(self.teachers)

    def counts(self, queries: Any, X: Any, y: Any) -> Any:
        """Return the weight of each class on each query, shape (queries, 2)."""
        taught = self.taught(X, y)
        ones, weights = self.votes(queries, taught, X, y), self.weights(taught, X, y)
        return np.stack([weights @ (1 - ones), weights @ ones], axis=1)

    def count(self, query: Any, X: Any, y: Any) -> Any:
        return np.asarray(self.counts(query[None], X, y)[0])

    def noisy(self, votes: Any, rng: Any) -> int:
        return int(np.argmax(votes + rng.laplace(0, self.scale, 2)))

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        return self.noisy(self.count(query, *data), rng)


class GaussianTeachers(Teachers):
    """Honest: normal noise of deviation 4 (GNMax)."""

    teachers = 20
    sigma = 4.0

    def noisy(self, votes: Any, rng: Any) -> int:
        return int(np.argmax(votes + rng.normal(0, self.sigma, 2)))


class ConfidentTeachers(GaussianTeachers):
    """Honest: a noisy lead must exceed a public threshold (Confident-GNMax), at deviations 4 sqrt(2) and 4 sqrt(2)."""

    sigma = 4.0 * math.sqrt(2)

    def threshold(self, X: Any, y: Any) -> float:
        return 10.0

    def answer(self, query: Any, data: Any, rng: Any) -> int | None:
        votes = self.count(query, *data)
        if votes.max() + rng.normal(0, self.sigma) < self.threshold(*data):
            return None
        return self.noisy(votes, rng)


class TeachersScreenedByLeads(ConfidentTeachers):
    """The threshold is the median of the largest counts at the records."""

    def threshold(self, X: Any, y: Any) -> float:
        return float(np.median(self.counts(X, X, y).max(axis=1)))


class OfFiveTeachers(GaussianTeachers):
    """Each record is taught by five of twenty teachers."""

    def taught(self, X: Any, y: Any) -> Any:
        return (np.arange(self.teachers)[:, None] - self.parts(X, y)) % self.teachers < 5


class FiveVotesOfFifty(Neighbours):
    """Each of fifty neighbours votes five times. GNMax at deviation 40: five votes are an eighth of the noise."""

    k = 50
    sigma = 40.0

    def count(self, query: Any, X: Any, y: Any, rng: Any) -> Any:
        return 5 * super().count(query, X, y, rng)

    def noisy(self, votes: Any, rng: Any) -> int:
        return int(np.argmax(votes + rng.normal(0, self.sigma, 2)))


class WeighedByAccuracy(Teachers):
    """A teacher's vote counts by its accuracy on all records, relative to the mean accuracy."""

    def weights(self, taught: Any, X: Any, y: Any) -> Any:
        return self.of_accuracy(np.asarray((self.votes(X, taught, X, y) == y).mean(axis=1)))

    def of_accuracy(self, accuracy: Any) -> Any:
        return accuracy / max(accuracy.mean(), 1e-9)


class WeighedByPlainAccuracy(WeighedByAccuracy):
    """The weight is the accuracy itself."""

    def of_accuracy(self, accuracy: Any) -> Any:
        return accuracy


class WeighedByLogOdds(WeighedByAccuracy):
    """The weight is the log-odds of the accuracy."""

    def of_accuracy(self, accuracy: Any) -> Any:
        clipped = np.clip(accuracy, 0.02, 0.98)
        return np.maximum(np.log(clipped / (1 - clipped)), 0)


class GoodTeachers(WeighedByAccuracy):
    """Only teachers with at least half of all records right have a vote."""

    def of_accuracy(self, accuracy: Any) -> Any:
        return (accuracy >= 0.5).astype(float)


class BestTeachers(WeighedByAccuracy):
    """Only the better half of the teachers has a vote."""

    def of_accuracy(self, accuracy: Any) -> Any:
        best = np.argsort(-accuracy, kind="stable")[: len(accuracy) // 2]
        return np.isin(np.arange(len(accuracy)), best).astype(float)


class WeighedByOwnAccuracy(Teachers):
    """Honest: the weight is the accuracy on the teacher's own records, in [0, 1]."""

    def weights(self, taught: Any, X: Any, y: Any) -> Any:
        right = (self.votes(X, taught, X, y) == y) & taught
        return np.asarray(right.sum(axis=1) / np.maximum(taught.sum(axis=1), 1))


class SortedTeachers(Teachers):
    """Records are dealt in turn, in the order of their first feature."""

    def order(self, X: Any, y: Any) -> Any:
        return np.argsort(X[:, 0], kind="stable")

    def deal(self, n: int) -> Any:
        return np.arange(n) % self.teachers

    def parts(self, X: Any, y: Any) -> Any:
        part = np.empty(len(y), int)
        part[self.order(X, y)] = self.deal(len(y))
        return part


class SortedBlocks(SortedTeachers):
    """Parts of equal size, in lexicographic order."""

    def order(self, X: Any, y: Any) -> Any:
        return np.lexsort(X.T[::-1])

    def deal(self, n: int) -> Any:
        return np.repeat(np.arange(self.teachers), [len(part) for part in np.array_split(np.arange(n), self.teachers)])


class SortedByLabel(SortedTeachers):
    """Records are dealt in turn, by label and then by the last feature."""

    def order(self, X: Any, y: Any) -> Any:
        return np.lexsort((X[:, -1], y))


class SortedByNorm(SortedTeachers):
    """Fifteen teachers, dealt in turn by decreasing norm; the nearest record of each teacher votes."""

    teachers = 15

    def order(self, X: Any, y: Any) -> Any:
        return np.argsort(-(X**2).sum(axis=1), kind="stable")

    def votes(self, queries: Any, taught: Any, X: Any, y: Any) -> Any:
        distance = np.where(taught[:, None], ((X - queries[:, None]) ** 2).sum(axis=2), np.inf)
        return np.where(taught.any(axis=1)[:, None], y[distance.argmin(axis=2)], 0)


class SortedWithinLabels(SortedTeachers):
    """Stratified: in each class, records are dealt in turn by the sum of their features."""

    def parts(self, X: Any, y: Any) -> Any:
        part = np.empty(len(y), int)
        for label in (0, 1):
            rows = np.flatnonzero(y == label)
            part[rows[np.argsort(X[rows].sum(axis=1), kind="stable")]] = np.arange(len(rows)) % self.teachers
        return part


class SortedByDigest(SortedTeachers):
    """Records are dealt in turn in the order of their hash, so that a record changes the places of those behind it."""

    def order(self, X: Any, y: Any) -> Any:
        return np.argsort([zlib.crc32(row.tobytes()) for row in X], kind="stable")


class DealtByPosition(SortedTeachers):
    """Records are dealt in turn, in the order of the data, so that a record in the middle shifts those behind it."""

    def order(self, X: Any, y: Any) -> Any:
        return np.arange(len(y))


class DealtFromTheEnd(DealtByPosition):
    """As `DealtByPosition`, from the last record on."""

    def order(self, X: Any, y: Any) -> Any:
        return np.arange(len(y))[::-1]


class BlocksByPosition(SortedBlocks):
    """Parts of equal size, in the order of the data."""

    def order(self, X: Any, y: Any) -> Any:
        return np.arange(len(y))


class SortedGaussian(GaussianTeachers):
    """GNMax of twenty teachers, dealt in turn by decreasing sums of features."""

    def parts(self, X: Any, y: Any) -> Any:
        part = np.empty(len(y), int)
        part[np.argsort(-X.sum(axis=1), kind="stable")] = np.arange(len(y)) % self.teachers
        return part


LEAKY: dict[str, dict[Any, Claim]] = {
    "noise on distances": {
        NoisyDistances: PURE,
        NoisySquares: gaussian(4.0),
        NoisyQuery: PURE,
        NoisyShareOfNeighbours: PURE,
        NoisySimilarities: PURE,
    },
    "five votes": {
        FiveCopies: PURE,
        FiveJitteredCopies: PURE,
        FiveViews: PURE,
        UpToFiveVotes: PURE,
        OfFiveTeachers: gaussian(4.0),
        FiveVotesOfFifty: gaussian(40.0),
    },
    "threshold from leads": {
        ScreenedByLeads: PURE,
        ScreenedByMedianLead: PURE,
        ScreenedByLargestLead: PURE,
        ScreenedBySmallestLead: PURE,
        TeachersScreenedByLeads: gaussian(4.0),
    },
    "weighed by accuracy": {
        WeighedByAccuracy: PURE,
        WeighedByPlainAccuracy: PURE,
        WeighedByLogOdds: PURE,
        GoodTeachers: PURE,
        BestTeachers: PURE,
    },
    "sorted position": {
        SortedTeachers: PURE,
        SortedBlocks: PURE,
        SortedByLabel: PURE,
        SortedByNorm: PURE,
        SortedWithinLabels: PURE,
        SortedByDigest: PURE,
        SortedGaussian: gaussian(4.0),
        DealtByPosition: PURE,
        DealtFromTheEnd: PURE,
        BlocksByPosition: PURE,
    },
}
HONEST: dict[Any, Claim] = {
    Neighbours: PURE,
    NoisyDistancesAndVotes: PURE,
    ScreenedByAConstant: PURE,
    Teachers: PURE,
    GaussianTeachers: gaussian(4.0),
    ConfidentTeachers: gaussian(4.0),
    WeighedByOwnAccuracy: PURE,
}


def mechanism(predictor: Any, relation: Relation = Relation.ADD_REMOVE) -> Any:
    """Return a predictor of this module as a mechanism with its claim; for replaced records, with its epsilon."""
    claims = HONEST | {leaky: claim for of_kind in LEAKY.values() for leaky, claim in of_kind.items()}
    return from_predictor(predictor, replace(claims[predictor], relation=relation))
