"""`dpaudit plan`: units, cost and sensitivity of a spec before anything runs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpaudit.actors.events import EventKind, read_events
from dpaudit.engine.answer.sensitivity import planned_outlook
from dpaudit.engine.games.reference import WITHOUT_PRIVACY
from dpaudit.engine.planning.plan import Plan, make_plan, pieces_of, planning_announcement, trainings_of
from dpaudit.engine.request.loading import is_sweep_spec, load_spec
from dpaudit.engine.run.run_folder import PLAN, default_run_folder, read_plan
from dpaudit.plain_files import read_bytes, require_plain


@dataclass(frozen=True)
class PlannedRun:
    """A plan with its cost."""

    plan: Plan
    cost: Forecast
    besides: tuple[str, ...] | None  # further trainings of a sweep, one sentence each; None without a sweep

    @property
    def lines(self) -> tuple[str, ...]:
        spec, rows = self.plan.spec, self.plan.table().to_pylist()
        size = f"{len(rows)} units"
        if self.besides is not None:
            size = f"{len(spec.audits)} configurations (trials), {size}, {self.cost.trainings} trainings"
        return (
            f"{spec.name}: {size}, seed {spec.seed}, runner {spec.run.runner}",
            *(() if self.besides is None else self.besides),
            *self._outlook_lines(),
            *self.plan.prices(),
            *self.cost.lines,
            *(
                f"{row['key'][:8]}  {row['label']:<34} {row['cpus']} CPU {row['gpus']:g} GPU"
                + (f" {row['memory'] / 1e9:.4g} GB" if row["memory"] else "")
                + (f" {row['custom']}" if row["custom"] else "")
                + (f"  seed {row['seed']}" if row["seed"] else "")
                + (f"  needs {' '.join(need[:8] for need in row['needs'])}" if row["needs"] else "")
                for row in rows
            ),
        )

    def _outlook_lines(self) -> list[str]:
        """Return what each audit can show."""
        audits: list[tuple[str, tuple[str, ...]]] = []
        for entry in self.plan.audits:
            if not entry.confirms:
                outlook = planned_outlook(entry)
                if outlook is None:
                    computed = "the run computes" if entry.ceilings else "it is not known before the run"
                    texts: tuple[str, ...] = (f"claim: {entry.effective_claim}; {computed} what it can show",)
                else:  # a sweep measures it again in the run
                    texts = outlook.lines if self.besides is None else (outlook.line,)
                audits.append((entry.audit.name, texts))
        if self.besides is None:
            return [line for name, texts in audits for line in (f"{name}:", *(f"  {text}" for text in texts))]
        bare = sum(unit.label == WITHOUT_PRIVACY for unit in self.plan.units)
        measures = "trainings without privacy, to measure what these audits can show of their models"
        head = "what each audit can show if the model reveals as much as its mechanism allows:"
        lines = [f"  {name}: {text}" for name, texts in audits for text in texts]
        return [head, *lines, *([f"{measures}: {bare}"] if bare else [])]

    def to_dict(self) -> dict[str, Any]:
        spec = self.plan.spec
        sweep = {} if self.besides is None else {"configurations": len(spec.audits), "trainings": self.cost.trainings}
        units = self.plan.table().to_pylist()
        return {"name": spec.name, "seed": spec.seed, "units": units, "cost": asdict(self.cost), **sweep}


def planned_run(
    path: Path, *, seed: int | None = None, timings: Path | None = None, announce: Callable[[str], None]
) -> PlannedRun:
    """Return the planned run of a spec file. Nothing runs.

    Args:
        path: Spec of a run or sweep.
        seed: Overrides the spec's seed.
        timings: Folder of an earlier run that times the units. Default: the default run folder of the spec.
        announce: Called with a sentence before planning that takes long.
    """
    besides = None
    if is_sweep_spec(path):
        from dpaudit.engine.sweep.running import outlined  # needed for sweeps only

        spec, besides = outlined(path, seed)
    else:
        spec = load_spec(path)
    if announcement := planning_announcement(spec):
        announce(announcement)
    plan = make_plan(spec if seed is None else replace(spec, seed=seed))
    return PlannedRun(plan, forecast(plan, timings), besides)


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
