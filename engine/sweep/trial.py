"""One trial of a sweep: a configuration is trained, rung by rung where there are rungs, and audited.

Its trainings are units like any other, kept in the one store of the sweep's folder: what another trial, or an earlier
run, has finished is found there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpaudit.actors.schedule import RunOutcome
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import beside
from dpaudit.consent import OWN, Consent, under
from dpaudit.engine.data.in_memory import found_again
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.sweep_summary import epsilons
from dpaudit.engine.run.driver import run_missing
from dpaudit.engine.run.place import checkpoints_of
from dpaudit.engine.run.policy import Policy
from dpaudit.engine.spec.audit_spec import AuditSpec
from dpaudit.engine.spec.sweep import Configuration
from dpaudit.engine.sweep.request import Request
from dpaudit.engine.sweep.trial_folder import TrialFolder
from dpaudit.errors import RunError, did_you_mean

RUNG = "rung"
"""Metric that a scheduler counts in: 1 at the first rung, then so many times more as configurations are left out."""

Tell = Callable[[dict[str, Any]], None]
"""Told of what is known so far; may never come back, where the trial is stopped."""


@dataclass(frozen=True)
class Trials:
    """What all trials of a sweep have in common.

    Attributes:
        request: The sweep.
        place: Its folder, an absolute path or a URI.
        working_folder: Where relative paths begin.
        consent: What its spec may do; trials are built where they run.
    """

    request: Request
    place: str | Path
    working_folder: Path
    consent: Consent = OWN

    def run(self, values: Mapping[str, Any], tell: Tell) -> None:
        """Trains and audits one configuration.

        Args:
            values: From a field to its value.
            tell: Told the utility at each rung, and in the end what was audited.
        Raises: RunError when there is no bound, or no such utility; SpecError when there is no such configuration.
        """
        sweep, one = self.request.sweep, self.request.configuration(values)
        seen: dict[str, float] = {}
        here = contextlib.chdir(self.working_folder) if self.working_folder.is_dir() else contextlib.nullcontext()
        with under(self.consent), here:
            folder = TrialFolder(self.place, one.name)
            if sweep.rungs is not None:
                for place, rung in enumerate(sweep.rungs.values[:-1]):
                    tell({**self._utility(one, rung, folder), RUNG: sweep.rungs.reduction_factor**place})
            if sweep.adaptive:
                seen = self._utility(one, None, folder)
            result = self._audited(one, folder)
            folder.close()
        last = {RUNG: 1.0 if sweep.rungs is None else sweep.rungs.reduction_factor ** (len(sweep.rungs.values) - 1)}
        # A search algorithm must not learn what the coins of the audits were, or the bounds would not hold.
        tell({**seen, **last} if sweep.adaptive else {**result.metrics, **epsilons(result), **last})

    def _utility(self, one: Configuration, rung: Any, folder: TrialFolder) -> dict[str, float]:
        """Metrics of one training at a rung; with a seed of its own where they decide what else is tried."""
        request = self.request
        seed = request.other_seed("explore") if request.sweep.adaptive else request.seed
        plan = make_plan(_found(request.rung_spec(one, rung, seed=seed), folder))
        training = plan.audits[0].trainings[:1]
        plan = replace(plan, units=needed(plan.units, set(training)), audits=())
        if not self._run(plan, folder).finished.issuperset(training):
            raise RunError(f"{one.name}: the training at a rung failed; units/{training[0]}.failed says why")
        return self._checked(beside(folder.store.read(training[0])).metrics, one)

    def _audited(self, one: Configuration, folder: TrialFolder) -> AuditResult:
        plan = make_plan(_found(self.request.spec([one]), folder))
        (result,) = Policy(plan, folder.store).results(self._run(plan, folder), folder.path)
        if result.finding is None:
            why = next((f"{failure.label}: {failure.error}" for failure in result.failures if not failure.skipped), "")
            raise RunError(f"{one.name}: {why or result.headline}")
        self._checked(result.metrics, one)
        return result

    def _checked(self, metrics: Mapping[str, float], one: Configuration) -> dict[str, float]:
        wanted = self.request.sweep.metric
        if wanted not in metrics:
            raise RunError(
                f"{one.name} has no metric {wanted!r} to be wanted large or small; it has "
                f"{', '.join(metrics) or 'none'}{did_you_mean(wanted, metrics)}"
            )
        return dict(metrics)

    def _run(self, plan: Plan, folder: TrialFolder) -> RunOutcome:
        with folder.running(plan.units) as events:
            return run_missing(self._here(plan), folder.store, events, checkpoints_of(self.place), time.monotonic())

    def _here(self, plan: Plan) -> Plan:
        """The plan in this process, or on the workers that a trial has to itself."""
        alone = self.request.sweep.trial_workers == 1
        run = replace(
            plan.spec.run,
            runner="in-process" if alone else plan.spec.run.runner,
            workers=self.request.sweep.trial_workers,
            repeats=0,
        )
        return replace(plan, spec=replace(plan.spec, run=run))


def _found(spec: AuditSpec, folder: TrialFolder) -> AuditSpec:
    """The spec with rows that the sweep's folder keeps."""
    audits = tuple(replace(audit, data=found_again(audit.data, folder.path)) for audit in spec.audits)
    return replace(spec, audits=audits)


def needed(units: tuple[Unit, ...], wanted: set[str]) -> tuple[Unit, ...]:
    """The units with these keys and whatever they need, in the order of the plan."""
    keys = set(wanted)
    for unit in reversed(units):  # each comes after those it needs
        if unit.key in keys:
            keys |= set(unit.needs)
    return tuple(unit for unit in units if unit.key in keys)


def shared_units(plan: Plan) -> tuple[Unit, ...]:
    """Units that two or more configurations of a plan want, and whatever those need."""
    wanted: dict[str, int] = {}
    for entry in plan.audits:
        for key in entry.keys:
            wanted[key] = wanted.get(key, 0) + 1
    return needed(plan.units, {key for key, count in wanted.items() if count > 1})
