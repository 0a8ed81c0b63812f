"""Overhead of a whole audit over its trainings: five pairs of an audit and a loop that only trains, in alternation.

Both run on two fresh actors. Both clocks start when the actors are up, so that both load torch; the audit's stops when
its report is written. The program measures wall seconds and processor seconds: of the workers since their start, of the
driver since the first unit.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import Measured
from dpaudit.actors.events import Event, EventKind
from dpaudit.actors.seed import Seed
from dpaudit.cluster.session import ray_session
from dpaudit.engine.games.trials import TrainingRun, train_runs
from dpaudit.engine.request.audit_spec import AuditSpec
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import audit
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.networks import Mlp

PAIRS, WORKERS, STACK = 5, 2, 64
TRIALS, SHADOWS = 1024, 512  # as many as in section 4 of arXiv:2206.05199
NETWORK = Mlp(epochs=20, batch_size=32, learning_rate=0.05)


@dataclass(frozen=True)
class Took:
    """Seconds of a run.

    Attributes:
        clock: Wall seconds.
        cpu: Processor seconds of all its processes.
        stages: Wall seconds until the last unit, of the repeated units, and of the report.
    """

    clock: float
    cpu: float
    stages: tuple[float, ...] = ()


def run() -> list[Measured]:
    """Return (name, seconds, note) of each measurement."""
    spec, models, loops, audits = spec_of(TRIALS, SHADOWS), TRIALS + SHADOWS, [], []
    with ray_session(cpus=WORKERS):
        for number in range(PAIRS):  # the load of other tenants changes by the minute
            both = [lambda: loops.append(bare_loop(spec, models)), lambda: audits.append(whole_audit(spec))]
            for measure in both if number % 2 else reversed(both):
                measure()
            print(f"pair {number}: loop {loops[-1]}, audit {audits[-1]}", file=sys.stderr, flush=True)
    by_clock, by_cpu = (
        [getattr(loop, name) / getattr(whole, name) for loop, whole in zip(loops, audits, strict=True)]
        for name in ("clock", "cpu")
    )
    stages = [statistics.median(part) for part in zip(*(whole.stages for whole in audits), strict=True)]
    return [
        (
            f"bare loop: {models} stacked trainings on {WORKERS} actors, median of {PAIRS}",
            statistics.median(loop.clock for loop in loops),
            f"{statistics.median(loop.cpu for loop in loops):.1f} s of the processors",
        ),
        (
            f"whole audit of {TRIALS} trials and {SHADOWS} shadow models on {WORKERS} workers, median of {PAIRS}",
            statistics.median(whole.clock for whole in audits),
            f"{statistics.median(by_clock):.1%} of the loop's speed in the median of pairs by the clock "
            f"({_listed(by_clock)}; goal 90 %), {statistics.median(by_cpu):.1%} by processor time ({_listed(by_cpu)}); "
            f"{stages[0]:.1f} s until the last unit, {stages[1]:.1f} s for repeated units, {stages[2]:.1f} s for "
            "the report",
        ),
    ]


class BareLoop:
    """Actor that trains stacks in sequence and does nothing else."""

    def ready(self) -> bool:
        """Return True once the process is up."""
        return True

    def loop(self, mechanism: Any, points: Examples, stacks: list[list[TrainingRun]]) -> float:
        """Train the stacks and return the processor seconds of this process since its start."""
        for runs in stacks:
            train_runs(mechanism, points, runs, compute=Compute())
        return time.process_time()


def bare_loop(spec: AuditSpec, models: int) -> Took:
    """Measure the audit's trainings alone, in the same stacks on the same number of actors."""
    import ray  # after the session's settings, which it reads once

    first = spec.audits[0]
    pool = first.split.divide(first.data.load(), Seed(0).rng()).target
    runs = [
        TrainingRun(Seed(0).child(i).rng().permutation(len(pool))[: len(pool) // 2], Seed(1).child(i))
        for i in range(STACK)
    ]
    actors = [ray.remote(num_cpus=1)(BareLoop).remote() for _ in range(WORKERS)]
    ray.get([actor.ready.remote() for actor in actors])
    stacks, shared = [runs] * (models // STACK // WORKERS), ray.put(pool)
    began = time.perf_counter()
    cpu = sum(ray.get([actor.loop.remote(first.mechanism, shared, stacks) for actor in actors]))
    clock = time.perf_counter() - began
    for actor in actors:
        ray.kill(actor)
    return Took(clock, cpu)


def whole_audit(spec: AuditSpec) -> Took:
    """Measure the audit from its first unit to its report."""
    times: dict[EventKind, float] = {}
    first: list[tuple[float, float]] = []
    workers: dict[str, float] = {}

    def watch(event: Event) -> None:
        if event.kind is EventKind.UNIT_STARTED and not first:
            first.append((event.time, time.process_time()))
        times[event.kind] = event.time
        if event.kind in (EventKind.UNIT_DONE, EventKind.UNIT_REPEATED):
            for name in {*workers, *([event.worker] if event.worker else [])}:
                with contextlib.suppress(FileNotFoundError):  # the pool has dismissed an idle worker
                    workers[name] = _cpu_of(int(name.rpartition(":")[2]))

    with tempfile.TemporaryDirectory() as folder:
        audit(spec, output=folder, listeners=[watch])
    ((began, cpu),) = first
    units, again, end = (
        times.get(kind, 0.0) for kind in (EventKind.UNIT_DONE, EventKind.UNIT_REPEATED, EventKind.FINISHED)
    )
    again = max(units, again)
    return Took(
        end - began,
        time.process_time() - cpu + sum(workers.values()),
        (units - began, again - units, end - again),
    )


def _cpu_of(pid: int) -> float:
    """Return the processor seconds of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spec_of(trials: int, shadows: int) -> AuditSpec:
    """Return the spec: a network on digits, a worst-case point and LiRA."""
    example = load_spec(Path(__file__).parent.parent / "examples" / "lira-digits.yaml")
    first = example.audits[0]
    game = replace(first.game, trials=trials, shadows=shadows, stack=STACK)
    plain = replace(first, game=game, mechanism=NonPrivate(NETWORK))
    return replace(example, audits=(plain,), run=replace(example.run, workers=WORKERS))


def _listed(shares: list[float]) -> str:
    return ", ".join(f"{share:.1%}" for share in shares)
