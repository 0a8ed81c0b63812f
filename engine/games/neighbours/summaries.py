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
MAX_NUMBER = float(np.finfo(np.float32).max)
"""Of the numbers that are kept."""
MAX_DOUBLE_WIDTH = 4_096
"""Summaries of more numbers are not written out in double precision: some hundred of them fill the memory."""
MAX_NAMED_PLACES = 8
"""Places of a summary that are named where its numbers are not finite; more are counted."""
MIN_FAILED_BATCH = 8
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
        retained = np.cumsum(low_bit[:-1]) == 0
        width = self.width - self.low_bits
        return replace(self, width=width, numbers=self.numbers[retained], low_bits=np.zeros_like(self.low_bits))

    def summaries(self) -> NDArray[Any]:
        """Of samples that ended in one way, shape (n, width): of 64 bits, and of 32 where they are long."""
        matrix = self.numbers.reshape(len(self.truth), -1 if len(self.numbers) else 0)
        return matrix if matrix.shape[1] > MAX_DOUBLE_WIDTH else matrix.astype(np.float64)

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
    batch_seed = seed.child(first)
    truth = batch_seed.rng().random(last - first) < 0.5
    return sample_batch(mechanism, TrainingBatch(worlds, truth, first, batch_seed.child("trainings"), compute, limit_s))


@dataclass(frozen=True, eq=False)
class TrainingBatch:
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
        number = place // 2 if self.paired else place
        return self.seed.child(self.first + (0 if isinstance(mechanism, SampledLearner) else number))


def sample_batch(mechanism: Any, batch: TrainingBatch) -> Outcome[Samples]:
    """The trainings that are asked for, summed up.

    Raises: TrainingError when the code does not run at all.
    """
    count = len(batch.truth)
    names = [f"trial {batch.first + place} (seed {batch.seed_of(place, mechanism)})" for place in range(count)]
    results = [_checked(result) for result in _train_batch(mechanism, batch)]
    failures = tuple(f"{name}: {result.fault}" for name, result in zip(names, results, strict=True) if result.fault)
    failure_endings = {result.ending for result in results if not len(result.numbers)}
    if len(failures) == count >= MIN_FAILED_BATCH and len(failure_endings) == 1 and len(np.unique(batch.truth)) == 2:
        raise TrainingError(f"all {count} trainings of this batch failed; the first: {failures[0]}")
    samples = Samples(
        number=np.arange(batch.first, batch.first + count),
        truth=batch.truth,
        ending=np.array([result.ending for result in results]),
        width=np.array([len(result.numbers) for result in results]),
        numbers=np.concatenate([np.empty(0), *(result.numbers for result in results)]).astype(np.float32),
        name=np.array(names),
        low_bits=np.zeros(count, np.int64),
    )
    return Outcome(samples, failures=failures)


@dataclass(frozen=True, eq=False)
class _TrainingResult:
    """How a training ended."""

    ending: str  # a word or two for all that end in this way
    fault: str = ""  # what is wrong with it, for people
    numbers: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # the finite ones


def _checked(result: NDArray[np.float64] | _TrainingResult) -> _TrainingResult:
    if isinstance(result, _TrainingResult):
        return result
    valid = np.isfinite(result) & (np.abs(result) <= MAX_NUMBER)
    if not len(result):
        return _TrainingResult("no numbers", "it gave no numbers")
    if valid.all():
        return _TrainingResult(f"{len(result)} numbers", numbers=result)
    places = np.flatnonzero(~valid)
    where = ", ".join(map(str, places[:MAX_NAMED_PLACES])) + (
        f" and {len(places) - MAX_NAMED_PLACES} more" if len(places) > MAX_NAMED_PLACES else ""
    )
    fault = (
        "it gave numbers that are not finite"
        if not np.isfinite(result).all()
        else f"it gave numbers above {MAX_NUMBER:.2g}"
    )
    return _TrainingResult(f"{len(result)} numbers, not finite at {where}", fault, result[valid])


