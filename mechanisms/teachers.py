"""Teachers of PATE and its relatives: models trained on disjoint parts of the data, whose noisy votes are released.

Teachers do not need each other, so groups of them can be trained anywhere. The model and the shape of the data alone
decide the groups, so that a learner gives the same numbers in one call and in parts.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.errors import RunError, printable, require, shortened
from dpaudit.mechanisms.compute import Compute, TrainingError, leave_note, spawned
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Model, StackLearner, Trainer
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.plain_files import open_sealed, write_sealed

Ints = NDArray[np.int64]

STACKED_TEACHERS = 16  # small networks that are trained together
SMALL_NETWORK = 1_000_000  # largest number of weights of a small network
KEEP_FROM_S = 2.0  # votes of teachers that took less are not kept for a later attempt


@dataclass(frozen=True, eq=False)
class TeacherVotes:
    """Votes of some teachers."""

    votes: Ints  # class of each teacher on each query, shape (teachers, queries)


@dataclass(frozen=True, eq=False)
class AnsweredQueries:
    """Answered queries and their released labels."""

    queries: Ints  # numbers of the answered queries, ascending, shape (m,)
    labels: Ints  # their released labels, shape (m,)


class TaughtSeeds(NamedTuple):
    """Seeds of the parts of one training, so that a part needs nothing of the others but their results."""

    queries: SeedSequence  # choice of the queries
    teachers: SeedSequence
    answers: SeedSequence
    student: SeedSequence

    @classmethod
    def of(cls, seed: SeedSequence) -> TaughtSeeds:
        return cls(*spawned(seed, 4))


def query_rows(examples: int, count: int, seed: SeedSequence) -> Ints:
    """Return the rows of at most `count` queries among the examples, ascending, drawn by the seed of the training."""
    return np.sort(np.random.default_rng(TaughtSeeds.of(seed).queries).permutation(examples)[:count])


class TaughtLearner(ABC):
    """Base of learners whose student learns from noisy answers of teachers, in the three steps of `fit`.

    Each step gets the seed of the whole training and draws from its own part of `TaughtSeeds`.
    """

    teachers: int  # number of teachers, >= 1
    model: Any  # a Trainer, of teachers and student

    def together(self, train: Examples) -> int:
        """Return the number of teachers that are trained together."""
        return teachers_together(self.model, train)

    @abstractmethod
    def train_teachers(
        self, train: Examples, numbers: range, *, seed: SeedSequence, compute: Compute, validation: Examples | None
    ) -> TeacherVotes:
        """Train the teachers with these numbers and return their votes on the queries.

        Raises: TrainingError if the training of one fails.
        """

    @abstractmethod
    def release_answers(self, votes: Ints, rng: np.random.Generator) -> AnsweredQueries:
        """Release answers from the number of votes for each class, shape (queries, K)."""

    @abstractmethod
    def train_student(
        self,
        train: Examples,
        answered: AnsweredQueries,
        *,
        seed: SeedSequence,
        compute: Compute,
        validation: Examples | None,
    ) -> Model:
        """Train the student on the answered rows of `train`, with released labels instead of the true ones."""

    def answers_of_teachers(self, teachers: TeacherVotes, *, classes: int, seed: SeedSequence) -> AnsweredQueries:
        """Release answers from the votes of all teachers; nothing else depends on the votes.

        Raises: TrainingError if no query is answered.
        """
        rng = np.random.default_rng(TaughtSeeds.of(seed).answers)
        answered = self.release_answers(vote_counts(teachers.votes, classes), rng)
        if not len(answered.labels):
            raise TrainingError("the teachers answered no query. Lower threshold or train them longer.")
        return answered

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Train the teachers, release their answers and train the student."""
        settings: dict[str, Any] = {"seed": seed, "compute": compute, "validation": validation}
        teachers = votes_by_groups(
            partial(self.train_teachers, train, **settings),
            self.teachers,
            self.together(train),
            scratch=compute.scratch,
            identity=lambda: (self, train.digest, seed.entropy, seed.spawn_key),
        )
        answered = self.answers_of_teachers(teachers, classes=train.classes, seed=seed)
        return self.train_student(train, answered, **settings)


def has_separate_teachers(mechanism: Any) -> bool:
    """Return True if a learner trains by the three steps of `TaughtLearner`, so that its teachers may train apart."""
    return isinstance(mechanism, TaughtLearner) and type(mechanism).fit is TaughtLearner.fit


