"""Estimate the time that the unfinished units of a plan take, from the finished units of a run."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from dpaudit.actors.events import EventKind, read_events
from dpaudit.engine.planning.plan import Plan, pieces_of, trainings_of
from dpaudit.engine.run.run_folder import PLAN, default_run_folder, read_plan
from dpaudit.plain_files import read_bytes, require_plain


@dataclass(frozen=True)
class Forecast:
    """The size of a plan, and the time that its unfinished units take."""

    units: int
    trainings: int  # of the audited mechanism and of shadow models
    unfinished: int  # units that the timed run has not finished
    untimed: int  # unfinished units whose task the timed run has not finished once
    seconds: float  # of the other unfinished units, one after the other
    timed_by: str  # folder of the timed run; "" if it has no finished unit

    @property
    def lines(self) -> tuple[str, ...]:
        size = f"{_count(self.units, 'unit')}, {_count(self.trainings, 'training')}"
        if not self.timed_by:
            return (f"{size}; --timings RUN estimates the time from an earlier run",)
        if self.seconds < 100:
            duration = f"{self.seconds:.2g} s"
        else:
            hours = self.seconds / 3600
            duration = f"{math.ceil(self.seconds / 60)} min" if hours < 3 else f"{hours:.1f} h"
        without = f", without {_count(self.untimed, 'unit')} that cannot be estimated" if self.untimed else ""
        return size, f"{duration} of work left{without}, by the times of {self.timed_by}"


def forecast(plan: Plan, timings: Path | None = None) -> Forecast:
    """Return the forecast of a plan, timed by the run in `timings` or else in the plan's default run folder."""
    folder = timings or default_run_folder(plan.spec)
    finished, seconds_by_task = times_of_run(folder)
    unfinished = [unit for unit in plan.units if unit.key not in finished]
    timed = [unit for unit in unfinished if unit.function_name in seconds_by_task]
    return Forecast(
        units=len(plan.units),
        trainings=sum(trainings_of(plan).values()),
        unfinished=len(unfinished),
        untimed=len(unfinished) - len(timed),
        seconds=sum((seconds_by_task[unit.function_name] * pieces_of(unit) for unit in timed), 0.0),
        timed_by=str(folder) if seconds_by_task else "",
    )


def times_of_run(folder: Path) -> tuple[set[str], dict[str, float]]:
    """Return the keys of the finished units of a run, and the median seconds of one piece (a model, a replay) by task.

    Both are empty if there is no run in `folder`.
    """
    require_plain(folder)
    path = folder / PLAN
    finished: set[str] = set()
    seconds: dict[str, list[float]] = defaultdict(list)
    table = read_plan(read_bytes(path), path, ["key", "task", "pieces"]) if path.is_file() else None
    if table is not None and "pieces" in table.column_names:  # else a plan of an earlier version
        units = {row["key"]: row for row in table.to_pylist()}
        for event in read_events(folder / "events.jsonl"):
            if event.kind is EventKind.UNIT_DONE and event.unit in units:
                unit = units[event.unit]
                finished.add(event.unit)
                seconds[unit["task"]].append(event.seconds / max(1, unit["pieces"]))
    return finished, {task: statistics.median(durations) for task, durations in seconds.items()}


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
