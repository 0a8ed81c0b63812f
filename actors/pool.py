"""A pool of Ray actors that run units in parcels: bounded in-flight work, completion order, lost workers replaced.

A parcel holds as many small units as fill `PARCEL_S`, estimated from earlier units of the same kind. This bounds the
driver's work, most of which is per parcel. If a parcel is lost or runs far too long, its unfinished units are run
again, each in a separate parcel, so that no unit is blamed for another one.
"""

from __future__ import annotations

import math
import os
import platform
import re
import signal
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeAlias

import pyarrow as pa
import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, TaskUnschedulableError

from dpaudit.actors.audited.around import ProcessGuard
from dpaudit.actors.audited.signals import adopt_orphans
from dpaudit.actors.backend import REMIND_S, Attempt, Completion, Deadlines, Handle, attempt_unit, still_running
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Inputs, Resources, Unit, code_version, resource_text
from dpaudit.errors import RunError
from dpaudit.plain_files import Scratch

PARCELS_PER_WORKER = 2  # one runs, one is queued, so that workers never wait for the driver
# If a unit of a kind took this many seconds, none of them is queued behind another: a worker may be free before.
LONG_UNIT_S = 60.0
# Target duration of a parcel in seconds. After twice that time a worker returns the units that it has not started.
PARCEL_S = 2.0
# Maximum parcels per second, for which many workers get longer parcels. The driver spends about 2 ms on each parcel.
PARCELS_A_SECOND = 32
PARCEL_BYTES = 16_000_000  # bytes of results after which a worker starts no further unit of a parcel
TIMED_UNITS = 31  # number of recent units of a kind whose median duration is the estimate
PATIENCE_S = 30.0  # minimum seconds by which a parcel of several units may be late before it is ended
START_TIMEOUT_S = 300.0
IDLE_S = 20.0  # seconds without any running unit before idle workers make room for kinds without a worker
MAX_START_FAILURES = 3  # consecutive workers that die at their start before the run fails
CHECK_S = 1.0  # seconds between checks for units that run too long
SUSPENDED_S = 10.0  # a driver with a longer gap between checks was suspended, which counts for no unit
NODES_S = 5.0  # seconds between checks for new or lost nodes
MANY_WORKERS = 64  # number of workers above which results are fetched in batches
FETCH_S = 0.1  # seconds between batches; workers continue with their second parcel
WAIT_FOR_NODES = "DPAUDIT_WAIT_FOR_NODES_S"  # seconds that a cluster may take to add a node; unset: none
EXTRA_WORKERS = 16  # workers that may be pending of a kind that takes CPUs of nodes requested for other kinds
MAX_REQUESTED = 1_000  # workers of each other kind that may be pending, and for which nodes are requested


@ray.remote
class Worker:
    """Runs units in a separate process, which keeps imported libraries and open devices."""

    def __init__(self, threads: int, scratch: Scratch | None, store_mark: Sequence[str] | None) -> None:
        self._scratch, self._store = scratch, UnitStore.open_marked(*store_mark) if store_mark else None
        adopt_orphans()
        # Libraries read the variable on import. torch is not imported for it, since that takes seconds.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(threads)

    def name(self) -> str:
        """Return "host:process" once the worker is up."""
        return f"{platform.node()}:{os.getpid()}"

    def run(
        self, parcel: Sequence[tuple[Unit, Sequence[int], bool]], version: str, within_s: float, *objects: Any
    ) -> Any:
        """Attempt the units in order; those not started within `within_s` seconds are left to the driver.

        Each unit comes with the places of its shared inputs and tables in `objects`, and True if others need its table.

        Returns: The attempts and their total seconds, followed by the tables that others need, which stay in the object
            store.
        """
        attempts: list[Attempt] = []
        ends: list[float] = []
        tables: list[pa.Table | None] = []
        travelling, began = 0, time.monotonic()
        with ProcessGuard.consecutive():
            for unit, places, needed in parcel:
                table = None
                if not attempts or (time.monotonic() - began < within_s and travelling < PARCEL_BYTES):
                    arguments = [objects[place] for place in places]
                    shared = dict(zip(unit.shared, arguments, strict=False))  # the tables follow
                    inputs = Inputs(shared, dict(zip(unit.needs, arguments[len(unit.shared) :], strict=True)))
                    attempt, table = attempt_unit(unit, inputs, self._scratch, version)
                    attempts.append(self._write(unit, attempt))
                    ends.append(time.monotonic())
                    travelling += len(attempts[-1].content) + needed * attempt.table_bytes
                if needed:
                    tables.append(table)
        now = time.monotonic()
        reports = [replace(attempt, report_delay_s=now - end) for attempt, end in zip(attempts, ends, strict=True)]
        result = reports, now - began
        return (result, *tables) if tables else result

    def _write(self, unit: Unit, attempt: Attempt) -> Attempt:
        """Write the file of a successful, silent attempt without remarks, if the worker shares the driver's folder."""
        if attempt.error or attempt.remarks or attempt.printed or unit.is_answer:
            return attempt
        if self._store is None or self._store.has_file(unit.key):
            return attempt
        try:
            self._store.write(unit.key, attempt.content)
        except (OSError, RunError):  # the driver meets and reports the same error
            return attempt
        return replace(attempt, content=b"")


