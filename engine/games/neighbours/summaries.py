"""Many trainings on two neighbouring data sets, each summed up as a vector: in bulk, one by one, or by its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import OutOfTime, from_outside, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds
from dpaudit.engine.games.protocol import Capability
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.errors import RunError, shortened
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.protocols import LogitModel, SampledLearner, SummarisedLearner

SAMPLED = Capability(SampledLearner, "learners drawn in bulk (with methods `claim` and `sample_summaries`)")
SUMMARISED = Capability(SummarisedLearner, "learners summed up as vectors (with methods `claim` and `summarise`)")
SMALLEST_PROBABILITY = 1e-45
LARGEST = float(np.finfo(np.float32).max)
"""Of the numbers that are kept."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Trainings on either data set, summed up, as they are kept."""

    number: NDArray[np.int64] = field(metadata={"stored": "int32"})  # of each trial, shape (n,)
    truth: NDArray[np.bool_]  # their coins, shape (n,); trained on D' where True
    width: NDArray[np.int64]  # length of each summary, shape (n,); -1 where there is none
    numbers: NDArray[np.float32]  # all summaries, one behind the other
    name: NDArray[np.str_]  # which trial each is, with which seed, shape (n,)

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))

    def of_width(self, width: int) -> NDArray[np.float64]:
        """The summaries of one length, shape (their number, width)."""
        own = self.width == width
        there = np.repeat(own, np.maximum(self.width, 0))
        summaries: NDArray[np.float64] = self.numbers[there].astype(np.float64)
        return summaries.reshape(np.count_nonzero(own), width)

    @property
    def usual_width(self) -> int:
        """The length that most summaries have."""
        there = self.width[self.width >= 0]
        if not len(there):
            raise RunError("no search sample has a summary")
        return int(np.bincount(there).argmax())

    def usual(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The summaries of that length, shape (m, width), and their worlds, shape (m,)."""
        return self.of_width(self.usual_width), self.truth[self.width == self.usual_width]


@unit
def sample_summaries(
    mechanism: Any, worlds: Worlds, limit_s: float | None, compute: Compute, *, first: int, last: int, seed: Seed
) -> Outcome[Samples]:
    """Trainings `first` to `last` - 1, each on D or D' by its own coin, summed up.

    The coins of a batch are drawn from `seed.child(first)`, its trainings from children of that. `limit_s` is how long
    a training that is run by itself may take.
    """
    own = seed.child(first)
    truth = own.rng().random(last - first) < 0.5
    asked = _Trainings(worlds, truth, first, own.child("trainings"), compute, limit_s)
    names, vectors, failures = [], [], []
    for place, left in enumerate(_trained(mechanism, asked)):
        name = f"trial {first + place} (seed {asked.seed_of(place, mechanism)})"
        fault = left if isinstance(left, str) else _fault(left)
        vector = None if fault or isinstance(left, str) else left
        if vector is None:
            failures.append(f"{name}: {fault}" if fault else "")
        names.append(name)
        vectors.append(vector)
    if len(failures) == len(vectors):
        raise TrainingError(f"all {last - first} trainings of this batch failed; the first: {failures[0]}")
    samples = Samples(
        number=np.arange(first, last),
        truth=truth,
        width=np.array([-1 if vector is None else len(vector) for vector in vectors]),
        numbers=np.concatenate([np.empty(0), *(vector for vector in vectors if vector is not None)]).astype(np.float32),
        name=np.array(names),
    )
    return Outcome(samples, failures=tuple(failure for failure in failures if failure))


Left = NDArray[np.float64] | str | None
"""What a training leaves: its summary, or why there is none; None where nobody knows."""


@dataclass(frozen=True, eq=False)
class _Trainings:
    """Which trainings are asked for: one for each coin, on the data set it shows."""

    worlds: Worlds
    truth: NDArray[np.bool_]
    first: int
    seed: Seed
    compute: Compute
    limit_s: float | None

    def seed_of(self, place: int, mechanism: Any) -> Seed:
        """A training's own seed; where they are drawn in bulk, that of the batch."""
        return self.seed.child(self.first + (0 if isinstance(mechanism, SampledLearner) else place))


def _trained(mechanism: Any, asked: _Trainings) -> Sequence[Left]:
    """All of them, by the first face that the mechanism has."""
    if isinstance(mechanism, SampledLearner):
        return _in_bulk(mechanism, asked)
    if isinstance(mechanism, SummarisedLearner):
        return [_one_by_one(mechanism, asked, place) for place in range(len(asked.truth))]
    return _by_answers(mechanism, asked)


def _in_bulk(mechanism: SampledLearner, asked: _Trainings) -> Sequence[Left]:
    vectors: list[Left] = [None] * len(asked.truth)
    for world in (False, True):
        places = np.flatnonzero(asked.truth == world)
        if len(places):
            drawn = mechanism.sample_summaries(
                asked.worlds.world(world),
                asked.worlds.points,
                len(places),
                seed=asked.seed_of(0, mechanism).child(int(world)).sequence(),
                compute=asked.compute,
            )
            for place, vector in zip(places, drawn, strict=True):
                vectors[place] = vector
    return vectors


def _one_by_one(mechanism: SummarisedLearner, asked: _Trainings, place: int) -> Left:
    try:
        # A copy each: what one training does to its data is not the next one's.
        train = asked.worlds.world(bool(asked.truth[place])).writable()
        points = asked.worlds.points.copy()
        seed = asked.seed_of(place, mechanism).sequence()
        with time_limit(asked.limit_s):
            given = mechanism.summarise(train, points, seed=seed, compute=asked.compute)
        vector = np.asarray(given).astype(np.float64, casting="same_kind")  # no complex numbers, no words
    except OutOfTime:
        if asked.limit_s is None:  # the whole unit's time is up
            raise
        return f"still running after {asked.limit_s:g} s, the stated `training_limit_s`"
    except BaseException as err:  # other people's code may raise anything; the trial counts as failed
        if from_outside(err):
            raise
        return f"{type(err).__name__}: {shortened(err)}"
    return vector if vector.ndim == 1 else f"it gave an array of shape {vector.shape}, not a vector"


def _by_answers(mechanism: Any, asked: _Trainings) -> Sequence[Left]:
    """Any learner: what its models answer at the points, on the scale of logarithms."""
    worlds = asked.worlds
    runs = [
        TrainingRun(worlds.places(bool(world)), asked.seed_of(place, mechanism))
        for place, world in enumerate(asked.truth)
    ]
    models = train_runs(mechanism, worlds.rows, runs, compute=asked.compute)
    return [str(model) if isinstance(model, TrainingError) else _answers(model, worlds.points) for model in models]


def _answers(model: Any, points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logits or log-probabilities against those of the last class, shape (m (K - 1),)."""
    if isinstance(model, LogitModel):
        scale = model.logits(points.copy()).astype(np.float64)
    else:
        scale = np.log(np.maximum(model.probabilities(points.copy()), SMALLEST_PROBABILITY))
    return np.asarray((scale[:, :-1] - scale[:, -1:]).ravel())


def _fault(vector: NDArray[np.float64] | None) -> str:
    """What is wrong with a summary; "" where nothing is, or where there is none."""
    if vector is None:
        return ""
    if not len(vector):
        return "it gave no numbers"
    if not np.isfinite(vector).all():
        return "it gave numbers that are not finite"
    return "" if np.abs(vector).max() <= LARGEST else f"it gave numbers above {LARGEST:.2g}, the largest that are kept"