def teachers_together(model: Any, train: Examples) -> int:
    """Return the number of teachers that are trained together: a stack of small networks, else one."""
    if not isinstance(model, StackLearner):
        return 1
    from dpaudit.mechanisms.training.inputs import example_shape

    module = model.recipe.meta_module(example_shape(train.features), train.classes)
    weights = sum(parameter.numel() for parameter in module.parameters())
    return STACKED_TEACHERS if weights <= SMALL_NETWORK else 1


def joined_votes(groups: Sequence[TeacherVotes]) -> TeacherVotes:
    return TeacherVotes(np.concatenate([group.votes for group in groups]))


def vote_counts(votes: Ints, classes: int) -> Ints:
    """Return the number of votes for each class on each query, (teachers, queries) to (queries, classes)."""
    return np.stack([(votes == label).sum(axis=0) for label in range(classes)], axis=1).astype(np.int64)


def trained_teachers(
    model: Trainer,
    data: Examples,
    tasks: Sequence[TrainingTask],
    *,
    compute: Compute,
    validation: Examples | None = None,
) -> list[Model]:
    """Train one model for each task on rows of `data` with their labels, networks in a stack.

    Raises: the first TrainingError.
    """
    if not isinstance(model, StackLearner):
        return [
            model.fit(data.take(task.rows), seed=task.seed, compute=compute, validation=validation) for task in tasks
        ]
    outcomes = model.fit_stack(data.features, tasks, classes=data.classes, compute=compute)
    models = list[Model]()
    for outcome in outcomes:
        if isinstance(outcome, TrainingError):
            raise outcome
        models.append(outcome)
    return models


def predicted_classes(models: Sequence[Model], queries: Features, *, compute: Compute) -> Ints:
    """Return the most likely class of each query by each model, shape (models, q); networks predict in a stack."""
    from dpaudit.mechanisms.training.stack import NetworkModel, stack_logits

    networks = [model for model in models if isinstance(model, NetworkModel)]
    if len(networks) == len(models):
        return np.asarray(stack_logits(networks, queries, compute=compute).argmax(axis=2), np.int64)
    return np.stack([model.probabilities(queries).argmax(axis=1) for model in models]).astype(np.int64)


def votes_by_groups(
    train: Callable[[range], TeacherVotes],
    teachers: int,
    together: int,
    *,
    scratch: Path | None,
    identity: Callable[[], tuple[object, ...]],
) -> TeacherVotes:
    """Return the votes of all teachers, trained group by group; finished groups outlive a lost worker in `scratch`.

    Args:
        train: Trains the teachers with these numbers.
        teachers: Number of teachers.
        together: Number of teachers in a group.
        scratch: Folder for the votes of finished groups; None to keep none.
        identity: Returns what decides the votes; its text identifies them in the folder.
    """
    parts = identity() if scratch else ()
    groups = [range(first, min(first + together, teachers)) for first in range(0, teachers, together)]
    return joined_votes([_stored_votes(scratch, (*parts, numbers), partial(train, numbers)) for numbers in groups])


def _stored_votes(
    scratch: Path | None, identity: tuple[object, ...], train: Callable[[], TeacherVotes]
) -> TeacherVotes:
    """Return the votes that an earlier attempt left in `scratch`, or else those of `train`.

    A damaged file is ignored with a note.
    """
    if scratch is None:
        return train()
    path = scratch / f"votes-{hashlib.sha256(repr(identity).encode()).hexdigest()[:32]}.npy"
    if path.is_file():
        try:
            with open_sealed(path) as file:
                return TeacherVotes(np.load(file, allow_pickle=False))
        except (RunError, OSError, ValueError, EOFError) as err:
            reason = shortened(str(err).partition("\n")[0])
            leave_note(f"cannot use stored votes of teachers, so these were trained again: {printable(reason)}")
    began = time.monotonic()
    teachers = train()
    if time.monotonic() - began >= KEEP_FROM_S:
        write_sealed(path, lambda file: np.save(file, teachers.votes, allow_pickle=False))
    return teachers


def require_teachers_fit(teachers: int, records: int) -> None:
    require(teachers <= records, f"teachers must be at most the number of examples, {records}", teachers=teachers)
