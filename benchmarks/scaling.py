"""How well a run scales: a discrete-event model of the driver and its workers, fed with measured costs.

    python -m benchmarks.scaling docs/developers/scaling.png          # measures, compares with real workers, draws
    python -m benchmarks.scaling docs/developers/scaling.png 0.0014   # the same, with the cost of a unit

The model: one driver, which gives each worker two units and books what comes back, one thing at a time. Each round of
it asks Ray which units are done (`asking`), which grows with the workers, then books and replaces each (`booking`).
Workers run units one after the other. An attempt fails with a stated probability and is run again. A worker dies now
and then: what it ran is begun again, its place is empty until a new one is up. Not in the model: the network's width,
storage that slows down, Ray's own servers at many nodes.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_driver import Nap

ACTORS = tuple(2**power for power in range(11))
UNIT_S = (0.5, 2.0, 10.0)
SPREAD = 0.3
"""Standard deviation of the logarithm of a unit's duration; stacks of one size differ by less."""
FAILING, DYING = 0.002, 1 / 86_400
"""Share of attempts that fail, and how often a worker dies, each second: once a day."""
DETECTED_S, STARTED_S = 15.0, 10.0
"""Until a node is known to be dead (Ray, measured: 14.4 s), and until a new worker is up."""
TRAVEL_S = 0.003
"""From the driver to a worker and back, measured on one machine."""
WORKER_S = 0.002
"""Of a worker, beside each unit: arguments and result. 1,000 units of 50 ms kept two workers busy 96.1 %."""
UNITS_AN_ACTOR = 200
QUEUED = 2


@dataclass(frozen=True)
class Overheads:
    """Seconds of the driver, each a + b x workers.

    Attributes:
        asking: Of a round: which units are done.
        booking: Of a unit: fetched, checked, written, told, and another one given.
    """

    asking: tuple[float, float]
    booking: tuple[float, float]

    def of(self, workers: int) -> tuple[float, float]:
        """Asking and booking with so many workers."""
        return self.asking[0] + self.asking[1] * workers, self.booking[0] + self.booking[1] * workers


@dataclass
class Simulated:
    """What a simulated run came to.

    Attributes:
        efficiency: Seconds of units that came to something, over workers times the length of the run.
        driver: Share of the time that the driver was at work.
    """

    efficiency: float
    driver: float


def simulate(
    workers: int,
    units: int,
    seconds: Callable[[np.random.Generator], float],
    overheads: Overheads,
    *,
    seed: int = 0,
    failing: float = FAILING,
    dying: float = DYING,
    worker_s: float = WORKER_S,
) -> Simulated:
    """One run of the model.

    Args:
        workers: How many.
        units: How many, all ready from the beginning.
        seconds: Draws the duration of a unit.
        overheads: Of the driver.
        seed: Of the durations and faults.
        failing: Probability that an attempt fails.
        dying: How often a worker dies, each second; half-way through a unit.
        worker_s: What a worker spends beside each unit.
    """
    rng = np.random.default_rng(seed)
    asking, booking = overheads.of(workers)
    waiting = deque(seconds(rng) for _ in range(units))
    queues: list[deque[float]] = [deque() for _ in range(workers)]
    free_at = [0.0] * workers  # when a worker ends what it runs
    running: list[float | None] = [None] * workers
    events: list[tuple[float, int, int, str]] = []  # when the driver can see it, number, worker, what
    number = itertools.count()
    now = useful = at_work = 0.0
    left = units

    def begin(worker: int, at: float) -> None:
        if running[worker] is None and queues[worker]:
            duration = queues[worker].popleft()
            running[worker] = duration
            fate = rng.random()
            if fate < dying * duration:
                heapq.heappush(events, (at + duration / 2 + DETECTED_S, next(number), worker, "dead"))
                return
            what = "failed" if fate < dying * duration + failing else "done"
            free_at[worker] = at + duration + worker_s
            heapq.heappush(events, (free_at[worker] + TRAVEL_S / 2, next(number), worker, what))

    def give(worker: int) -> None:
        nonlocal now, at_work
        while waiting and len(queues[worker]) + (running[worker] is not None) < QUEUED:
            now += booking / 2
            at_work += booking / 2
            queues[worker].append(waiting.popleft())
            begin(worker, max(now + TRAVEL_S / 2, free_at[worker]))

    for _ in range(QUEUED):
        for worker in range(workers):
            if waiting and len(queues[worker]) + (running[worker] is not None) < QUEUED:
                now += booking / 2
                at_work += booking / 2
                queues[worker].append(waiting.popleft())
                begin(worker, now + TRAVEL_S / 2)
    while left:
        now = max(now, events[0][0])
        now += asking
        at_work += asking
        seen = []
        while events and events[0][0] <= now:
            seen.append(heapq.heappop(events))
        for at, _, worker, what in seen:
            duration = running[worker]
            if what == "up":
                running[worker] = None
                give(worker)
                continue
            assert duration is not None
            now += booking / 2
            at_work += booking / 2
            running[worker] = None
            if what == "done":
                useful += duration
                left -= 1
            else:
                waiting.appendleft(duration)
            if what == "dead":
                waiting.extendleft(queues[worker])
                queues[worker].clear()
                running[worker] = 0.0  # nothing runs until another one is up
                heapq.heappush(events, (now + STARTED_S, next(number), worker, "up"))
                continue
            begin(worker, max(free_at[worker], at - TRAVEL_S / 2))  # what waits beside it began at once
            give(worker)
    return Simulated(useful / (workers * now), at_work / now)


def durations(mean: float) -> Callable[[np.random.Generator], float]:
    """Log-normal ones with this mean."""
    return lambda rng: float(rng.lognormal(math.log(mean) - SPREAD**2 / 2, SPREAD))


