"""Predictors whose voters are teachers, each trained on a part of the data of its own: PATE and CaPC.

What private predictors of all kinds state of their noise is here too, and the student of Interactive-GNMax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError, spawned
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.language_models.protocol import PublicData
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.predictors.protocol import Added
from dpaudit.mechanisms.predictors.releases import (
    ConfidentArgmax,
    GaussianArgmax,
    InteractiveArgmax,
    LaplaceArgmax,
    Release,
)
from dpaudit.mechanisms.predictors.vote_laws import AlikeTeachers, ApartTeachers, VoteLaw
from dpaudit.mechanisms.protocols import Model, StackLearner, Trainer
from dpaudit.mechanisms.ranges import require_at_least, require_delta, require_positive
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.registry import register

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.network_model import NetworkModel

Ints = NDArray[np.int64]
Noise = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class NoisyVotes:
    """What every private predictor states: the noise on its votes, and when it answers.

    Attributes:
        sigma: Standard deviation of Gaussian noise on each count, or the scale b of Laplace noise; > 0.
        noise: "gaussian" or "laplace".
        threshold: Votes that the largest count, noised by itself, must exceed for an answer; None always answers.
        threshold_sigma: Standard deviation of the Gaussian noise on the largest count, > 0.
        cached: Whether a query that is asked again gets the answer it got before.
        delta: Where the claim is printed, in (0, 1).
        student: With a threshold, a model that is trained on `public`, with whose predictions votes are compared before
            the threshold (Interactive-GNMax); None compares them with nothing.
        public: What it learns from: public data, or queries that were answered before.
        sure: Probability that the student's class must exceed for it to be the answer where votes do not pass, > 0.
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
        """How each query is answered; the same way where there is no student."""
        own = self.release()
        if self.student is None or not isinstance(own, ConfidentArgmax):
            return [own] * len(queries)
        assert isinstance(self.student, Hashable)
        assert self.public is not None
        student = _trained(self.student, self.public, replace(compute, scratch=None))
        shares = np.asarray(student.probabilities(queries), np.float64)
        noise = own.sigma, own.threshold, own.threshold_sigma
        sure = [int(row.argmax()) if row.max() > self.sure else None for row in shares]
        expected = [tuple((voters * row).tolist()) for row in shares]
        return [InteractiveArgmax(*noise, votes, answer) for votes, answer in zip(expected, sure, strict=True)]


@lru_cache(maxsize=4)
def _trained(student: Hashable, public: PublicData, compute: Compute) -> Model:
    """Trained once, by one seed, in each process."""
    return cast("Trainer", student).fit(public.load(), seed=SeedSequence(0), compute=compute)


