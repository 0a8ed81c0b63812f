"""PATE: teachers on disjoint parts of the data vote, and a student learns from noisy answers to a few queries.

One record changes the vote of at most one teacher on each query. One count then rises by 1 and one falls by 1, an L1
distance of 2. All privacy costs in this module are independent of the data, so they are public.

PATE-FM: FixMatch teachers with disjoint labels vote, and a FixMatch student learns from the noisy answers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpaudit.claims import Claim, GaussianDP
from dpaudit.claims.composition import ComposedLaplace
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.networks import Network, WideResNet28x4, require_network
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import Model, Trainer
from dpaudit.mechanisms.ranges import require_at_least, require_delta, require_epsilon, require_positive
from dpaudit.mechanisms.teachers import (
    AnsweredQueries,
    TaughtLearner,
    TaughtSeeds,
    TeacherVotes,
    predicted_classes,
    query_rows,
    require_teachers_fit,
    trained_teachers,
)
from dpaudit.mechanisms.training.inputs import as_array
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.registry import register

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.stack import NetworkModel

Choice = Literal["sampled", "argmax"]
Accounting = Literal["exact", "moments"]
"""Accounting of T noisy vote counts.

"exact" composes the releases, in which two counts move by one on each query. "moments" is the published closed form
4 T g^2 + 2 g sqrt(2 T log(1 / delta)) of Papernot et al. (2017), about twice as large.
"""
WIDE_RESNET = WideResNet28x4(
    learning_rate=0.03, nesterov=True, weight_decay=5e-4, batch_size=64, schedule="cosine-7-16", augment="crop-flip"
)


@register("mechanism", "pate", source="Papernot et al. (2017), arXiv:1610.05755; Wu et al. (2023) for Criteo")
@dataclass(frozen=True)
class PATE(TaughtLearner):
    """Teachers on disjoint parts of the data vote on some of its rows; the student sees only noisy answers.

    The defaults are the Criteo version: each teacher's vote is drawn from its probabilities, and the label from the
    noisy counts. Features are public; the queries are training rows without their labels. Set either `noise` or
    `queries`; epsilon determines the other.

    Attributes:
        epsilon: Privacy loss in nats, > 0; `inf` adds no noise.
        delta: In (0, 1).
        teachers: Number of teachers, >= 1.
        queries: Number of rows to label, >= 1; None for as many as `noise` allows.
        noise: Laplace scale on each count, > 0; None for the smallest that `queries` allow.
        vote: "argmax" for a teacher's most likely class, "sampled" for a draw from its probabilities.
        answer: "argmax" for the largest noisy count, "sampled" for a draw in proportion to the noisy counts.
        accounting: Calibrates `noise` or `queries`. "exact" spends all of epsilon, "moments", as published, about half.
        model: Trains teachers and student.
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
            "set either queries or noise; epsilon determines the other",
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
        """Return the Laplace scale on each count; 0 for infinite epsilon."""
        if self.noise is not None:
            return self.noise
        assert self.queries is not None
        return laplace_counts_noise(self.epsilon, self.queries, self.delta, self.accounting)

    def claim(self) -> Claim:
        """Claim (epsilon, delta)-label-DP: a label belongs to one teacher, with one vote on each query."""
        if math.isinf(self.epsilon):
            return Claim(self.epsilon)
        curve = laplace_counts_curve(self.affordable_queries(), self.affordable_noise())
        return Claim(self.epsilon, self.delta, curve=curve)

    def train_teachers(
        self, train: Examples, numbers: range, *, seed: SeedSequence, compute: Compute, validation: Examples | None
    ) -> TeacherVotes:
        """Train the teachers with these numbers and return their votes on the queries."""
        queries = train.take(self._query_rows(train, seed)).features
        require_teachers_fit(self.teachers, len(train))
        splitting, *seeds = spawned(TaughtSeeds.of(seed).teachers, 1 + self.teachers)
        parts = np.array_split(np.random.default_rng(splitting).permutation(len(train)), self.teachers)
        training_seeds, voting_seeds = zip(*(spawned(seeds[number], 2) for number in numbers), strict=True)
        tasks = [
            TrainingTask(parts[number], train.labels[parts[number]], training)
            for number, training in zip(numbers, training_seeds, strict=True)
        ]
        models = trained_teachers(self.model, train, tasks, compute=compute, validation=validation)
        if self.vote == "argmax":
            return TeacherVotes(predicted_classes(models, queries, compute=compute))
        votes = [
            sample_classes(model.probabilities(queries), np.random.default_rng(voting))
            for model, voting in zip(models, voting_seeds, strict=True)
        ]
        return TeacherVotes(np.stack(votes))

    def _query_rows(self, train: Examples, seed: SeedSequence) -> NDArray[np.int64]:
        """Return the rows of the queries, ascending, shape (queries,)."""
        count, examples = self.affordable_queries(), len(train)
        require(count <= examples, f"queries must be at most the number of examples, {examples}", queries=count)
        return query_rows(examples, count, seed)

    def release_answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> AnsweredQueries:
        """Release one label for each query from the votes (queries, K)."""
        return AnsweredQueries(np.arange(len(votes)), self.answers(votes, rng))

    def train_student(
        self,
        train: Examples,
        answered: AnsweredQueries,
        *,
        seed: SeedSequence,
        compute: Compute,
        validation: Examples | None,
    ) -> Model:
        """Train the student on the queries with their released labels."""
        queries = train.take(self._query_rows(train, seed)[answered.queries]).with_(labels=answered.labels)
        student = TaughtSeeds.of(seed).student
        return self.model.fit(queries, seed=student, compute=compute, validation=validation)

    def answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Release one label for each row of votes (queries, K). Nothing else depends on the votes."""
        noisy = self.noisy_counts(votes, rng)
        if self.answer == "argmax":
            return np.asarray(noisy.argmax(axis=1), np.int64)
        weights = np.maximum(noisy, 0)
        # The published code falls back to the true class shares, which is not private; this draws any class.
        weights[weights.sum(axis=1) == 0] = 1
        return sample_classes(weights, rng)

    def noisy_counts(self, votes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Return the votes (queries, K) with noise, whose cost is the claim; `answers` draws labels from it alone."""
        return votes + rng.laplace(scale=self.affordable_noise(), size=votes.shape)


