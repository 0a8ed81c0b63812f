"""How long a call of a function or a training takes, measured once before a check is planned."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.actors.audited.signals import raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.claims import Relation
from dpaudit.engine.games.functions.neighbouring_tables import pairs
from dpaudit.engine.games.neighbours.summaries import MIN_FAILED_BATCH
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.language_models.transport import HttpService
from dpaudit.mechanisms.predictors.protocol import AnsweringPredictor, VotingPredictor
from dpaudit.mechanisms.protocols import Learner, StackLearner, SummarisedLearner
from dpaudit.mechanisms.queries.row_function import CallLimits, RowFunction, TableRows

TIMED_TRAININGS = 16
"""Trainings that are timed together where one is quick."""
MAX_PREDICTOR_ROWS = 2_000
"""Rows that data for a predictor are made from, where it is timed."""
CALL_LIMIT_S = 60.0
"""How long a call may take that is timed, or loads a library first."""
TIMING_S = 2.0
"""After which calls have been timed well enough."""


def call_cost(mechanism: RowFunction, rows: TableRows, relation: Relation) -> tuple[float, int]:
    """Return the wall-clock seconds of a call once everything is loaded, and how many numbers of its result are kept.

    The slowest of the tables is timed, since slow inputs are often those that leak.

    Raises: SpecError for a function that fails on all tables in the same way.
    """
    settings, limits = mechanism.alternatives()[0], CallLimits(CALL_LIMIT_S, 1, time_limit, raised_externally)
    neighbours = pairs(rows.schema, rows.cells, relation, np.random.default_rng(0), beyond=False)
    tables = [rows.cells, *(table for pair in neighbours for table in (pair.d, pair.d_prime))]

    outcomes: list[tuple[str, str, bytes]] = []
    result_sizes = [1]

    def timed(table: pa.Table, calls: int) -> float:
        begun = time.monotonic()
        first = mechanism.outcomes(table, range(calls), settings, limits)[0]
        outcomes.append((first.fault, first.ending, first.numbers.tobytes()))
        result_sizes.append(first.numbers.size)
        return (time.monotonic() - begun) / calls

    mechanism.outcomes(rows.cells, [0], settings, limits)
    durations: list[tuple[float, int]] = []
    while len(durations) < len(tables) and sum(seconds for seconds, _ in durations) < TIMING_S:
        durations.append((timed(tables[len(durations)], 1), len(durations)))
    if len(outcomes) >= MIN_FAILED_BATCH and outcomes[0][0] and len(set(outcomes)) == 1:
        raise SpecError(
            f"a function must run on rows of its schema ({', '.join(rows.cells.column_names)}); on each of "
            f"{len(outcomes)} tables it failed alike: {outcomes[0][0]}"
        )
    seconds, slowest = max(durations)
    return timed(tables[slowest], max(1, min(100, int(TIMING_S / 2 / max(seconds, 1e-4))))), max(result_sizes)


def training_seconds(mechanism: Any, target: Any) -> float | None:
    """Return the wall-clock seconds of a training once everything is loaded; None if no training ends.

    Quick trainings are timed several at a time.

    Args:
        mechanism: A learner, or a predictor that trains.
        target: The rows that it is trained on.
    """

    def timed(run: Callable[[int], object], count: int) -> float:
        begun = time.monotonic()
        run(count)
        return (time.monotonic() - begun) / count

    try:
        run = _training_function(mechanism, target.writable() if hasattr(target, "writable") else target)
        if run is None:
            return None
        timed(run, 1)
        alone = timed(run, 1)
        return alone if alone > TIMING_S / TIMED_TRAININGS else timed(run, TIMED_TRAININGS)
    except Exception:  # audited code may raise anything; it raises again, and is reported, when it is played
        return None


def _training_function(mechanism: Any, target: Any) -> Callable[[int], object] | None:
    """Return a function that trains `count` times as games do; None if the mechanism is of an unknown kind."""
    seed, compute = np.random.SeedSequence(0), Compute()
    few = target.features[:8]
    if isinstance(mechanism, Learner | StackLearner):
        from dpaudit.engine.games.trials import TrainingRun, train_runs

        every = np.arange(len(target))
        return lambda count: train_runs(
            mechanism, target, [TrainingRun(every, Seed(0).child(number)) for number in range(count)], compute=compute
        )
    if isinstance(mechanism, SummarisedLearner):
        return lambda count: [mechanism.summarise(target, few, seed=seed, compute=compute) for _ in range(count)]
    if isinstance(mechanism, VotingPredictor):
        return lambda count: [mechanism.votes(target, few, seed=seed, compute=compute) for _ in range(count)]
    if isinstance(mechanism, AnsweringPredictor):
        if isinstance(mechanism, HttpService):  # is asked about all of the target
            return lambda count: [mechanism.answers(target, few, seed=seed, compute=compute) for _ in range(count)]
        return _prediction_function(mechanism, target, compute)
    return None


def _prediction_function(mechanism: AnsweringPredictor, target: Any, compute: Compute) -> Callable[[int], object]:
    """Return a function that runs a predictor on the small data that games craft, middle sizes first.

    Runs that raise do not count.
    """
    from dpaudit.engine.games.predictions.crafted_queries import pairs as made_for

    rows = target.take(np.arange(min(len(target), MAX_PREDICTOR_ROWS)))
    crafted = [pair for answers in (1, 2) for pair in made_for(mechanism, rows, rows, answers, replaced=False)]
    crafted.sort(key=lambda pair: len(pair.added) * len(pair.asked))
    middle = np.argsort(np.abs(np.linspace(-1, 1, TIMED_TRAININGS)), kind="stable")
    spread = [crafted[place] for place in np.linspace(0, len(crafted) - 1, TIMED_TRAININGS).astype(int)[middle]]

    def run(count: int) -> None:
        completed = 0
        for pair in spread:
            try:
                mechanism.answers(pair.added, pair.asked.features, seed=np.random.SeedSequence(0), compute=compute)
            except BaseException as err:  # somebody's code may raise anything where records are few
                if raised_externally(err):
                    raise
                continue
            completed += 1
            if completed == count:
                return
        require(completed > 0, "a predictor must answer on some data", runs=len(spread))

    return run
