"""A pool of Ray actors that run units: bounded in-flight work, completion order, lost workers replaced.

Beside it stand how many workers the nodes hold, and what the object stores write to disk for want of memory.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, TaskUnschedulableError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from dpaudit.actors.audited.leftovers import adopt_orphans
from dpaudit.actors.backend import REMIND_S, Attempt, Completion, Deadlines, Handle, attempt_unit
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.storage.places import Scratch
from dpaudit.actors.unit import Inputs, Resources, Unit, code_version
from dpaudit.errors import RunError

QUEUED_PER_WORKER = 2  # one runs, one waits beside it: the worker never idles for a round trip to the driver
START_TIMEOUT_S = 300.0
YIELD_S = 20.0  # when nothing has run for so long, idle workers make room for a kind that has not come up
START_TRIES = 3  # workers that may die in a row while they start, before it is held that none can start
LOOK_S = 1.0  # how often the driver looks for units that run too long and workers that have gone silent
BEAT_S = 15.0
STOPPED_S = 10.0  # a driver that has not looked for so long was stopped: that time counts for no unit
# A worker whose interpreter has not run for so long is held to be stopped, or its node frozen. Where a time limit is
# stated, that alone decides: code that keeps the interpreter to itself for long needs one.
SILENCE_S = 180.0
COUNT_S = 5.0  # how often the driver looks which nodes have joined or left
MANY = 64
SPILLS_S = 30.0  # how often it is asked what the object stores have written to disk
ANSWERED_S = 2.0  # how long the nodes may take to say it
WAIT_FOR_NODES = "DPAUDIT_WAIT_FOR_NODES_S"  # how many seconds a cluster may take to bring a node; unset: none
WAITING_FOR_NODES = 16  # workers of each kind asked for beyond the room there is, where the cluster brings nodes
_BEATS = b"dpaudit-beats"


@ray.remote
class Worker:
    """Runs units in a process of its own and keeps what is dear to build: imported libraries, open devices."""

    def __init__(self, threads: int, scratch: Scratch | None, pulse: str, beat_s: float) -> None:
        self._scratch = scratch
        adopt_orphans()
        # Libraries read it when they are loaded, and torch takes seconds to load: not where no unit needs it.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(threads)
        threading.Thread(target=_beat, args=(pulse, beat_s), name="dpaudit-pulse", daemon=True).start()

    def ready(self) -> bool:
        return True

    def run(self, unit: Unit, version: str, *objects: Any) -> Attempt:
        """One attempt, with the unit's file, for the driver; `objects` are the shared inputs and the tables."""
        return self._attempt(unit, version, objects)[0]

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def run_and_keep(self, unit: Unit, version: str, *objects: Any) -> tuple[Attempt, pa.Table | None]:
        """The same, and the table, which stays in the object store for the units that need it."""
        return self._attempt(unit, version, objects)

    def _attempt(self, unit: Unit, version: str, objects: Sequence[Any]) -> tuple[Attempt, pa.Table | None]:
        count = len(unit.shared)
        shared = dict(zip(unit.shared, objects[:count], strict=True))
        inputs = Inputs(shared, dict(zip(unit.needs, objects[count:], strict=True)))
        return attempt_unit(unit, inputs, self._scratch, version)


def _beat(pulse: str, every_s: float) -> None:
    """Counts up in the cluster's own table for as long as the process runs: no clocks are compared."""
    for count in itertools.count():
        _internal_kv_put(pulse.encode(), str(count).encode(), namespace=_BEATS)
        time.sleep(every_s)


@dataclass(eq=False)
class _Slot:
    """A worker, from the moment it is asked for."""

    kind: Resources  # what it occupies
    actor: Any  # its handle
    pulse: str  # where it counts its beats
    since: float  # when it was asked for; later, when what it runs began
    ready: bool = False  # whether it is up
    queue: deque[Any] = field(default_factory=deque)  # what it was given; the first is the one that runs
    beat: bytes | None = None  # its last beat that was seen
    heard: float = 0.0  # when that was
    reminded: float = 0.0  # when it was last said that the first of the queue still runs


