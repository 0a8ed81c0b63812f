"""Units beyond this process: in several, on Ray, or moved there once that is known to pay."""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import pyarrow as pa

from dpaudit.actors.backend import Backend, Completion, Deadlines, Handle, InProcess
from dpaudit.actors.children import ChildProcesses
from dpaudit.actors.events import Event, EventKind, EventStream
from dpaudit.actors.storage.places import Scratch
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Resources, Unit
from dpaudit.engine.planning.plan import Plan, trainings_of
from dpaudit.errors import RunError

PROCESSES_S = 3.0  # until processes have loaded their libraries and work
RAY_S = 12.0  # until workers of a local Ray session do
RAY_SHARE = 0.1  # of what is left to wait, its start may take no more than this
LOADING_S = 4.0  # of the first unit of a kind, so much may be for libraries and compiling

Place = Literal["here", "processes", "ray"]


@contextlib.contextmanager
def backend_elsewhere(
    plan: Plan,
    missing: Sequence[Unit],
    events: EventStream,
    scratch: Scratch,
    deadlines: Deadlines,
    store: UnitStore,
) -> Iterator[Backend]:
    """Where the units of a plan run that do not all run in this process, for the length of a `with` block."""
    with contextlib.ExitStack() as stack:

        def here() -> Backend:
            return stack.enter_context(contextlib.closing(InProcess(dict(plan.shared), scratch, events, deadlines)))

        def beside(count: int) -> Backend:
            children = ChildProcesses(plan.shared, scratch, events, deadlines, count)
            return stack.enter_context(contextlib.closing(children))

        def on_ray() -> Backend:
            return stack.enter_context(_ray_pool(plan, missing, events, scratch, deadlines, store))

        run = plan.spec.run
        match run.settled_runner():
            case "ray":
                yield on_ray()
            case "processes":
                yield beside(run.at_a_time)
            case "in-process":
                yield beside(1)
            case "auto":
                own = plan.isolated or any(unit.user_code for unit in missing)  # may end or hang its process
                together = plan.spec.together
                cap_s = None if together is None else together.budget_s
                yield Moving(missing, run.at_a_time, None if own else here, beside, on_ray, events, cap_s)


@contextlib.contextmanager
def _ray_pool(
    plan: Plan,
    missing: Sequence[Unit],
    events: EventStream,
    scratch: Scratch,
    deadlines: Deadlines,
    store: UnitStore,
) -> Iterator[Backend]:
    """A pool of Ray workers for the units of a plan, with the metrics that tell of them, for a `with` block."""
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
        )
        try:
            gpus = {unit.key: unit.resources.gpus for unit in plan.units}
            metrics = RunMetrics(plan.spec.name, trainings_of(plan), gpus)
            threading.Thread(target=_load_ahead, name="dpaudit-load-ahead", daemon=True).start()
            with events.subscribed(metrics):
                yield workers
            metrics.tell()
        finally:
            workers.close()


def _load_ahead() -> None:
    """Loads, while workers start, what the report takes seconds to load at the end; what fails here fails there."""
    with contextlib.suppress(Exception):
        for name in (
            "dpaudit.engine.report.page",
            "numba",
            "matplotlib.backends.backend_agg",
            "matplotlib.backends.backend_svg",
        ):
            importlib.import_module(name)


def place_for(left_s: float, workers: int) -> Place:
    """Where so many seconds of work are best done: where they end first, Ray where its start does not count.

    Processes must save twice their start: what is left is a guess. One worker elsewhere is no faster than this process.
    """
    if workers > 1 and left_s / workers >= RAY_S / RAY_SHARE:
        return "ray"
    return "processes" if left_s - left_s / workers >= 2 * PROCESSES_S else "here"


