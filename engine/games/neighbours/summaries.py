"""Trainings on two neighbouring data sets, summarised as vectors: in bulk, one by one, or by predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds
from dpaudit.engine.games.outcomes import Outcomes, checked, failure, result_of
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.protocols import LogitModel, SampledLearner, SummarisedLearner
from dpaudit.mechanisms.queries.outcome import CallOutcome

SMALLEST_PROBABILITY = 1e-45


@unit
def sample_summaries(
    mechanism: Any, worlds: Worlds, limit_s: float | None, compute: Compute, *, first: int, last: int, seed: Seed
) -> Outcome[Outcomes]:
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


def sample_batch(mechanism: Any, batch: TrainingBatch) -> Outcome[Outcomes]:
    """Run the trainings and return their summaries.

    Raises: TrainingError if the code does not run at all.
    """
    count = len(batch.truth)
    seeds = batch.seeds(mechanism)
    names = [f"trial {batch.first + place} (seed {seed})" for place, seed in enumerate(seeds)]
    results = _train_batch(mechanism, batch, seeds)
    samples = Outcomes.of(
        results, batch.truth, number=np.arange(batch.first, batch.first + count), name=names, dtype=np.float32
    )
    samples.require_some_success()
    return Outcome(samples, failures=samples.failures)


def _train_batch(mechanism: Any, batch: TrainingBatch, seeds: Sequence[Seed]) -> Sequence[CallOutcome]:
    if isinstance(mechanism, SampledLearner):
        return _in_bulk(mechanism, batch, seeds[0])
    if isinstance(mechanism, SummarisedLearner):
        return [
            _one_by_one(mechanism, batch, bool(world), seed) for world, seed in zip(batch.truth, seeds, strict=True)
        ]
    return _by_answers(mechanism, batch, seeds)


def _in_bulk(mechanism: SampledLearner, batch: TrainingBatch, seed: Seed) -> Sequence[CallOutcome]:
    results: list[CallOutcome] = [CallOutcome("nothing", np.empty(0))] * len(batch.truth)
    for world in (False, True):
        places = np.flatnonzero(batch.truth == world)
        if not len(places):
            continue
        try:
            vectors = mechanism.sample_summaries(
                batch.worlds.world(world),
                batch.worlds.points,
                len(places),
                seed=seed.child(0 if batch.paired else int(world)).sequence(),
                compute=batch.compute,
            )
            of_world = [checked(vector) for vector in vectors]
        except BaseException as err:  # user code may raise anything; the exception is the outcome of these trials
            of_world = [failure(err)] * len(places)
        for place, result in zip(places, of_world, strict=True):
            results[place] = result
    return results


def _one_by_one(mechanism: SummarisedLearner, batch: TrainingBatch, world: bool, seed: Seed) -> CallOutcome:
    def summary() -> Any:
        # A copy for each training: it may modify its data.
        train, points = batch.worlds.world(world).writable(), batch.worlds.points.copy()
        return mechanism.summarise(train, points, seed=seed.sequence(), compute=batch.compute)

    return result_of(summary, batch.limit_s)


def _by_answers(mechanism: Any, batch: TrainingBatch, seeds: Sequence[Seed]) -> Sequence[CallOutcome]:
    """Summarise any learner by the log-odds that its models predict at the points."""
    worlds = batch.worlds
    runs = [TrainingRun(worlds.row_numbers(bool(world)), seed) for world, seed in zip(batch.truth, seeds, strict=True)]
    models = train_runs(mechanism, worlds.rows, runs, compute=batch.compute)
    return [_answers(model, worlds.points) for model in models]


def _answers(model: Any, points: NDArray[np.float32]) -> CallOutcome:
    """Return logits or log-probabilities minus those of the last class, shape (m (K - 1),)."""
    if isinstance(model, TrainingError):
        return CallOutcome(type(model.__cause__ or model).__name__, np.empty(0), str(model))

    def scale() -> Any:
        if isinstance(model, LogitModel):
            values = model.logits(points.copy()).astype(np.float64)
        else:
            values = np.log(np.maximum(model.probabilities(points.copy()), SMALLEST_PROBABILITY))
        return (values[:, :-1] - values[:, -1:]).ravel()

    return result_of(scale)