@dataclass(frozen=True)
class Ensemble(NoisyVotes, ABC):
    """Teachers on disjoint parts of the data: one record takes part in one teacher, which has one vote on each query.

    Attributes:
        teachers: Number of teachers k, >= 2.
        model: How a teacher is trained; networks are trained many at a time.
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
        """What one answer promises, a record added or removed: its teacher's vote moves, and no other."""
        return Claim.of(self.release().curve(), relation=Relation.ADD_REMOVE, delta=self.delta)

    @abstractmethod
    def parts(self, records: int, rng: np.random.Generator) -> list[Ints]:
        """The records of each teacher."""

    @abstractmethod
    def part_with(self, records: int, place: int, rng: np.random.Generator) -> Ints:
        """The records of the teacher that a record more falls to, beside it; `place` numbers the records added."""

    def votes(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> Ints:
        require(self.teachers <= len(data), f"teachers must be at most the {len(data)} records", teachers=self.teachers)
        splitting, training = spawned(seed, 2)
        parts = self.parts(len(data), np.random.default_rng(splitting))
        return self._taught(data, parts, queries, training, compute)

    def votes_with_canary(self, more: Added, queries: Features, *, seed: SeedSequence, compute: Compute) -> Ints:
        """Trains one teacher for each point, which has it among its records; shape (p, q)."""
        splitting, training = spawned(seed, 2)
        rng = np.random.default_rng(splitting)
        parts = [
            np.append(self.part_with(len(more.data), place, rng), len(more.data) + point)
            for point, place in enumerate(more.places.tolist())
        ]
        return self._taught(joined(more.data, more.records), parts, queries, training, compute)

    def histograms(self, votes: Ints, *, classes: int, rng: np.random.Generator) -> Ints:
        counts = np.zeros((votes.shape[1], classes), np.int64)
        for weight, row in zip(self.weights(len(votes)).tolist(), votes, strict=True):
            counts[np.arange(votes.shape[1]), row] += weight
        return counts

    def weights(self, voters: int) -> Ints:
        """How many votes each teacher has, shape (voters,)."""
        return np.ones(voters, np.int64)

    def _taught(
        self, data: Examples, parts: Sequence[Ints], queries: Features, seed: SeedSequence, compute: Compute
    ) -> Ints:
        """Votes of one teacher for each part, shape (parts, q); one that has no records votes for class 0."""
        votes = np.zeros((len(parts), len(queries)), np.int64)
        seeds = spawned(seed, len(parts))
        some = [place for place, rows in enumerate(parts) if len(rows)]
        tasks = [TrainingTask(parts[place], data.labels[parts[place]], seeds[place]) for place in some]
        votes[some] = _trained_votes(self.model, data, tasks, queries, compute)
        return votes


@register("mechanism", "pate-predictor", source="Papernot et al. (2018), arXiv:1802.08908; Chadha et al. (2024), 5.1")
class PatePredictor(Ensemble):
    """PATE: each record goes to a teacher drawn at random, so that a record more leaves all other parts as they are.

    The law of the votes takes teachers for independent and alike: multinomial, and one teacher by the shares of those
    that were trained with the record.
    """

    def parts(self, records: int, rng: np.random.Generator) -> list[Ints]:
        """Each record by a draw of its own."""
        teacher = rng.integers(0, self.teachers, records)
        order = np.argsort(teacher, kind="stable")
        return np.split(order, np.cumsum(np.bincount(teacher, minlength=self.teachers))[:-1])

    def part_with(self, records: int, place: int, rng: np.random.Generator) -> Ints:
        """Each record with probability 1 / teachers."""
        return np.flatnonzero(rng.random(records) < 1 / self.teachers)

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Mult(k - m, P) + the m teachers with a record each, by P' with them and by P without."""
        shares = _shares_of(votes.ravel(), classes)
        others = [_shares_of(column, classes) if added else shares for column in moved.T]
        return AlikeTeachers(votes.shape[1] - len(others), shares, np.array(others).reshape(len(others), classes))


@register("mechanism", "capc", source="Choquette-Choo et al. (2021), arXiv:2102.05188; Chadha et al. (2024), 5.2")
class CaPC(Ensemble):
    """CaPC: record i is party i mod k's, so that the adversary knows whose vote a record of theirs moves.

    The cryptography is left out: it changes nothing about what is answered. What is random is the training alone; the
    law of the votes takes parties for independent, each with shares of its own.
    """

    def parts(self, records: int, rng: np.random.Generator) -> list[Ints]:
        return [np.arange(party, records, self.teachers) for party in range(self.teachers)]

    def part_with(self, records: int, place: int, rng: np.random.Generator) -> Ints:
        """The first party's, and of further records that are added the next ones'."""
        return np.arange(place % self.teachers, records, self.teachers)

    def law(self, votes: Ints, moved: Ints, labels: Ints, *, added: bool, classes: int) -> VoteLaw:
        """Each party by its own shares; those that a record falls to by the shares with it."""
        columns = [*moved.T, *votes.T[moved.shape[1] :]] if added else list(votes.T)
        return ApartTeachers(np.stack([_shares_of(column, classes) for column in columns]), self.weights(len(columns)))


def _shares_of(votes: Ints, classes: int) -> NDArray[np.float64]:
    """The maximum-likelihood shares of each class in some votes, shape (n,) to (K,)."""
    return np.asarray(np.bincount(votes, minlength=classes) / len(votes))


def _trained_votes(
    model: Trainer, data: Examples, tasks: Sequence[TrainingTask], queries: Features, compute: Compute
) -> Ints:
    """Trains one model for each task, in a stack where it is a network, and asks it; shape (tasks, q)."""
    if not isinstance(model, StackLearner):
        answers = [
            model.fit(data.take(task.rows), seed=task.seed, compute=compute).probabilities(queries) for task in tasks
        ]
        return np.stack([answer.argmax(axis=1) for answer in answers]).astype(np.int64)
    from dpaudit.mechanisms.training.inputs import example_shape
    from dpaudit.mechanisms.training.network_model import stack_logits

    shape = example_shape(data.features)
    plan = model.stack_plan(shape, classes=data.classes, models=len(tasks), compute=compute)
    outcomes = model.fit_stack(data.features, tasks, classes=data.classes, compute=compute, plan=plan)
    failed = next((outcome for outcome in outcomes if isinstance(outcome, TrainingError)), None)
    if failed is not None:
        raise failed
    logits = stack_logits(cast("Sequence[NetworkModel]", outcomes), queries, compute=compute)
    return np.asarray(logits.argmax(axis=2), np.int64)


def joined(data: Examples, points: Examples) -> Examples:
    features: Features
    if isinstance(data.features, pa.Table):
        features = pa.concat_tables([data.features, points.features])
    else:
        features = np.concatenate([data.features, np.asarray(points.features, np.float32)])
    return data.with_(features=features, labels=np.concatenate([data.labels, points.labels]))
