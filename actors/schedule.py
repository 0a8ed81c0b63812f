"""Runs a plan's units to the end: order, retries, losses and storage, whatever the backend."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dpaudit.actors.backend import Attempt, Backend, Completion, Handle
from dpaudit.actors.events import Event, EventKind, EventStream, last_line
from dpaudit.actors.storage.store import Made, UnitStore, table_in
from dpaudit.actors.unit import Resources, Unit

ATTEMPTS = 2  # at a unit whose own work failed in a way that may pass (`Attempt.retryable`)
LOSSES = 4  # workers a unit may lose before it is held to be what kills them
CHEAP_S = 2.0
CHEAP_SHARE = 0.05
"""Units are run a second time, to compare, as long as that takes together no more than this, or this share of what the
run took."""

HELD_BYTES = 1_000_000_000
"""Of results that wait for the units that need them, no more is kept in memory (on a cluster: in its object store,
which would move more to disk). They are in the run folder, and read again when their turn comes."""

Skip: TypeAlias = Callable[[Set[str], Set[str]], Set[str]]
"""(finished, failed) -> units that need not be run any more: enough is known without them. Never takes one back."""
Defer: TypeAlias = Callable[[Set[str], Set[str]], Set[str]]
"""(finished, failed) -> units that are not started yet: whether they are needed depends on others that run."""


@dataclass(frozen=True)
class RunOutcome:
    """How a plan's units ended."""

    finished: frozenset[str]  # keys whose tables are in the store
    failed: dict[str, str]  # error text by key; units that need a failed one are among them
    ran: int  # how many units were run now rather than found finished
    spared: frozenset[str] = frozenset()  # keys of units that were not run because enough was known without them
    reused: Made = Made()  # what made the results that were found finished
    damaged: Mapping[str, str] = field(default_factory=dict)  # what was wrong with files, by key of units run again


def run_units(
    units: Sequence[Unit],
    backend: Backend,
    store: UnitStore,
    events: EventStream,
    spare: Skip | None = None,
    repeats: int = 0,
    hold: Defer | None = None,
) -> RunOutcome:
    """Runs every unit whose table is not yet in the store, each after those it needs.

    `spare` and `hold` are asked before anything starts and after every unit that came back; what is held when nothing
    else is left is spared. At most `repeats` units that need no others are run once more where that is cheap.
    """
    return _Schedule(units, backend, store, events, spare, repeats, hold).run()