@dataclass(frozen=True)
class _Flight:
    unit: Unit
    arguments: tuple[Any, ...]
    needed: bool
    slot: _Slot
    table: Any

    def failed(self, why: str, *, worker_died: bool, retryable: bool = True) -> Completion:
        """That it came back without a result, after so long as its worker has been at it."""
        attempt = Attempt(time.monotonic() - self.slot.since, why, retryable)
        return Completion(self.unit, attempt, worker_died=worker_died)


class _Places:
    """Workers of one kind that are up, by how many units they have: the one with fewest is found at once."""

    def __init__(self) -> None:
        self._having: list[dict[_Slot, None]] = [{} for _ in range(QUEUED_PER_WORKER + 1)]
        self._where: dict[_Slot, int] = {}

    @property
    def free(self) -> int:
        """Units that they take before each has its share."""
        return sum((QUEUED_PER_WORKER - count) * len(slots) for count, slots in enumerate(self._having))

    def shortest(self) -> _Slot | None:
        """A worker with fewest units; None where each has its share."""
        return next((next(iter(slots)) for slots in self._having[:QUEUED_PER_WORKER] if slots), None)

    def put(self, slot: _Slot) -> None:
        """Takes note of a worker that is up, or of how many units it has now."""
        self.drop(slot)
        self._where[slot] = len(slot.queue)
        self._having[len(slot.queue)][slot] = None

    def drop(self, slot: _Slot) -> None:
        if slot in self._where:
            del self._having[self._where.pop(slot)][slot]


