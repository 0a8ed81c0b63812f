"""Predictors whose voters are teachers trained on disjoint parts of the data: PATE and CaPC.

`NoisyVotes`, the noise settings of all private predictors, is defined here too, with the student of Interactive-GNMax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal, cast

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.predictors.language_model import PublicData
from dpaudit.mechanisms.predictors.protocol import AddedRecords
from dpaudit.mechanisms.predictors.vote_laws import (
    AlikeTeachers,
    ApartTeachers,
    ConfidentArgmax,
    GaussianArgmax,
    InteractiveArgmax,
    LaplaceArgmax,
    Release,
    VoteLaw,
)
from dpaudit.mechanisms.protocols import Model, Trainer
from dpaudit.mechanisms.ranges import require_at_least, require_delta, require_positive
from dpaudit.mechanisms.teachers import (
    TeacherVotes,
    predicted_classes,
    require_teachers_fit,
    teachers_together,
    trained_teachers,
    votes_by_groups,
)
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.registry import register

Ints = NDArray[np.int64]
Noise = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class NoisyVotes:
    """The noise on the votes of a private predictor, and the rule when it answers.

    Attributes:
        sigma: Standard deviation of Gaussian noise on each count, or the scale b of Laplace noise; > 0.
        noise: "gaussian" or "laplace".
        threshold: Votes that the largest count, with separate noise, must exceed for an answer; None always answers.
        threshold_sigma: Standard deviation of the Gaussian noise on the largest count, > 0.
        cached: True if a repeated query gets the earlier answer again.
        delta: The delta at which the claim is printed, in (0, 1).
        student: A model trained on `public`, whose predictions are subtracted from the votes before the threshold
            (Interactive-GNMax); needs a threshold. None: no student.
        public: Training data of the student: public data, or queries answered before.
        sure: If the votes do not pass the threshold, the student's class is the answer if its probability exceeds
            `sure`, > 0.
    """

    sigma: float = 40.0
    noise: Noise = "gaussian"
    threshold: float | None = None
    threshold_sigma: float = 40.0
    cached: bool = False
    delta: float = 1e-6
    student: Trainer | None = field(default=None, metadata={"kind": "model"})
    public: PublicData | None = field(default=None, metadata={"kind": "data"})
    sure: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, "sigma", "threshold_sigma", "sure")
        require(self.noise in ("gaussian", "laplace"), "noise must be gaussian or laplace", noise=self.noise)
        gaussian = self.threshold is None or self.noise == "gaussian"
        require(gaussian, "a threshold needs gaussian noise", noise=self.noise)
        require_delta(self.delta)
        require(
            self.student is None or (self.threshold is not None and self.public is not None),
            "a student needs a threshold, and public data to learn from",
            threshold=self.threshold,
            public=self.public,
        )

    def release(self) -> Release:
        if self.noise == "laplace":
            return LaplaceArgmax(self.sigma)
        if self.threshold is None:
            return GaussianArgmax(self.sigma)
        return ConfidentArgmax(self.sigma, self.threshold, self.threshold_sigma)

    def releases(self, queries: Features, *, voters: int, compute: Compute) -> Sequence[Release]:
        """Return the release of each query; they differ only if there is a student."""
        release = self.release()
        if self.student is None or not isinstance(release, ConfidentArgmax):
            return [release] * len(queries)
        assert isinstance(self.student, Hashable)
        assert self.public is not None
        student = _trained_student(self.student, self.public, replace(compute, scratch=None))
        shares = np.asarray(student.probabilities(queries), np.float64)
        noise = release.sigma, release.threshold, release.threshold_sigma
        sure = [int(row.argmax()) if row.max() > self.sure else None for row in shares]
        expected = [tuple((voters * row).tolist()) for row in shares]
        return [InteractiveArgmax(*noise, votes, answer) for votes, answer in zip(expected, sure, strict=True)]


@lru_cache(maxsize=4)
def _trained_student(student: Hashable, public: PublicData, compute: Compute) -> Model:
    """Train the student, once in each process, always with seed 0."""
    return cast("Trainer", student).fit(public.load(), seed=SeedSequence(0), compute=compute)


@dataclass(frozen=True)
class Ensemble(NoisyVotes, ABC):
    """Teachers on disjoint parts of the data: each record belongs to one teacher, with one vote on each query.

    Attributes:
        teachers: Number of teachers k, >= 2.
        model: Model of a teacher; networks are trained in stacks.
    """

    teachers: int = 250
    model: Trainer = field(
        default=Mlp(hidden=(64,), epochs=30, learning_rate=0.1, batch_size=16), metadata={"kind": "model"}
    )

    deterministic = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, self, "teachers")

    def claim(self) -> Claim:
        """Return the claim of one answer: adding or removing a record moves the vote of its teacher alone."""
        return Claim.of(self.release().curve(), relation=Relation.ADD_REMOVE, delta=self.delta)

    @abstractmethod
    def parts(self, records: int, rng: np.random.Generator) -> list[Ints]:
        """Return the row numbers of each teacher."""

    @abstractmethod
    def part_with(self, records: int, place: int, rng: np.random.Generator) -> Ints:
        """Return the other row numbers of the teacher that gets added record number `place`."""

    def votes(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> Ints:
        """Train all teachers and return their votes, shape (teachers, q); those without records vote for class 0."""
        teachers = votes_by_groups(
            partial(self.train_teachers, data, queries, seed=seed, compute=compute),
            self.teachers,
            self.together(data),
            scratch=compute.scratch,
            identity=lambda: self._identity(data, queries, seed),
        )
        return teachers.votes

    def together(self, data: Examples) -> int:
        """Return the number of teachers that are trained together."""
        return teachers_together(self.model, data)

    def train_teachers(
        self, data: Examples, queries: Features, numbers: range, *, seed: SeedSequence, compute: Compute
    ) -> TeacherVotes:
        """Train the teachers with these numbers and return their votes; those without records vote for class 0."""
        require_teachers_fit(self.teachers, len(data))
        splitting, training = spawned(seed, 2)
        parts = self.parts(len(data), np.random.default_rng(splitting))
        return self._trained_votes(data, parts, queries, numbers, seed=training, compute=compute)

    def votes_with_canary(
        self, canaries: AddedRecords, queries: Features, *, seed: SeedSequence, compute: Compute
    ) -> Ints:
        """Train the teacher of each point and return its votes, shape (p, q)."""
        splitting, training = spawned(seed, 2)
        rng = np.random.default_rng(splitting)
        parts = [
            np.append(self.part_with(len(canaries.data), place, rng), len(canaries.data) + point)
            for point, place in enumerate(canaries.places.tolist())
        ]
        data = joined(canaries.data, canaries.records)
        teachers = votes_by_groups(
            partial(self._trained_votes, data, parts, queries, seed=training, compute=compute),
            len(parts),
            self.together(data),
            scratch=compute.scratch,
            identity=lambda: self._identity(data, queries, seed),
        )
        return teachers.votes

    def _identity(self, data: Examples, queries: Features, seed: SeedSequence) -> tuple[object, ...]:
        """Return what decides the votes of a run."""
        questions = data.with_(features=queries, labels=np.zeros(len(queries), np.int64))
        return self, data.digest, questions.digest, seed.entropy, seed.spawn_key

    def histograms(self, votes: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        counts = np.zeros((votes.shape[1], classes), np.int64)
        for weight, row in zip(self.weights(len(votes)).tolist(), votes, strict=True):
            counts[np.arange(votes.shape[1]), row] += weight
        return counts

    def weights(self, voters: int) -> Ints:
        """Return the number of votes of each teacher, shape (voters,)."""
        return np.ones(voters, np.int64)

    def _trained_votes(
        self,
        data: Examples,
        parts: Sequence[Ints],
        queries: Features,
        numbers: range,
        *,
        seed: SeedSequence,
        compute: Compute,
    ) -> TeacherVotes:
        """Train the teachers with these numbers, each on its part, and return their votes; empty parts vote for 0."""
        votes = np.zeros((len(numbers), len(queries)), np.int64)
        seeds = spawned(seed, len(parts))
        trained = [place for place, number in enumerate(numbers) if len(parts[number])]
        tasks = [
            TrainingTask(parts[number], data.labels[parts[number]], seeds[number])
            for number in (numbers[place] for place in trained)
        ]
        if tasks:
            models = trained_teachers(self.model, data, tasks, compute=compute)
            votes[trained] = predicted_classes(models, queries, compute=compute)
        return TeacherVotes(votes)


def has_separate_teachers(predictor: object) -> bool:
    """Return True if the votes are those of teachers trained by `Ensemble`, so that groups of them may train apart."""
    return isinstance(predictor, Ensemble) and type(predictor).votes is Ensemble.votes


@register("mechanism", "pate-predictor", source="Papernot et al. (2018), arXiv:1802.08908; Chadha et al. (2024), 5.1")
class PatePredictor(Ensemble):
    """PATE: each record goes to a random teacher, so that an added record leaves all other parts unchanged.

    The law of the votes assumes independent, identically distributed teachers: a multinomial, plus one teacher with
    the shares of teachers trained with the record.
    """

    def parts(self, records: int, rng: np.random.Generator) -> list[Ints]:
        """Assign each record to a uniformly random teacher."""
        teacher = rng.integers(0, self.teachers, records)
        order = np.argsort(teacher, kind="stable")
        return np.split(order, np.cumsum(np.bincount(teacher, minlength=self.teachers))[:-1])

    def part_with(self, records: int, place: int, rng: np.random.Generator) -> Ints:
        """Draw each record with probability 1 / teachers."""
        return np.flatnonzero(rng.random(records) < 1 / self.teachers)

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Return Mult(k - m, P) plus the m teachers with an added record, each with shares P', or P without records."""
        shares = _shares_of(votes.ravel(), classes)
        others = [_shares_of(column, classes) if added else shares for column in moved.T]
        return AlikeTeachers(votes.shape[1] - len(others), shares, np.array(others).reshape(len(others), classes))


