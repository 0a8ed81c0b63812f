"""The budget of a check, and the duration of a call or a training, which is measured before the check is planned."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.actors.audited.signals import TimeLimitExceeded, raised_externally, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.claims import Relation
from dpaudit.engine.games.functions.neighbouring_tables import pairs
from dpaudit.engine.games.outcomes import MIN_FAILED_BATCH
from dpaudit.errors import SpecError, require
from dpaudit.field_checks import check_fields
from dpaudit.mechanisms.adapters.other_python.calls import OUT_OF_TIME
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.predictors.protocol import AnsweringPredictor, VotingPredictor
from dpaudit.mechanisms.predictors.transport import HttpService
from dpaudit.mechanisms.protocols import Learner, StackLearner, SummarisedLearner
from dpaudit.mechanisms.queries.row_function import CallLimits, RowFunction, TableGenerator, TableRows

TIMED_TRAININGS = 16
"""Number of trainings that are timed together if a training is fast."""
MAX_PREDICTOR_ROWS = 2_000
"""Maximum rows from which data for timing a predictor are made."""
CALL_LIMIT_S = 600.0
"""Time limit of a call that fits a generator of tables."""
FIRST_CALL_S, CALLS_IN_BUDGET = 30.0, 100
"""Time limit of a call of a function, which may load libraries, or this part of a longer budget."""
TIMING_S = 2.0
"""Seconds of timing that are enough."""
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """Limits of a check.

    Attributes:
        seconds: Seconds after which no unit starts, > 0. None has no limit.
        trainings: Trainings of all tests together, >= 0. Half of them are reserved for one confirmatory run. None has
            no limit.
    """

    seconds: float | None = None
    trainings: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.seconds is None or self.seconds > 0, "a budget must be > 0 seconds", seconds=self.seconds)
        require(self.trainings is None or self.trainings >= 0, "trainings must be >= 0", trainings=self.trainings)

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a budget: "90s", "10m", "1h", "200 trainings", or "1h, 500 trainings"."""
        seconds, trainings = None, None
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|trainings?)\s*", part)
            require(match is not None, "a budget must be like 90s, 10m, 1h or 200 trainings", budget=text)
            assert match is not None
            number, unit = float(match[1]), match[2]
            if unit in _SECONDS:
                seconds = number * _SECONDS[unit]
            else:
                require(math.isfinite(number), "a budget must be finite", budget=text)
                trainings = int(number)
        return cls(seconds, trainings)


def call_cost(
    mechanism: RowFunction,
    rows: TableRows,
    relation: Relation,
    person: str = "",
    group: int | None = None,
    budget_s: float | None = None,
) -> tuple[float, int]:
    """Return the wall-clock seconds of a call once libraries are loaded, and the count of numbers in its result.

    The slowest table counts, since slow inputs often leak.

    Raises: SpecError for a function that fails in the same way on all tables, or whose first call does not end in time.
    """
    calls_in_budget = 1 if isinstance(mechanism, TableGenerator) else CALLS_IN_BUDGET
    limit_s = min(CALL_LIMIT_S, max(FIRST_CALL_S, (budget_s or 0.0) / calls_in_budget))
    settings, limits = mechanism.alternatives()[0], CallLimits(limit_s, 1, time_limit, raised_externally)
    rng = np.random.default_rng(0)
    neighbours = pairs(rows.schema, rows.cells, relation, rng, person=person, group=group, beyond=False)
    tables = [rows.cells, *(table for pair in neighbours for table in (pair.d, pair.d_prime))]

    outcomes: list[tuple[str, str, bytes]] = []
    result_sizes = [1]

    def timed(table: pa.Table, calls: int) -> float:
        started = time.monotonic()
        first = mechanism.outcomes(table, range(calls), settings, limits)[0]
        outcomes.append((first.fault, first.ending, first.numbers.tobytes()))
        result_sizes.append(first.numbers.size)
        return (time.monotonic() - started) / calls

    if mechanism.outcomes(rows.cells, [0], settings, limits)[0].ending == OUT_OF_TIME:
        raise SpecError(
            f"a call must end within {limit_s:g} s under this budget. The first call, on {len(rows)} rows of the data, "
            "did not. Look for an endless loop or a lock, or give a larger `budget`"
        )
    durations, began = list[tuple[float, int]](), time.monotonic()
    while len(outcomes) < len(tables) and time.monotonic() - began < TIMING_S:
        place = len(outcomes)
        seconds = timed(tables[place], 1)
        if outcomes[-1][1] != OUT_OF_TIME:  # such a table shows in the search
            durations.append((seconds, place))
    if len(outcomes) >= MIN_FAILED_BATCH and outcomes[0][0] and len(set(outcomes)) == 1:
        raise SpecError(
            f"a function must run on rows of its schema ({', '.join(rows.cells.column_names)}). It failed on all "
            f"{len(outcomes)} tables: {outcomes[0][0]}. Ranges arrive as numbers, dates too, and other values as words"
        )
    seconds, slowest = max(durations, default=(limit_s, 0))
    if seconds > TIMING_S:  # one of them was enough
        return seconds, max(result_sizes)
    return timed(tables[slowest], max(1, min(100, int(TIMING_S / 2 / max(seconds, 1e-4))))), max(result_sizes)


