"""`dpaudit plan`: units, cost and sensitivity of a spec before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpaudit.engine.games.reference import WITHOUT_PRIVACY
from dpaudit.engine.planning.plan import Plan, make_plan, planning_announcement
from dpaudit.engine.planning.power import planned_outlook
from dpaudit.engine.request.loading import is_sweep_spec, load_spec
from dpaudit.engine.run.forecast import Forecast, forecast


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
            *map(_unit_line, rows),
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


def _unit_line(row: dict[str, Any]) -> str:
    needs = f"  needs {' '.join(need[:8] for need in row['needs'])}" if row["needs"] else ""
    seed = f"  seed {row['seed']}" if row["seed"] else ""
    memory = f" {row['memory'] / 1e9:.4g} GB" if row["memory"] else ""
    custom = f" {row['custom']}" if row["custom"] else ""
    resources = f"{row['cpus']} CPU {row['gpus']:g} GPU{memory}{custom}"
    return f"{row['key'][:8]}  {row['label']:<34} {resources}{seed}{needs}"