@register("mechanism", "capc", source="Choquette-Choo et al. (2021), arXiv:2102.05188; Chadha et al. (2024), 5.2")
class CaPC(Ensemble):
    """CaPC: record i belongs to party i mod k, so that the adversary knows whose vote a record moves.

    The cryptography is left out, because it does not change the answers. Only the training is random. The law of the
    votes assumes independent parties with different shares.
    """

    def parts(self, records: int, rng: np.random.Generator) -> list[Ints]:
        return [np.arange(party, records, self.teachers) for party in range(self.teachers)]

    def part_with(self, records: int, place: int, rng: np.random.Generator) -> Ints:
        """Return the records of party `place` mod k."""
        return np.arange(place % self.teachers, records, self.teachers)

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Return independent parties with separate shares; the first m use the shares with their added record."""
        columns = [*moved.T, *votes.T[moved.shape[1] :]] if added else list(votes.T)
        return ApartTeachers(np.stack([_shares_of(column, classes) for column in columns]), self.weights(len(columns)))


def _shares_of(votes: Ints, classes: int) -> NDArray[np.float64]:
    """Return the share of each class in `votes`, shape (n,) to (K,)."""
    return np.asarray(np.bincount(votes, minlength=classes) / len(votes))


def joined(data: Examples, points: Examples) -> Examples:
    features: Features
    if isinstance(data.features, pa.Table):
        features = pa.concat_tables([data.features, points.features])
    else:
        features = np.concatenate([data.features, np.asarray(points.features, np.float32)])
    return data.with_(features=features, labels=np.concatenate([data.labels, points.labels]))
