"""Utilisation of workers, cost of a unit in the driver, and time to start or resume a run on Ray."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from benchmarks import Measured
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.fingerprint import read_once
from dpaudit.actors.schedule import run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.cluster.session import ray_session
from dpaudit.engine.answer.run_report import Report
from dpaudit.engine.planning.plan import Plan
from dpaudit.engine.request.audit_spec import RunOptions
from dpaudit.engine.request.loading import load_spec
from dpaudit.engine.run.driver import run_plan
from dpaudit.mechanisms.compute import Compute

UNITS, SECONDS, SMALL_S, WORKERS = 1000, 0.05, 0.005, 2
MANY = 100_000
SPEC = {"name": "many", "data": "iris", "mechanism": {"name": "randomized-response", "epsilon": 1}}


@dataclass(frozen=True)
class Nap:
    """Task that sleeps and returns a small table."""

    number: int
    seconds: float = SECONDS

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """Return one row."""
        time.sleep(self.seconds)
        return pa.table({"number": [self.number]})


def run() -> list[Measured]:
    """Return (name, seconds, note) of each measurement."""
    with tempfile.TemporaryDirectory() as folder:
        short = [busy(Path(folder) / f"naps-{count}", count, s) for count, s in ((UNITS, SECONDS), (MANY, SMALL_S))]
        return [*short[0], short[1][1], *many(Path(folder) / "many")]


def busy(folder: Path, units: int, seconds: float) -> list[Measured]:
    """Measure short units on two workers against the same units in a bare loop."""
    began, bare = time.perf_counter(), min(units, int(10 / seconds))
    for number in range(bare):
        Nap(number, seconds).run(Inputs({}), Compute())
    bare_s = (time.perf_counter() - began) / bare
    received: list[Event] = []
    began = time.time()
    with ray_session(cpus=WORKERS):
        from dpaudit.actors.pool import RayPool

        with read_once():
            naps = [Unit(Nap(number, seconds), f"nap {number}") for number in range(units)]
        events, store, start = EventStream(received.append), UnitStore(folder), time.time()
        pool = RayPool({}, demand={Resources(): units}, workers=WORKERS, events=events, store=store)
        while sum(event.kind is EventKind.WORKER_STARTED for event in received) < WORKERS:
            pool.wait()
        up, cpu = time.time(), time.process_time()
        run_units(naps, pool, store, events)
        wall, cpu = time.time() - up, time.process_time() - cpu
        pool.close()
    return [
        (f"start of {WORKERS} workers on Ray", up - start, ""),
        (
            f"{units:,} units of {seconds * 1000:.0f} ms on {WORKERS} workers",
            wall,
            f"{units * bare_s / WORKERS / wall:.1%} of a bare loop's speed, {1000 * bare_s:.2f} ms a unit there (goal "
            f"90 %); driver {1e6 * cpu / units:.0f} µs of processor time a unit; load {os.getloadavg()[0]:.1f}",
        ),
    ]


def many(folder: Path) -> list[Measured]:
    """Measure empty units through the whole driver, then the resumption of the finished run."""
    first = _run_many(folder)
    again = _run_many(folder)
    assert (first.report.executed, again.report.executed) == (MANY, 0)
    beginning, *_, end = first.marks
    grown = max(mark.resident_mb for mark in first.marks) - beginning.resident_mb
    memory = ", ".join(f"{mark.resident_mb:.0f} MB at {mark.units_done:,}" for mark in first.marks)
    later = 1000 * (end.cpu - beginning.cpu) / (end.units_done - beginning.units_done)
    return [
        (
            f"{MANY:,} units that do nothing, through the driver",
            first.wall,
            f"{1000 * first.cpu / MANY:.2f} ms of the driver's processor time a unit, plan, start, run, report (goal "
            f"2 ms), {later:.2f} ms between the first and the last; resident {memory}: {grown:.0f} MB more (goal 40)",
        ),
        (
            f"going on with a folder of {MANY:,} finished units",
            again.wall,
            f"{again.cpu:.1f} s of processor time, from a plan at hand to the report (goal 20 s)",
        ),
    ]


@dataclass(frozen=True)
class _Mark:
    """Processor seconds and resident memory of the driver after `units_done` units."""

    units_done: int
    cpu: float
    resident_mb: float


@dataclass(frozen=True)
class _Took:
    report: Report
    wall: float
    cpu: float
    marks: list[_Mark]


def _run_many(folder: Path) -> _Took:
    with read_once():
        units = tuple(Unit(Nap(number, 0.0), f"nap {number}") for number in range(MANY))
    spec = replace(load_spec(SPEC), run=RunOptions(runner="ray", workers=WORKERS, figures=False, repeats=0))
    marks: list[_Mark] = []
    milestones = {1, MANY // 10, MANY // 2, MANY}
    units_done = 0

    def watch(event: Event) -> None:
        nonlocal units_done
        if event.kind is EventKind.UNIT_DONE:
            units_done += 1
            if units_done in milestones:
                marks.append(_Mark(units_done, time.process_time(), _resident_mb()))

    wall, cpu = time.perf_counter(), time.process_time()
    report = run_plan(Plan(spec, units, (), {}), folder, [watch])
    return _Took(report, time.perf_counter() - wall, time.process_time() - cpu, marks)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
