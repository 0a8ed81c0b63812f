"""Backends of runs whose units do not all run in this process: child processes, Ray, or the choice of `auto`."""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from dpaudit.actors.backend import Backend, Completion, Deadlines, Handle, InProcess
from dpaudit.actors.children import ChildProcesses
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Resources, Unit
from dpaudit.engine.planning.plan import Plan, trainings_of
from dpaudit.errors import RunError
from dpaudit.plain_files import Scratch

TIMED_S = 5.0  # `auto` chooses after units of one kind took this many seconds together
TIMED_UNITS = 2  # and at least this many are finished: the first may have loaded libraries
RAY_S = 12.0  # from the start of a local Ray session until its workers have loaded their libraries
SAVED_S = 30.0  # least time that Ray must save, its start included


@contextlib.contextmanager
def backend_elsewhere(
    plan: Plan, missing: Sequence[Unit], events: EventStream, scratch: Scratch, deadlines: Deadlines, store: UnitStore
) -> Iterator[Backend]:
    """Yield the backend that runs the missing units of a plan, and close it at the end of the `with` block."""
    with contextlib.ExitStack() as stack:

        def in_this_process() -> Backend:
            return stack.enter_context(contextlib.closing(InProcess(dict(plan.shared), scratch, events, deadlines)))

        def in_processes(count: int) -> Backend:
            children = ChildProcesses(plan.shared, scratch, events, deadlines, count)
            return stack.enter_context(contextlib.closing(children))

        def on_ray() -> Backend:
            return stack.enter_context(_ray_pool(plan, missing, events, scratch, deadlines, store))

        concurrency = plan.spec.run.concurrency(max((unit.resources.cpus for unit in missing), default=1))
        match plan.spec.runner_if_settled:
            case "ray":
                yield on_ray()
            case "processes":
                yield in_processes(concurrency)
            case "in-process":
                yield in_processes(1)
            case "auto":
                # Audited code may end or hang its process, so it never runs in this one.
                needs_own_process = plan.isolated or any(unit.user_code for unit in missing)
                first = in_processes(1) if needs_own_process else in_this_process()
                together = plan.spec.together
                cap_s = None if together is None else together.budget_s
                yield AutoBackend(missing, concurrency, first, on_ray, events, cap_s)


@contextlib.contextmanager
def _ray_pool(
    plan: Plan, missing: Sequence[Unit], events: EventStream, scratch: Scratch, deadlines: Deadlines, store: UnitStore
) -> Iterator[Backend]:
    """Yield a pool of Ray workers for the units of a plan, and export the metrics of the run."""
    from dpaudit.cluster.session import ray_session

    with ray_session(plan.spec.run.address):
        from dpaudit.actors.metrics import RunMetrics  # both import Ray, which is quieted first
        from dpaudit.actors.pool import RayPool

        workers = RayPool(
            dict(plan.shared),
            demand=Counter(unit.resources for unit in missing),
            workers=plan.spec.run.workers,
            events=events,
            scratch=scratch,
            deadlines=deadlines,
            store=store,
            fail_alone=_kinds_of_some(plan),
        )
        try:
            gpus = {unit.key: unit.resources.gpus for unit in plan.units}
            metrics = RunMetrics(plan.spec.name, trainings_of(plan), gpus)
            threading.Thread(target=_load_ahead, name="dpaudit-load-ahead", daemon=True).start()
            with events.subscribed(metrics):
                yield workers
            metrics.update()
        finally:
            workers.close()


def _kinds_of_some(plan: Plan) -> frozenset[Resources]:
    """Return the kinds of units that not every configuration of a sweep has; () for other plans.

    A configuration whose units fit on no node then fails alone. If no configuration fits, nothing runs.
    """
    if plan.spec.sweep is not None:
        configurations = [(*entry.units, *entry.bounds) for entry in plan.audits]
    elif not plan.audits:  # the trainings of a rung
        needed = {need for unit in plan.units for need in unit.needs}
        configurations = [plan.needed([unit.key]) for unit in plan.units if unit.key not in needed]
    else:
        return frozenset()
    kinds = [frozenset(unit.resources for unit in units) for units in configurations]
    return frozenset().union(*kinds) - frozenset.intersection(*kinds)