def training_seconds(mechanism: Any, target: Any) -> float | None:
    """Return the wall-clock seconds of a training once libraries are loaded; None if training fails.

    Fast trainings are timed in batches. A predictor that does not answer in time counts with its time limit.

    Args:
        mechanism: A learner, or a predictor that trains.
        target: Rows to train on.
    """

    def timed(run: Callable[[int], object], count: int) -> float:
        started = time.monotonic()
        run(count)
        return (time.monotonic() - started) / count

    try:
        run = _training_function(mechanism, target.writable() if hasattr(target, "writable") else target)
        if run is None:
            return None
        with time_limit(CALL_LIMIT_S if isinstance(mechanism, AnsweringPredictor) else None):
            timed(run, 1)
        alone = timed(run, 1)
        return alone if alone > TIMING_S / TIMED_TRAININGS else timed(run, TIMED_TRAININGS)
    except TimeLimitExceeded:
        return CALL_LIMIT_S
    except Exception:  # audited code may raise anything, and its error is reported when the audit runs
        return None


def _training_function(mechanism: Any, target: Any) -> Callable[[int], object] | None:
    """Return a function that trains `count` times as games do; None for an unknown kind of mechanism."""
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
        if isinstance(mechanism, HttpService):  # receives the whole target
            return lambda count: [mechanism.answers(target, few, seed=seed, compute=compute) for _ in range(count)]
        return _prediction_function(mechanism, target, compute)
    return None


def _prediction_function(mechanism: AnsweringPredictor, target: Any, compute: Compute) -> Callable[[int], object]:
    """Return a function that runs a predictor on small crafted data, medium sizes first.

    Failed runs do not count.
    """
    from dpaudit.engine.games.predictions.crafted_pairs import crafted_pairs

    rows = target.take(np.arange(min(len(target), MAX_PREDICTOR_ROWS)))
    crafted = [pair for answers in (1, 2) for pair in crafted_pairs(mechanism, rows, rows, answers, replaced=False)]
    crafted.sort(key=lambda pair: len(pair.added) * len(pair.asked))
    middle = np.argsort(np.abs(np.linspace(-1, 1, TIMED_TRAININGS)), kind="stable")
    spread = [crafted[place] for place in np.linspace(0, len(crafted) - 1, TIMED_TRAININGS).astype(int)[middle]]

    def run(count: int) -> None:
        completed = 0
        for pair in spread:
            try:
                mechanism.answers(pair.added, pair.asked.features, seed=np.random.SeedSequence(0), compute=compute)
            except BaseException as err:  # user code may raise anything on few records
                if raised_externally(err):
                    raise
                continue
            completed += 1
            if completed == count:
                return
        require(completed > 0, "a predictor must answer on some crafted data", runs=len(spread))

    return run