@dataclass
class _Schedule:
    units: Sequence[Unit]
    backend: Backend
    store: UnitStore
    events: EventStream
    spare: Skip | None = None
    repeats: int = 0
    hold: Defer | None = None
    seconds: dict[str, float] = field(default_factory=dict)  # of what was run now
    repeating: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    handles: dict[str, tuple[Handle, int]] = field(default_factory=dict)  # results that a waiting unit needs, bytes
    held_bytes: int = 0
    tries: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    ran: int = 0
    spared: Set[str] = frozenset()

    def run(self) -> RunOutcome:
        unique = {unit.key: unit for unit in self.units}
        self.finished = self.store.finished(unique)
        reused, damaged = self.store.made(self.finished), dict(self.store.damaged)
        self.events.emit(Event(EventKind.UNITS_PLANNED, count=len(unique)))
        if self.finished:
            self.events.emit(Event(EventKind.UNITS_CACHED, count=len(self.finished)))
        waiting = [unit for unit in unique.values() if unit.key not in self.finished]
        for unit in (unit for unit in waiting if unit.key in damaged):
            self._emit(EventKind.UNIT_DAMAGED, unit, detail=damaged[unit.key])
        self.users = Counter(need for unit in waiting for need in set(unit.needs))
        self.missing = {unit.key: set(unit.needs) - self.finished for unit in waiting}
        self.dependents = defaultdict[str, list[Unit]](list)
        for unit in waiting:
            for need in self.missing[unit.key]:
                self.dependents[need].append(unit)
        ready = [unit for unit in waiting if not self.missing[unit.key]]
        # What an earlier run left half-way first, like units that become ready in this one.
        self._drain(sorted(ready, key=lambda unit: not unit.needs))
        repeated, self.hold = self._repeatable(), None
        self.repeating |= {unit.key for unit in repeated}
        self._drain(repeated)
        self.events.settle()
        spared = unique.keys() - self.finished - self.failed.keys()
        if spared:
            self.events.emit(Event(EventKind.UNITS_SPARED, count=len(spared)))
        return RunOutcome(frozenset(self.finished), self.failed, self.ran, frozenset(spared), reused, damaged)

    def _emit(self, kind: EventKind, unit: Unit, **more: Any) -> None:
        self.events.emit(Event(kind, unit.key, unit.label, **more))

    def _drain(self, units: list[Unit]) -> None:
        """Runs units, and those that become ready by them; what is held when nothing else is left is not run."""
        queues: dict[Resources, deque[Unit]] = {}
        for unit in units:
            if unit.key not in self.spared:
                queues.setdefault(unit.resources, deque()).append(unit)
        self._forget_spared(queues)
        held = self._held()
        while self.in_flight or any(_first(queue, held) is not None for queue in queues.values()):
            for kind, queue in queues.items():
                while (place := _first(queue, held)) is not None:
                    does = queue[place].does
                    room = self.backend.capacity(kind, len(queue), does)
                    if room <= 0:
                        break
                    while room and place is not None and queue[place].does == does:
                        unit = queue[place]
                        del queue[place]
                        self._start(unit)
                        room, place = room - 1, _first(queue, held)
            if any(self.backend.capacity(kind, len(queues[kind])) > self.in_flight > 0 for kind in queues):
                self._repeat_beside()
            self.events.settle()
            for completion in self.backend.wait():
                self.in_flight -= 1
                for unit in reversed(self._settle(completion)):
                    if unit.key not in self.spared:
                        queues.setdefault(unit.resources, deque()).appendleft(unit)
            self._forget_spared(queues)
            held = self._held()

    def _held(self) -> Set[str]:
        return self.hold(self.finished, self.failed.keys()) if self.hold else frozenset()

    def _forget_spared(self, queues: dict[Resources, deque[Unit]]) -> None:
        if self.spare is None or not any(queues.values()):
            return
        spared = self.spare(self.finished, self.failed.keys())
        if len(spared) > len(self.spared):
            self.spared = spared
            for kind, queue in queues.items():
                queues[kind] = deque(unit for unit in queue if unit.key not in spared)

    def _repeat_beside(self) -> None:
        """Runs a unit once more where a worker has nothing to do: it takes two, so more are free than are in flight."""
        for unit in self._repeatable()[:1]:
            if self.backend.capacity(unit.resources) > self.in_flight:
                self.repeating.add(unit.key)
                self._start(unit)

    def _repeatable(self) -> list[Unit]:
        """Units that were run now and are cheap to run again, the user's own code first; no more than are left to."""
        count = self.repeats - len(self.repeating)
        if count <= 0:
            return []
        left = max(CHEAP_S, CHEAP_SHARE * sum(self.seconds.values())) - sum(self.seconds[key] for key in self.repeating)
        cheap = [
            unit
            for unit in self.units
            if not unit.needs
            and unit.key not in self.repeating
            and (unit.own or not self.repeating)
            and self.seconds.get(unit.key, math.inf) <= left
        ]
        chosen: list[Unit] = []
        for unit in sorted(cheap, key=lambda unit: not unit.own):
            if len(chosen) < count and self.seconds[unit.key] <= left:
                chosen.append(unit)
                left -= self.seconds[unit.key]
        return chosen

    def _compare(self, done: Completion) -> None:
        """Books a unit that was run once more: whether it gave the same."""
        unit, attempt = done.unit, done.attempt
        if done.worker_died:
            self._emit(EventKind.WORKER_LOST, unit, detail=attempt.error)
            return
        different = ""
        if attempt.error:
            different = f"it failed when it was run again: {last_line(attempt.error)}"
        elif not self.store.holds(unit.key, table_in(attempt.content)):
            different = "it gave another result when it was run again with the same seed"
        self._emit(EventKind.UNIT_REPEATED, unit, seconds=attempt.seconds, detail=different)

    def _start(self, unit: Unit) -> None:
        self.tries[unit.key] += 1
        self.in_flight += 1
        self._emit(EventKind.UNIT_STARTED, unit, attempt=self.tries[unit.key])
        self.store.set_aside(unit.key)
        needed = bool(self.users[unit.key]) and unit.key not in self.repeating
        self.backend.submit(unit, tuple(self._handle(need) for need in unit.needs), needed=needed)

    def _handle(self, key: str) -> Handle:
        if key not in self.handles:
            table = self.store.read(key)
            self._keep(key, self.backend.hold(table), table.nbytes)
        return self.handles[key][0]

    def _keep(self, key: str, handle: Handle, size: int) -> None:
        self.handles[key] = handle, size
        self.held_bytes += size

    def _drop(self, key: str) -> None:
        _, size = self.handles.pop(key, (None, 0))
        self.held_bytes -= size

    def _settle(self, done: Completion) -> list[Unit]:
        """Books one unit that came back; the units that are ready because of it."""
        unit, attempt = done.unit, done.attempt
        self._remark(unit, attempt)
        if unit.key in self.repeating:
            self._compare(done)
            return []
        if done.worker_died:
            return self._lost(unit, attempt.error)
        how: dict[str, Any] = {"attempt": self.tries[unit.key], "seconds": attempt.seconds, "worker": attempt.worker}
        if not attempt.error:
            if attempt.content:  # else it was written where it was made
                self.store.write(unit.key, attempt.content)
            self.ran += 1
            self.seconds[unit.key] = attempt.seconds
            self.finished.add(unit.key)
            if self.users[unit.key] and done.table is not None and self.held_bytes + attempt.table_bytes <= HELD_BYTES:
                self._keep(unit.key, done.table, attempt.table_bytes)
            self._release(unit)
            ended = time.time() - attempt.ago_s
            self._emit(EventKind.UNIT_DONE, unit, memory_mb=attempt.memory_mb, time=ended, **how)
            return self._freed(unit.key)
        if attempt.retryable and self.tries[unit.key] - self.losses[unit.key] < ATTEMPTS:
            self._emit(EventKind.UNIT_RETRIED, unit, detail=attempt.error, **how)
            return [unit]
        self._fail(unit, attempt.error, **how)
        return []

    def _remark(self, unit: Unit, attempt: Attempt) -> None:
        """Books what an attempt printed, and what else it did to its process."""
        if attempt.printed:
            self.store.keep_printed(unit.label, attempt.printed)
        if attempt.remarks:
            self._emit(EventKind.UNIT_REMARKED, unit, detail="; ".join(attempt.remarks), worker=attempt.worker)

    def _lost(self, unit: Unit, why: str) -> list[Unit]:
        self.losses[unit.key] += 1
        for need in unit.needs:  # the node may have taken the inputs along: put them again from the store
            self._drop(need)
        if self.losses[unit.key] < LOSSES:
            self._emit(EventKind.WORKER_LOST, unit, attempt=self.tries[unit.key], detail=why)
            return [unit]
        died = f"{self.losses[unit.key]} workers died while they ran this unit; the last: {why}"
        self._fail(unit, died, attempt=self.tries[unit.key])
        return []

    def _fail(self, unit: Unit, why: str, kind: EventKind = EventKind.UNIT_FAILED, **how: Any) -> None:
        self.failed[unit.key] = why
        self.store.fail(unit.key, why)
        self._emit(kind, unit, detail=why, **how)
        self._release(unit)
        for dependent in self.dependents.get(unit.key, []):
            if dependent.key not in self.failed:
                why = f"not run: it needs '{unit.label}', which failed"
                self._fail(dependent, why, EventKind.UNIT_SKIPPED, attempt=self.tries[dependent.key])

    def _release(self, unit: Unit) -> None:
        """Lets go of results that no waiting unit needs any more."""
        for need in set(unit.needs):
            self.users[need] -= 1
            if not self.users[need]:
                self._drop(need)

    def _freed(self, key: str) -> list[Unit]:
        dependents = self.dependents.get(key, [])
        for unit in dependents:
            self.missing[unit.key].discard(key)
        return [unit for unit in dependents if not self.missing[unit.key] and unit.key not in self.failed]


def _first(queue: deque[Unit], held: Set[str]) -> int | None:
    """Place of the first unit that need not wait; None where there is none."""
    return next((place for place, unit in enumerate(queue) if unit.key not in held), None)