@dataclass(eq=False)
class _WorkerSlot:
    """A worker and the parcels that were sent to it."""

    kind: Resources  # resources that it occupies
    actor: Any  # Ray's handle
    began: float  # time of its request; later the start time of the parcel that runs
    ready: bool = False  # True once it is up
    name: str = ""  # host and process, "host:process"; "" before it is up
    parcels: deque[Any] = field(default_factory=deque)  # references; the first parcel runs
    reported: float = 0.0  # time of the last event about the parcel that runs


_SubmittedUnit: TypeAlias = tuple[Unit, tuple[Any, ...], bool]
"""A unit, its arguments, and True if other units need its table."""


@dataclass(frozen=True)
class _ParcelInFlight:
    units: Sequence[_SubmittedUnit]
    within_s: float  # seconds within which each unit must start
    slot: _WorkerSlot
    tables: Mapping[str, Any]  # references to tables that others need, by key of the unit

    @property
    def unit(self) -> Unit:
        return self.units[0][0]


class RayPool:
    """Actors of the running Ray session: as many of each kind as fit on the nodes, at most `workers`.

    The number follows nodes that join or leave.

    Args:
        fail_alone: Kinds whose units fail, and end nothing else, if they fit on no node.
    Raises: RunError if a unit of another kind fits on no node of the cluster.
    """

    runs_answers = True

    def __init__(
        self,
        shared: dict[str, Any],
        *,
        demand: Mapping[Resources, int],
        workers: int | None,
        events: EventStream,
        scratch: Scratch | None = None,
        deadlines: Deadlines | None = None,
        store: UnitStore | None = None,
        fail_alone: Collection[Resources] = (),
    ) -> None:
        self._wait_s = float(os.environ.get(WAIT_FOR_NODES, "0"))
        self._refused: dict[Resources, str] = {}  # kinds whose units fail, with the reason
        self._refused_units: list[Unit] = []
        self._requested: dict[Resources, int] = {}  # workers for which nodes were requested, by kind
        if not self._wait_s:
            nodes = Nodes.of_session()
            self._refused = {kind: why for kind in fail_alone if (why := nodes.refusal(kind))}
            nodes.require_room(demand.keys() - self._refused.keys())
        self._shared = {name: _put(value) for name, value in shared.items()}
        self._remaining = Counter({kind: count for kind, count in demand.items() if kind not in self._refused})
        self._workers, self._scratch, self._events = workers, scratch, events
        self._deadlines, self._store = deadlines or Deadlines(), store
        self._store_mark = store.mark_for_workers() if store else None
        self._flights: dict[Any, _ParcelInFlight] = {}
        self._running: dict[Any, None] = {}  # the flights that run, not those queued behind them
        # units that were not sent yet, or whose worker died before they started
        self._waiting: dict[Resources, deque[_SubmittedUnit]] = defaultdict(deque)
        # seconds of recent units, and their median, by kind of work
        self._durations: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=TIMED_UNITS))
        self._median_s: dict[str, float] = {}
        self._longest_s: dict[str, float] = {}  # seconds of the longest unit so far, by kind of work
        self._alone: set[str] = set()  # keys of units from lost parcels, which run in parcels of one
        self._schedulable: dict[Resources, int] = {}  # units that the schedule still holds, by kind
        self._last_fetch = 0.0  # time of the last batch of results
        self._starting: dict[Any, _WorkerSlot] = {}
        self._slots: dict[_WorkerSlot, None] = {}
        self._unplaceable: set[Resources] = set()
        self._failed_starts = 0
        self._checked = self._resized = self._progressed = self._made_room = time.monotonic()
        self._resize()

    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        """Number of units of this kind that fill the free places of ready workers."""
        if kind in self._refused:
            return ready
        self._schedulable[kind] = ready or self._schedulable.get(kind, 0)
        places = self._places(does)
        free = sum(max(0, places - len(slot.parcels)) for slot in self._workers_for(kind))
        return free * self._size(does, self._share(kind)) - len(self._waiting[kind])

    def _share(self, kind: Resources) -> int:
        """Maximum units of a parcel: half of a worker's share of the waiting units, so all workers end together."""
        waiting = len(self._waiting[kind]) + self._schedulable.get(kind, 0)
        return waiting // max(1, PARCELS_PER_WORKER * len(self._workers_for(kind)))

    def _places(self, does: str) -> int:
        """Largest number of parcels of a worker: units that may be long, or were not timed, are not queued."""
        may_be_long = does not in self._median_s or self._longest_s.get(does, 0.0) >= LONG_UNIT_S
        return 1 if does and may_be_long else PARCELS_PER_WORKER

    def _size(self, does: str, share: int) -> int:
        """Number of units of this kind in a parcel; 1 until one was timed."""
        return max(1, min(share, int(self._parcel_s() / self._median_s.get(does, math.inf))))

    def _parcel_s(self) -> float:
        ready = len(self._slots) - len(self._starting)
        return max(PARCEL_S, ready / PARCELS_A_SECOND)

    def _workers_for(self, kind: Resources) -> list[_WorkerSlot]:
        """Return ready workers for units of this kind: those of the kind, else those with a larger share of a GPU."""
        own_workers = [slot for slot in self._slots if slot.kind == kind]
        workers = own_workers or [slot for slot in self._slots if slot.kind.may_run(kind)]
        return [slot for slot in workers if slot.ready]

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        """Queue the unit for a parcel to the worker with the fewest parcels."""
        kind = unit.resources
        if kind in self._refused:
            self._refused_units.append(unit)
            return
        self._schedulable[kind] = max(0, self._schedulable.get(kind, 0) - 1)
        self._waiting[kind].append((unit, (*(self._shared[name] for name in unit.shared), *tables), needed))

    def _send(self, slot: _WorkerSlot, units: Sequence[_SubmittedUnit]) -> None:
        objects: dict[Any, int] = {}  # distinct arguments and their places
        parcel = [
            (unit, [objects.setdefault(argument, len(objects)) for argument in arguments], needed_later)
            for unit, arguments, needed_later in units
        ]
        needed = [unit.key for unit, _, needed_later in units if needed_later]
        call = slot.actor.run.options(num_returns=1 + len(needed)) if needed else slot.actor.run
        within_s = 2 * self._parcel_s()
        references = call.remote(parcel, code_version(), within_s, *objects)
        reference, *tables = references if needed else [references]
        self._flights[reference] = _ParcelInFlight(units, within_s, slot, dict(zip(needed, tables, strict=True)))
        slot.parcels.append(reference)
        if len(slot.parcels) == 1:
            self._begin(slot)

    def _begin(self, slot: _WorkerSlot) -> None:
        self._running[slot.parcels[0]] = None
        slot.began = slot.reported = time.monotonic()

    def wait(self) -> list[Completion]:
        """Block until a unit ends or its worker is lost, or until a worker is ready; return the completed units."""
        if self._refused_units:
            refused, self._refused_units = self._refused_units, []
            return [Completion(unit, Attempt(0.0, self._refused[unit.resources])) for unit in refused]
        while True:
            self._send_waiting()
            ready = self._ready_references()
            require_services()
            started = [reference for reference in ready if reference in self._starting]
            for reference in started:
                self._started(reference)
            completions = [
                completion
                for reference in ready
                if reference in self._flights
                for completion in self._complete(reference)
            ]
            completions += self._check_running()
            if started or completions:
                self._progressed = time.monotonic()
                self._send_waiting()
                return completions
            self._require_progress()

    def _send_waiting(self) -> None:
        """Send waiting units to the workers with the fewest parcels."""
        for kind, waiting in self._waiting.items():
            if not waiting:
                continue
            share, workers = self._share(kind), self._workers_for(kind)
            for parcels in range(PARCELS_PER_WORKER):
                for slot in workers:
                    if not waiting or self._places(waiting[0][0].kind_of_work) <= parcels:
                        break
                    if len(slot.parcels) == parcels:
                        self._send(slot, self._parcel(waiting, share))

    def _parcel(self, waiting: deque[_SubmittedUnit], share: int) -> list[_SubmittedUnit]:
        """Take the next parcel from the waiting units; a unit of a lost parcel gets a separate parcel."""
        parcel, filled = list[_SubmittedUnit](), 0.0
        while waiting:
            unit, *_ = waiting[0]
            part = 1 if unit.key in self._alone else 1 / self._size(unit.kind_of_work, share)
            if parcel and filled + part > 1 + 1e-9:
                break
            parcel.append(waiting.popleft())
            filled += part
        return parcel

    def _ready_references(self) -> list[Any]:
        references = [*self._running, *self._starting]
        if not references:
            time.sleep(CHECK_S)
            return []
        ready, rest = ray.wait(references, num_returns=1, timeout=CHECK_S)
        if ready and len(rest) > MANY_WORKERS:  # a query about many costs as much for one result as for all
            time.sleep(max(0.0, self._last_fetch + FETCH_S - time.monotonic()))  # no wait if overdue
            self._last_fetch = time.monotonic()
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return list(ready)

    def _require_progress(self) -> None:
        """Make room for workers that have not started, and raise RunError if they take too long."""
        if self._flights:
            return
        stalled_s = time.monotonic() - self._progressed
        missing = [kind for kind in self._kinds_without_worker() if kind in self._unplaceable]
        others_start = any(
            slot.kind not in missing and self._remaining[slot.kind] > 0 for slot in self._starting.values()
        )
        only_missing = missing and not others_start and self._wait_s
        patience_s = self._wait_s if only_missing else max(START_TIMEOUT_S, self._wait_s)
        if stalled_s > patience_s:
            raise RunError(self._refusal(missing, patience_s))
        if not missing and stalled_s > IDLE_S and time.monotonic() - self._made_room > IDLE_S:
            self._made_room = time.monotonic()
            lacking = self._kinds_without_worker()
            # Idle workers of other kinds may occupy the place of the missing ones.
            for slot in [slot for slot in self._slots if lacking and slot.kind not in lacking and not slot.parcels]:
                self._dismiss(slot)
            self._resized = self._made_room  # requests them again only after the missing ones had time to start

    def _refusal(self, missing: Sequence[Resources], patience_s: float) -> str:
        if missing:
            return (
                f"a node that holds a unit of {' and one of '.join(map(str, missing))} must join within "
                f"{patience_s:.0f} s, none did, and no other unit can run. Finished units are kept: resume the run "
                "when such a node has joined"
            )
        wanted = " and ".join(f"one of {kind}" for kind in +self._remaining)
        return (
            f"a worker must start within {patience_s:.0f} s, none did (waiting for {wanted}). The cluster may be full "
            "or have lost nodes: request fewer or smaller workers, or wait for its other jobs"
        )

    def _kinds_without_worker(self) -> list[Resources]:
        """Return the kinds of remaining units that no ready worker can run."""
        up = {slot.kind for slot in self._slots if slot.ready}
        return [kind for kind in +self._remaining if not any(worker.may_run(kind) for worker in up)]

    def hold(self, table: pa.Table) -> Handle:
        return _put(table)

    def close(self) -> None:
        if lost_service():  # every call to Ray would block
            return
        for slot in self._slots:
            ray.kill(slot.actor)
        self._slots.clear()
        self._request_nodes({})
        if self._store:
            self._store.remove_worker_files()

    def _resize(self) -> None:
        """Start workers for which there are resources and units, and end idle workers that exceed them."""
        self._resized = time.monotonic()
        demand = {kind: max(1, count) for kind, count in self._remaining.items()}
        nodes = Nodes.of_session()
        before = self._unplaceable
        self._unplaceable = {missing_kind for missing_kind in +self._remaining if not nodes.can_hold(missing_kind)}
        for missing_kind in self._unplaceable - before:
            message = f"no node of the cluster holds a unit of {missing_kind}; waiting for one"
            limit = f"at most {self._wait_s or START_TIMEOUT_S:.0f} s if nothing else runs"
            self._events.emit(Event(EventKind.STAGE, detail=f"{message}, {limit}"))
        usable = self._usable(demand)
        self._request_nodes(usable)
        room = nodes.worker_counts(demand)
        no_scarce_yet = any(kind.gpus or kind.custom for kind in self._kinds_without_worker())
        # Scarce resources first, before other kinds take the CPUs of their nodes.
        for kind in sorted(demand, key=lambda kind: (kind.gpus, len(kind.custom)), reverse=True):
            workers = [slot for slot in self._slots if slot.kind == kind]
            wanted = min(room[kind], self._workers or room[kind])
            # Pending workers make the cluster add a node. While a GPU or a custom resource is pending, other kinds must
            # not take the CPUs of its node.
            if self._wait_s and (kind.gpus or kind.custom or not no_scarce_yet):
                most = min(demand[kind], self._workers or demand[kind])
                wanted = max(wanted, usable[kind]) if kind in usable else min(most, wanted + EXTRA_WORKERS)
            for _ in range(wanted - len(workers)):
                self._start(kind)
            spare = sorted((slot for slot in workers if not slot.parcels), key=lambda slot: slot.ready)
            for slot in spare[: max(0, len(workers) - wanted)]:
                self._dismiss(slot)

    def _usable(self, demand: Mapping[Resources, int]) -> dict[Resources, int]:
        """Return how many workers of each kind the remaining units can use.

        Kinds without a scarce resource take CPUs of the nodes of the others, if there are others.
        """
        scarce = [kind for kind in demand if kind.gpus or kind.custom]
        return {kind: min(demand[kind], self._workers or MAX_REQUESTED, MAX_REQUESTED) for kind in scarce or demand}

    def _request_nodes(self, workers: dict[Resources, int]) -> None:
        """Request nodes that hold these workers from a cluster that adds nodes, all at once; {} gives them back.

        For pending workers alone, Ray's autoscaler adds nodes in steps. A request replaces the one before.
        """
        if not self._wait_s or workers == self._requested:
            return
        from ray.autoscaler.sdk import request_resources  # few clusters add nodes

        self._requested = workers
        try:
            request_resources(bundles=[kind.amounts for kind, count in workers.items() for _ in range(count)])
        except Exception as err:  # pending workers make the cluster grow too
            message = f"the cluster's autoscaler took no request for nodes: {type(err).__name__}: {err}"
            self._events.emit(Event(EventKind.STAGE, detail=message))

    def _dismiss(self, slot: _WorkerSlot) -> None:
        del self._slots[slot]
        self._starting = {reference: other for reference, other in self._starting.items() if other is not slot}
        ray.kill(slot.actor)

    def _start(self, kind: Resources) -> None:
        worker = Worker.options(  # type: ignore[attr-defined]
            num_cpus=kind.cpus,
            num_gpus=kind.gpus,
            memory=kind.memory or None,
            resources=dict(kind.custom),
            max_restarts=0,
            scheduling_strategy="DEFAULT",  # not in the placement group of a trial of Ray Tune that runs an audit
        )
        actor = worker.remote(kind.cpus, self._scratch, self._store_mark)
        slot = _WorkerSlot(kind, actor, time.monotonic())
        self._slots[slot] = None
        self._starting[slot.actor.name.remote()] = slot

    def _started(self, reference: Any) -> None:
        slot = self._starting.pop(reference)
        try:
            slot.name = ray.get(reference)
        except RayError as err:
            del self._slots[slot]
            self._failed_starts += 1
            if isinstance(err, TaskUnschedulableError) or self._failed_starts >= MAX_START_FAILURES:
                if not self._slots:
                    raise RunError(
                        f"no worker could be started in {self._failed_starts} tries; {loss_reason(err)}"
                    ) from err
                return  # the other workers continue
            self._start(slot.kind)
            return
        self._failed_starts = 0
        slot.ready = True
        self._events.emit(Event(EventKind.WORKER_STARTED, count=sum(slot.ready for slot in self._slots)))

    def _complete(self, reference: Any) -> list[Completion]:
        """Return the completed units of a parcel, or those of a lost worker."""
        flight = self._flights[reference]
        try:
            attempts, spent_s = ray.get(reference, timeout=START_TIMEOUT_S)
        except (RayActorError, OutOfMemoryError) as err:
            return self._replace(flight.slot, loss_reason(err))
        except RayError as err:  # arguments were lost with their node, the task was cancelled, ...
            running_s = time.monotonic() - flight.slot.began
            self._remove_flight(reference)
            if len(flight.units) > 1:
                return self._rerun_unfinished(flight.units)
            load_error = load_failure(err)
            attempt = Attempt(running_s, load_error or loss_reason(err), retryable=not load_error)
            return [Completion(flight.unit, attempt, worker_died=not load_error)]
        self._remove_flight(reference)
        self._waiting[flight.unit.resources].extendleft(reversed(flight.units[len(attempts) :]))  # not started
        attempted = [(unit, attempt) for (unit, *_), attempt in zip(flight.units, attempts, strict=False)]
        overhead_s = (spent_s - sum(attempt.seconds for attempt in attempts)) / len(attempts)
        for unit, attempt in attempted:
            if not attempt.error:
                self._remaining[unit.resources] -= 1
                self._deadlines.learn(unit, attempt.seconds)
                self._durations[unit.kind_of_work].append(attempt.seconds + overhead_s)
                longest_s = self._longest_s.get(unit.kind_of_work, 0.0)
                self._longest_s[unit.kind_of_work] = max(longest_s, attempt.seconds)
        for does in {unit.kind_of_work for unit, attempt in attempted if not attempt.error}:
            self._median_s[does] = median(self._durations[does])
        return [Completion(unit, attempt, flight.tables.get(unit.key)) for unit, attempt in attempted]

    def _remove_flight(self, reference: Any) -> None:
        slot = self._flights.pop(reference).slot
        del self._running[reference]
        slot.parcels.popleft()
        if slot.parcels:
            self._begin(slot)

    def _rerun_unfinished(
        self, units: Sequence[_SubmittedUnit], loss_attempt: Attempt | None = None
    ) -> list[Completion]:
        """Queue the unfinished units of a parcel again, each in a separate parcel; units in the store are finished.

        With `loss_attempt` the worker died: the unit behind the last finished one ran at that time, and completes with
        that attempt.
        """
        keys = [unit.key for unit, *_ in units]
        finished_keys = self._store.finished(keys) if self._store else set()
        self._alone |= set(keys) - finished_keys
        failed_place = max((place for place, key in enumerate(keys) if key in finished_keys), default=-1) + 1
        blamed = units[failed_place : failed_place + 1] if loss_attempt else []
        rerun = [
            submitted
            for submitted in units
            if submitted[0].key not in {*finished_keys, *(unit.key for unit, *_ in blamed)}
        ]
        self._waiting[units[0][0].resources].extendleft(reversed(rerun))
        finished = [unit for unit, *_ in units if unit.key in finished_keys]
        self._remaining.subtract(unit.resources for unit in finished)
        completions = [Completion(unit, Attempt(0.0)) for unit in finished]
        return completions + [Completion(unit, loss_attempt, worker_died=True) for unit, *_ in blamed if loss_attempt]

    def _replace(self, slot: _WorkerSlot, why: str, *, worker_died: bool = True) -> list[Completion]:
        """Replace a worker: complete the unit that ran, and queue the units behind it again."""
        del self._slots[slot]
        ray.kill(slot.actor)  # if it is only unreachable, two workers may write the same table, which is harmless
        self._start(slot.kind)
        del self._running[slot.parcels[0]]
        first, *others = [self._flights.pop(reference) for reference in slot.parcels]
        for flight in others:
            self._waiting[flight.unit.resources].extend(flight.units)
        attempt = Attempt(time.monotonic() - slot.began, why, retryable=True)
        if len(first.units) == 1:
            return [Completion(first.unit, attempt, worker_died=worker_died)]
        return self._rerun_unfinished(first.units, attempt if worker_died else None)

    def _check_running(self) -> list[Completion]:
        """End units that run too long, and report units that still run."""
        now = time.monotonic()
        if now - self._checked < CHECK_S / 2:
            return []
        if now - self._resized > NODES_S:
            self._resize()
        idle, self._checked = now - self._checked, now
        if idle > SUSPENDED_S:  # the driver was suspended, perhaps with the workers
            for slot in self._slots:
                slot.began, slot.reported = slot.began + idle, now
        completions: list[Completion] = []
        for slot in [slot for slot in self._slots if slot.ready and slot.parcels]:
            flight = self._flights[slot.parcels[0]]
            unit, running_s = flight.unit, now - slot.began
            limit_s: float | None = None
            if len(flight.units) == 1:
                limit_s = self._deadlines.limit_s(unit)
            elif running_s > flight.within_s:
                patience_s = max(PATIENCE_S, *(2 * self._deadlines.slowest_s(unit) for unit, *_ in flight.units))
                limit_s = flight.within_s + min(patience_s, self._deadlines.stated_s or math.inf)
            if limit_s is not None and running_s > limit_s:
                completions += self._replace(slot, self._deadlines.timeout_message(limit_s), worker_died=False)
            elif now - slot.reported > REMIND_S:
                slot.reported = now
                self._events.emit(still_running(unit, running_s, slot.name))
        return completions


