"""Many trainings on two neighbouring data sets, each summed up as a vector: in bulk, one by one, or by its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import TimeLimitExceeded, raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.errors import shortened
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.protocols import LogitModel, SampledLearner, SummarisedLearner

SMALLEST_PROBABILITY = 1e-45
LARGEST = float(np.finfo(np.float32).max)
"""Of the numbers that are kept."""
LONG = 4_096
"""Summaries of more numbers are not written out in double precision: some hundred of them fill the memory."""
NAMED = 8
"""Places of a summary that are named where its numbers are not finite; more are counted."""
HOPELESS = 8
"""Trainings of a batch in both worlds that, all failed in one way, say that the code does not run at all."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Trainings on either data set, summed up, as they are kept.

    How a training ended is a part of what it released: one that raised, or whose numbers are not finite, has an ending
    of its own, and is as good to learn from as any other.
    """

    number: NDArray[np.int64] = field(metadata={"stored": "int32"})  # of each trial, shape (n,)
    truth: NDArray[np.bool_]  # their coins, shape (n,); trained on D' where True
    ending: NDArray[np.str_]  # how each ended: "3 numbers", the class of an exception, ..., shape (n,)
    width: NDArray[np.int64]  # how many finite numbers each left, shape (n,)
    numbers: NDArray[np.float32]  # all of these, one summary behind the other
    name: NDArray[np.str_]  # which trial each is, with which seed, shape (n,)
    # How many of the last numbers of each tell the low bits of numbers before them, shape (n,)
    low_bits: NDArray[np.int64]

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))

    def where(self, chosen: NDArray[np.bool_]) -> Samples:
        """Some of them."""
        if chosen.all():
            return self
        names = ("number", "truth", "ending", "width", "name", "low_bits")
        columns = {name: getattr(self, name)[chosen] for name in names}
        return replace(self, **columns, numbers=self.numbers[np.repeat(chosen, self.width)])

    def without_low_bits(self) -> Samples:
        """Return the samples without the numbers that tell the low bits of others."""
        if not self.low_bits.any():
            return self
        ends = np.cumsum(self.width)
        low_bit = np.zeros(len(self.numbers) + 1, np.int64)
        np.add.at(low_bit, ends - self.low_bits, 1)
        np.add.at(low_bit, ends, -1)
        kept = np.cumsum(low_bit[:-1]) == 0
        width = self.width - self.low_bits
        return replace(self, width=width, numbers=self.numbers[kept], low_bits=np.zeros_like(self.low_bits))

    def summaries(self) -> NDArray[Any]:
        """Of samples that ended in one way, shape (n, width): of 64 bits, and of 32 where they are long."""
        kept = self.numbers.reshape(len(self.truth), -1 if len(self.numbers) else 0)
        return kept if kept.shape[1] > LONG else kept.astype(np.float64)

    @property
    def usual_ending(self) -> str:
        """How most of them ended."""
        endings, counts = np.unique(self.ending, return_counts=True)
        return str(endings[counts.argmax()])


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
    return sampled(mechanism, Trainings(worlds, truth, first, own.child("trainings"), compute, limit_s))


@dataclass(frozen=True, eq=False)
class Trainings:
    """Which trainings are asked for: one for each coin, on the data set it shows."""

    worlds: Worlds
    truth: NDArray[np.bool_]
    first: int
    seed: Seed
    compute: Compute
    limit_s: float | None
    paired: bool = False  # whether the worlds take turns, and each two trainings have one seed

    def seed_of(self, place: int, mechanism: Any) -> Seed:
        """A training's own seed; where they are drawn in bulk, that of the batch."""
        own = place // 2 if self.paired else place
        return self.seed.child(self.first + (0 if isinstance(mechanism, SampledLearner) else own))


def sampled(mechanism: Any, asked: Trainings) -> Outcome[Samples]:
    """The trainings that are asked for, summed up.

    Raises: TrainingError when the code does not run at all.
    """
    count = len(asked.truth)
    names = [f"trial {asked.first + place} (seed {asked.seed_of(place, mechanism)})" for place in range(count)]
    left = [_outcome(each) for each in _trained(mechanism, asked)]
    failures = tuple(f"{name}: {one.fault}" for name, one in zip(names, left, strict=True) if one.fault)
    alike = {one.ending for one in left if not len(one.numbers)}
    if len(failures) == count >= HOPELESS and len(alike) == 1 and len(np.unique(asked.truth)) == 2:
        raise TrainingError(f"all {count} trainings of this batch failed; the first: {failures[0]}")
    samples = Samples(
        number=np.arange(asked.first, asked.first + count),
        truth=asked.truth,
        ending=np.array([one.ending for one in left]),
        width=np.array([len(one.numbers) for one in left]),
        numbers=np.concatenate([np.empty(0), *(one.numbers for one in left)]).astype(np.float32),
        name=np.array(names),
        low_bits=np.zeros(count, np.int64),
    )
    return Outcome(samples, failures=failures)


