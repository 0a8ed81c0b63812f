"""Ray with a virtual clock: the real schedule and pool run units on simulated nodes.

`actors/schedule.py` and `actors/pool.py` run unchanged: they decide which unit runs next, on which worker and in
which parcel, and what runs again. Only Ray, the clock and the units are replaced. A unit takes the seconds that are
stated for it. Nodes die at stated times. The units of their workers run again, from the last checkpoint if they write
any. Transfers take no time; their bytes are counted.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from ray.exceptions import RayActorError

from dpaudit.actors import pool as pools
from dpaudit.actors.backend import REMIND_S, Attempt, Deadlines
from dpaudit.actors.events import Event, EventKind, EventStream, Listener
from dpaudit.actors.schedule import run_units
from dpaudit.actors.storage.store import Provenance
from dpaudit.actors.unit import Unit

POLL_S = 600.0
"""Virtual seconds between checks of the pool while nothing ends."""
GROWING_POLL_S = 5.0
"""Virtual seconds between these checks while nodes join."""
DETECTED_S, STARTED_S = 15.0, 10.0
"""Seconds until Ray detects a dead node (measured: 14.4 s), and until a new worker is up."""
TRAVEL_S = 0.003
"""Round trip between driver and worker in seconds, measured on one machine."""
UPSCALING = 5
"""Nodes that Ray's autoscaler starts at a time for pending workers, or as many as there are (`upscaling_speed: 1`)."""
REAL_POLL_S, REAL_NODES_S = pools.CHECK_S, pools.NODES_S
"""Seconds between checks of the real pool for ended units, and for new nodes, which cost most of an idle check."""


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
class Cluster:
    """Nodes of one size.

    Attributes:
        nodes: Number of nodes.
        cpus: CPUs of each node.
        gpus: GPUs of each node.
        deaths: Time of death in seconds after the start, by number of the node. Dead nodes are not replaced.
        start_s: Shortest and longest seconds that a node needs to join; None if all nodes are there from the start.
            Nodes start at once for requested resources, in steps for pending workers, and stay.
    """

    nodes: int
    cpus: int = 8
    gpus: int = 1
    deaths: Mapping[int, float] = field(default_factory=dict)
    start_s: tuple[float, float] | None = None


@dataclass(frozen=True)
class Work:
    """Units with their costs.

    Attributes:
        units: The units, each after those that it needs.
        seconds: Duration of each unit, by key.
        result_bytes: Size of each unit's result, by key.
        shared_bytes: Size of each large input, by name.
    """

    units: tuple[Unit, ...]
    seconds: Mapping[str, float]
    result_bytes: Mapping[str, int]
    shared_bytes: Mapping[str, int]

    @classmethod
    def joined(cls, works: Sequence[Work]) -> Work:
        """Return the work of one driver that runs the units of several plans."""
        return cls(
            tuple({unit.key: unit for work in works for unit in work.units}.values()),
            {key: seconds for work in works for key, seconds in work.seconds.items()},
            {key: size for work in works for key, size in work.result_bytes.items()},
            {name: size for work in works for name, size in work.shared_bytes.items()},
        )

    @property
    def gpu_seconds(self) -> float:
        """GPU seconds of all units."""
        return sum(unit.resources.gpus * self.seconds[unit.key] for unit in self.units)

    @property
    def longest_chain_s(self) -> float:
        """Seconds of the longest chain of units that need each other: no cluster is quicker."""
        ends: dict[str, float] = {}
        for unit in self.units:
            ends[unit.key] = self.seconds[unit.key] + max((ends[need] for need in unit.needs), default=0.0)
        return max(ends.values(), default=0.0)

    def shortest_s(self, gpus: int) -> float:
        """Seconds that no order of the units beats on this number of GPUs, also if units could move while they run.

        Of the units with at least t seconds of work behind them, one ends last, and t seconds follow.
        """
        behind = dict.fromkeys((unit.key for unit in self.units), 0.0)
        for unit in reversed(self.units):
            for need in unit.needs:
                behind[need] = max(behind[need], behind[unit.key] + self.seconds[unit.key])
        shortest, work = self.longest_chain_s, 0.0
        for unit in sorted(self.units, key=lambda unit: -behind[unit.key]):
            work += unit.resources.gpus * self.seconds[unit.key]
            shortest = max(shortest, work / gpus + behind[unit.key])
        return shortest


