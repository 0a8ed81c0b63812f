"""PATE for tables: teachers on disjoint parts vote, a student learns from noisy answers to a few queries."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.accounting.gnmax import (
    Accounting,
    laplace_argmax,
    laplace_counts_curve,
    laplace_counts_noise,
    laplace_counts_queries,
    laplace_sample,
    sampled_classes,
)
from dpaudit.mechanisms.budget import require_delta, require_epsilon
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import Model, Trainer
from dpaudit.mechanisms.seeds import spawned
from dpaudit.registry import register

Choice = Literal["sampled", "argmax"]


@register("mechanism", "pate", source="Papernot et al. (2017), arXiv:1610.05755; Wu et al. (2023) for Criteo")
@dataclass(frozen=True)
class PATE:
    """Teachers on disjoint parts of the data vote on some of its rows; the student sees only noisy answers.

    As it stands the Criteo version: each teacher's vote is drawn from its probabilities, and the label from the noisy
    counts. Features are public, the queries are rows of the training data without their labels. Of noise and number of
    queries one is given, and the other is what epsilon affords.

    Attributes:
        epsilon: Privacy loss in nats, > 0; `inf` adds no noise.
        delta: In (0, 1).
        teachers: Number of teachers, >= 1.
        queries: Rows to be answered, >= 1; None: as many as `noise` affords.
        noise: Laplace scale on each count, > 0; None: as little as `queries` affords.
        vote: Whether a teacher votes for its most likely class or draws one from its probabilities.
        answer: Whether the label is the largest noisy count or drawn in proportion to the noisy counts.
        accounting: How noise or queries are found: "exact" spends all of epsilon, "moments" as published about half.
        model: How teachers and student are trained.
    """

    epsilon: float
    delta: float = 1e-5
    teachers: int = 100
    queries: int | None = 200
    noise: float | None = None
    vote: Choice = "sampled"
    answer: Choice = "sampled"
    accounting: Accounting = "exact"
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)
        require(self.teachers >= 1, "teachers must be >= 1", teachers=self.teachers)
        require(
            (self.queries is None) != (self.noise is None),
            "one of queries and noise must be given and the other left to epsilon",
            queries=self.queries,
            noise=self.noise,
        )
        require(self.queries is None or self.queries >= 1, "queries must be >= 1", queries=self.queries)
        require(self.affordable_queries() >= 1, "epsilon must afford one query at this noise", epsilon=self.epsilon)

    def affordable_queries(self) -> int:
        """How many queries are answered."""
        if self.queries is not None:
            return self.queries
        assert self.noise is not None
        return laplace_counts_queries(self.epsilon, self.noise, self.delta, self.accounting)

    def affordable_noise(self) -> float:
        """Laplace scale on each count; 0 for infinite epsilon."""
        if self.noise is not None:
            return self.noise
        assert self.queries is not None
        return laplace_counts_noise(self.epsilon, self.queries, self.delta, self.accounting)

    def claim(self) -> Claim:
        """(epsilon, delta)-label-DP: a label is one teacher's, which has one vote on each query.

        The curve is that of the noisy counts, for whatever accounting the noise was found by.
        """
        if math.isinf(self.epsilon):
            return Claim(self.epsilon)
        curve = laplace_counts_curve(self.affordable_queries(), self.affordable_noise())
        return Claim(self.epsilon, self.delta, curve=curve)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains the teachers, asks them, trains the student on their noisy answers.

        Raises: TrainingError when the training of a teacher or of the student failed.
        """
        choosing, teaching, answering, studying = spawned(seed, 4)
        asked = self._asked(len(train), choosing)
        votes = self._votes(train, train.take(asked), teaching, compute, validation)
        labels = self.answers(votes, np.random.default_rng(answering))
        answered = train.take(asked).with_(labels=labels)
        return self.model.fit(answered, seed=studying, compute=compute, validation=validation)

    def _asked(self, examples: int, seed: SeedSequence) -> NDArray[np.int64]:
        count = self.affordable_queries()
        require(count <= examples, f"queries must be at most the number of examples, {examples}", queries=count)
        return np.sort(np.random.default_rng(seed).permutation(examples)[:count])

    def _votes(
        self, train: Examples, asked: Examples, seed: SeedSequence, compute: Compute, validation: Examples | None
    ) -> NDArray[np.int64]:
        """Votes for each class on each query, shape (queries, K); one a teacher."""
        require(
            self.teachers <= len(train),
            f"teachers must be at most the number of examples, {len(train)}",
            teachers=self.teachers,
        )
        splitting, *seeds = spawned(seed, 1 + self.teachers)
        parts = np.array_split(np.random.default_rng(splitting).permutation(len(train)), self.teachers)
        votes = np.zeros((len(asked), train.classes), dtype=np.int64)
        for rows, teacher in zip(parts, seeds, strict=True):
            training, voting = spawned(teacher, 2)
            model = self.model.fit(train.take(rows), seed=training, compute=compute, validation=validation)
            probabilities = model.probabilities(asked.features)
            if self.vote == "sampled":
                vote = sampled_classes(probabilities, np.random.default_rng(voting))
            else:
                vote = probabilities.argmax(axis=1)
            votes[np.arange(len(asked)), vote] += 1
        return votes

    def answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """One released label for each row of votes (queries, K), the only place where the votes are looked at."""
        release = laplace_sample if self.answer == "sampled" else laplace_argmax
        return release(votes, self.affordable_noise(), rng)