def _failure(err: BaseException) -> _TrainingResult:
    if raised_externally(err):
        raise err
    return _TrainingResult(type(err).__name__, f"{type(err).__name__}: {shortened(err)}")


def _train_batch(mechanism: Any, batch: TrainingBatch) -> Sequence[NDArray[np.float64] | _TrainingResult]:
    """All of them, by the first face that the mechanism has."""
    if isinstance(mechanism, SampledLearner):
        return _in_bulk(mechanism, batch)
    if isinstance(mechanism, SummarisedLearner):
        return [_one_by_one(mechanism, batch, place) for place in range(len(batch.truth))]
    return _by_answers(mechanism, batch)


def _in_bulk(mechanism: SampledLearner, batch: TrainingBatch) -> Sequence[NDArray[np.float64] | _TrainingResult]:
    results: list[NDArray[np.float64] | _TrainingResult] = [_TrainingResult("nothing")] * len(batch.truth)
    for world in (False, True):
        places = np.flatnonzero(batch.truth == world)
        if not len(places):
            continue
        vectors: Sequence[NDArray[np.float64] | _TrainingResult]
        try:
            vectors = mechanism.sample_summaries(  # type: ignore[assignment]
                batch.worlds.world(world),
                batch.worlds.points,
                len(places),
                seed=batch.seed_of(0, mechanism).child(0 if batch.paired else int(world)).sequence(),
                compute=batch.compute,
            )
        except BaseException as err:  # other people's code may raise anything; these trials ended so
            vectors = [_failure(err)] * len(places)
        for place, vector in zip(places, vectors, strict=True):
            results[place] = vector
    return results


def _one_by_one(
    mechanism: SummarisedLearner, batch: TrainingBatch, place: int
) -> NDArray[np.float64] | _TrainingResult:
    try:
        # A copy each: what one training does to its data is not the next one's.
        train = batch.worlds.world(bool(batch.truth[place])).writable()
        points = batch.worlds.points.copy()
        seed = batch.seed_of(place, mechanism).sequence()
        with time_limit(batch.limit_s):
            summary = mechanism.summarise(train, points, seed=seed, compute=batch.compute)
        vector = np.asarray(summary).astype(np.float64, casting="same_kind")  # no complex numbers, no words
    except TimeLimitExceeded:
        if batch.limit_s is None:  # the whole unit's time is up
            raise
        return _TrainingResult("out of time", f"still running after {batch.limit_s:g} s, the stated `training_limit_s`")
    except BaseException as err:  # other people's code may raise anything; the trial ended so
        return _failure(err)
    if vector.ndim == 1:
        return vector
    return _TrainingResult(f"shape {vector.shape}", f"it gave an array of shape {vector.shape}, not a vector")


def _by_answers(mechanism: Any, batch: TrainingBatch) -> Sequence[NDArray[np.float64] | _TrainingResult]:
    """Any learner: what its models answer at the points, on the scale of logarithms."""
    worlds = batch.worlds
    runs = [
        TrainingRun(worlds.row_numbers(bool(world)), batch.seed_of(place, mechanism))
        for place, world in enumerate(batch.truth)
    ]
    models = train_runs(mechanism, worlds.rows, runs, compute=batch.compute)
    return [_answers(model, worlds.points) for model in models]


def _answers(model: Any, points: NDArray[np.float32]) -> NDArray[np.float64] | _TrainingResult:
    """Logits or log-probabilities against those of the last class, shape (m (K - 1),)."""
    if isinstance(model, TrainingError):
        cause = type(model.__cause__ or model).__name__
        return _TrainingResult(cause, str(model))
    try:
        if isinstance(model, LogitModel):
            scale = model.logits(points.copy()).astype(np.float64)
        else:
            scale = np.log(np.maximum(model.probabilities(points.copy()), SMALLEST_PROBABILITY))
    except BaseException as err:  # other people's code may raise anything
        return _failure(err)
    return np.asarray((scale[:, :-1] - scale[:, -1:]).ravel())