def laplace_counts_curve(queries: int, noise: float) -> ComposedLaplace:
    """Return the privacy curve of `queries` vote counts with Laplace noise; in each, two counts move by one."""
    return ComposedLaplace(noise, 2 * queries)


def laplace_counts_epsilon(queries: int, noise: float, delta: float, accounting: Accounting = "exact") -> float:
    """Return epsilon at `delta` of `queries` vote counts with Laplace noise; "moments": Papernot et al. (2017)."""
    if accounting == "moments":
        return 4 * queries / noise**2 + 2 / noise * math.sqrt(2 * queries * math.log(1 / delta))
    return laplace_counts_curve(queries, noise).epsilon(delta)


@cache
def laplace_counts_noise(epsilon: float, queries: int, delta: float, accounting: Accounting = "exact") -> float:
    """Return the smallest Laplace scale with at most `epsilon` for `queries` vote counts, to 1e-9; 0 for infinity."""
    if math.isinf(epsilon):
        return 0.0
    return least_noise(lambda noise: laplace_counts_epsilon(queries, noise, delta, accounting) - epsilon)


def laplace_counts_queries(epsilon: float, noise: float, delta: float, accounting: Accounting = "exact") -> int:
    """Return the largest number of queries, >= 0, whose noisy vote counts cost at most `epsilon`."""
    require(0 < epsilon < math.inf, "epsilon must be > 0 and finite", epsilon=epsilon, do="give the number of queries")

    def spent(queries: int) -> float:
        return laplace_counts_epsilon(queries, noise, delta, accounting)

    too_many = 1
    while spent(too_many) <= epsilon:
        too_many *= 2
    return bisect_right(range(1, too_many), epsilon, key=spent)


def least_noise(excess: Callable[[float], float]) -> float:
    """Return the root of a decreasing function of the noise > 0, to relative 1e-9, rounded up until excess <= 0."""
    low = high = 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    while excess(low) <= 0:
        low, high = low / 2, low
    # Costs are nearly powers of the noise, so the search uses its logarithm.
    noise = math.exp(brentq(lambda log_noise: excess(math.exp(log_noise)), math.log(low), math.log(high), xtol=1e-9))
    while excess(noise) > 0:
        noise *= 1 + 1e-9
    return noise


