"""What a plan is going to cost: units, trainings, time, memory and GPU-hours, by units of the same kinds.

Those were timed by an earlier run, whose folder tells, or are timed here, two units of each kind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpaudit.actors.events import Event, EventKind, EventStream, last_line, read_events
from dpaudit.actors.schedule import run_units
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Unit
from dpaudit.engine.planning.plan import Plan, pieces_of, trainings_of
from dpaudit.engine.run.run_folder import PLAN, read_plan, run_folder
from dpaudit.errors import RunError
from dpaudit.plain_files import read_bytes, require_plain

EACH = 2  # units of each kind that are run to time them


@dataclass(frozen=True)
class Kind:
    """Units of one kind."""

    task: str  # what they do
    cpus: int  # of each
    gpus: float  # of each

    @classmethod
    def of(cls, unit: Unit) -> Kind:
        return cls(unit.does, unit.resources.cpus, unit.resources.gpus)


@dataclass(frozen=True)
class Timed:
    """What units of a kind took."""

    units: int  # how many were timed
    seconds: float  # of one piece (a model of a stack, a replay): the median, the lower one of two
    memory_mb: float  # the most that a process held that ran one; 0 where that is not known


@dataclass(frozen=True)
class Cost:
    """What the units of one kind are going to cost."""

    kind: Kind
    units: int
    trainings: int  # trainings of the audited mechanism and of shadow models in them
    seconds: float | None  # of all of them, one after the other; None where none was timed
    memory_mb: float | None  # of a process that runs one; None where none was timed
    on_cpus_s: float | None = None  # the same on CPUs alone, where that was timed beside the GPU


@dataclass(frozen=True)
class Forecast:
    """What a plan is going to cost."""

    kinds: tuple[Cost, ...]  # in the order of the plan
    source: str  # where the times come from, in words
    workers: int | None  # how many units run at a time; None where that is the cluster's business
    trainings: int
    untimed_units: int  # of kinds that were not timed
    seconds: float  # of all kinds that were timed, one unit after the other
    cpu_hours: float  # CPUs that are held, times how long
    gpu_hours: float

    @property
    def lines(self) -> tuple[str, ...]:
        units = sum(cost.units for cost in self.kinds)
        lines = [f"{_many(units, 'unit')}, {_many(self.trainings, 'training')}; {self.source}"]
        lines += [_line(cost) for cost in self.kinds]
        if not self.seconds:
            return tuple(lines)
        without = f", without {self.untimed_units:,} units of kinds that were not timed" if self.untimed_units else ""
        gpus = f" and {self.gpu_hours:.3g} GPU-hours" if self.gpu_hours else ", no GPU"
        lines.append(f"in all {_duration(self.seconds)} of work{without}: {self.cpu_hours:.3g} CPU-hours{gpus}")
        if self.workers is not None:
            least = f"{_many(self.workers, 'worker')} {_duration(self.seconds / self.workers)} at the least"
            lines.append(f"on {least}, beside the start and the report")
        return tuple(lines)


def expected_cost(plan: Plan, *, calibrate: bool, timings: Path | None) -> Forecast:
    """What a plan costs, by two units of each kind that are run now, or by an earlier run's folder: where it goes."""
    if calibrate:
        return forecast(plan, times_of_some(plan), "times of two units of each kind, run just now")
    folder = timings or run_folder(plan.spec)
    timed = times_of_run(folder)
    told = f"times of the run in {folder}" if timed else "--calibrate or --timings RUN tells how long they take"
    return forecast(plan, timed, told)


def forecast(plan: Plan, timed: Mapping[Kind, Timed], source: str) -> Forecast:
    """What a plan costs by what its kinds of units took."""
    trainings = trainings_of(plan)
    kinds: dict[Kind, list[Unit]] = defaultdict(list)
    for unit in plan.units:
        kinds[Kind.of(unit)].append(unit)
    costs = []
    for kind, units in kinds.items():
        pieces = sum(pieces_of(unit) for unit in units)
        known, beside = timed.get(kind), timed.get(dataclasses.replace(kind, gpus=0.0))
        costs.append(
            Cost(
                kind,
                len(units),
                sum(trainings.get(unit.key, 0) for unit in units),
                known.seconds * pieces if known else None,
                known.memory_mb or None if known else None,
                beside.seconds * pieces if beside and kind.gpus else None,
            )
        )
    run = plan.spec.run
    if run.runner == "in-process":
        workers: int | None = 1
    elif run.workers is None and (run.address or run.gpus_per_worker):
        workers = None
    else:
        workers = run.at_a_time
    timed_costs = [(cost.kind, cost.seconds) for cost in costs if cost.seconds is not None]
    return Forecast(
        tuple(costs),
        source,
        workers,
        trainings=sum(cost.trainings for cost in costs),
        untimed_units=sum(cost.units for cost in costs if cost.seconds is None),
        seconds=sum((seconds for _, seconds in timed_costs), 0.0),
        cpu_hours=sum(seconds * kind.cpus for kind, seconds in timed_costs) / 3600,
        gpu_hours=sum(seconds * kind.gpus for kind, seconds in timed_costs) / 3600,
    )