@dataclass(frozen=True)
class Played:
    """Result of a simulated run.

    Attributes:
        makespan_s: Seconds from the start until the last unit is recorded.
        busy_gpu_s: GPU seconds in which units ran, with those that were lost.
        lost_gpu_s: GPU seconds that were lost with dead nodes.
        idle_gpus: Number of GPUs without a unit at the median moment of the run.
        driver_s: Processor seconds of the driver.
        put_bytes: Bytes that the driver put into the object store.
        fetched_bytes: Bytes that nodes fetched from the object store.
        result_bytes: Bytes of results in the run folder.
        reruns: Number of units that ran again.
        failed: Error of each unit that failed, by key.
        finished: Number of finished units.
        joined_s: Times at which nodes joined, ascending.
        given_back: True if no resources are requested at the end.
    """

    makespan_s: float
    busy_gpu_s: float
    lost_gpu_s: float
    idle_gpus: int
    driver_s: float
    put_bytes: int
    fetched_bytes: int
    result_bytes: int
    reruns: int
    failed: Mapping[str, str]
    finished: int
    joined_s: Sequence[float]
    given_back: bool


def play(
    work: Work,
    cluster: Cluster,
    overheads: Overheads,
    *,
    checkpoint_s: float = math.inf,
    time_limit_s: float | None = None,
    listeners: Sequence[Listener] = (),
) -> Played:
    """Run units on a simulated cluster by the real schedule and pool.

    Args:
        work: The units and their costs.
        cluster: The nodes.
        overheads: Measured costs of the driver and of a worker.
        checkpoint_s: Seconds between checkpoints of a unit that holds a GPU; infinity for none.
        time_limit_s: Time limit of a unit, as in a spec; None derives limits from finished units, as a run does.
        listeners: Receive the events of the run.
    """
    ray = _Ray(cluster, work, overheads, checkpoint_s)
    store, events = _Store(ray), EventStream(*listeners)
    with _replaced(ray):
        pool = pools.RayPool(
            {name: _Object(ray, size) for name, size in work.shared_bytes.items()},
            demand=Counter(unit.resources for unit in work.units),
            workers=None,
            events=events,
            deadlines=Deadlines(time_limit_s),
            store=store,  # type: ignore[arg-type]
        )
        outcome = run_units(work.units, pool, store, events)  # type: ignore[arg-type]
        makespan, driver_s = ray.now, ray.driver_s()
        pool.close()
    reminders = sum(end - begin for begin, end, _ in ray.busy) / REMIND_S
    driver_s += reminders * _reminder_s(events, work.units[0])
    return Played(
        makespan,
        sum((end - begin) * gpus for begin, end, gpus in ray.busy),
        ray.lost_gpu_s,
        _idle_at_median(ray.busy, makespan, cluster.nodes * cluster.gpus),
        driver_s,
        ray.put_bytes,
        ray.fetched_bytes,
        sum(work.result_bytes[key] for key in outcome.finished),
        sum(ray.begun.values()) - len(ray.begun),
        outcome.failed,
        len(outcome.finished),
        sorted(ray.joined_s),
        not ray.requested,
    )


def _reminder_s(events: EventStream, unit: Unit, times: int = 500) -> float:
    """Return the processor seconds of an event about a unit that still runs."""
    began = time.process_time()
    for _ in range(times):
        events.emit(Event(EventKind.UNIT_RUNNING, unit.key, unit.label, seconds=1.0))
    return (time.process_time() - began) / times


