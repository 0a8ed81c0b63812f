"""A pool of Ray actors that run units: bounded in-flight work, completion order, lost workers replaced."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, TaskUnschedulableError

from dpaudit.actors.backend import Attempt, Completion, Handle, attempt_unit
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.errors import RunError

QUEUED_PER_WORKER = 2
"""One runs, one waits beside it: the worker never idles for a round trip to the driver."""
START_TIMEOUT_S = 300.0


@ray.remote
class Worker:
    """Runs units in a process of its own and keeps what is dear to build: imported libraries, open devices."""

    def __init__(self, threads: int, scratch: Path | None) -> None:
        import torch

        self._scratch = scratch

        # Ray sets OMP_NUM_THREADS too late for a process that has loaded torch already.
        torch.set_num_threads(threads)

    def ready(self) -> bool:
        """Whether the process has come up."""
        return True

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def run(self, unit: Unit, shared_count: int, *objects: Any) -> tuple[Attempt, pa.Table | None]:
        """One attempt; the table stays in the object store, the attempt travels to the driver."""
        shared = dict(zip(unit.shared, objects[:shared_count], strict=True))
        inputs = Inputs(shared, dict(zip(unit.needs, objects[shared_count:], strict=True)))
        return attempt_unit(unit, inputs, self._scratch)


@dataclass
class _Slot:
    actor: Any
    ready: bool = False
    queue: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Flight:
    unit: Unit
    slot: _Slot
    table: Any
    began: float


class RayPool:
    """Actors of one shape on the running Ray session.

    Args:
        shared: Large inputs by name; each is put into the object store once.
        resources: What one worker occupies.
        workers: How many workers; None takes what the cluster has room for now.
        events: Told about workers that come and go.
        most: No more workers than this (there are no more units).
        scratch: Folder of the units' checkpoints, see `attempt_unit`.
    Raises: RunError when no node of the cluster can hold one worker.
    """

    def __init__(
        self,
        shared: dict[str, Any],
        *,
        resources: Resources,
        workers: int | None,
        events: EventStream,
        most: int,
        scratch: Path | None = None,
    ) -> None:
        self._shared = {name: ray.put(value) for name, value in shared.items()}
        self._resources = resources
        self._scratch = scratch
        self._events = events
        self._flights: dict[Any, _Flight] = {}
        self._starting: dict[Any, _Slot] = {}
        self._slots: list[_Slot] = []
        for _ in range(max(1, min(most, workers or room_for(resources)))):
            self._start()

    def capacity(self) -> int:
        """Free places on workers that are up; waits for the first worker."""
        while not any(slot.ready for slot in self._slots):
            self._await_start()
        return sum(QUEUED_PER_WORKER - len(slot.queue) for slot in self._slots if slot.ready)

    def submit(self, unit: Unit, tables: tuple[Handle, ...]) -> None:
        """Gives the unit to the worker with the shortest queue."""
        slot = min((slot for slot in self._slots if slot.ready), key=lambda slot: len(slot.queue))
        shared = [self._shared[name] for name in unit.shared]
        attempt, table = slot.actor.run.remote(unit, len(shared), *shared, *tables)
        self._flights[attempt] = _Flight(unit, slot, table, time.monotonic())
        slot.queue.append(attempt)

    def wait(self) -> list[Completion]:
        """Blocks until a unit has come back or its worker is known to be lost."""
        while True:
            done, _ = ray.wait([*self._flights, *self._starting], num_returns=1)
            for reference in done:
                if reference in self._starting:
                    self._started(reference)
            back = [self._complete(reference) for reference in done if reference in self._flights]
            if back:
                return back

    def hold(self, table: pa.Table) -> Handle:
        """Puts a table into the object store."""
        return ray.put(table)

    def fetch(self, handle: Handle) -> pa.Table:
        """The table behind a reference, without a copy on the driver's node."""
        return ray.get(handle)

    def close(self) -> None:
        """Kills the workers."""
        for slot in self._slots:
            ray.kill(slot.actor)
        self._slots.clear()

    def _start(self) -> None:
        options = {"num_cpus": self._resources.cpus, "num_gpus": self._resources.gpus, "max_restarts": 0}
        slot = _Slot(Worker.options(**options).remote(self._resources.cpus, self._scratch))  # type: ignore[attr-defined]
        self._slots.append(slot)
        self._starting[slot.actor.ready.remote()] = slot

    def _await_start(self) -> None:
        done, _ = ray.wait(list(self._starting), num_returns=1, timeout=START_TIMEOUT_S)
        if not done:
            raise RunError(
                f"a worker must start within {START_TIMEOUT_S:.0f} s, none did; the cluster may be full: "
                "ask for fewer or smaller workers, or wait for its other jobs"
            )
        for reference in done:
            self._started(reference)

    def _started(self, reference: Any) -> None:
        slot = self._starting.pop(reference)
        try:
            ray.get(reference)
        except RayError as err:
            self._slots.remove(slot)
            if isinstance(err, TaskUnschedulableError) or not self._slots:
                raise RunError(f"no worker could be started: {err}") from err
            return
        slot.ready = True
        self._events.emit(Event(EventKind.WORKER_STARTED, count=sum(slot.ready for slot in self._slots)))

    def _complete(self, reference: Any) -> Completion:
        flight = self._flights.pop(reference)
        flight.slot.queue.remove(reference)
        try:
            attempt = ray.get(reference)
            if not attempt.error:
                ray.wait([flight.table], num_returns=1, fetch_local=True, timeout=START_TIMEOUT_S)
                ray.get(flight.table, timeout=START_TIMEOUT_S)
        except (RayActorError, ObjectLostError, GetTimeoutError) as err:
            self._replace(flight.slot)
            lost = Attempt(time.monotonic() - flight.began, f"{type(err).__name__}: {err}".splitlines()[0], again=True)
            return Completion(flight.unit, lost, lost=True)
        except RayError as err:  # the arguments could not be rebuilt, the task was cancelled, ...
            lost = Attempt(time.monotonic() - flight.began, f"{type(err).__name__}: {err}", again=True)
            return Completion(flight.unit, lost, lost=True)
        return Completion(flight.unit, attempt, flight.table)

    def _replace(self, slot: _Slot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
            ray.kill(slot.actor)  # it may only be unreachable: the same unit on two workers gives the same table
            self._start()


def room_for(resources: Resources) -> int:
    """How many workers of this shape the cluster's nodes hold together.

    Raises: RunError when not even one fits on any node.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fits = [_fits(node, resources) for node in nodes]
    if not any(fits):
        largest = max(
            (f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes), default="none"
        )
        raise RunError(
            f"a worker needs {resources.cpus} CPUs and {resources.gpus:g} GPUs on one node, "
            f"the cluster's nodes have at most {largest}; ask for less in `run:`"
        )
    return sum(fits)


def _fits(node: dict[str, float], resources: Resources) -> int:
    by_cpu = int(node.get("CPU", 0) // resources.cpus)
    return min(by_cpu, int(node.get("GPU", 0) / resources.gpus + 1e-9)) if resources.gpus else by_cpu