def sample_classes(weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one class for each row in proportion to its weights >= 0; shape (n, K) to (n,)."""
    cumulative = np.cumsum(weights, axis=1)
    targets = rng.random((len(weights), 1)) * cumulative[:, -1:]
    return np.asarray((cumulative <= targets).sum(axis=1).clip(max=weights.shape[1] - 1), dtype=np.int64)


@register("mechanism", "pate-fm", source="Malek et al. (2021), arXiv:2106.03408, PATE-FM; Wu et al. (2023) settings")
@dataclass(frozen=True)
class PateFm(TaughtLearner):
    """FixMatch teachers, each with a share of the labels and all images, answer a FixMatch student by Confident-GNMax.

    Gaussian noise on the largest count decides if a query is answered; Gaussian noise on all counts decides the answer.
    Both standard deviations are multiplied by one factor, the smallest that keeps to epsilon.

    Attributes:
        epsilon: Privacy loss in nats, > 0; `inf` adds no noise.
        delta: In (0, 1).
        teachers: Number of teachers, >= 1.
        queries: Maximum number of training images to query, >= 1.
        answers: Maximum number of answered queries, >= 1.
        threshold: An answer needs a largest noisy count above this.
        threshold_noise: Standard deviation of the noise on the largest count, before the factor, > 0.
        vote_noise: Standard deviation of the noise on each count, before the factor, > 0.
        teacher_steps: Training steps of a teacher, >= 1.
        student_steps: Training steps of the student, >= 1.
        ratio: Unlabelled images for each labelled one in a batch, >= 1.
        confidence: FixMatch's threshold for pseudo-labels, in [0, 1].
        model: The network and its training settings.
    """

    epsilon: float
    delta: float = 1e-5
    teachers: int = 200
    queries: int = 10_000
    answers: int = 500
    threshold: float = 100.0
    threshold_noise: float = 160.0
    vote_noise: float = 20.0
    teacher_steps: int = 40 * 781
    student_steps: int = 200 * 781
    ratio: int = 7
    confidence: float = 0.95
    model: Network = field(default=WIDE_RESNET, metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)
        require_at_least(1, self, "teachers", "answers", "teacher_steps", "student_steps", "ratio")
        require(0 <= self.confidence <= 1, "confidence must be in [0, 1]", confidence=self.confidence)
        require(self.queries >= self.answers, f"queries must be >= answers, {self.answers}", queries=self.queries)
        require_positive(self, "threshold_noise", "vote_noise")
        require_network(self.model, of="pate-fm")

    def claim(self) -> Claim:
        """Claim (epsilon, delta)-label-DP: a label belongs to one teacher and moves one vote on each query.

        mu^2 adds up over queries, even if later queries depend on earlier answers (Smith and Thakurta, 2022,
        arXiv:2210.17520).
        """
        factor = self.noise_factor()
        if not factor:
            return Claim(self.epsilon)
        curve = confident_gnmax_curve(queries=self.queries, answered=self.answers, **self._noise_scales(factor))
        return Claim(self.epsilon, self.delta, curve=curve)

    def noise_factor(self) -> float:
        return confident_gnmax_noise_factor(
            self.epsilon, queries=self.queries, answered=self.answers, delta=self.delta, **self._noise_scales(1.0)
        )

    def together(self, train: Examples) -> int:
        """Return 1: FixMatch trains one network at a time."""
        return 1

    def _noise_scales(self, factor: float) -> dict[str, float]:
        return {"threshold_noise": factor * self.threshold_noise, "vote_noise": factor * self.vote_noise}

    def train_teachers(
        self, train: Examples, numbers: range, *, seed: SeedSequence, compute: Compute, validation: Examples | None
    ) -> TeacherVotes:
        """Train the teachers with these numbers and return their votes on the queries; labels left over are not used.

        Ignores `validation`.
        """
        images, share = as_array(train.features), len(train) // self.teachers
        queries = images[self._query_rows(train, seed)]
        require_teachers_fit(self.teachers, len(train))
        splitting, *seeds = spawned(TaughtSeeds.of(seed).teachers, 1 + self.teachers)
        parts = np.random.default_rng(splitting).permutation(len(train))[: share * self.teachers]
        rows_of = parts.reshape(self.teachers, share)
        votes = []
        for number in numbers:
            rows = rows_of[number]
            teacher = self._train_network(
                train, rows, train.labels[rows], self.teacher_steps, seed=seeds[number], compute=compute
            )
            votes.append(teacher.logits(queries).argmax(axis=1))
        return TeacherVotes(np.stack(votes))

    def _query_rows(self, train: Examples, seed: SeedSequence) -> NDArray[np.int64]:
        """Return the rows of the queries, ascending, shape (queries,)."""
        shape = as_array(train.features).shape
        require(len(shape) == 4, "pate-fm takes images of shape (n, channels, height, width)", shape=shape)
        return query_rows(len(train), self.queries, seed)

    def train_student(
        self,
        train: Examples,
        answered: AnsweredQueries,
        *,
        seed: SeedSequence,
        compute: Compute,
        validation: Examples | None,
    ) -> Model:
        """Train the student on all images, with the released labels of the answered ones; ignores `validation`."""
        rows, student = self._query_rows(train, seed)[answered.queries], TaughtSeeds.of(seed).student
        return self._train_network(train, rows, answered.labels, self.student_steps, seed=student, compute=compute)

    def release_answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> AnsweredQueries:
        """Release answers from the votes (queries, K). Nothing else depends on the votes."""
        noise_scales = self._noise_scales(self.noise_factor())
        return confident_gnmax(votes, threshold=self.threshold, rng=rng, answers=self.answers, **noise_scales)

    def _train_network(
        self, train: Examples, rows: NDArray[np.int64], labels: NDArray[np.int64], steps: int, **settings: Any
    ) -> NetworkModel:
        from dpaudit.mechanisms.training.fixmatch import FixMatch

        settings |= {"classes": train.classes, "steps": steps, "ratio": self.ratio, "threshold": self.confidence}
        return FixMatch(self.model, as_array(train.features), rows, labels, **settings).train()


def confident_gnmax_curve(*, queries: int, answered: int, threshold_noise: float, vote_noise: float) -> GaussianDP:
    """Return the privacy curve of Confident-GNMax with one Gaussian on the largest count, for one teacher's votes.

    Each query moves the largest count by at most 1, and each answered query moves two counts by 1. So mu^2 = queries /
    s1^2 + 2 answered / s2^2, with standard deviations s1 of the noise on the largest count and s2 on each count.
    `queries` and `answered` are limits fixed in advance; stopping earlier, even data-dependently, costs no more.
    """
    require(0 <= answered <= queries, f"answered must be in 0..{queries}, the number of queries", answered=answered)
    return GaussianDP(math.sqrt(queries / threshold_noise**2 + 2 * answered / vote_noise**2))


@cache
def confident_gnmax_noise_factor(
    epsilon: float, *, queries: int, answered: int, threshold_noise: float, vote_noise: float, delta: float
) -> float:
    """Return the smallest factor on both noises with at most `epsilon`, to 1e-9; 0 for infinite epsilon."""
    if math.isinf(epsilon):
        return 0.0
    unit = confident_gnmax_curve(
        queries=queries, answered=answered, threshold_noise=threshold_noise, vote_noise=vote_noise
    )
    return least_noise(lambda factor: GaussianDP(unit.mu / factor).epsilon(delta) - epsilon)


def confident_gnmax(
    votes: NDArray[np.int64],
    *,
    threshold: float,
    threshold_noise: float,
    vote_noise: float,
    rng: np.random.Generator,
    answers: int | None = None,
) -> AnsweredQueries:
    """Answer the first `answers` queries whose largest count plus Gaussian noise exceeds the threshold.

    `votes` has shape (queries, K). Thresholding the maximum of noisy counts would be a different release and cost more.
    Source: Papernot et al. (2018), arXiv:1802.08908, algorithm 1.
    """
    largest = votes.max(axis=1) + rng.normal(scale=threshold_noise, size=len(votes))
    passed = np.flatnonzero(largest > threshold)[:answers]
    noisy = votes[passed] + rng.normal(scale=vote_noise, size=(len(passed), votes.shape[1]))
    return AnsweredQueries(passed, np.asarray(noisy.argmax(axis=1), dtype=np.int64))
