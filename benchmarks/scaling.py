"""Scaling of a run: a discrete-event model of the driver and its workers, with measured costs as input.

    python -m benchmarks.scaling                           # measure, compare with 1 to 32 real workers, print
    python -m benchmarks.scaling --draw docs/developers/scaling.png --rows    # also draw and write docs/data

In the model, one driver gives each worker two parcels of units and records results sequentially. In each round it asks
Ray for finished parcels, whose cost grows with the workers, then records and replaces each; with many workers it pauses
before. Workers run units in sequence. An attempt fails with a stated probability and is retried. Workers die at a
stated rate: their unit restarts, and their place is empty until a new worker is up. The model omits network bandwidth,
slow storage, and Ray's servers at many nodes.

Steady state starts when the last worker begins its second unit, because the first unit loads libraries. It ends when
the first worker ends its last unit. The time before and after is reported separately.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpaudit.actors.pool import FETCH_S, MANY_WORKERS, PARCEL_S, PARCELS_A_SECOND, PARCELS_PER_WORKER
from dpaudit.actors.unit import Inputs
from dpaudit.mechanisms.compute import Compute
from tools.rows import DATA, Row, measured_here, note_origin, setting, write

ACTORS = tuple(2**power for power in range(13))
REAL = (1, 2, 4, 8, 16, 32)
UNIT_S = (0.5, 2.0, 10.0)
SPREAD = 0.3
"""Standard deviation of the logarithm of a unit's duration; stacks of one size differ by less."""
FAILING, DYING = 0.002, 1 / 86_400
"""Share of attempts that fail, and rate of deaths of a worker per second: one a day."""
DETECTED_S, STARTED_S = 15.0, 10.0
"""Seconds until Ray detects a dead node (measured: 14.4 s), and until a new worker is up."""
TRAVEL_S = 0.003
"""Round trip between driver and worker in seconds, measured on one machine."""
UNITS_AN_ACTOR = 200
REAL_UNITS, REAL_S = 40, 0.5
"""Units of each real worker, and the sleep of a unit in seconds."""


@dataclass(frozen=True)
class Overheads:
    """Processor seconds of the driver; costs that grow with the workers are (a, b) of a + b x workers.

    Attributes:
        asking: Cost of a round's question for finished parcels.
        parcel: Cost of a parcel: sending and fetching.
        unit: Cost of a unit: scheduling, events, recording.
        worker: Cost of a unit in a worker beyond its work: arguments, handling of the attempt, its file.
    """

    asking: tuple[float, float]
    parcel: tuple[float, float]
    unit: float
    worker: float


@dataclass(frozen=True)
class Simulated:
    """Result of a simulated run.

    Attributes:
        efficiency: Seconds of successful units, over workers times the length of the run.
        driver: Share of the time in which the driver worked.
        steady: Share of the steady state that workers spent in units.
    """

    efficiency: float
    driver: float
    steady: float