def _idle_at_median(busy: Sequence[tuple[float, float, float]], makespan: float, gpus: int) -> int:
    """Return how many GPUs have no unit for at least half of the run."""
    changes = sorted(change for begin, end, share in busy for change in ((begin, share), (end, -share)))
    seconds: dict[float, float] = defaultdict(float)
    at, gpus_in_use = 0.0, 0.0
    for moment, change in (*changes, (makespan, 0.0)):
        seconds[round(gpus_in_use, 6)] += moment - at
        at, gpus_in_use = moment, gpus_in_use + change
    spent = 0.0
    for in_use, lasted in sorted(seconds.items()):
        spent += lasted
        if spent >= makespan / 2:
            return round(gpus - in_use)
    return gpus


@contextmanager
def _replaced(ray: _Ray) -> Iterator[None]:
    """Replace Ray, the clock and the seconds between checks in the pool's module."""
    values = {
        "ray": ray,
        "time": ray,
        "Worker": _WorkerClass(ray),
        "CHECK_S": ray.poll_s,
        "SUSPENDED_S": math.inf,
        "REMIND_S": math.inf,
        "require_services": lambda: None,
        "lost_service": lambda: "",
    }
    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch.object(pools, name, value))
        stack.enter_context(mock.patch("ray.autoscaler.sdk.request_resources", ray.request_resources))
        if ray.cluster.start_s is not None:
            stack.enter_context(mock.patch.dict(os.environ, {pools.WAIT_FOR_NODES: "1800"}))
        yield


class _Object:
    """An object reference."""

    def __init__(self, ray: _Ray, nbytes: int = 0) -> None:
        self.nbytes, self.value = nbytes, None
        self.error: Exception | None = None
        self._ray = ray

    def finish(self, at: float, value: Any = None, error: Exception | None = None) -> None:
        """Let the reference be ready from `at` on."""
        self.value, self.error = value, error
        self._ray.at(at, lambda: self._ray.done.add(self))


@dataclass(eq=False)
class _Node:
    cpus: float
    gpus: float
    alive: bool = True
    reported_alive: bool = True
    actors: dict[_Actor, None] = field(default_factory=dict)
    objects: set[_Object] = field(default_factory=set)  # objects in its part of the object store

    @property
    def free(self) -> tuple[float, float]:
        """CPUs and GPUs that no worker holds."""
        cpus = self.cpus - sum(actor.cpus for actor in self.actors)
        return cpus, self.gpus - sum(actor.gpus for actor in self.actors)


class _WorkerClass:
    """Stands in for the remote class `Worker`."""

    def __init__(self, ray: _Ray) -> None:
        self._ray, self._cpus, self._gpus = ray, 1.0, 0.0

    def options(self, *, num_cpus: float = 1, num_gpus: float = 0, **_: Any) -> _WorkerClass:
        other = _WorkerClass(self._ray)
        other._cpus, other._gpus = num_cpus, num_gpus
        return other

    def remote(self, *_: Any) -> _Actor:
        return _Actor(self._ray, self._cpus, self._gpus)


class _Method:
    def __init__(self, call: Callable[..., Any], returns: int = 1) -> None:
        self._call, self._returns = call, returns

    def options(self, *, num_returns: int) -> _Method:
        return _Method(self._call, num_returns)

    def remote(self, *arguments: Any) -> Any:
        return self._call(self._returns, *arguments)


@dataclass
class _Parcel:
    """A parcel of units and its references: the attempts, then the tables that others need."""

    units: list[Unit]
    needed: list[bool]
    within_s: float
    objects: tuple[_Object, ...]
    references: list[_Object]


