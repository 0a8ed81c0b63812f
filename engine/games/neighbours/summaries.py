"""Trainings on two neighbouring data sets, summarised as vectors: in bulk, one by one, or by predictions."""

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
from dpaudit.engine.games.neighbours.rounding import MOST_COLUMNS
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.errors import described
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.protocols import LogitModel, SampledLearner, SummarisedLearner

SMALLEST_PROBABILITY = 1e-45
MAX_NUMBER = float(np.finfo(np.float32).max)
"""Largest absolute number in a stored summary."""
MAX_DOUBLE_WIDTH = 4_096
"""Largest width of summaries that are converted to double precision; bounds the memory."""
MAX_NAMED_PLACES = 8
"""Largest number of positions of non-finite numbers that are named; further ones are counted."""
MIN_FAILED_BATCH = 8
"""Smallest batch whose uniform failure in both worlds shows that the code does not run at all."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Summaries of n trainings in storage form.

    The ending of a training is part of its release: exceptions and non-finite numbers have separate endings, from which
    an attack can learn.
    """

    number: NDArray[np.int64] = field(metadata={"stored": "int32"})  # number of the trial, shape (n,)
    truth: NDArray[np.bool_]  # coins, shape (n,); True if trained on D'
    ending: NDArray[np.str_]  # "3 numbers", class of an exception, ..., shape (n,)
    width: NDArray[np.int64]  # number of finite numbers, shape (n,)
    numbers: NDArray[np.float32]  # finite numbers of all summaries, concatenated
    name: NDArray[np.str_]  # name of the trial, with its seed, shape (n,)
    low_bits: NDArray[np.int64]  # number of last numbers that hold low bits of earlier numbers, shape (n,)
    # difference of each number in double precision from `numbers`, of the same shape; empty if it is not known
    rest: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))

    def where(self, chosen: NDArray[np.bool_]) -> Samples:
        if chosen.all():
            return self
        names = ("number", "truth", "ending", "width", "name", "low_bits")
        columns = {name: getattr(self, name)[chosen] for name in names}
        return self._with_numbers(np.repeat(chosen, self.width), **columns)

    def _with_numbers(self, places: NDArray[np.bool_], **columns: Any) -> Samples:
        rest = self.rest[places] if len(self.rest) else self.rest
        return replace(self, **columns, numbers=self.numbers[places], rest=rest)

    def without_low_bits(self) -> Samples:
        """Return the samples without the numbers that hold low bits of other numbers."""
        if not self.low_bits.any():
            return self
        ends = np.cumsum(self.width)
        low_bit = np.zeros(len(self.numbers) + 1, np.int64)
        np.add.at(low_bit, ends - self.low_bits, 1)
        np.add.at(low_bit, ends, -1)
        retained = np.cumsum(low_bit[:-1]) == 0
        width = self.width - self.low_bits
        return self._with_numbers(retained, width=width, low_bits=np.zeros_like(self.low_bits))

    def exact(self) -> NDArray[np.float64]:
        """Return the summaries of samples with one ending in double precision.

        The matrix has no columns if double precision is not known, or if the summaries are long.
        """
        if not 0 < len(self.rest) <= MOST_COLUMNS * len(self.truth):
            return np.empty((len(self.truth), 0))
        return (self.numbers.astype(np.float64) + self.rest).reshape(len(self.truth), -1)

    def summaries(self) -> NDArray[Any]:
        """Return the summaries of samples with one ending, shape (n, width); float64, or float32 if they are long."""
        matrix = self.numbers.reshape(len(self.truth), -1 if len(self.numbers) else 0)
        return matrix if matrix.shape[1] > MAX_DOUBLE_WIDTH else matrix.astype(np.float64)

    @property
    def usual_ending(self) -> str:
        """Most frequent ending."""
        endings, counts = np.unique(self.ending, return_counts=True)
        return str(endings[counts.argmax()])


