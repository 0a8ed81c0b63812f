"""PATE for tables: teachers on disjoint parts vote, a student learns from noisy answers to a few queries.

One record changes the vote of at most one teacher on each query, so two vote counts differ by one up and one down: an
L1 distance of 2. All costs here are independent of the data, so they may be published.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpaudit.claims import Claim
from dpaudit.claims.composition import ComposedLaplace
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import Model, Trainer
from dpaudit.mechanisms.ranges import require_at_least, require_delta, require_epsilon, require_positive
from dpaudit.registry import register

Choice = Literal["sampled", "argmax"]
Accounting = Literal["exact", "moments"]
"""How the cost of T noisy counts is added up.

"exact" is the composition of what is released, two counts moved by one on each query; "moments" is the published closed
form 4 T g^2 + 2 g sqrt(2 T log(1 / delta)) of Papernot et al. (2017), about twice that.
"""


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
        require_at_least(1, self, "teachers", "queries")
        require_positive(self, "noise")
        require(
            (self.queries is None) != (self.noise is None),
            "one of queries and noise must be given and the other left to epsilon",
            queries=self.queries,
            noise=self.noise,
        )
        require(self.affordable_queries() >= 1, "epsilon must afford one query at this noise", epsilon=self.epsilon)

    def affordable_queries(self) -> int:
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
        """(epsilon, delta)-label-DP, whatever the accounting: a label is one teacher's, with one vote on each query."""
        if math.isinf(self.epsilon):
            return Claim(self.epsilon)
        curve = laplace_counts_curve(self.affordable_queries(), self.affordable_noise())
        return Claim(self.epsilon, self.delta, curve=curve)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        choosing, teaching, answering, studying = spawned(seed, 4)
        count, every = self.affordable_queries(), len(train)
        require(count <= every, f"queries must be at most the number of examples, {every}", queries=count)
        asked = np.sort(np.random.default_rng(choosing).permutation(every)[:count])
        votes = self._votes(train, train.take(asked), teaching, compute, validation)
        labels = self.answers(votes, np.random.default_rng(answering))
        answered = train.take(asked).with_(labels=labels)
        return self.model.fit(answered, seed=studying, compute=compute, validation=validation)

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
        noisy = votes + rng.laplace(scale=self.affordable_noise(), size=votes.shape)
        if self.answer == "argmax":
            return np.asarray(noisy.argmax(axis=1), np.int64)
        weights = np.maximum(noisy, 0)
        # The published code falls back to the true share of each class, which is not private; here it is any class.
        weights[weights.sum(axis=1) == 0] = 1
        return sampled_classes(weights, rng)


def laplace_counts_curve(queries: int, noise: float) -> ComposedLaplace:
    """What `queries` vote counts with Laplace noise of a scale tell: on each, two counts move by one."""
    return ComposedLaplace(noise, 2 * queries)


def laplace_counts_epsilon(queries: int, noise: float, delta: float, accounting: Accounting = "exact") -> float:
    """Epsilon at `delta` of so many vote counts with Laplace noise; "moments" by Papernot et al. (2017)."""
    if accounting == "moments":
        return 4 * queries / noise**2 + 2 / noise * math.sqrt(2 * queries * math.log(1 / delta))
    return laplace_counts_curve(queries, noise).epsilon(delta)


@cache
def laplace_counts_noise(epsilon: float, queries: int, delta: float, accounting: Accounting = "exact") -> float:
    """Smallest Laplace scale at which `queries` noisy vote counts cost at most `epsilon`, to 1e-9; 0 for infinity."""
    if math.isinf(epsilon):
        return 0.0
    return least_noise(lambda noise: laplace_counts_epsilon(queries, noise, delta, accounting) - epsilon)


def laplace_counts_queries(epsilon: float, noise: float, delta: float, accounting: Accounting = "exact") -> int:
    """Most queries whose vote counts, with Laplace noise of scale `noise`, cost at most `epsilon`; may be 0."""
    require(0 < epsilon < math.inf, "epsilon must be > 0 and finite", epsilon=epsilon, do="give the number of queries")

    def affordable(queries: int) -> bool:
        return laplace_counts_epsilon(queries, noise, delta, accounting) <= epsilon

    if not affordable(1):
        return 0
    low, high = 1, 2
    while affordable(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low


def least_noise(excess: Callable[[float], float]) -> float:
    """Where a falling function of a noise > 0 reaches 0, to a relative 1e-9, then up to where it is not above 0."""
    low = high = 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    while excess(low) <= 0:
        low, high = low / 2, low
    # Costs are nearly powers of the noise, so steps are taken in its logarithm.
    noise = math.exp(brentq(lambda log_noise: excess(math.exp(log_noise)), math.log(low), math.log(high), xtol=1e-9))
    while excess(noise) > 0:
        noise *= 1 + 1e-9
    return noise


def sampled_classes(weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """One class for each row, drawn in proportion to its weights >= 0; shape (n, K) to (n,)."""
    rising = np.cumsum(weights, axis=1)
    drawn = rng.random((len(weights), 1)) * rising[:, -1:]
    return np.asarray((rising <= drawn).sum(axis=1).clip(max=weights.shape[1] - 1), dtype=np.int64)