class _Actor:
    """A worker process."""

    def __init__(self, ray: _Ray, cpus: float, gpus: float) -> None:
        self.cpus, self.gpus = cpus, gpus
        self.node: _Node | None = None
        self.up, self.dead = False, False
        self.parcels: deque[_Parcel] = deque()
        self.running: tuple[_Parcel, list[tuple[Unit, float, float]]] | None = None  # units with begin and end
        self.started = _Object(ray)
        self._ray = ray
        self.name, self.run = _Method(lambda _: self.started), _Method(self._submit)
        ray.place(self)

    def _submit(self, returns: int, parcel: Sequence[Any], version: str, within_s: float, *objects: _Object) -> Any:
        ray = self._ray
        ray.spend(_at(ray.overheads.parcel, len(ray.actors)) + ray.overheads.unit * len(parcel))
        references = [_Object(ray) for _ in range(returns)]
        units, needed = [unit for unit, _, _ in parcel], [bool(wanted) for _, _, wanted in parcel]
        self.parcels.append(_Parcel(units, needed, within_s, objects, references))
        if self.dead:
            ray.fail_later(self, ray.now)
        else:
            self.begin(ray.now + TRAVEL_S / 2)
        return references if returns > 1 else references[0]

    def begin(self, at: float) -> None:
        """Begin the next parcel if the worker is free; its units end at times that are known at once."""
        if self.running is not None or not self.parcels or not self.up:
            return
        parcel, began, ran = self.parcels.popleft(), at, list[tuple[Unit, float, float]]()
        self._ray.fetch(self, parcel.objects)
        for unit in parcel.units:
            if ran and at - began >= parcel.within_s:
                break
            self._ray.begun[unit.key] += 1
            end = at + self._ray.remaining_s(unit)
            ran.append((unit, at, end))
            at = end + self._ray.overheads.worker
        self.running = parcel, ran
        self._ray.at(at, lambda: self._end(parcel, ran, at))

    def _end(self, parcel: _Parcel, ran: list[tuple[Unit, float, float]], at: float) -> None:
        if self.dead or self.running is None or self.running[0] is not parcel:
            return
        ray, self.running = self._ray, None
        ray.busy += [(begin, end, unit.resources.gpus) for unit, begin, end in ran]
        attempts = [Attempt(end - begin, table_bytes=ray.work.result_bytes[unit.key]) for unit, begin, end in ran]
        ray.written |= {unit.key for unit, _, _ in ran}
        tables = iter(parcel.references[1:])
        for unit, wanted in zip(parcel.units, parcel.needed, strict=True):
            if wanted:
                table = next(tables)
                table.nbytes = ray.work.result_bytes[unit.key]
                assert self.node is not None
                self.node.objects.add(table)
        parcel.references[0].finish(at + TRAVEL_S / 2, (attempts, at - ran[0][1]))
        self.begin(at)

    def die(self, at: float, detected_at: float) -> None:
        """End the worker; units that were finished are kept, the running one keeps its last checkpoint."""
        self.dead, ray = True, self._ray
        if self.running is not None:
            parcel, ran = self.running
            for unit, begin, end in ran:
                if begin >= at:
                    ray.begun[unit.key] -= 1
                    continue
                ray.busy.append((begin, min(end, at), unit.resources.gpus))
                if end <= at:
                    ray.written.add(unit.key)
                else:
                    saved_s = ray.keep_checkpoint(unit, at - begin)
                    ray.lost_gpu_s += unit.resources.gpus * (at - begin - saved_s)
            self.parcels.appendleft(parcel)
            self.running = None
        ray.fail_later(self, detected_at)


def _at(cost: tuple[float, float], workers: int) -> float:
    return cost[0] + cost[1] * workers


