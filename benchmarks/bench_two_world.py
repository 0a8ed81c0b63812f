"""Two-world audits: a thousand shadow models, the threshold sweep."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Measured, least_seconds
from dpaudit.actors.events import EventStream
from dpaudit.actors.schedule import run_units
from dpaudit.actors.seed import Seed
from dpaudit.actors.storage.store import UnitStore, encode_unit
from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.values import decode, encode
from dpaudit.actors.work import Work, unit
from dpaudit.cluster.session import ray_session
from dpaudit.engine.data.bundled import Digits
from dpaudit.engine.games.two_world.work import train_shadows
from dpaudit.engine.planning.plan import counting
from dpaudit.estimators.scores import Scores, scored
from dpaudit.estimators.two_world.confusion_tables import Bayesian, ClopperPearson, Jeffreys
from dpaudit.estimators.two_world.two_sample import Band
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.networks import Mlp

WORKERS, STACK = 2, 64
NETWORK = Mlp(epochs=20, batch_size=32, learning_rate=0.05)
MANY_SHADOWS = 1000
SCORES = 10_000


def run() -> list[Measured]:
    """Return (name, seconds, note) of each measurement."""
    with ray_session(cpus=WORKERS):
        return [*thousand_shadows(), *sweep(), *million()]


def thousand_shadows() -> list[Measured]:
    """Measure shadow models of digits with queries at every point and stored tables."""
    data = Digits(flat=True).load()
    work = Work()
    units = work.split(
        train_shadows,
        MANY_SHADOWS,
        STACK,
        NonPrivate(NETWORK),
        work.share("target:", data),
        None,
        queries=1,
        seed=Seed(0),
        label="shadow models",
        resources=Resources(),
    )
    with _pool(work.shared) as (pool, store, events):
        seconds = least_seconds(lambda: run_units(units, pool, store, events))
    title = f"{MANY_SHADOWS} shadow models of digits (64-64-64-10 MLP, 20 epochs), asked about all {len(data):,} points"
    return [(title, seconds, f"{WORKERS} workers, stacks of {STACK}, tables written (goal 180 s)")]


def sweep() -> list[Measured]:
    """Measure Ray tasks from a stored table of scores to the bounds of four methods over all thresholds."""
    rng = np.random.default_rng(0)
    estimators = [
        Band(1e-5),
        *(method(1e-5, selection="bonferroni") for method in (ClopperPearson, Jeffreys, Bayesian)),  # type: ignore[arg-type]
    ]
    with _pool({}) as (pool, store, events):
        times = []
        for attempt in range(3):
            scores = Work().add(stored_scores, attempt, label="scores", resources=Resources())
            truth = rng.random(SCORES) < 0.5
            scored_rows = scored(0, truth, rng.normal(size=SCORES) + 1.5 * truth)
            store.write(scores.key, encode_unit(scores.key, encode([scored_rows], Scores)))
            units = [counting(estimator, scores, keep_evidence=True) for estimator in estimators]

            def work(scores: Unit = scores, units: list[Unit] = units) -> None:
                run_units([scores, *units], pool, store, events)
                for estimator, unit in zip(estimators, units, strict=True):
                    estimator.bound(decode(store.read(unit.key), estimator.tally_type))

            times.append(least_seconds(work))
    return [
        (
            f"bounds of band, Clopper-Pearson, Jeffreys and Bayesian from {SCORES:,} scores, all thresholds",
            min(times[1:]),
            f"Ray running; first time {times[0]:.2g} s, with imports on the workers (goal 2 s)",
        )
    ]


def million() -> list[Measured]:
    """Measure the band's bound from a million scores in memory, with and without a cached level for their number."""
    rng = np.random.default_rng(0)
    truth = rng.random(1_000_000) < 0.5
    score, band = rng.normal(size=truth.size) + truth, Band()
    band.bound([band.tally(Scores(score[:10_000], truth[:10_000]))])  # compiles

    def work() -> None:
        band.bound([band.tally(Scores(score, truth))])

    first = least_seconds(work)
    note = f"normals 1 apart; {first:.2g} s including the band's level for this number of scores (goal 0.3 s)"
    return [("band's bound from 1,000,000 scores", least_seconds(work, 3), note)]


@unit
def stored_scores(attempt: int) -> Iterator[Scores]:
    """Return scores that the store already holds; never called."""
    raise NotImplementedError


@contextmanager
def _pool(shared: dict[str, Any]) -> Iterator[tuple[Any, UnitStore, EventStream]]:
    """Yield a pool of running workers, a store and an event stream."""
    from dpaudit.actors.pool import RayPool

    events = EventStream()
    with tempfile.TemporaryDirectory() as folder:
        pool = RayPool(shared, demand={Resources(): MANY_SHADOWS}, workers=WORKERS, events=events)
        pool.wait()  # until a worker is up
        yield pool, UnitStore(Path(folder)), events
        pool.close()