@dataclass(frozen=True, eq=False)
class _Ended:
    """How a training ended."""

    ending: str  # a word or two for all that end in this way
    fault: str = ""  # what is wrong with it, for people
    numbers: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # the finite ones


def _outcome(left: NDArray[np.float64] | _Ended) -> _Ended:
    if isinstance(left, _Ended):
        return left
    kept = np.isfinite(left) & (np.abs(left) <= LARGEST)
    if not len(left):
        return _Ended("no numbers", "it gave no numbers")
    if kept.all():
        return _Ended(f"{len(left)} numbers", numbers=left)
    places = np.flatnonzero(~kept)
    where = ", ".join(map(str, places[:NAMED])) + (f" and {len(places) - NAMED} more" if len(places) > NAMED else "")
    fault = (
        "it gave numbers that are not finite" if not np.isfinite(left).all() else f"it gave numbers above {LARGEST:.2g}"
    )
    return _Ended(f"{len(left)} numbers, not finite at {where}", fault, left[kept])


def _raised(err: BaseException) -> _Ended:
    if raised_externally(err):
        raise err
    return _Ended(type(err).__name__, f"{type(err).__name__}: {shortened(err)}")


def _trained(mechanism: Any, asked: Trainings) -> Sequence[NDArray[np.float64] | _Ended]:
    """All of them, by the first face that the mechanism has."""
    if isinstance(mechanism, SampledLearner):
        return _in_bulk(mechanism, asked)
    if isinstance(mechanism, SummarisedLearner):
        return [_one_by_one(mechanism, asked, place) for place in range(len(asked.truth))]
    return _by_answers(mechanism, asked)


def _in_bulk(mechanism: SampledLearner, asked: Trainings) -> Sequence[NDArray[np.float64] | _Ended]:
    left: list[NDArray[np.float64] | _Ended] = [_Ended("nothing")] * len(asked.truth)
    for world in (False, True):
        places = np.flatnonzero(asked.truth == world)
        if not len(places):
            continue
        drawn: Sequence[NDArray[np.float64] | _Ended]
        try:
            drawn = mechanism.sample_summaries(  # type: ignore[assignment]
                asked.worlds.world(world),
                asked.worlds.points,
                len(places),
                seed=asked.seed_of(0, mechanism).child(0 if asked.paired else int(world)).sequence(),
                compute=asked.compute,
            )
        except BaseException as err:  # other people's code may raise anything; these trials ended so
            drawn = [_raised(err)] * len(places)
        for place, vector in zip(places, drawn, strict=True):
            left[place] = vector
    return left


def _one_by_one(mechanism: SummarisedLearner, asked: Trainings, place: int) -> NDArray[np.float64] | _Ended:
    try:
        # A copy each: what one training does to its data is not the next one's.
        train = asked.worlds.world(bool(asked.truth[place])).writable()
        points = asked.worlds.points.copy()
        seed = asked.seed_of(place, mechanism).sequence()
        with time_limit(asked.limit_s):
            given = mechanism.summarise(train, points, seed=seed, compute=asked.compute)
        vector = np.asarray(given).astype(np.float64, casting="same_kind")  # no complex numbers, no words
    except TimeLimitExceeded:
        if asked.limit_s is None:  # the whole unit's time is up
            raise
        return _Ended("out of time", f"still running after {asked.limit_s:g} s, the stated `training_limit_s`")
    except BaseException as err:  # other people's code may raise anything; the trial ended so
        return _raised(err)
    if vector.ndim == 1:
        return vector
    return _Ended(f"shape {vector.shape}", f"it gave an array of shape {vector.shape}, not a vector")


def _by_answers(mechanism: Any, asked: Trainings) -> Sequence[NDArray[np.float64] | _Ended]:
    """Any learner: what its models answer at the points, on the scale of logarithms."""
    worlds = asked.worlds
    runs = [
        TrainingRun(worlds.places(bool(world)), asked.seed_of(place, mechanism))
        for place, world in enumerate(asked.truth)
    ]
    models = train_runs(mechanism, worlds.rows, runs, compute=asked.compute)
    return [_answers(model, worlds.points) for model in models]


def _answers(model: Any, points: NDArray[np.float32]) -> NDArray[np.float64] | _Ended:
    """Logits or log-probabilities against those of the last class, shape (m (K - 1),)."""
    if isinstance(model, TrainingError):
        cause = type(model.__cause__ or model).__name__
        return _Ended(cause, str(model))
    try:
        if isinstance(model, LogitModel):
            scale = model.logits(points.copy()).astype(np.float64)
        else:
            scale = np.log(np.maximum(model.probabilities(points.copy()), SMALLEST_PROBABILITY))
    except BaseException as err:  # other people's code may raise anything
        return _raised(err)
    return np.asarray((scale[:, :-1] - scale[:, -1:]).ravel())