def _load_ahead() -> None:
    """Load the slow libraries of the report while workers start. Errors are ignored: the report raises them itself."""
    with contextlib.suppress(Exception):
        for name in (
            "dpaudit.engine.report.page",
            "numba",
            "matplotlib.backends.backend_agg",
            "matplotlib.backends.backend_svg",
        ):
            importlib.import_module(name)


def ray_pays(left_s: float, workers: int) -> bool:
    """True if Ray ends work of `left_s` seconds at least `SAVED_S` earlier than this process, its start included."""
    return left_s - (left_s / workers + RAY_S) >= SAVED_S


class AutoBackend:
    """Run the first units in one process, then choose once whether Ray runs the rest; the results are the same bytes.

    Args:
        units: The units to run.
        workers: Number of units that Ray runs at a time.
        first: Runs the first units, one at a time.
        on_ray: Opens a pool of Ray workers.
        events: Receives an event if Ray is chosen.
        cap_s: Seconds after which the run begins no further test, so that later work is no reason for Ray; None for no
            limit.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        workers: int,
        first: Backend,
        on_ray: Callable[[], Backend],
        events: EventStream,
        cap_s: float | None = None,
    ) -> None:
        self._backend, self._workers, self._on_ray, self._events = first, workers, on_ray, events
        self._ends = math.inf if cap_s is None else time.monotonic() + cap_s
        self._unbegun = {unit.key for unit in units}
        self._left = Counter(unit.kind_of_work for unit in units)  # unbegun units by kind
        self._seconds: dict[str, list[float]] = defaultdict(list)  # of finished units, by kind
        self._chosen = self._is_ray = False
        self._on_ray_by_key: dict[str, Handle] = {}  # results of the first process that Ray's workers need

    @property
    def runs_answers(self) -> bool:
        return self._backend.runs_answers

    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        return self._backend.capacity(kind, ready, does)

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        if unit.key in self._unbegun:  # a repeated unit is no reason to start Ray
            # Nothing is in flight: until the choice, units run one at a time.
            timed = [each for each in self._seconds.values() if len(each) >= TIMED_UNITS and sum(each) >= TIMED_S]
            if not self._chosen and timed:
                self._choose()
            self._unbegun.remove(unit.key)
            self._left[unit.kind_of_work] -= 1
        if self._is_ray:  # a table of the first process is put once where Ray's workers find it
            for key, table in zip(unit.needs, tables, strict=True):
                if isinstance(table, pa.Table) and key not in self._on_ray_by_key:
                    self._on_ray_by_key[key] = self._backend.hold(table)
            tables = tuple(
                self._on_ray_by_key[key] if isinstance(table, pa.Table) else table
                for key, table in zip(unit.needs, tables, strict=True)
            )
        self._backend.submit(unit, tables, needed=needed)

    def wait(self) -> list[Completion]:
        completions = self._backend.wait()
        if not self._chosen:
            for completion in completions:
                if not completion.attempt.error and not completion.worker_died:
                    self._seconds[completion.unit.kind_of_work].append(completion.attempt.seconds)
        return completions

    def hold(self, table: pa.Table) -> Handle:
        return self._backend.hold(table)

    def close(self) -> None:
        """Do nothing: `backend_elsewhere` closes the backends."""

    @property
    def left_s(self) -> float:
        """Least number of seconds that the unbegun units take one after the other; kinds not yet timed count as 0."""
        needed = sum(self._left[kind] * min(seconds) for kind, seconds in self._seconds.items())
        return min(needed, self._workers * max(0.0, self._ends - time.monotonic()))

    def _choose(self) -> None:
        self._chosen = True
        if not ray_pays(self.left_s, self._workers):
            return
        self._tell(f"about {self.left_s:.0f} s of work are left: Ray runs the rest")
        try:
            on_ray = self._on_ray()
        except RunError as err:  # the spec does not ask for Ray
            self._tell(f"Ray does not start, the rest runs in one process: {err}")
            return
        self._backend.close()
        self._backend, self._is_ray = on_ray, True

    def _tell(self, stage: str) -> None:
        self._events.emit(Event(EventKind.STAGE, detail=stage))
