"""Scheduler of units on any backend: order, retries, lost workers, repeats and storage."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from dpaudit.actors.backend import Backend, Completion, Handle
from dpaudit.actors.events import Event, EventKind, EventStream, last_line
from dpaudit.actors.storage.store import Provenance, UnitStore, decode_unit
from dpaudit.actors.unit import AnswerTask, Resources, Unit

MAX_ATTEMPTS = 2  # for a unit that failed with a retryable error (`Attempt.retryable`)
MAX_LOSSES = 4  # workers that may die while they run a unit before the unit counts as the cause
REPEAT_BUDGET_S = 2.0
REPEAT_BUDGET_SHARE = 0.05
"""Time for repeats, which check that units are deterministic: the larger one of `REPEAT_BUDGET_S` seconds and this
share of the time of all units."""

MAX_HELD_BYTES = 1_000_000_000
"""Limit of results kept in memory for units that need them (on a cluster, in its object store, which would spill more
to disk). Other results are read from the run folder when they are needed."""

SORTED_AGAIN = 1.1
"""Growth of the number of timed kinds after which the driver puts waiting units in order again."""

Skip: TypeAlias = Callable[[Set[str], Set[str]], Set[str]]
"""(finished, failed) -> units that need not run any more. The set never shrinks."""
Defer: TypeAlias = Callable[[Set[str], Set[str]], Set[str]]
"""(finished, failed) -> units not to start yet, because whether they are needed depends on running units."""


@dataclass(frozen=True)
class RunOutcome:
    """Result of a plan's units."""

    finished: frozenset[str]  # keys of units whose results are in the store
    failed: dict[str, str]  # error text by key, including units skipped because they need a failed one
    ran: int  # number of units that finished in this run
    skipped: frozenset[str] = frozenset()  # keys of units that did not need to run
    reused: Provenance = Provenance()  # of the results from earlier runs
    damaged: Mapping[str, str] = field(default_factory=dict)  # defect of each damaged file, by key
    answers: Mapping[str, Any] = field(default_factory=dict)  # values that are not stored, by key of their units


def run_units(
    units: Sequence[Unit],
    backend: Backend,
    store: UnitStore,
    events: EventStream,
    skip: Skip | None = None,
    repeats: int = 0,
    defer: Defer | None = None,
    answers: dict[str, Any] | None = None,
) -> RunOutcome:
    """Run every unit whose result is not in the store, each after the units it needs and follows.

    Args:
        skip: Called before the start and whenever units have ended; the units that it returns are not started.
        repeats: Maximum number of cheap units, with no needs, that are run a second time to compare the results.
        defer: Called like `skip`; its units wait. Units still deferred when all others have ended are not run.
        answers: Filled with the values of units that are not stored, by key, as soon as they are known; None for a unit
            that failed, needs a failed one, or that the backend does not run.
    """
    return _Schedule(units, backend, store, events, skip, repeats, defer, {} if answers is None else answers).run()