class Moving:
    """A backend that begins in one place and goes on in another; the results are the same bytes.

    Args:
        units: Those that are to run.
        workers: How many run at a time in processes.
        here: Opens the place to begin in; None begins in one process beside this one.
        beside: Opens so many processes.
        on_ray: Opens a pool of Ray workers.
        events: Told of each move.
        cap_s: Seconds after which no test is begun any more; None for no limit. Work beyond it is no reason to move.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        workers: int,
        here: Callable[[], Backend] | None,
        beside: Callable[[int], Backend],
        on_ray: Callable[[], Backend],
        events: EventStream,
        cap_s: float | None = None,
    ) -> None:
        self._ends = math.inf if cap_s is None else time.monotonic() + cap_s
        self._unbegun = {unit.key for unit in units}
        self._left = Counter(unit.function_name for unit in units)  # of these, by what they do
        self._took: dict[str, list[float]] = defaultdict(list)
        self._workers, self._beside, self._on_ray, self._events = workers, beside, on_ray, events
        self._place: Place = "here"
        self._next: Place | None = None  # where to go once nothing is in flight and another unit is begun
        self._in_flight = 0
        self._ray_fails = False
        self._put: dict[str, Handle] = {}  # on Ray, results by key that were in this process before
        self._backend = here() if here else beside(1)

    def capacity(self, kind: Resources, ready: int = 0, does: str = "") -> int:
        if self._next is None:
            return self._backend.capacity(kind, ready, does)
        return 0 if self._in_flight else 1

    def submit(self, unit: Unit, tables: tuple[Handle, ...], *, needed: bool) -> None:
        if unit.key in self._unbegun:  # for one that is run once more nobody waits for Ray
            if self._next is not None and not self._in_flight:
                self._move(self._next)
            self._unbegun.remove(unit.key)
            self._left[unit.function_name] -= 1
        self._in_flight += 1
        if self._place == "ray":
            tables = tuple(map(self._on_ray_too, unit.needs, tables))
        self._backend.submit(unit, tables, needed=needed)

    def _on_ray_too(self, key: str, table: Handle) -> Handle:
        """A result where Ray's workers find it; one that was in this process is put there once."""
        if not isinstance(table, pa.Table):
            return table
        if key not in self._put:
            self._put[key] = self._backend.hold(table)
        return self._put[key]

    def wait(self) -> list[Completion]:
        done = self._backend.wait()
        self._in_flight -= len(done)
        for one in done:
            if not one.attempt.error and not one.worker_died:
                self._took[one.unit.function_name].append(one.attempt.seconds)
        if done and self._place != "ray":
            place = place_for(self.left_s, self._workers)
            place = "processes" if place == "ray" and self._ray_fails else place
            if place == "ray" or (place == "processes" and self._place == "here"):
                self._next = place
        return done

    def hold(self, table: pa.Table) -> Handle:
        return self._backend.hold(table)

    def close(self) -> None:
        """Whoever opened the places closes them."""

    @property
    def left_s(self) -> float:
        """Units not yet begun take so long at least, one after the other; kinds not yet seen count for none."""
        needed = sum(self._left[kind] * _shortest_s(took) for kind, took in self._took.items())
        return min(needed, self._workers * max(0.0, self._ends - time.monotonic()))

    def _move(self, place: Place) -> None:
        whither = "Ray" if place == "ray" else f"{self._workers} processes"
        said = f"moving to {whither}: about {self.left_s:.0f} s of work are left"
        self._events.emit(Event(EventKind.STAGE, detail=said))
        self._backend.close()
        self._next = None
        if place == "ray":
            try:
                self._backend, self._place = self._on_ray(), place
                return
            except RunError as err:  # nobody has asked for Ray
                self._ray_fails = True
                self._events.emit(Event(EventKind.STAGE, detail=f"going on in {self._workers} processes: {err}"))
        self._backend, self._place = self._beside(self._workers), "processes"


def _shortest_s(took: Sequence[float]) -> float:
    return min(took) if len(took) > 1 else max(0.0, took[0] - LOADING_S)
