"""Calls of a function on one of two tables, as samples that an attack learns from and is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from dpaudit.actors.audited.signals import from_outside, time_limit
from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, unit
from dpaudit.engine.games.neighbours.summaries import HOPELESS, LARGEST, Samples
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.queries.outcome import CallOutcome
from dpaudit.mechanisms.queries.row_function import CallLimits


@dataclass(frozen=True, eq=False)
class Tables:
    """Two neighbouring tables, and the settings that the function is called with on either."""

    name: str  # of the pair, and of the settings where there are several
    d: pa.Table
    d_prime: pa.Table
    settings: int  # place among the function's alternatives


@unit
def call_on_tables(
    mechanism: Any,
    tables: Tables,
    limit_s: float | None,
    compute: Compute,
    *,
    first: int,
    last: int,
    seed: Seed,
) -> Outcome[Samples]:
    """Calls `first` to `last` - 1, each on D or D' by its own coin.

    Raises: TrainingError when the function does not run at all.
    """
    own = seed.child(first)
    truth = own.rng().random(last - first) < 0.5
    outcome = called(mechanism, tables, truth, seeds_of(own.child("calls"), last - first), first, limit_s, compute)
    samples, failures = outcome.value, outcome.failures
    alike = len(np.unique(samples.ending)) == 1 and not np.ptp(samples.numbers.reshape(len(truth), -1), axis=0).any()
    if len(failures) == len(truth) >= HOPELESS and alike and len(np.unique(truth)) == 2:
        raise TrainingError(f"all {len(truth)} calls failed in one way; the first: {failures[0]}")
    return outcome


def called(
    mechanism: Any,
    tables: Tables,
    truth: NDArray[np.bool_],
    seeds: NDArray[np.int64],
    first: int,
    limit_s: float | None,
    compute: Compute,
) -> Outcome[Samples]:
    """What calls gave, one for each coin and seed."""
    settings = mechanism.alternatives()[tables.settings]
    limits = CallLimits(limit_s, compute.threads, time_limit, from_outside)
    left: list[CallOutcome] = [CallOutcome("", np.empty(0))] * len(truth)
    with threadpool_limits(compute.threads):
        for world, table in ((False, tables.d), (True, tables.d_prime)):
            places = np.flatnonzero(truth == world)
            given = mechanism.outcomes(table, seeds[places].tolist(), settings, limits)
            for place, outcome in zip(places.tolist(), given, strict=True):
                left[place] = outcome
    names = [f"call {first + place} (seed {seed})" for place, seed in enumerate(seeds.tolist())]
    failures = tuple(f"{name}: {one.fault}" for name, one in zip(names, left, strict=True) if one.fault)
    kept = [np.clip(one.numbers, -LARGEST, LARGEST) for one in left]
    samples = Samples(
        number=np.arange(first, first + len(truth)),
        truth=truth,
        ending=np.array([one.ending for one in left], np.str_),
        width=np.array([len(one) for one in kept], np.int64),
        numbers=np.concatenate([np.empty(0), *kept]).astype(np.float32),
        name=np.array(names, np.str_),
    )
    return Outcome(samples, failures=failures)


def seeds_of(seed: Seed, count: int) -> NDArray[np.int64]:
    """A whole number below 2^31 for each call."""
    return seed.rng().integers(0, 2**31, count)