def simulate(
    workers: int,
    units: int,
    seconds: Callable[[np.random.Generator], float],
    overheads: Overheads,
    *,
    seed: int = 0,
    failing: float = FAILING,
    dying: float = DYING,
    parcel_s: float | None = None,
) -> Simulated:
    """Simulate one run of the model.

    Args:
        workers: Number of workers.
        units: Number of units, all ready at the start.
        seconds: Sampler of a unit's duration.
        overheads: Costs of the driver and of a worker.
        seed: Seed of the durations and faults.
        failing: Probability that an attempt fails.
        dying: Deaths of a worker per second; each is half-way through a unit.
        parcel_s: Target duration of a parcel; the default is the pool's. 0 sends units one by one.
    """
    rng = np.random.default_rng(seed)
    asking = overheads.asking[0] + overheads.asking[1] * workers
    a_parcel = overheads.parcel[0] + overheads.parcel[1] * workers
    waiting = deque(seconds(rng) for _ in range(units))
    takes = float(np.median(waiting)) + overheads.worker
    fill_s = max(PARCEL_S, workers / PARCELS_A_SECOND) if parcel_s is None else parcel_s
    queues: list[deque[list[float]]] = [deque() for _ in range(workers)]
    busy: list[list[tuple[float, float]]] = [[] for _ in range(workers)]  # start and end of units
    free_at = [0.0] * workers  # end of a worker's current parcel
    running: list[tuple[list[float], list[float]] | None] = [
        None
    ] * workers  # finished and unfinished units of the parcel
    events: list[tuple[float, int, int, str]] = []  # time at the driver, number, worker, kind
    number = itertools.count()
    now = useful = at_work = 0.0
    remaining, timed, fetched = units, False, 0.0

    def begin(worker: int, at: float) -> None:
        if running[worker] is not None or not queues[worker]:
            return
        parcel, at = queues[worker].popleft(), max(at, free_at[worker])
        finished, unfinished = list[float](), list[float]()
        for place, duration in enumerate(parcel):
            fate = rng.random()
            if fate < dying * duration:
                running[worker] = finished, [*unfinished, *parcel[place:]]
                heapq.heappush(events, (at + duration / 2 + DETECTED_S, next(number), worker, "dead"))
                return
            (unfinished if fate < dying * duration + failing else finished).append(duration)
            busy[worker].append((at, at + duration))
            at += duration + overheads.worker
        running[worker], free_at[worker] = (finished, unfinished), at
        heapq.heappush(events, (at + TRAVEL_S / 2, next(number), worker, "back"))

    def give(worker: int, places: int = PARCELS_PER_WORKER) -> None:
        nonlocal now, at_work
        while waiting and len(queues[worker]) + (running[worker] is not None) < places:
            share = len(waiting) // (PARCELS_PER_WORKER * workers)
            fill = min(int(fill_s / max(takes, 1e-9)), share) if timed else 1
            parcel = [waiting.popleft() for _ in range(min(max(1, fill), len(waiting)))]
            spent = a_parcel / 2 + overheads.unit / 2 * len(parcel)
            now, at_work = now + spent, at_work + spent
            queues[worker].append(parcel)
            begin(worker, now + TRAVEL_S / 2)

    def give_all() -> None:
        for places in range(1, PARCELS_PER_WORKER + 1):
            for worker in range(workers):
                give(worker, places)

    give_all()
    while remaining:
        now = max(now, events[0][0]) + asking
        at_work += asking
        if workers > MANY_WORKERS:
            now = fetched = max(now, fetched + FETCH_S)
        first = not timed
        due = []
        while events and events[0][0] <= now:
            due.append(heapq.heappop(events))
        for at, _, worker, what in due:
            finished, unfinished = running[worker] or ([], [])
            running[worker] = None
            if what == "up":
                give(worker)
                continue
            spent = a_parcel / 2 + overheads.unit / 2 * (len(finished) + len(unfinished))
            now, at_work, timed = now + spent, at_work + spent, timed or bool(finished)
            useful += sum(finished)
            remaining -= len(finished)
            waiting.extendleft(unfinished)
            if what == "dead":
                for parcel in queues[worker]:
                    waiting.extendleft(parcel)
                queues[worker].clear()
                running[worker] = [], []  # idle until a new worker is up
                heapq.heappush(events, (now + STARTED_S, next(number), worker, "up"))
                continue
            begin(worker, at - TRAVEL_S / 2)  # its waiting parcel began at once
            give(worker)
        if first:
            give_all()
    return Simulated(useful / (workers * now), at_work / now, steady_state(busy)[0])


def steady_state(busy: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float, float]:
    """Return the share of the steady state that workers spent in units, and its start and end.

    It starts when each worker has begun its second unit, because the first unit loads libraries.
    """
    ran = [each for each in busy if len(each) > 1]
    first = max((each[1][0] for each in ran), default=math.nan)
    last = min((each[-1][1] for each in ran), default=math.nan)
    inside = sum(max(0.0, min(end, last) - max(began, first)) for each in ran for began, end in each)
    return (inside / (len(busy) * (last - first)) if last > first else math.nan), first, last


def durations(mean: float) -> Callable[[np.random.Generator], float]:
    """Return a sampler of log-normal durations with this mean."""
    return lambda rng: float(rng.lognormal(math.log(mean) - SPREAD**2 / 2, SPREAD))