@dataclass
class _Schedule:
    units: Sequence[Unit]
    backend: Backend
    store: UnitStore
    events: EventStream
    skip: Skip | None = None
    repeats: int = 0
    defer: Defer | None = None
    answers: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # duration of units that finished in this run
    timed: dict[str, tuple[float, int]] = field(default_factory=dict)  # seconds and number of units, by kind with a GPU
    timed_at_next_sorting: float = 1.0  # number of timed kinds at which waiting units are put in order again
    repeating: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    handles: dict[str, tuple[Handle, int]] = field(default_factory=dict)  # results for waiting units, with their bytes
    held_bytes: int = 0
    tries: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    ran: int = 0
    skipped: Set[str] = frozenset()

    def run(self) -> RunOutcome:
        unique = {unit.key: unit for unit in self.units}
        self.finished = self.store.finished(unique)
        reused, damaged = self.store.provenance(self.finished), dict(self.store.damaged)
        stored = {unit.key for unit in unique.values() if not unit.is_answer}
        self.events.emit(Event(EventKind.UNITS_PLANNED, count=len(stored)))
        if self.finished:
            self.events.emit(Event(EventKind.UNITS_CACHED, count=len(self.finished)))
        waiting = [unit for unit in unique.values() if unit.key not in self.finished]
        for unit in (unit for unit in waiting if unit.key in damaged):
            self._emit(EventKind.UNIT_DAMAGED, unit, detail=damaged[unit.key])
        self.users = Counter(need for unit in waiting for need in set(unit.needs))
        self.missing = {unit.key: {*unit.needs, *unit.follows} - self.finished for unit in waiting}
        self.dependents = defaultdict[str, list[Unit]](list)
        for unit in waiting:
            for need in self.missing[unit.key]:
                self.dependents[need].append(unit)
        self.waiting = waiting
        self._drain(self._in_order(self._runnable([unit for unit in waiting if not self.missing[unit.key]])))
        repeated, self.defer = self._repeatable(), None
        self.repeating |= {unit.key for unit in repeated}
        self._drain(repeated)
        self.events.flush()
        skipped = stored - self.finished - self.failed.keys()
        if skipped:
            self.events.emit(Event(EventKind.UNITS_SPARED, count=len(skipped)))
        return RunOutcome(
            frozenset(self.finished), self.failed, self.ran, frozenset(skipped), reused, damaged, self.answers
        )

    def _runnable(self, ready: list[Unit]) -> list[Unit]:
        """Return the units that the backend runs; the others of them get no answer."""
        if not self.backend.runs_answers:
            self.answers |= {unit.key: None for unit in ready if unit.is_answer}
        return [unit for unit in ready if not unit.is_answer or unit.key not in self.answers]

    def _in_order(self, ready: Sequence[Unit]) -> list[Unit]:
        """Return ready units in the order of their starts.

        Units with finished needs first, to complete what was begun. Then one of each kind with a GPU that was not timed
        yet. Then those with the longest chains on GPUs: GPUs would be idle at the end while the last chain runs alone.
        """
        chains = self._gpu_chains_s()
        ordered = sorted(ready, key=lambda unit: (bool(unit.needs), chains[unit.key]), reverse=True)
        untimed = [unit for unit in ordered if unit.resources.gpus and unit.kind_of_work not in self.timed]
        first_of_kind = {unit.kind_of_work: unit.key for unit in reversed(untimed)}.values()
        return sorted(ordered, key=lambda unit: (not unit.needs, unit.key not in first_of_kind))

    def _gpu_chains_s(self) -> dict[str, float]:
        """Return the expected seconds of the longest chain of units with a GPU that begins with each unit, by key.

        A kind of which no unit has ended may take long: it counts as twice the slowest timed one.
        """
        means = {kind: total / count for kind, (total, count) in self.timed.items()}
        unknown_s = 2 * max(means.values(), default=1.0)
        chains: dict[str, float] = {}
        for unit in reversed(self.waiting):  # a unit comes after the units it needs
            later = max((chains.get(dependent.key, 0) for dependent in self.dependents.get(unit.key, ())), default=0)
            chains[unit.key] = later + (unit.resources.gpus and means.get(unit.kind_of_work, unknown_s))
        return chains

    def _emit(self, kind: EventKind, unit: Unit, **details: Any) -> None:
        self.events.emit(Event(kind, unit.key, unit.label, **details))

    def _drain(self, units: list[Unit]) -> None:
        """Run units and those that become ready, until only deferred units are left."""
        queues: dict[Resources, deque[Unit]] = {}
        for unit in units:
            if unit.key not in self.skipped:
                queues.setdefault(unit.resources, deque()).append(unit)
        self._remove_skipped(queues)
        deferred = self._deferred()
        while self.in_flight or any(_next_index(queue, deferred) is not None for queue in queues.values()):
            for kind, queue in queues.items():
                while (index := _next_index(queue, deferred)) is not None:
                    work = queue[index].kind_of_work
                    capacity = self.backend.capacity(kind, len(queue), work)
                    if capacity <= 0:
                        break
                    while capacity and index is not None and queue[index].kind_of_work == work:
                        unit = queue[index]
                        del queue[index]
                        self._start(unit)
                        capacity, index = capacity - 1, _next_index(queue, deferred)
            # Workers are idle if the capacity for new units exceeds the number of running ones.
            if any(self.backend.capacity(kind, len(queues[kind])) > self.in_flight > 0 for kind in queues):
                for unit in self._repeatable()[:1]:
                    if self.backend.capacity(unit.resources) > self.in_flight:
                        self.repeating.add(unit.key)
                        self._start(unit)
            self.events.flush()
            for completion in self.backend.wait():
                self.in_flight -= 1
                for unit in reversed(self._record(completion)):
                    if unit.key not in self.skipped:
                        queues.setdefault(unit.resources, deque()).appendleft(unit)
            self._remove_skipped(queues)
            if len(self.timed) >= self.timed_at_next_sorting:
                self.timed_at_next_sorting = len(self.timed) * SORTED_AGAIN + 1
                for kind, queue in queues.items():
                    queues[kind] = deque(self._in_order(queue) if kind.gpus else queue)
            deferred = self._deferred()

    def _deferred(self) -> Set[str]:
        return self.defer(self.finished, self.failed.keys()) if self.defer else frozenset()

    def _remove_skipped(self, queues: dict[Resources, deque[Unit]]) -> None:
        if self.skip is None or not any(queues.values()):
            return
        skipped = self.skip(self.finished, self.failed.keys())
        if len(skipped) > len(self.skipped):
            self.skipped = skipped
            for kind, queue in queues.items():
                queues[kind] = deque(unit for unit in queue if unit.key not in skipped)

    def _repeatable(self) -> list[Unit]:
        """Return finished units to repeat within count and time budget, those that run user code first."""
        count = self.repeats - len(self.repeating)
        if count <= 0:
            return []
        budget_s = max(REPEAT_BUDGET_S, REPEAT_BUDGET_SHARE * sum(self.seconds.values())) - sum(
            self.seconds[key] for key in self.repeating
        )
        cheap = [
            unit
            for unit in self.units
            if not unit.needs
            and unit.key not in self.repeating
            and (unit.user_code or not self.repeating)
            and self.seconds.get(unit.key, math.inf) <= budget_s
        ]
        chosen: list[Unit] = []
        for unit in sorted(cheap, key=lambda unit: not unit.user_code):
            if len(chosen) < count and self.seconds[unit.key] <= budget_s:
                chosen.append(unit)
                budget_s -= self.seconds[unit.key]
        return chosen

    def _record_repeat(self, completion: Completion) -> None:
        """Record a repeated unit, and whether its result differs."""
        unit, attempt = completion.unit, completion.attempt
        if completion.worker_died:
            self._emit(EventKind.WORKER_LOST, unit, detail=attempt.error)
            return
        difference = ""
        if attempt.error:
            difference = f"it failed in a second run: {last_line(attempt.error)}"
        elif not self.store.has_same_table(unit.key, decode_unit(attempt.content)):
            difference = "it gave another result in a second run with the same seed"
        self._emit(EventKind.UNIT_REPEATED, unit, seconds=attempt.seconds, detail=difference)

    def _start(self, unit: Unit) -> None:
        self.tries[unit.key] += 1
        self.in_flight += 1
        if unit.is_answer:
            task = cast(AnswerTask, unit.task)
            metadata = {key: self.store.schema(key).metadata or {} for key in unit.follows}
            unit = replace(unit, task=task.following({key: each for key, each in metadata.items() if each}))
        else:
            self._emit(EventKind.UNIT_STARTED, unit, attempt=self.tries[unit.key])
        self.store.set_aside_damaged(unit.key)
        needed = bool(self.users[unit.key]) and unit.key not in self.repeating
        for need in unit.needs:
            if need not in self.handles:
                table = self.store.read(need)
                self._keep(need, self.backend.hold(table), table.nbytes)
        self.backend.submit(unit, tuple(self.handles[need][0] for need in unit.needs), needed=needed)

    def _keep(self, key: str, handle: Handle, size: int) -> None:
        self.handles[key] = handle, size
        self.held_bytes += size

    def _drop(self, key: str) -> None:
        _, size = self.handles.pop(key, (None, 0))
        self.held_bytes -= size

    def _record(self, completion: Completion) -> list[Unit]:
        """Record an ended unit; return the units that are now ready to start."""
        unit, attempt = completion.unit, completion.attempt
        if attempt.printed:
            self.store.append_printed(unit.label, attempt.printed)
        if attempt.remarks:
            self._emit(EventKind.UNIT_REMARKED, unit, detail="; ".join(attempt.remarks), worker=attempt.worker)
        if unit.key in self.repeating:
            self._record_repeat(completion)
            return []
        if completion.worker_died:
            return self._record_loss(unit, attempt.error)
        tries = self.tries[unit.key]
        details: dict[str, Any] = {"attempt": tries, "seconds": attempt.seconds, "worker": attempt.worker}
        if not attempt.error and unit.is_answer:
            self.answers[unit.key] = cast(AnswerTask, unit.task).value(decode_unit(attempt.content))
            self._release(unit)
            self._emit(EventKind.ESTIMATED, unit, time=time.time() - attempt.report_delay_s, **details)
            return []
        if not attempt.error:
            if attempt.content:  # else the worker has written it to the store
                self.store.write(unit.key, attempt.content)
            self.ran += 1
            self.seconds[unit.key] = attempt.seconds
            if unit.resources.gpus:
                total, count = self.timed.get(unit.kind_of_work, (0.0, 0))
                self.timed[unit.kind_of_work] = total + attempt.seconds, count + 1
            self.finished.add(unit.key)
            fits = self.held_bytes + attempt.table_bytes <= MAX_HELD_BYTES
            if self.users[unit.key] and completion.table is not None and fits:
                self._keep(unit.key, completion.table, attempt.table_bytes)
            self._release(unit)
            ended = time.time() - attempt.report_delay_s
            self._emit(EventKind.UNIT_DONE, unit, memory_mb=attempt.memory_mb, time=ended, **details)
            dependents = self.dependents.get(unit.key, [])
            for dependent in dependents:
                self.missing[dependent.key].discard(unit.key)
            return self._runnable(
                [each for each in dependents if not self.missing[each.key] and each.key not in self.failed]
            )
        if attempt.retryable and not unit.is_answer and tries - self.losses[unit.key] < MAX_ATTEMPTS:
            self._emit(EventKind.UNIT_RETRIED, unit, detail=attempt.error, **details)
            return [unit]
        self._fail(unit, attempt.error, **details)
        return []

    def _record_loss(self, unit: Unit, reason: str) -> list[Unit]:
        self.losses[unit.key] += 1
        for need in unit.needs:  # the lost node may have held the inputs: read them from the store again
            self._drop(need)
        if self.losses[unit.key] < MAX_LOSSES:
            self._emit(EventKind.WORKER_LOST, unit, attempt=self.tries[unit.key], detail=reason)
            return [unit]
        error = f"{self.losses[unit.key]} workers died while they ran this unit; the last: {reason}"
        self._fail(unit, error, attempt=self.tries[unit.key])
        return []

    def _fail(self, unit: Unit, reason: str, kind: EventKind = EventKind.UNIT_FAILED, **details: Any) -> None:
        if unit.is_answer:
            self.answers[unit.key] = None
            self._release(unit)
            return
        self.failed[unit.key] = reason
        self.store.fail(unit.key, reason)
        self._emit(kind, unit, detail=reason, **details)
        self._release(unit)
        for dependent in self.dependents.get(unit.key, []):
            if dependent.key not in self.failed.keys() | self.answers.keys():
                reason = f"not run: it needs '{unit.label}', which failed"
                self._fail(dependent, reason, EventKind.UNIT_SKIPPED, attempt=self.tries[dependent.key])

    def _release(self, unit: Unit) -> None:
        """Drop the results that no waiting unit needs any more."""
        for need in set(unit.needs):
            self.users[need] -= 1
            if not self.users[need]:
                self._drop(need)


def _next_index(queue: deque[Unit], deferred: Set[str]) -> int | None:
    """Return the index of the first unit in the queue that is not deferred; None if there is none."""
    return next((index for index, unit in enumerate(queue) if unit.key not in deferred), None)
