"""Adversaries that know how a predictor votes.

Those of Private-kNN choose records with many expected votes on the natural queries. Those of prompted teachers write
the prompt of one teacher.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.engine.games.predictions.adversaries import Crafted, Target
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.pretrained import texts_of
from dpaudit.mechanisms.predictors.language_model import Teacher
from dpaudit.mechanisms.predictors.private_knn import PrivateKnn, squared_distances
from dpaudit.mechanisms.predictors.prompt_pate import PromptPate
from dpaudit.mechanisms.predictors.protocol import AddedRecords
from dpaudit.mechanisms.predictors.vote_laws import inclusion
from dpaudit.registry import register

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def expected_hits(predictor: PrivateKnn, target: Target, candidates: Examples) -> Floats:
    """Return the expected number of votes E(x) of each candidate, shape (n,); at most rate * queries.

    Source: Chadha et al. (2024), appendix D.3.
    """
    added = AddedRecords.alone(target.data, candidates)
    ranks = predictor.votes_with_canary(added, target.queries.features, seed=SeedSequence(0), compute=target.compute)
    # A table by rank, since millions of candidates share few ranks and the incomplete beta function is slow.
    chance = inclusion(np.arange(1, ranks.max() + 1), neighbours=predictor.neighbours, rate=predictor.rate)
    return np.asarray(chance[ranks - 1].sum(axis=1))


def least_expected(target: Target, queries: Ints | slice = slice(None)) -> int:
    """Return the class with the second most votes on some queries in total."""
    votes = target.votes[queries].sum(axis=0)
    return int(np.argsort(votes, kind="stable")[-2])


@register("adversary", "pois-nat-q-best-test", source="Chadha et al. (2024), appendix D.3: Pois-NatQ (Test)")
@dataclass(frozen=True)
class PoisNatQBestTest:
    """Adds the query with the most expected votes, with the label that has the second most votes on it."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        predictor = target.required(PrivateKnn, adversary="pois-nat-q-best-test")
        hits = expected_hits(predictor, target, target.queries)
        best = int(hits.argmax())
        return Crafted.of_one(target, target.queries.take([best]).with_(labels=target.second[[best]]))


@register("adversary", "pois-nat-q-best-train", source="Chadha et al. (2024), appendix D.3: Pois-NatQ (Train)")
@dataclass(frozen=True)
class PoisNatQBestTrain:
    """Adds the record with the most expected votes, with the label that has the second most votes in total."""

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        predictor = target.required(PrivateKnn, adversary="pois-nat-q-best-train")
        hits = expected_hits(predictor, target, target.data)
        best, label = int(hits.argmax()), least_expected(target)
        return Crafted.of_one(target, target.data.take([best]).with_(labels=np.array([label])))


@register("adversary", "pois-nat-q-embedding", source="Chadha et al. (2024), appendix D.3: Pois-NatQ (Embedding)")
@dataclass(frozen=True)
class PoisNatQEmbedding:
    """Adds the mean of the records nearest to the queries of a class, for the class with the most expected votes.

    A record counts once for each query to which it is near.

    Attributes:
        nearest: Number of nearest records for each query, s >= 1.
    """

    nearest: int = 100

    def __post_init__(self) -> None:
        require(self.nearest >= 1, "nearest must be >= 1", nearest=self.nearest)

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        predictor = target.required(PrivateKnn, adversary="pois-nat-q-embedding")
        features = target.data.features
        if not isinstance(features, np.ndarray):
            raise SpecError("the adversary pois-nat-q-embedding needs arrays of numbers, got a table")
        near = np.argsort(squared_distances(features, target.queries.features), axis=0, kind="stable")[: self.nearest]
        points, labels = [], []
        for label in np.unique(target.queries.labels):
            of_class = np.flatnonzero(target.queries.labels == label)
            weights = np.bincount(near[:, of_class].ravel(), minlength=len(features)).astype(np.float64)
            points.append(np.tensordot(weights / weights.sum(), features.astype(np.float64), axes=1))
            labels.append(least_expected(target, of_class))
        candidates = Examples(
            np.stack(points).astype(np.float32), np.array(labels, np.int64), target.data.classes, target.data.name
        )
        best = int(expected_hits(predictor, target, candidates).argmax())
        return Crafted.of_one(target, candidates.take([best]))


def in_place_of_a_teacher(target: Target, teacher: Teacher, label: int) -> Crafted:
    """Return a pair with the adversary's teacher as the added record, and all natural queries."""
    assert isinstance(target.data.features, pa.Table)
    features = pa.table([pa.array([teacher.as_record()])], schema=target.data.features.schema)
    return Crafted.of_one(target, target.data.with_(features=features, labels=np.array([label])))


@register("adversary", "pois-nat-q-all-same", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (All same)")
@dataclass(frozen=True)
class PoisNatQAllSame:
    """Instructs one teacher of prompt-pate to give the same answer to all queries; asks all natural queries.

    Attributes:
        answer: Class that the teacher answers, >= 0; 1 in the paper.
    """

    answer: int = 1

    def __post_init__(self) -> None:
        require(self.answer >= 0, "answer must be >= 0", answer=self.answer)

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        target.required(PromptPate, adversary="pois-nat-q-all-same")
        require(self.answer < target.data.classes, "answer must be one of the classes", answer=self.answer)
        return in_place_of_a_teacher(target, Teacher.all_same(self.answer), self.answer)


@register("adversary", "pois-nat-q-mapping", source="Chadha et al. (2024), appendix D.2: Pois-NatQ (Mapping)")
@dataclass(frozen=True)
class PoisNatQMapping:
    """Instructs one teacher of prompt-pate to answer the class that is most often confused with the true one.

    That class most often has the second most votes if the true one has the most; if there is no such query, it is the
    next class. The teacher's examples have such answers too. All natural queries are asked.
    """

    def craft(self, target: Target, rng: np.random.Generator) -> Crafted:
        predictor = target.required(PromptPate, adversary="pois-nat-q-mapping")
        numbers = wrong_numbers(target)
        rows = range(predictor.shots)
        texts = texts_of(target.data.features)
        shots = [(texts[row], int(target.data.labels[row])) for row in rows]
        return in_place_of_a_teacher(target, predictor.task(target.data).mapped(numbers, shots), shots[0][1])


def wrong_numbers(target: Target) -> list[int]:
    """Return the wrong answer for each class."""
    classes, top, second = target.data.classes, target.votes.argmax(axis=1), target.second
    numbers = []
    for label in range(classes):
        confused = np.bincount(second[top == label], minlength=classes)
        numbers.append(int(confused.argmax()) if confused.any() else (label + 1) % classes)
    return numbers