@dataclass(frozen=True)
class Clocked:
    """Task that sleeps and reports its process and times."""

    number: int
    seconds: float

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Return one row."""
        began = time.time()
        time.sleep(self.seconds)
        return pa.table({"process": [os.getpid()], "began": [began], "ended": [time.time()]})


@dataclass(frozen=True)
class Real:
    """Result of a run of real workers that sleep.

    Attributes:
        workers: Number of workers.
        started_s: Seconds until all workers are up.
        first_s: Seconds from then until each has begun its second unit; the first unit loads libraries.
        tail_s: Seconds from the first worker's last unit until all results are recorded.
        steady: Share of the steady state that workers spent in units.
        beside_s: Median seconds between two units of a worker.
        unit_s: Mean seconds of a unit.
        cpu_s: Processor seconds of the driver after all workers are up.
        units: Number of units.
        load: Load of the machine at the end.
    """

    workers: int
    started_s: float
    first_s: float
    tail_s: float
    steady: float
    beside_s: float
    unit_s: float
    cpu_s: float
    units: int
    load: float


def real_run(workers: int, units: int, seconds: float, parcel_s: float = PARCEL_S) -> Real:
    """Run units on the current Ray session and measure them."""
    from dpaudit.actors import pool as pools
    from dpaudit.actors.events import EventStream
    from dpaudit.actors.fingerprint import read_once
    from dpaudit.actors.schedule import run_units
    from dpaudit.actors.storage.store import UnitStore
    from dpaudit.actors.unit import Resources, Unit

    with read_once():
        work = [Unit(Clocked(number, seconds), f"unit {number}") for number in range(units)]
    start, usual = time.time(), (pools.PARCEL_S, pools.PARCELS_A_SECOND)
    with tempfile.TemporaryDirectory() as folder:
        store, events = UnitStore(folder), EventStream()
        pool = pools.RayPool({}, demand={Resources(): units}, workers=workers, events=events, store=store)
        pools.PARCEL_S, pools.PARCELS_A_SECOND = parcel_s, max(usual[1], 0 if parcel_s else 10**9)
        try:
            while sum(slot.ready for slot in pool._slots) < workers:
                pool.wait()
            up, cpu = time.time(), time.process_time()
            run_units(work, pool, store, events)
            over, cpu = time.time(), time.process_time() - cpu
        finally:
            pools.PARCEL_S, pools.PARCELS_A_SECOND = usual
            pool.close()
        rows = pa.concat_tables([store.read(unit.key) for unit in work]).to_pylist()
    busy: dict[int, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row["began"]):
        busy.setdefault(row["process"], []).append((row["began"], row["ended"]))
    steady, first, last = steady_state(list(busy.values()))
    gaps = [later - end for each in busy.values() for (_, end), (later, _) in itertools.pairwise(each)]
    slept = float(np.mean([row["ended"] - row["began"] for row in rows]))
    return Real(
        workers,
        up - start,
        first - up,
        over - last,
        steady,
        float(np.median(gaps)),
        slept,
        cpu,
        units,
        os.getloadavg()[0],
    )


def costs() -> Overheads:
    """Measure the driver's costs with two workers: empty units, one by one and in parcels."""
    real_run(2, 300, 0.0)  # loads and compiles
    single, many = (real_run(2, count, 0.0, seconds) for count, seconds in ((600, 0.0), (6000, PARCEL_S)))
    unit = many.cpu_s / many.units
    low, high = (_costs_of_lists(workers) for workers in (64, 1024))
    per_worker = [max(0.0, (more - less) / (1024 - 64)) for less, more in zip(low, high, strict=True)]
    asking = max(0.0, low[0] - 64 * per_worker[0]), per_worker[0]
    parcel = max(0.0, single.cpu_s / single.units - unit - asking[0])
    return Overheads(asking, (parcel, per_worker[1]), unit, many.beside_s)


def _costs_of_lists(workers: int) -> tuple[float, float]:
    """Return the processor seconds to query the running parcels, and to choose the worker for a new one."""
    import ray

    from dpaudit.actors.pool import RayPool, _WorkerSlot
    from dpaudit.actors.unit import Resources

    @ray.remote(num_cpus=1, max_concurrency=1)  # type: ignore[untyped-decorator]
    class Sleeper:
        def sleep(self, seconds: float) -> None:
            time.sleep(seconds)

    actor = Sleeper.remote()
    first, *references = [actor.sleep.remote(0.0 if not number else 1e6) for number in range(workers)]
    ray.get(first)
    pool = RayPool.__new__(RayPool)
    slots = [_WorkerSlot(Resources(), None, 0.0, ready=True, parcels=deque([None])) for _ in range(workers)]
    pool._slots = dict.fromkeys(slots)
    pool._running, pool._starting, pool._last_fetch = dict.fromkeys([first, *references]), {}, 0.0
    asking = _cpu(pool._ready_references)

    def give() -> None:
        assert len(pool._workers_for(Resources())) == workers

    giving = _cpu(give)
    ray.kill(actor)
    return asking, giving


def _cpu(work: Callable[[], Any], times: int = 20) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


@contextmanager
def session(workers: int) -> Iterator[None]:
    """Start Ray with `workers` CPUs, independent of the machine: sleeping units need no processor."""
    from dpaudit.cluster.session import ray_session

    with ray_session(cpus=workers):
        yield


