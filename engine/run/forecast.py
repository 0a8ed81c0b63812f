"""Estimate how long the unfinished units of a plan take, from the finished units of a run."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpaudit.actors.events import EventKind, read_events
from dpaudit.engine.planning.plan import Plan, pieces_of, trainings_of
from dpaudit.engine.run.run_folder import PLAN, default_run_folder, read_plan
from dpaudit.plain_files import read_bytes, require_plain


@dataclass(frozen=True)
class RunTimes:
    """Times of the finished units of a run."""

    finished: frozenset[str] = frozenset()  # keys of the units
    seconds: Mapping[str, float] = field(default_factory=dict)  # median of one piece (a model, a replay), by task


@dataclass(frozen=True)
class Forecast:
    """The size of a plan, and the time that its unfinished units take."""

    units: int
    trainings: int  # of the audited mechanism and of shadow models
    unfinished: int  # units that the timed run has not finished
    untimed: int  # unfinished units whose task the timed run has not finished once
    seconds: float  # of the other unfinished units, one after the other
    workers: int | None  # number of units that run at a time; None if the cluster decides
    timed_by: str  # folder of the timed run; "" if it has no finished unit

    @property
    def lines(self) -> tuple[str, ...]:
        size = f"{_count(self.units, 'unit')}, {_count(self.trainings, 'training')}"
        if not self.timed_by:
            return (f"{size}; --timings RUN estimates the time from an earlier run",)
        without = f", without {_count(self.untimed, 'unit')} that cannot be estimated" if self.untimed else ""
        remaining = f"{_duration(self.seconds)} of work left{without}, by the times of {self.timed_by}"
        if self.workers is None:
            return size, remaining
        workers = f"at least {_duration(self.seconds / self.workers)} on {_count(self.workers, 'worker')}"
        return size, remaining, f"{workers}, plus the start and the report"


def expected_cost(plan: Plan, timings: Path | None) -> Forecast:
    """Return the forecast of a plan, timed by the run in `timings` or else in the plan's default run folder."""
    folder = timings or default_run_folder(plan.spec)
    return forecast(plan, times_of_run(folder), str(folder))


def forecast(plan: Plan, times: RunTimes, folder: str) -> Forecast:
    """Return the forecast of a plan from the times of the run in `folder`."""
    unfinished = [unit for unit in plan.units if unit.key not in times.finished]
    timed = [unit for unit in unfinished if unit.function_name in times.seconds]
    run = plan.spec.run
    if run.runner == "in-process":
        workers: int | None = 1
    elif run.workers is None and (run.address or any(unit.resources.need_ray for unit in plan.units)):
        workers = None
    else:
        workers = run.concurrency(max((unit.resources.cpus for unit in plan.units), default=1))
    return Forecast(
        units=len(plan.units),
        trainings=sum(trainings_of(plan).values()),
        unfinished=len(unfinished),
        untimed=len(unfinished) - len(timed),
        seconds=sum((times.seconds[unit.function_name] * pieces_of(unit) for unit in timed), 0.0),
        workers=workers,
        timed_by=folder if times.seconds else "",
    )


def times_of_run(folder: Path) -> RunTimes:
    """Return the times of the run in `folder`; no times if there is no run."""
    require_plain(folder)
    path = folder / PLAN
    if not path.is_file():
        return RunTimes()
    table = read_plan(read_bytes(path), path, ["key", "task", "pieces"])
    if "pieces" not in table.column_names:  # a plan of an earlier version
        return RunTimes()
    units = {row["key"]: row for row in table.to_pylist()}
    finished: set[str] = set()
    seconds: dict[str, list[float]] = defaultdict(list)
    for event in read_events(folder / "events.jsonl"):
        if event.kind is EventKind.UNIT_DONE and event.unit in units:
            unit = units[event.unit]
            finished.add(event.unit)
            seconds[unit["task"]].append(event.seconds / max(1, unit["pieces"]))
    return RunTimes(frozenset(finished), {task: statistics.median(durations) for task, durations in seconds.items()})


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _duration(seconds: float) -> str:
    """Return a duration in s, min or h; minutes are rounded up."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"
