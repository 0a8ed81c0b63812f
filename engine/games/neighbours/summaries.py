"""Trainings on two neighbouring data sets, summarised as vectors: in bulk, one by one, or by predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds
from dpaudit.engine.games.outcomes import Outcomes, Runs, checked, failure, result_of
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.mechanisms.compute import TrainingError
from dpaudit.mechanisms.protocols import LogitModel, SampledLearner, SummarisedLearner
from dpaudit.mechanisms.queries.row_function import CallOutcome

SMALLEST_PROBABILITY = 1e-45


def summarised(mechanism: Any, worlds: Worlds, runs: Runs) -> Outcomes:
    """Train once for each coin, on D or D', and return the summaries."""
    if isinstance(mechanism, SampledLearner):
        return _in_bulk(mechanism, worlds, runs)
    if not isinstance(mechanism, SummarisedLearner):
        return _by_answers(mechanism, worlds, runs)

    def summary(world: bool, seed: Seed) -> Any:
        # A copy for each training: it may modify its data.
        train, points = worlds.world(world).writable(), worlds.points.copy()
        return mechanism.summarise(train, points, seed=seed.sequence(), compute=runs.compute)

    return runs.each(summary, dtype=np.float32)


def _in_bulk(mechanism: SampledLearner, worlds: Worlds, runs: Runs) -> Outcomes:
    """Sample the summaries of each world together, from one seed; in paired runs, both worlds share it."""
    results: list[CallOutcome] = [CallOutcome("nothing", np.empty(0))] * len(runs.truth)
    seed = runs.seed.child(int(runs.number[0]))
    for world in (False, True):
        places, data = np.flatnonzero(runs.truth == world), worlds.world(world)
        if not len(places):
            continue
        of_seed = seed.child(0 if runs.paired else int(world)).sequence()
        try:
            vectors = mechanism.sample_summaries(data, worlds.points, len(places), seed=of_seed, compute=runs.compute)
            of_world = [checked(vector) for vector in vectors]
        except BaseException as err:  # user code may raise anything; the exception is the outcome of these trials
            of_world = [failure(err)] * len(places)
        for place, result in zip(places, of_world, strict=True):
            results[place] = result
    return runs.gave(results, dtype=np.float32)


def _by_answers(mechanism: Any, worlds: Worlds, runs: Runs) -> Outcomes:
    """Summarise any learner by the log-odds that its models predict at the points."""
    pairs = zip(runs.truth.tolist(), runs.seeds(), strict=True)
    trainings = [TrainingRun(worlds.row_numbers(world), seed) for world, seed in pairs]
    models = train_runs(mechanism, worlds.rows, trainings, compute=runs.compute)
    return runs.gave([_answers(model, worlds) for model in models], dtype=np.float32)


def _answers(model: Any, worlds: Worlds) -> CallOutcome:
    """Return logits or log-probabilities minus those of the last class, shape (m (K - 1),)."""
    if isinstance(model, TrainingError):
        return CallOutcome(type(model.__cause__ or model).__name__, np.empty(0), str(model))

    def scale() -> Any:
        if isinstance(model, LogitModel):
            values = model.logits(worlds.points.copy()).astype(np.float64)
        else:
            values = np.log(np.maximum(model.probabilities(worlds.points.copy()), SMALLEST_PROBABILITY))
        return (values[:, :-1] - values[:, -1:]).ravel()

    return result_of(scale)