def main() -> None:
    """Measure, simulate, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--rows", action="store_true", help="writes docs/data/scaling*.csv")
    parser.add_argument("--real", type=int, nargs="*", default=REAL, help="how many real workers, each time")
    options = parser.parse_args()
    with session(max(2, *options.real, 2)):
        overheads = costs()
        print(f"overheads: {overheads}", flush=True)
        pairs = [(run, predicted(run, overheads)) for run in map(_printed_run, options.real)]
    compared = compared_rows(pairs)
    curves = curves_of(overheads)
    model = model_rows(curves)
    for row in (*compared, *model):
        print(f"{row.setting}: {row.what}: {row.value}", flush=True)
    if options.rows:
        files = {
            "scaling.csv": model,
            "scaling-confirmed.csv": compared,
            "scaling-inputs.csv": input_rows(overheads),
        }
        for name, rows in files.items():
            write(DATA / name, rows)
            note_origin(measured_here(name, "python -m benchmarks.scaling --rows"))
    if options.draw:
        draw(curves, [run for run, _ in pairs], options.draw)


def _printed_run(workers: int) -> Real:
    run = real_run(workers, REAL_UNITS * workers, REAL_S)
    print(run, flush=True)
    return run


def predicted(run: Real, overheads: Overheads) -> Simulated:
    """Return the model's result for a run without faults, with units of the measured length."""
    return simulate(run.workers, run.units, lambda _: run.unit_s, overheads, failing=0.0, dying=0.0)


def curves_of(overheads: Overheads) -> dict[float, list[tuple[int, Simulated]]]:
    """Return the model's results by the mean duration of a unit and the number of actors."""
    return {
        unit_s: [
            (workers, simulate(workers, UNITS_AN_ACTOR * workers, durations(unit_s), overheads)) for workers in ACTORS
        ]
        for unit_s in UNIT_S
    }


def compared_rows(pairs: Sequence[tuple[Real, Simulated]]) -> list[Row]:
    """Return rows that compare real runs with the model."""
    rows = []
    for run, model in pairs:
        conditions = setting({"actors": f"{run.workers}"})
        columns = {
            "until all are up": f"{run.started_s:.1f} s",
            "until each has begun its second unit": f"{run.first_s:.2f} s",
            "steady state": f"{run.steady:.1%}".replace("%", " %"),
            "the model": f"{model.steady:.1%}".replace("%", " %"),
            "model less measured (goal: within 3)": f"{100 * (model.steady - run.steady):+.1f} points",
            "of a worker, beside a unit": f"{1000 * run.beside_s:.1f} ms",
            "load at the end": f"{run.load:.1f}",
        }
        rows += [Row(conditions, what, value) for what, value in columns.items()]
    return rows


def model_rows(curves: dict[float, list[tuple[int, Simulated]]]) -> list[Row]:
    """Return rows of the model's efficiency."""
    return [
        Row(
            setting({"actors": f"{workers:,}", "seconds of a unit": f"units of {unit_s:g} s"}),
            "efficiency (driver at work)",
            f"{100 * steady.efficiency:.1f} % ({100 * steady.driver:.0f} %)",
        )
        for unit_s, curve in curves.items()
        for workers, steady in curve
    ]


def input_rows(overheads: Overheads) -> list[Row]:
    """Return rows of the model's inputs."""
    parameters = {
        "driver, a unit": (overheads.unit * 1e6, "µs", "6,000 units that do nothing, in parcels, on two workers"),
        "driver, a parcel": (overheads.parcel[0] * 1e6, "µs", "600 such units one by one, less that"),
        "driver, a round": (overheads.asking[0] * 1e6, "µs", "`ray.wait`; 64 and 1,024 references"),
        "driver, a round, for each worker": (overheads.asking[1] * 1e6, "µs", "the same"),
        "worker, beside a unit": (overheads.worker * 1e3, "ms", "from the end of a unit to the begin of the next"),
        "there and back": (TRAVEL_S * 1e3, "ms", "a call of an actor on one machine"),
    }
    return [
        Row(setting({"measured": what}), name, cell)
        for what, (value, unit, how) in parameters.items()
        for name, cell in (("value", f"{value:.3g} {unit}"), ("from", how))
    ]


def draw(curves: dict[float, list[tuple[int, Simulated]]], real: Sequence[Real], path: Path) -> None:
    """Draw efficiency against actors: the model as lines, real workers in steady state as dots."""
    from dpaudit.engine.figures.drawing import canvas
    from dpaudit.engine.figures.palette import CLAIM, INK, MEMBER, OTHER

    figure, axes = canvas(6.8, 3.8)
    for (unit_s, curve), colour in zip(curves.items(), (MEMBER, OTHER, CLAIM), strict=True):
        workers, steady_states = zip(*curve, strict=True)
        axes.plot(
            workers,
            [steady.efficiency for steady in steady_states],
            color=colour,
            label=f"model, units of {unit_s:g} s",
        )
    dots = [run.workers for run in real], [run.steady for run in real]
    axes.plot(*dots, "o", color=INK, label=f"real workers in steady state, units of {REAL_S:g} s")
    axes.axhline(0.9, color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("actors")
    axes.set_ylabel("efficiency")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