def times_of_run(folder: Path) -> dict[Kind, Timed]:
    """What the units of an earlier run took, by what its folder tells; nothing where it tells nothing."""
    require_plain(folder)
    path = folder / PLAN
    if not path.is_file():
        return {}
    table = read_plan(read_bytes(path), path, ["key", "task", "cpus", "gpus", "pieces"])
    if "pieces" not in table.column_names:
        return {}
    units = {
        row["key"]: (Kind(row["task"], row["cpus"], row["gpus"]), max(1, row["pieces"])) for row in table.to_pylist()
    }
    return _timed(read_events(folder / "events.jsonl"), units)


def times_of_some(plan: Plan) -> dict[Kind, Timed]:
    """Runs two units of each kind that need nothing but such units, where the spec says, and forgets the results.

    The faster one counts: the first one loads libraries. Units that ask for a GPU are run on CPUs as well, to compare.
    Raises: RunError when none of them could be run.
    """
    from dpaudit.engine.run.driver import backend_for  # all that a run needs, of which a plan needs nothing

    chosen: dict[str, Unit] = {}
    taken: Counter[Kind] = Counter()
    for unit in plan.units:
        if taken[Kind.of(unit)] < EACH and chosen.keys() >= set(unit.needs):
            chosen[unit.key] = unit
            taken[Kind.of(unit)] += 1
    on_gpus = [unit for unit in chosen.values() if unit.resources.gpus]
    beside = [dataclasses.replace(unit, resources=unit.resources.on_cpus, key="", own=()) for unit in on_gpus]
    units = [*chosen.values(), *beside]
    seen: list[Event] = []
    events = EventStream(seen.append)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.nullcontext(UnitStore(Path(folder) / "units")) as store,
        backend_for(plan, units, events, Path(folder) / "checkpoints", store) as backend,
    ):
        outcome = run_units(units, backend, store, events)
    if not outcome.finished:
        raise RunError(f"no unit could be timed; one failed with: {last_line(next(iter(outcome.failed.values())))}")
    return _timed(seen, {unit.key: (Kind.of(unit), pieces_of(unit)) for unit in units})


def _timed(events: Iterable[Event], units: Mapping[str, tuple[Kind, int]]) -> dict[Kind, Timed]:
    seconds: dict[Kind, list[float]] = defaultdict(list)
    memory: dict[Kind, float] = defaultdict(float)
    for event in events:
        if event.kind is EventKind.UNIT_DONE and event.unit in units:
            kind, pieces = units[event.unit]
            seconds[kind].append(event.seconds / pieces)
            memory[kind] = max(memory[kind], event.memory_mb)
    return {kind: Timed(len(took), statistics.median_low(took), memory[kind]) for kind, took in seconds.items()}


def _line(cost: Cost) -> str:
    held = f"{cost.kind.cpus} CPU" + (f" {cost.kind.gpus:g} GPU" if cost.kind.gpus else "")
    trains = f", {_many(cost.trainings, 'training')}" if cost.trainings else ""
    start = f"  {cost.kind.task} on {held}: {_many(cost.units, 'unit')}{trains}"
    if cost.seconds is None:
        return f"{start}, not timed"
    memory = f", {cost.memory_mb:,.0f} MB" if cost.memory_mb else ""
    beside = f"; {_duration(cost.on_cpus_s)} on CPUs" if cost.on_cpus_s is not None else ""
    return f"{start}, {_duration(cost.seconds)} ({_duration(cost.seconds / cost.units)} each{memory}){beside}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _duration(seconds: float) -> str:
    """Rounded up: nothing takes no time."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"