def lost_service() -> str:
    """Return which essential process of a local Ray session has ended; "" if none has."""
    from ray._private import worker

    processes = {} if worker._global_node is None else worker._global_node.all_processes  # empty for a joined cluster
    for name, words in (("gcs_server", "the head process (gcs_server)"), ("raylet", "the node's process (raylet)")):
        for info in processes.get(name, ()):
            if (code := info.process.poll()) is not None:
                by = signal.Signals(-code).name if -code in [*signal.Signals] else f"exit code {code}"
                return f"{words} of the local Ray session has ended ({by})"
    return ""


def require_services() -> None:
    """Raise RunError if a local Ray session has lost a process, for which Ray itself would wait a minute."""
    if ended_process := lost_service():
        raise RunError(f"{ended_process}. Finished units are kept: `dpaudit resume RUN` continues in a new session")


def _put(value: Any) -> Any:
    """Put a value into the object store.

    Raises: RunError if the store and its disk are full.
    """
    try:
        return ray.put(value)
    except RayError as err:
        raise RunError(
            f"the inputs of units do not fit into Ray's object store ({loss_reason(err)}). Make room: free memory, "
            "or disk space in Ray's temporary folder (`$RAY_TMPDIR`, else /tmp), or give the run fewer `workers`. "
            "Then resume the run: finished units are kept"
        ) from err


