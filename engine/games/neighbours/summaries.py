"""Many trainings on two neighbouring data sets, each summed up as a vector: in bulk, one by one, or by its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import OutOfTime, from_outside, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.engine.games.fits import LEARNERS, Capability
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds
from dpaudit.engine.games.stacks import TrainingRun, train_runs
from dpaudit.errors import RunError, shortened
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.protocols import LogitModel, SampledLearner, SummarisedLearner

SAMPLED = Capability(SampledLearner, "learners drawn in bulk (with methods `claim` and `sample_summaries`)")
SUMMARISED = Capability(SummarisedLearner, "learners summed up as vectors (with methods `claim` and `summarise`)")

SMALLEST_PROBABILITY = 1e-45
LARGEST = float(np.finfo(np.float32).max)
"""Of the numbers that are kept."""


@dataclass(frozen=True, eq=False)
class Summaries:
    """What some trainings left.

    Attributes:
        vectors: One a training, of any length; None where it failed.
        names: Which trial, with which seed.
        faults: Why a trial failed; "" for the others.
    """

    vectors: Sequence[NDArray[np.float64] | None]
    names: Sequence[str]
    faults: Sequence[str]


@dataclass(frozen=True, eq=False)
class Trainings:
    """Which trainings are asked for: one for each coin, on the data set it shows.

    Attributes:
        worlds: The two data sets.
        truth: The coins, shape (n,).
        first: Number of the first trial, which names its seed.
        seed: Of the batch where trainings are drawn in bulk, else trial t has `seed.child(t)`.
        compute: What may be used.
        limit_s: Seconds after which a training that is run by itself is ended and has failed; None = never.
    """

    worlds: Worlds
    truth: NDArray[np.bool_]
    first: int
    seed: Seed
    compute: Compute
    limit_s: float | None = None


def train_and_summarise(mechanism: Any, trainings: Trainings) -> Summaries:
    """All of them, by a mechanism that has one of the faces below, a `Learner` last."""
    for kind, way in _WAYS.items():
        if isinstance(mechanism, kind.protocol):
            return way(mechanism, trainings)
    raise TypeError(f"{type(mechanism).__name__} is no learner")  # the spec refuses it


def _in_bulk(mechanism: SampledLearner, asked: Trainings) -> Summaries:
    vectors: list[NDArray[np.float64] | None] = [None] * len(asked.truth)
    own = asked.seed.child(asked.first)
    for world in (False, True):
        places = np.flatnonzero(asked.truth == world)
        if len(places):
            drawn = mechanism.sample_summaries(
                asked.worlds.world(world),
                asked.worlds.points,
                len(places),
                seed=own.child(int(world)).sequence(),
                compute=asked.compute,
            )
            for place, vector in zip(places, drawn, strict=True):
                vectors[place] = vector
    names = [_name(number, own) for number in range(asked.first, asked.first + len(vectors))]
    return Summaries(vectors, names, [_fault(vector) for vector in vectors])


def _one_by_one(mechanism: SummarisedLearner, asked: Trainings) -> Summaries:
    vectors: list[NDArray[np.float64] | None] = []
    names: list[str] = []
    faults: list[str] = []
    for number, world in enumerate(asked.truth, asked.first):
        own = asked.seed.child(number)
        try:
            # A copy each: what one training does to its data is not the next one's.
            train = asked.worlds.world(bool(world)).writable()
            points = asked.worlds.points.copy()
            with time_limit(asked.limit_s):
                given = mechanism.summarise(train, points, seed=own.sequence(), compute=asked.compute)
            vector = np.asarray(given).astype(np.float64, casting="same_kind")  # no complex numbers, no words
            fault = "" if vector.ndim == 1 else f"it gave an array of shape {vector.shape}, not a vector"
        except OutOfTime:
            if asked.limit_s is None:  # the whole unit's time is up
                raise
            vector, fault = np.empty(0), f"still running after {asked.limit_s:g} s, the stated `training_limit_s`"
        except BaseException as err:  # other people's code may raise anything; the trial counts as failed
            if from_outside(err):
                raise
            vector, fault = np.empty(0), f"{type(err).__name__}: {shortened(err)}"
        fault = fault or _fault(vector)
        vectors.append(None if fault else vector)
        names.append(_name(number, own))
        faults.append(fault)
    return Summaries(vectors, names, faults)


def _by_answers(mechanism: Any, asked: Trainings) -> Summaries:
    """Any learner: what its models answer at the points, on the scale of logarithms."""
    worlds, numbers = asked.worlds, range(asked.first, asked.first + len(asked.truth))
    runs = [
        TrainingRun(worlds.places(bool(world)), asked.seed.child(number))
        for number, world in zip(numbers, asked.truth, strict=True)
    ]
    models = train_runs(mechanism, worlds.rows, runs, compute=asked.compute)
    vectors = [None if isinstance(model, TrainingError) else _answers(model, worlds.points) for model in models]
    faults = [
        str(model) if isinstance(model, TrainingError) else _fault(vector)
        for model, vector in zip(models, vectors, strict=True)
    ]
    return Summaries(vectors, [_name(number, run.seed) for number, run in zip(numbers, runs, strict=True)], faults)


def _answers(model: Any, points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logits or log-probabilities against those of the last class, shape (m (K - 1),)."""
    if isinstance(model, LogitModel):
        scale = model.logits(points.copy()).astype(np.float64)
    else:
        scale = np.log(np.maximum(model.probabilities(points.copy()), SMALLEST_PROBABILITY))
    vector: NDArray[np.float64] = (scale[:, :-1] - scale[:, -1:]).ravel()
    return vector