class _Ray:
    """Stands in for the modules `ray` and `time`."""

    def __init__(self, cluster: Cluster, work: Work, overheads: Overheads, checkpoint_s: float) -> None:
        self.work, self.overheads = work, overheads
        self.now = 0.0
        self.done: set[_Object] = set()
        self.actors: dict[_Actor, None] = {}
        self.busy: list[tuple[float, float, float]] = []  # begin, end and GPUs of units
        self.begun: Counter[str] = Counter()
        self.written: set[str] = set()  # keys of units with a file in the store
        self.put_bytes = self.fetched_bytes = 0
        self.lost_gpu_s = 0.0
        self._checkpoint_s, self._saved_s = checkpoint_s, defaultdict[str, float](float)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self.cluster, self.joined_s, self.requested = cluster, list[float](), list[Mapping[str, float]]()
        self.poll_s = POLL_S if cluster.start_s is None else GROWING_POLL_S
        self._starting, self._draws = 0, random.Random(0)
        count = cluster.nodes if cluster.start_s is None else 0
        self._nodes = [_Node(cluster.cpus, cluster.gpus) for _ in range(count)]
        self._pending: deque[_Actor] = deque()
        # Processor seconds of schedule and pool in rounds that ended units, and in idle rounds, with their numbers.
        self._left_at, self._worked_s, self._idle_s = time.process_time(), 0.0, 0.0
        self._idle_rounds, self._asked, self._was_idle = 0, 0, False
        self._modelled_s = 0.0
        for number, at in cluster.deaths.items():
            self.at(at, lambda node=self._nodes[number]: self._node_dies(node))  # type: ignore[misc]

    # The clock

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self._advance(self.now + max(0.0, seconds))

    def spend(self, seconds: float) -> None:
        """Let the driver work."""
        self._modelled_s += seconds
        self.now += seconds

    def at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._number), action))

    def _advance(self, until: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        while not stop() and self._events and self._events[0][0] <= until:
            moment, _, action = heapq.heappop(self._events)
            self.now = max(self.now, moment)
            action()
        if not stop():
            self.now = max(self.now, until)

    # Ray's functions

    def put(self, value: Any) -> _Object:
        self.put_bytes += value.nbytes
        return _Object(self, value.nbytes)

    def get(self, reference: _Object, timeout: float | None = None) -> Any:
        self.done.discard(reference)
        if reference.error is not None:
            raise reference.error
        return reference.value

    def wait(self, references: Sequence[_Object], *, num_returns: int, timeout: float) -> Any:
        spent_s, wanted = time.process_time() - self._left_at, set(references)
        if self._was_idle:
            self._idle_s, self._idle_rounds = self._idle_s + spent_s, self._idle_rounds + 1
        else:
            self._worked_s += spent_s
        if self.cluster.start_s is not None:
            self._start_for_pending()
        self._advance(self.now + timeout, stop=lambda: not self.done.isdisjoint(wanted))
        ready = [item for item in references if item in self.done][:num_returns]
        self.spend(_at(self.overheads.asking, len(references)))
        self._asked, self._was_idle = len(references), not ready and timeout > 0
        chosen = set(ready)
        self._left_at = time.process_time()
        return ready, [item for item in references if item not in chosen]

    def nodes(self) -> list[dict[str, Any]]:
        head = [] if self.cluster.start_s is None else [{"Alive": True, "Resources": {"CPU": 0.0, "GPU": 0.0}}]
        return head + [
            {"Alive": node.reported_alive, "Resources": {"CPU": node.cpus, "GPU": node.gpus}} for node in self._nodes
        ]

    # The autoscaler

    def request_resources(self, bundles: list[Mapping[str, float]]) -> None:
        """Start nodes for all bundles at once."""
        self.requested = bundles
        self._start_nodes(self._nodes_for([(each.get("CPU", 0), each.get("GPU", 0)) for each in bundles]))

    def _start_for_pending(self) -> None:
        """Start nodes for pending workers, as many at a time as there are, or `UPSCALING`."""
        joined = len(self._nodes)
        most = max(UPSCALING, joined) - self._starting
        missing = self._nodes_for([(actor.cpus, actor.gpus) for actor in self._pending]) - self._starting
        self._start_nodes(joined + self._starting + max(0, min(most, missing)))

    def _nodes_for(self, sizes: Sequence[tuple[float, float]]) -> int:
        cpus, gpus = (sum(size[part] for size in sizes) for part in (0, 1))
        return math.ceil(max(cpus / self.cluster.cpus, gpus / max(self.cluster.gpus, 1e-9) if gpus else 0))

    def _start_nodes(self, total: int) -> None:
        """Start nodes until `total` are there or starting, at most those of the cluster."""
        assert self.cluster.start_s is not None
        for _ in range(min(total, self.cluster.nodes) - len(self._nodes) - self._starting):
            self._starting += 1
            self.at(self.now + self._draws.uniform(*self.cluster.start_s), self._join)

    def _join(self) -> None:
        self._starting -= 1
        self._nodes.append(_Node(self.cluster.cpus, self.cluster.gpus))
        self.joined_s.append(self.now)
        waiting, self._pending = self._pending, deque()
        for actor in waiting:
            self.place(actor)

    def kill(self, actor: _Actor) -> None:
        if actor in self._pending:
            self._pending.remove(actor)
        if not actor.dead:
            actor.die(self.now, math.inf)
        self._free(actor)

    # Nodes and workers

    def place(self, actor: _Actor) -> None:
        """Start a worker on the emptiest node with room, or let it wait for one."""
        room = [
            node
            for node in self._nodes
            if node.alive and node.free[0] >= actor.cpus and node.free[1] >= actor.gpus - 1e-9
        ]
        if not room:
            self._pending.append(actor)
            return
        node = max(room, key=lambda candidate: candidate.free)
        node.actors[actor], actor.node = None, node
        self.actors[actor] = None
        self.at(self.now + STARTED_S, lambda: self._up(actor))

    def _up(self, actor: _Actor) -> None:
        if not actor.dead:
            actor.up = True
            actor.started.finish(self.now, "")

    def _free(self, actor: _Actor) -> None:
        self.actors.pop(actor, None)
        if (node := actor.node) is not None and actor in node.actors:
            del node.actors[actor]
            waiting, self._pending = self._pending, deque()
            for other in waiting:
                self.place(other)

    def _node_dies(self, node: _Node) -> None:
        node.alive = False
        for actor in list(node.actors):
            actor.die(self.now, self.now + DETECTED_S)
        self.at(self.now + DETECTED_S, lambda: setattr(node, "reported_alive", False))

    def fail_later(self, actor: _Actor, moment: float) -> None:
        """Let the references of a dead worker raise from `moment` on."""
        if math.isinf(moment):
            return
        parcels, actor.parcels = list(actor.parcels), deque()

        def fail() -> None:
            for parcel in parcels:
                parcel.references[0].finish(self.now, error=RayActorError())
            if not actor.up:
                actor.started.finish(self.now, error=RayActorError())

        self.at(moment, fail)

    # Units

    def remaining_s(self, unit: Unit) -> float:
        return self.work.seconds[unit.key] - self._saved_s[unit.key]

    def keep_checkpoint(self, unit: Unit, ran_s: float) -> float:
        """Keep what a unit's last checkpoint holds; return how many of its seconds that saves."""
        if not unit.resources.gpus or math.isinf(self._checkpoint_s):
            return 0.0
        saved_s = ran_s // self._checkpoint_s * self._checkpoint_s
        self._saved_s[unit.key] += saved_s
        return float(saved_s)

    def fetch(self, actor: _Actor, objects: Sequence[_Object]) -> None:
        assert actor.node is not None
        for item in objects:
            if item not in actor.node.objects:
                actor.node.objects.add(item)
                self.fetched_bytes += item.nbytes

    def driver_s(self) -> float:
        """Processor seconds: schedule and pool as measured here, and Ray's calls by `overheads`."""
        idle_seconds = self._idle_rounds * POLL_S
        node_check_s = self._idle_s / max(1, self._idle_rounds)
        check_s = _at(self.overheads.asking, self._asked)
        idle_s = idle_seconds * (node_check_s / REAL_NODES_S + check_s / REAL_POLL_S)
        return self._worked_s + self._modelled_s + idle_s


class _Store:
    """Stands in for the run folder: finished units by key, without their content."""

    def __init__(self, ray: _Ray) -> None:
        self.damaged: dict[str, str] = {}
        self._ray = ray
        self.read = self._table_of

    def finished(self, keys: Any) -> set[str]:
        return self._ray.written & set(keys)

    def provenance(self, keys: Any) -> Provenance:
        return Provenance()

    def _table_of(self, key: str) -> _Object:
        return _Object(self._ray, self._ray.work.result_bytes[key])

    def mark_for_workers(self) -> tuple[str, ...]:
        return ()

    def set_aside_damaged(self, key: str) -> None:
        """Do nothing: no file is damaged."""

    def remove_worker_files(self) -> None:
        """Do nothing: there are no files."""

    def fail(self, key: str, log: str) -> None:
        """Do nothing: the schedule keeps the error."""