def measured(naps: int = 400) -> tuple[Overheads, list[dict[str, float]]]:
    """The driver's overheads, and runs of real workers that sleep: workers, seconds of a unit, efficiency."""
    from dpaudit.actors.events import Event, EventKind, EventStream
    from dpaudit.actors.schedule import run_units
    from dpaudit.actors.storage.store import UnitStore
    from dpaudit.actors.unit import Resources, Unit
    from dpaudit.cluster.session import ray_session

    real: list[dict[str, float]] = []
    per_unit: list[float] = []
    with ray_session(cpus=8), tempfile.TemporaryDirectory() as folder:
        from dpaudit.actors.pool import RayPool

        for workers in (1, 2, 4, 8):
            seen: list[Event] = []
            count, nap = naps // 10 * workers, 0.25
            events = EventStream(seen.append)
            pool = RayPool({}, demand={Resources(): count}, workers=workers, events=events)
            while sum(slot.ready for slot in pool._slots) < workers:
                pool.wait()
            units = [Unit(Nap(number, nap), f"nap {number}") for number in range(count)]
            began, cpu = time.time(), time.process_time()
            run_units(units, pool, UnitStore(Path(folder) / str(workers)), events)
            wall, cpu = time.time() - began, time.process_time() - cpu
            pool.close()
            slept = sum(event.seconds for event in seen if event.kind is EventKind.UNIT_DONE)
            real.append({"workers": workers, "unit_s": slept / count, "efficiency": slept / workers / wall})
            per_unit.append(cpu / count)
        costs = [_costs_of_lists(workers) for workers in (64, 1024)]
    asking, going_through = (
        ((high - low) / (1024 - 64), max(0.0, low - 64 * (high - low) / (1024 - 64)))
        for low, high in zip(*costs, strict=True)
    )
    booking = max(0.0, float(np.mean(per_unit)) - asking[1])
    return Overheads((asking[1], asking[0]), (booking, going_through[0])), real


def _costs_of_lists(workers: int) -> tuple[float, float]:
    """Seconds that asking about the running units takes, and finding the worker to give one to."""
    import ray

    from dpaudit.actors.pool import RayPool, _Places, _Slot
    from dpaudit.actors.unit import Resources

    @ray.remote(num_cpus=1, max_concurrency=1)  # type: ignore[untyped-decorator]
    class Sleeper:
        def sleep(self, seconds: float) -> None:
            time.sleep(seconds)

    actor = Sleeper.remote()
    first, *references = [actor.sleep.remote(0.0 if not number else 1e6) for number in range(workers)]
    ray.get(first)
    pool = RayPool.__new__(RayPool)
    pool._places, pool._homeless = {Resources(): (places := _Places())}, deque()
    for _ in range(workers):
        places.put(_Slot(Resources(), None, "", 0.0, ready=True, queue=deque([None])))
    pool._heads, pool._starting = dict.fromkeys([first, *references]), {}
    asking = _cpu(pool._done)

    def give() -> None:
        slot = places.shortest()
        assert slot is not None
        assert pool.capacity(Resources()) > 0
        places.put(slot)

    giving = _cpu(give)
    ray.kill(actor)
    return asking, giving


def _cpu(work: Callable[[], Any], times: int = 20) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def main() -> None:
    """Measures, simulates, prints, draws."""
    overheads, real = measured()
    if len(sys.argv) > 2:
        overheads = Overheads(overheads.asking, (float(sys.argv[2]), overheads.booking[1]))
    print(f"overheads of the driver: {overheads}", flush=True)
    for run in real:
        model = simulate(
            int(run["workers"]),
            int(run["workers"]) * 40,
            lambda _, nap=run["unit_s"]: nap,
            overheads,
            failing=0.0,
            dying=0.0,
        )
        run["model"] = model.efficiency
        print(
            f"{run['workers']:.0f} real workers: efficiency {run['efficiency']:.3f}, the model {model.efficiency:.3f}"
        )
    curves = curves_of(overheads)
    for unit_s, curve in curves.items():
        shown = ", ".join(f"{workers} {one.efficiency:.1%} ({one.driver:.0%})" for workers, one in curve)
        print(f"units of {unit_s:g} s: {shown}", flush=True)
    draw(curves, real, Path(sys.argv[1] if len(sys.argv) > 1 else "docs/developers/scaling.png"))
    print(json.dumps({"overheads": vars(overheads), "real": real}))


def curves_of(overheads: Overheads) -> dict[float, list[tuple[int, Simulated]]]:
    """The model's efficiency, by the mean duration of a unit and the number of actors."""
    return {
        unit_s: [
            (workers, simulate(workers, UNITS_AN_ACTOR * workers, durations(unit_s), overheads)) for workers in ACTORS
        ]
        for unit_s in UNIT_S
    }


def draw(curves: dict[float, list[tuple[int, Simulated]]], real: Sequence[dict[str, float]], path: Path) -> None:
    """Efficiency against actors, the model as lines and real workers as dots."""
    from dpaudit.engine.drawing import canvas
    from dpaudit.estimators.chart import CLAIM, INK, MEMBER, OTHER

    figure, axes = canvas(6.8, 3.8)
    for (unit_s, curve), colour in zip(curves.items(), (MEMBER, OTHER, CLAIM), strict=True):
        workers, found = zip(*curve, strict=True)
        axes.plot(workers, [one.efficiency for one in found], color=colour, label=f"model, units of {unit_s:g} s")
    if real:
        dots = [run["workers"] for run in real], [run["efficiency"] for run in real]
        axes.plot(*dots, "o", color=INK, label="real workers, units of 0.25 s")
    axes.axhline(0.9, color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("actors")
    axes.set_ylabel("efficiency")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