def _name(number: int, seed: Seed) -> str:
    return f"trial {number} (seed {seed})"


def _fault(vector: NDArray[np.float64] | None) -> str:
    """What is wrong with a summary; "" where nothing is, or where there is none."""
    if vector is None:
        return ""
    if not len(vector):
        return "it gave no numbers"
    if not np.isfinite(vector).all():
        return "it gave numbers that are not finite"
    return "" if np.abs(vector).max() <= LARGEST else f"it gave numbers above {LARGEST:.2g}, the largest that are kept"


_WAYS: dict[Capability, Callable[[Any, Trainings], Summaries]] = {
    SAMPLED: _in_bulk,
    SUMMARISED: _one_by_one,
    LEARNERS: _by_answers,
}


@dataclass(frozen=True, eq=False)
class Samples:
    """Trainings on either data set, summed up, as they are kept.

    Attributes:
        number: Of each trial, shape (n,).
        truth: Their coins, shape (n,); trained on D' where True.
        width: Length of each summary, shape (n,); -1 where there is none.
        numbers: All summaries, one behind the other.
        name: Which trial each is, with which seed, shape (n,).
    """

    number: NDArray[np.int64] = field(metadata={"stored": "int32"})
    truth: NDArray[np.bool_]
    width: NDArray[np.int64]
    numbers: NDArray[np.float32]
    name: NDArray[np.str_]

    def of_width(self, width: int) -> NDArray[np.float64]:
        """The summaries of one length, shape (their number, width)."""
        own = self.width == width
        there = np.repeat(own, np.maximum(self.width, 0))
        summaries: NDArray[np.float64] = self.numbers[there].astype(np.float64)
        return summaries.reshape(np.count_nonzero(own), width)

    @property
    def usual_width(self) -> int:
        """The length that most summaries have.

        Raises: RunError when there is none.
        """
        there = self.width[self.width >= 0]
        if not len(there):
            raise RunError("no search sample has a summary")
        return int(np.bincount(there).argmax())


def samples_of(summaries: Summaries, asked: Trainings) -> tuple[Samples, tuple[str, ...]]:
    """The summaries as they are kept, and why trials failed, a sentence for each that did, "" where nobody knows."""
    known = [None if fault else vector for vector, fault in zip(summaries.vectors, summaries.faults, strict=True)]
    samples = Samples(
        number=np.arange(asked.first, asked.first + len(asked.truth)),
        truth=asked.truth,
        width=np.array([-1 if vector is None else len(vector) for vector in known]),
        numbers=np.concatenate([np.empty(0), *(vector for vector in known if vector is not None)]).astype(np.float32),
        name=np.array(summaries.names),
    )
    errors = (
        f"{name}: {fault}" if fault else ""
        for name, fault, vector in zip(summaries.names, summaries.faults, known, strict=True)
        if vector is None
    )
    return samples, tuple(errors)


def joined(parts: Sequence[Samples]) -> Samples:
    """All of them, in order."""
    names = (column.name for column in fields(Samples))
    return Samples(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