def load_failure(err: RayError) -> str:
    """Return why no worker can import the code of a unit; "" for other errors."""
    reasons = re.findall(r"^(?:AttributeError|ModuleNotFoundError|ImportError): (.*)", str(err), re.MULTILINE)
    if not reasons or "System error" not in str(err):
        return ""
    return (
        f"a worker could not load the code that it was given: {reasons[-1]}. Put the code into a separate module that "
        "workers can import"
    )


def loss_reason(err: RayError) -> str:
    """Return why a worker was lost, with dpaudit's settings instead of Ray's if memory ran out."""
    if isinstance(err, OutOfMemoryError) or "running low on memory" in str(err):
        return (
            "OutOfMemory: the node ran out of memory while this unit ran, and its worker was ended. Use fewer workers "
            "(`workers` in `run:`), a node with more memory, or a smaller unit"
        )
    first_line = next(iter(str(err).strip().splitlines()), "")  # the message often fills a page
    return f"{type(err).__name__}: {first_line}"


_NOT_REQUESTED = ("node:", "object_store_memory")
"""Beginnings of the names of a node's resources that no unit requests."""


@dataclass(frozen=True)
class Nodes:
    """Nodes of a cluster."""

    resources: tuple[Mapping[str, float], ...]  # total resources of each node: `CPU`, `GPU`, `memory`, custom ones

    @classmethod
    def of_session(cls) -> Nodes:
        """Return the nodes of the running Ray session."""
        return cls(tuple(node["Resources"] for node in ray.nodes() if node["Alive"]))

    def __str__(self) -> str:
        sizes = Counter(
            resource_text(node, sorted(name for name in node if not name.startswith(_NOT_REQUESTED)))
            for node in self.resources
        )
        return "; ".join(f"{count} with {size}" for size, count in sorted(sizes.items()))

    def can_hold(self, kind: Resources) -> bool:
        """True if a worker of this kind fits on an empty node."""
        return any(_parts_met(node, kind) == len(kind.amounts) for node in self.resources)

    def refusal(self, kind: Resources) -> str:
        """Return why a worker of this kind cannot be placed, with the largest node; "" if it can."""
        if self.can_hold(kind):
            return ""
        names = list(reversed(kind.amounts))
        largest = max(
            self.resources,
            key=lambda node: (_parts_met(node, kind), *(node.get(name, 0) for name in names)),
            default=None,
        )
        size = (
            "the cluster has no node" if largest is None else f"the largest has {resource_text(largest, kind.amounts)}"
        )
        return (
            f"a unit needs {kind} on one node, {size}: request less in `resources`, of `run:` or of the audit, or add "
            f"such a node. If the cluster adds nodes on demand, set {WAIT_FOR_NODES} to the seconds to wait"
        )

    def require_room(self, kinds: Collection[Resources]) -> None:
        """Raise RunError for a kind that fits on no node."""
        for kind in kinds:
            if why := self.refusal(kind):
                raise RunError(why)

    def worker_counts(self, demand: Mapping[Resources, int]) -> dict[Resources, int]:
        """Return how many workers of each kind fit at the same time, at most one for each unit."""
        # Nodes without scarce resources first, so that workers that need none leave the CPUs of the others free. Kinds
        # with scarce resources first, since they fit on few nodes.
        scarce = {"GPU", *(name for kind in demand for name, _ in kind.custom)}
        free = sorted(
            (dict(node) for node in self.resources), key=lambda node: sum(node.get(name, 0) for name in scarce)
        )
        counts = dict.fromkeys(demand, 0)
        for kind in sorted(demand, key=lambda kind: kind.scarcity, reverse=True):
            for node in free:
                fitting = (_workers_by(name, node.get(name, 0) + 1e-9, amount) for name, amount in kind.amounts.items())
                count = min(demand[kind] - counts[kind], *fitting)
                counts[kind] += count
                for name, amount in kind.amounts.items():
                    node[name] = node.get(name, 0) - count * amount
        return counts


def _parts_met(node: Mapping[str, float], kind: Resources) -> int:
    """Return how many of the requested resources the empty node has in full."""
    return sum(node.get(name, 0) >= amount for name, amount in kind.amounts.items())


def _workers_by(name: str, free: float, amount: float) -> int:
    # A share of a GPU comes from one card: two workers with 0.6 each need two cards.
    return int(free) * int((1 + 1e-9) / amount) if name == "GPU" and amount < 1 else int(free // amount)