class RayPool:
    """Actors on the running Ray session: of each kind as many as its nodes hold, `workers` at most, also as nodes join.

    Raises: RunError when a unit could stand on no node of the cluster.
    """

    def __init__(
        self,
        shared: dict[str, Any],
        *,
        demand: Mapping[Resources, int],
        workers: int | None,
        events: EventStream,
        scratch: Scratch | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._wait_s = float(os.environ.get(WAIT_FOR_NODES, "0"))
        if not self._wait_s:
            _nodes().require_room(demand)
        self._shared = {name: ray.put(value) for name, value in shared.items()}
        self._remaining = Counter(demand)
        self._workers, self._scratch, self._events = workers, scratch, events
        self._deadlines = deadlines or Deadlines()
        self._flights: dict[Any, _Flight] = {}
        self._heads: dict[Any, None] = {}  # of the flights, those that run: the others come back after them
        self._homeless: deque[tuple[Unit, tuple[Any, ...], bool]] = deque()  # their worker died before their turn came
        self._starting: dict[Any, _Slot] = {}
        self._slots: dict[_Slot, None] = {}
        self._places: dict[Resources, _Places] = {}
        self._nowhere: set[Resources] = set()
        self._failed_starts = 0
        self._looked = self._counted = self._moved = self._yielded = time.monotonic()
        self._spills = SpillWatch(events)
        self._resize()

    def capacity(self, kind: Resources) -> int:
        """Free places for units of this kind on workers that are up."""
        free = sum(places.free for places in self._hosts(kind))
        return free - sum(unit.resources == kind for unit, *_ in self._homeless)

    def _hosts(self, kind: Resources) -> list[_Places]:
        """Workers that are up for units of this kind: its own, or those with more of a GPU where it has none."""
        if kind in self._places:
            return [self._places[kind]]
        return [places for other, places in self._places.items() if other.may_run(kind)]

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        """Gives the unit to the worker with the shortest queue."""
        self._homeless.append((unit, (*(self._shared[name] for name in unit.shared), *tables), needed))
        self._give_homeless()

    def _give(self, slot: _Slot, unit: Unit, arguments: tuple[Any, ...], needed: bool) -> None:
        if needed:
            attempt, table = slot.actor.run_and_keep.remote(unit, code_version(), *arguments)
        else:
            attempt, table = slot.actor.run.remote(unit, code_version(), *arguments), None
        self._flights[attempt] = _Flight(unit, arguments, needed, slot, table)
        slot.queue.append(attempt)
        self._places[slot.kind].put(slot)
        if len(slot.queue) == 1:
            self._begin(slot)

    def _begin(self, slot: _Slot) -> None:
        self._heads[slot.queue[0]] = None
        slot.since = slot.reminded = time.monotonic()

    def wait(self) -> list[Completion]:
        """Blocks until a unit has come back, was ended, or its worker is known to be lost, or a worker has come up."""
        while True:
            self._give_homeless()
            done = self._done()
            started = [reference for reference in done if reference in self._starting]
            for reference in started:
                self._started(reference)
            back = [ended for reference in done if reference in self._flights for ended in self._complete(reference)]
            back += self._look()
            if started or back:
                self._moved = time.monotonic()
                return back
            self._require_progress()

    def _give_homeless(self) -> None:
        for _ in range(len(self._homeless)):
            unit, arguments, needed = self._homeless.popleft()
            free = (slot for places in self._hosts(unit.resources) if (slot := places.shortest()) is not None)
            if (slot := min(free, key=lambda slot: len(slot.queue), default=None)) is not None:
                self._give(slot, unit, arguments, needed)
            else:
                self._homeless.append((unit, arguments, needed))

    def _done(self) -> list[Any]:
        references = [*self._heads, *self._starting]
        if not references:
            time.sleep(LOOK_S)
            return []
        done, rest = ray.wait(references, num_returns=1, timeout=LOOK_S)
        if done and len(rest) > MANY:  # asking about many costs as much for one as for all that are done
            done += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return list(done)

    def _require_progress(self) -> None:
        """Makes room for workers that have not come up, and refuses to wait for ever for them."""
        if self._flights:
            return
        stalled_s = time.monotonic() - self._moved
        missing = [kind for kind in self._lacking() if kind in self._nowhere]
        patience_s = (missing and self._wait_s) or max(START_TIMEOUT_S, self._wait_s)
        if stalled_s > patience_s:
            raise RunError(self._refusal(missing, patience_s))
        if not missing and stalled_s > YIELD_S and time.monotonic() - self._yielded > YIELD_S:
            self._make_room()

    def _refusal(self, missing: Sequence[Resources], patience_s: float) -> str:
        if missing:
            return (
                f"a node that holds a unit of {' and one of '.join(map(str, missing))} must join within "
                f"{patience_s:.0f} s, none did, and no other unit is left that could run; what is finished is kept: "
                "resume the run when such a node is there"
            )
        wanted = " and ".join(f"one of {kind}" for kind in +self._remaining)
        return (
            f"a worker must start within {patience_s:.0f} s, none did ({wanted} is waited for); the cluster may be "
            "full or have lost nodes: ask for fewer or smaller workers, or wait for its other jobs"
        )

    def _lacking(self) -> list[Resources]:
        """Kinds of units that are still to be run, and that no worker can run that is up."""
        up = {slot.kind for slot in self._slots if slot.ready}
        return [kind for kind in +self._remaining if not any(worker.may_run(kind) for worker in up)]

    def _make_room(self) -> None:
        """Ends idle workers of other kinds than those that are lacking: they may stand where these would."""
        self._yielded = time.monotonic()
        lacking = self._lacking()
        for slot in [slot for slot in self._slots if lacking and slot.kind not in lacking and not slot.queue]:
            self._dismiss(slot)
        self._counted = self._yielded  # they are asked for again, when the others have had time to come up

    def hold(self, table: pa.Table) -> Handle:
        return ray.put(table)

    def close(self) -> None:
        self._spills.look(now=True)
        for slot in self._slots:
            self._end(slot)
        self._slots.clear()
        self._places.clear()

    def _end(self, slot: _Slot) -> None:
        ray.kill(slot.actor)  # Ray ends a process that does not answer after a few seconds
        _internal_kv_del(slot.pulse.encode(), namespace=_BEATS)

    def _resize(self) -> None:
        """Asks for the workers there is room and work for, and ends idle ones there is none for."""
        self._counted = time.monotonic()
        demand = {kind: max(1, count) for kind, count in self._remaining.items()}
        nodes = _nodes()
        self._tell_of_missing(nodes)
        room = nodes.rooms(demand)
        no_gpu_yet = any(kind.gpus for kind in self._lacking())
        for kind in sorted(demand, key=lambda kind: -kind.gpus):  # before others take the CPUs beside the GPUs
            own = [slot for slot in self._slots if slot.kind == kind]
            wanted = min(room[kind], self._workers or room[kind])
            # What waits for a node is what makes the cluster bring one. Where a GPU is waited for, those that need none
            # would take the CPUs beside it.
            if self._wait_s and (kind.gpus or not no_gpu_yet):
                wanted = min(demand[kind], self._workers or demand[kind], wanted + WAITING_FOR_NODES)
            for _ in range(wanted - len(own)):
                self._start(kind)
            spare = sorted((slot for slot in own if not slot.queue), key=lambda slot: slot.ready)
            for slot in spare[: max(0, len(own) - wanted)]:
                self._dismiss(slot)

    def _tell_of_missing(self, nodes: Nodes) -> None:
        """Notes the kinds that no node holds, and says so of those that one held before, or that are waited for."""
        before = self._nowhere
        self._nowhere = {kind for kind in +self._remaining if not nodes.hold(kind)}
        for kind in self._nowhere - before:
            waits = f"one is waited for, {self._wait_s or START_TIMEOUT_S:.0f} s when nothing else runs"
            said = f"no node of the cluster holds a unit of {kind}; {waits}"
            self._events.emit(Event(EventKind.STAGE, detail=said))

    def _dismiss(self, slot: _Slot) -> None:
        self._forget(slot)
        self._starting = {reference: other for reference, other in self._starting.items() if other is not slot}
        self._end(slot)

    def _forget(self, slot: _Slot) -> None:
        del self._slots[slot]
        self._places[slot.kind].drop(slot)
        if not any(other.kind == slot.kind for other in self._slots):
            del self._places[slot.kind]

    def _start(self, kind: Resources) -> None:
        pulse = uuid.uuid4().hex
        worker = Worker.options(num_cpus=kind.cpus, num_gpus=kind.gpus, max_restarts=0)  # type: ignore[attr-defined]
        actor = worker.remote(kind.cpus, self._scratch, pulse, BEAT_S)
        slot = _Slot(kind, actor, pulse, time.monotonic())
        self._slots[slot] = None
        self._places.setdefault(kind, _Places())
        self._starting[slot.actor.ready.remote()] = slot

    def _started(self, reference: Any) -> None:
        slot = self._starting.pop(reference)
        try:
            ray.get(reference)
        except RayError as err:
            self._forget(slot)
            self._failed_starts += 1
            if isinstance(err, TaskUnschedulableError) or self._failed_starts >= START_TRIES:
                if not self._slots:
                    raise RunError(f"no worker could be started, {self._failed_starts} tries; {loss(err)}") from err
                return  # the others go on without it
            self._start(slot.kind)
            return
        self._failed_starts = 0
        slot.ready = True
        self._places[slot.kind].put(slot)
        slot.heard = time.monotonic()
        self._events.emit(Event(EventKind.WORKER_STARTED, count=sum(slot.ready for slot in self._slots)))

    def _complete(self, reference: Any) -> list[Completion]:
        """What came back with this reference: one unit, or what a lost worker leaves behind."""
        flight = self._flights[reference]
        try:
            attempt: Attempt = ray.get(reference, timeout=START_TIMEOUT_S)
        except (RayActorError, OutOfMemoryError) as err:
            return self._replace(flight.slot, loss(err))
        except RayError as err:  # the arguments or the table are gone with their node, the task was cancelled, ...
            unread = cannot_load(err)
            ended = flight.failed(unread or loss(err), worker_died=not unread, retryable=not unread)
            self._landed(reference)
            return [ended]
        self._landed(reference)
        if attempt.error:
            return [Completion(flight.unit, attempt)]
        self._remaining[flight.unit.resources] -= 1
        self._deadlines.learn(flight.unit, attempt.seconds)
        return [Completion(flight.unit, attempt, flight.table)]

    def _landed(self, reference: Any) -> None:
        slot = self._flights.pop(reference).slot
        del self._heads[reference]
        slot.queue.popleft()
        slot.heard = time.monotonic()
        self._places[slot.kind].put(slot)
        if slot.queue:
            self._begin(slot)

    def _replace(self, slot: _Slot, why: str, *, worker_died: bool = True) -> list[Completion]:
        """Ends a worker and starts another one; what it ran comes back, what waited behind it goes elsewhere."""
        self._forget(slot)
        self._end(slot)  # it may only be unreachable: the same unit on two workers gives the same table
        self._start(slot.kind)
        del self._heads[slot.queue[0]]
        flights = [self._flights.pop(reference) for reference in slot.queue]
        self._homeless.extend((flight.unit, flight.arguments, flight.needed) for flight in flights[1:])
        return [flight.failed(why, worker_died=worker_died) for flight in flights[:1]]

    def _look(self) -> list[Completion]:
        """Ends what runs too long, replaces workers that do not answer, and says what still runs."""
        now = time.monotonic()
        if now - self._looked < LOOK_S / 2:
            return []
        if now - self._counted > COUNT_S:
            self._resize()
        self._spills.look()
        idle, self._looked = now - self._looked, now
        if idle > STOPPED_S:  # the driver itself was stopped, and the workers perhaps with it
            for slot in self._slots:
                slot.since, slot.heard, slot.reminded = slot.since + idle, now, now
        back: list[Completion] = []
        for slot in [slot for slot in self._slots if slot.ready and slot.queue]:
            unit = self._flights[slot.queue[0]].unit
            limit_s, running_s = self._deadlines.limit_s(unit), now - slot.since
            if limit_s is not None and running_s > limit_s:
                back += self._replace(slot, self._deadlines.refusal(limit_s), worker_died=False)
            elif self._deadlines.stated_s is None and self._silent_s(slot, now) > SILENCE_S:
                back += self._replace(slot, f"the worker has not answered for {SILENCE_S:.0f} s")
            elif now - slot.reminded > REMIND_S:
                slot.reminded = now
                self._events.emit(Event(EventKind.UNIT_RUNNING, unit.key, unit.label, seconds=running_s))
        return back

    def _silent_s(self, slot: _Slot, now: float) -> float:
        """For how long a worker's count has stood still."""
        if now - slot.heard > SILENCE_S / 4:  # each look at a count is a question to the cluster's head
            beat = _internal_kv_get(slot.pulse.encode(), namespace=_BEATS)
            if beat != slot.beat:
                slot.beat, slot.heard = beat, now
        return now - slot.heard


def cannot_load(err: RayError) -> str:
    """That a worker could not rebuild what it was given, which no other worker could either; "" for all else."""
    reasons = re.findall(r"^(?:AttributeError|ModuleNotFoundError|ImportError): (.*)", str(err), re.MULTILINE)
    if not reasons or "System error" not in str(err):
        return ""
    return (
        f"a worker could not load the code that it was given: {reasons[-1]}; put the code into a module of its own, "
        "which the workers can import"
    )


def loss(err: RayError) -> str:
    """Why a worker was lost, in words of ours where Ray's speak of its own settings."""
    if isinstance(err, OutOfMemoryError) or "running low on memory" in str(err):
        return (
            "OutOfMemory: the node ran out of memory while this unit ran, and its worker was ended; give the run fewer "
            "workers (`workers` in `run:`), the node more memory, or the unit less to hold at once"
        )
    first_line = next(iter(str(err).strip().splitlines()), "")  # it often runs to a page
    return f"{type(err).__name__}: {first_line}"


@dataclass(frozen=True)
class Nodes:
    """The nodes of a cluster."""

    each: tuple[Mapping[str, float], ...]  # what it has in all, as Ray names it: `CPU`, `GPU`

    def hold(self, kind: Resources) -> bool:
        """Whether one of them could hold a worker of this kind if it were empty."""
        return any(node.get("CPU", 0) >= kind.cpus and node.get("GPU", 0) >= kind.gpus for node in self.each)

    def require_room(self, kinds: Collection[Resources]) -> None:
        """Refuses kinds that no node could ever hold."""
        for kind in kinds:
            if not self.hold(kind):
                held = {f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in self.each}
                raise RunError(
                    f"a unit needs {kind} on one node, the cluster's nodes have {', '.join(sorted(held)) or 'none'}; "
                    "ask for less in `run:`, or, where the cluster brings such a node when it is asked, state in "
                    "DPAUDIT_WAIT_FOR_NODES_S for how many seconds to wait for it"
                )

    def rooms(self, demand: Mapping[Resources, int]) -> dict[Resources, int]:
        """How many workers of each kind they hold at the same time, none more than there are units for."""
        # Nodes without a GPU first, so that workers that need none leave the CPUs beside GPUs to those that do; kinds
        # with a GPU first, since they can stand on few nodes.
        left = sorted((dict(node) for node in self.each), key=lambda node: node.get("GPU", 0))
        found = dict.fromkeys(demand, 0)
        for kind in sorted(demand, key=lambda kind: (-kind.gpus, -kind.cpus)):
            for node in left:
                count = min(_held(node, kind), demand[kind] - found[kind])
                found[kind] += count
                node["CPU"] = node.get("CPU", 0) - count * kind.cpus
                node["GPU"] = node.get("GPU", 0) - count * kind.gpus
        return found


def _held(node: Mapping[str, float], kind: Resources) -> int:
    by_cpu = int(node.get("CPU", 0) // kind.cpus)
    if not kind.gpus:
        return by_cpu
    gpus = node.get("GPU", 0) + 1e-9
    # a part of a GPU is taken from one card: two workers with 0.6 each need two.
    by_gpu = int(gpus // kind.gpus) if kind.gpus >= 1 else int(gpus) * int((1 + 1e-9) / kind.gpus)
    return min(by_cpu, by_gpu)


def _nodes() -> Nodes:
    return Nodes(tuple(node["Resources"] for node in ray.nodes() if node["Alive"]))


def spilled_bytes() -> int | None:
    """What all nodes' stores have spilled since the session began; None where it cannot be learnt (`ray://`, busy)."""
    # Ray has no public call for it; `ray memory --stats-only` asks the same.
    from ray._private import state
    from ray._private.internal_api import get_memory_info_reply

    try:
        reply = get_memory_info_reply(state.state, timeout_seconds=ANSWERED_S)
    except Exception:  # no answer in time, no living node, another version's protocol: nothing depends on it
        return None
    return int(reply.store_stats.spilled_bytes_total)


class SpillWatch:
    """Tells when the stores have written more to disk than before, with all since this watch began."""

    def __init__(self, events: EventStream) -> None:
        self._events = events
        self._before = spilled_bytes() or 0
        self._told = 0
        self._looked = time.monotonic()

    def look(self, *, now: bool = False) -> None:
        """Asks, if it is time or if told to."""
        if not now and time.monotonic() - self._looked < SPILLS_S:
            return
        megabytes = ((spilled_bytes() or 0) - self._before) // 1_000_000
        self._looked = time.monotonic()
        if megabytes > self._told:
            self._told = megabytes
            self._events.emit(Event(EventKind.SPILLED, count=megabytes))
