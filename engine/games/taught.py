"""Units of a learner with teachers: groups of teachers, the release of their answers, then the student."""

from __future__ import annotations

from typing import Any

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work, unit
from dpaudit.engine.games.protocol import Setting
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.teachers import (
    AnsweredQueries,
    TaughtLearner,
    TeacherVotes,
    has_separate_teachers,
    joined_votes,
)


def add_teachers(setting: Setting, work: Work, train: Any, *, seed: Seed, label: str) -> Unit | None:
    """Add the units of the teachers of one training; return that with their answers, None for other mechanisms.

    Args:
        train: Placeholder of the training rows, which have the classes and features of the target part.
        seed: Seed of the training.
        label: Name of the training.
    """
    mechanism, target = setting.mechanism, setting.parts.target
    if not has_separate_teachers(mechanism):
        return None
    teachers = work.split(
        train_teachers,
        mechanism.teachers,
        mechanism.together(target),
        mechanism,
        train,
        setting.part_argument("validation"),
        seed=seed,
        label=f"{label}, teachers",
        **setting.unit_options,
    )
    return work.add(
        release_answers,
        mechanism,
        teachers,
        classes=target.classes,
        seed=seed,
        label=f"{label}, answers",
        resources=setting.resources.without_gpu,
    )


@unit
def train_teachers(
    mechanism: TaughtLearner,
    train: Examples,
    validation: Examples | None,
    compute: Compute,
    *,
    seed: Seed,
    first: int,
    last: int,
) -> TeacherVotes:
    """Train the teachers `first` to `last` - 1 and return their votes."""
    return mechanism.train_teachers(
        train.writable(),
        range(first, last),
        seed=seed.sequence(),
        compute=compute,
        validation=None if validation is None else validation.writable(),
    )


@unit
def release_answers(
    mechanism: TaughtLearner, teachers: tuple[TeacherVotes, ...], *, classes: int, seed: Seed
) -> AnsweredQueries:
    """Release the answers of all teachers of a training."""
    return mechanism.answers_of_teachers(joined_votes(teachers), classes=classes, seed=seed.sequence())