@unit
def sample_summaries(
    mechanism: Any, worlds: Worlds, limit_s: float | None, compute: Compute, *, first: int, last: int, seed: Seed
) -> Outcome[Samples]:
    """Run trainings `first` to `last` - 1, each on D or D' by a separate coin.

    `seed.child(first)` gives the coins of the batch, and its children give the trainings. `limit_s` is the time limit
    of a single training.
    """
    batch_seed = seed.child(first)
    truth = batch_seed.rng().random(last - first) < 0.5
    return sample_batch(mechanism, TrainingBatch(worlds, truth, first, batch_seed.child("trainings"), compute, limit_s))


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Trainings to run: one for each coin, on the data set that the coin selects."""

    worlds: Worlds
    truth: NDArray[np.bool_]
    first: int
    seed: Seed
    compute: Compute
    limit_s: float | None
    paired: bool = False  # True if the worlds take turns and each pair shares a seed

    def seeds(self, mechanism: Any) -> list[Seed]:
        """Return the seeds of all trainings; bulk samplers use one seed for the batch."""
        in_bulk = isinstance(mechanism, SampledLearner)
        numbers = (0 if in_bulk else place // 2 if self.paired else place for place in range(len(self.truth)))
        return [self.seed.child(self.first + number) for number in numbers]


def sample_batch(mechanism: Any, batch: TrainingBatch) -> Outcome[Samples]:
    """Run the trainings and return their summaries.

    Raises: TrainingError if the code does not run at all.
    """
    count = len(batch.truth)
    seeds = batch.seeds(mechanism)
    names = [f"trial {batch.first + place} (seed {seed})" for place, seed in enumerate(seeds)]
    results = [_checked(result) for result in _train_batch(mechanism, batch, seeds)]
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
    """Ending and numbers of one training."""

    ending: str  # a few words, equal for equal endings
    fault: str = ""  # description of the failure; "" if there is none
    numbers: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # finite numbers


def _checked(result: NDArray[np.float64] | _TrainingResult) -> _TrainingResult:
    if isinstance(result, _TrainingResult):
        return result
    valid = np.isfinite(result) & (np.abs(result) <= MAX_NUMBER)
    if not len(result):
        return _TrainingResult("no numbers", "it returned no numbers")
    if valid.all():
        return _TrainingResult(f"{len(result)} numbers", numbers=result)
    places = np.flatnonzero(~valid)
    where = ", ".join(map(str, places[:MAX_NAMED_PLACES])) + (
        f" and {len(places) - MAX_NAMED_PLACES} more" if len(places) > MAX_NAMED_PLACES else ""
    )
    fault = (
        "it returned numbers that are not finite"
        if not np.isfinite(result).all()
        else f"it returned numbers above {MAX_NUMBER:.2g}"
    )
    return _TrainingResult(f"{len(result)} numbers, not finite at {where}", fault, result[valid])


def _failure(err: BaseException) -> _TrainingResult:
    if raised_externally(err):
        raise err
    return _TrainingResult(type(err).__name__, described(err))


def _train_batch(
    mechanism: Any, batch: TrainingBatch, seeds: Sequence[Seed]
) -> Sequence[NDArray[np.float64] | _TrainingResult]:
    if isinstance(mechanism, SampledLearner):
        return _in_bulk(mechanism, batch, seeds[0])
    if isinstance(mechanism, SummarisedLearner):
        return [
            _one_by_one(mechanism, batch, bool(world), seed) for world, seed in zip(batch.truth, seeds, strict=True)
        ]
    return _by_answers(mechanism, batch, seeds)


def _in_bulk(
    mechanism: SampledLearner, batch: TrainingBatch, seed: Seed
) -> Sequence[NDArray[np.float64] | _TrainingResult]:
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
                seed=seed.child(0 if batch.paired else int(world)).sequence(),
                compute=batch.compute,
            )
        except BaseException as err:  # user code may raise anything; the exception is the outcome of these trials
            vectors = [_failure(err)] * len(places)
        for place, vector in zip(places, vectors, strict=True):
            results[place] = vector
    return results


def _one_by_one(
    mechanism: SummarisedLearner, batch: TrainingBatch, world: bool, seed: Seed
) -> NDArray[np.float64] | _TrainingResult:
    try:
        # A copy for each training: it may modify its data.
        train = batch.worlds.world(world).writable()
        points = batch.worlds.points.copy()
        with time_limit(batch.limit_s):
            summary = mechanism.summarise(train, points, seed=seed.sequence(), compute=batch.compute)
        vector = np.asarray(summary).astype(np.float64, casting="same_kind")  # no complex numbers, no text
    except TimeLimitExceeded:
        if batch.limit_s is None:  # time limit of the whole unit
            raise
        return _TrainingResult("out of time", f"still running after {batch.limit_s:g} s, the `training_limit_s`")
    except BaseException as err:  # user code may raise anything; the exception is the outcome of the trial
        return _failure(err)
    if vector.ndim == 1:
        return vector
    return _TrainingResult(f"shape {vector.shape}", f"it returned an array of shape {vector.shape}, not a vector")


def _by_answers(
    mechanism: Any, batch: TrainingBatch, seeds: Sequence[Seed]
) -> Sequence[NDArray[np.float64] | _TrainingResult]:
    """Summarise any learner by the log-odds that its models predict at the points."""
    worlds = batch.worlds
    runs = [TrainingRun(worlds.row_numbers(bool(world)), seed) for world, seed in zip(batch.truth, seeds, strict=True)]
    models = train_runs(mechanism, worlds.rows, runs, compute=batch.compute)
    return [_answers(model, worlds.points) for model in models]


def _answers(model: Any, points: NDArray[np.float32]) -> NDArray[np.float64] | _TrainingResult:
    """Return logits or log-probabilities minus those of the last class, shape (m (K - 1),)."""
    if isinstance(model, TrainingError):
        cause = type(model.__cause__ or model).__name__
        return _TrainingResult(cause, str(model))
    try:
        if isinstance(model, LogitModel):
            scale = model.logits(points.copy()).astype(np.float64)
        else:
            scale = np.log(np.maximum(model.probabilities(points.copy()), SMALLEST_PROBABILITY))
    except BaseException as err:  # user code may raise anything
        return _failure(err)
    return np.asarray((scale[:, :-1] - scale[:, -1:]).ravel())
