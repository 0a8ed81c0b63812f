"""How busy the driver keeps its workers, and how soon a run on Ray starts working."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.schedule import run_units
from dpaudit.actors.store import UnitStore
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.cluster.session import ray_session
from dpaudit.mechanisms.protocols import Compute

UNITS, SECONDS, WORKERS = 1000, 0.05, 2


@dataclass(frozen=True)
class Nap:
    """Sleeps, and leaves a small table."""

    number: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row."""
        time.sleep(SECONDS)
        return pa.table({"number": [self.number]})


def run() -> list[tuple[str, float, str]]:
    """What, seconds, note."""
    seen: list[Event] = []
    began = time.time()
    with ray_session(cpus=WORKERS), tempfile.TemporaryDirectory() as folder:
        from dpaudit.actors.pool import RayPool

        events = EventStream(seen.append)
        pool = RayPool({}, demand={Resources(): UNITS}, workers=WORKERS, events=events)
        run_units(
            [Unit(Nap(number), f"nap {number}") for number in range(UNITS)], pool, UnitStore(Path(folder)), events
        )
        pool.close()
    up = max(event.time for event in seen if event.kind is EventKind.WORKER_STARTED)
    done = [event for event in seen if event.kind is EventKind.UNIT_DONE and event.time > up]
    wall = done[-1].time - up
    busy = sum(event.seconds for event in done) / (WORKERS * wall)
    return [
        (f"start of Ray and of {WORKERS} workers", up - began, ""),
        (
            f"{UNITS} units of {SECONDS * 1000:.0f} ms on {WORKERS} workers",
            wall,
            f"workers busy {busy:.1%} (goal 90 %)",
        ),
    ]
