"""What a sweep tries before it audits: single trainings that tell utility, and by it which configurations go on.

A training is a unit like any other, so what was tried is found when the sweep is continued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpaudit.actors.schedule import RunOutcome
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.work import beside
from dpaudit.engine.planning.plan import Plan, make_plan
from dpaudit.engine.spec.space import configurations
from dpaudit.engine.spec.sweep import AUDITED, FAILED, STOPPED, Configuration
from dpaudit.engine.sweep.request import Request
from dpaudit.errors import AuditError, did_you_mean

if TYPE_CHECKING:
    from dpaudit.engine.sweep.tuning import Tuner


@dataclass(frozen=True)
class Explorer:
    """Tries configurations of a sweep."""

    request: Request  # the sweep
    tuner: Tuner  # says what is tried and what goes on
    run: Callable[[Plan], RunOutcome]  # runs the units of a plan
    store: UnitStore  # where finished units are
    at_a_time: int  # how many configurations a search algorithm proposes before it is told of them
    in_time: Callable[[], bool]  # whether anything may be begun still
    # Told of all configurations that a search algorithm has proposed so far, so that they are kept
    drawn: Callable[[Sequence[Configuration]], None]

    def explored(self) -> list[Configuration]:
        """All configurations: those that are to be audited, those that were stopped and those that failed."""
        if not self.tuner.searches:
            return list(self._tried(dict(enumerate(self._without_search()))).values())
        found: dict[str, Configuration] = {}
        number = 0
        while number < self.request.sweep.count and self.in_time():
            batch: dict[int, Configuration] = {}
            while number < self.request.sweep.count and len(batch) < self.at_a_time:
                values = self.tuner.proposed(number)
                if values is None:
                    break
                batch[number] = self.request.configuration(values)
                number += 1
            if not batch:
                break
            one_each = {one.name: place for place, one in batch.items()}  # it may draw one twice
            tried = self._tried({place: batch[place] for place in one_each.values()})
            found |= {one.name: one for one in tried.values()}
            self.drawn(tuple(found.values()))
        return list(found.values())

    def _without_search(self) -> tuple[Configuration, ...]:
        """Those that are known; of a search that is continued without its algorithm, those it chose and drawn ones."""
        request = self.request
        if not request.sweep.adaptive:
            return request.known
        chosen = {one.name: request.configuration(one.values) for one in request.sweep.configurations}
        drawn = configurations(request.sweep.space, request.sweep.count, request.seed)
        for one in map(request.configuration, drawn):
            if len(chosen) < request.sweep.count:
                chosen.setdefault(one.name, one)
        return tuple(chosen.values())

    def _tried(self, ones: Mapping[int, Configuration]) -> dict[int, Configuration]:
        """What becomes of some configurations, rung by rung."""
        sweep, found = self.request.sweep, dict(ones)
        utility: dict[int, dict[str, float]] = {}
        for number in ones:
            self.tuner.begin(number)
        rungs = () if sweep.rungs is None else sweep.rungs.values[:-1]
        for place, rung in enumerate(rungs):
            utility |= self._measured(found, rung)
            for number, one in found.items():
                if one.state == AUDITED and not self.tuner.goes_on(number, place, utility[number]):
                    wanted = {sweep.metric: utility[number][sweep.metric]}
                    found[number] = replace(one, state=STOPPED, metrics=wanted, rung=rung)
        if self.tuner.searches:
            utility |= self._measured(found, None)
        for number, one in found.items():
            self.tuner.end(number, None if one.state == FAILED else utility.get(number, {}))
        return found

    def _measured(self, found: dict[int, Configuration], rung: Any) -> dict[int, dict[str, float]]:
        """Utility of one training each at a rung, of those that go on; those that have none are marked as failed."""
        request = self.request
        seed = request.other_seed("explore") if request.sweep.adaptive else request.seed
        going = [number for number, one in found.items() if one.state == AUDITED]
        if not self.in_time():
            found |= {number: replace(found[number], state=STOPPED, rung=rung) for number in going}
            return {}
        plans: list[tuple[Plan, dict[int, str]]] = []
        for group in [[number] for number in going] if request.sweep.adaptive else [going] * bool(going):
            try:
                plan = make_plan(request.rung_spec([found[number] for number in group], rung, seed=seed))
            except AuditError as err:  # of what is known it is said before anything runs
                if not request.sweep.adaptive:
                    raise
                found[group[0]] = _failed(found[group[0]], str(err))
                continue
            firsts = [next(iter(entry.trainings), "") for entry in plan.audits if not entry.confirms]
            plans.append((plan, dict(zip(group, firsts, strict=True))))
        if not plans:
            return {}
        finished = self.run(_merged(plans)).finished
        utility: dict[int, dict[str, float]] = {}
        for number, training in ((number, key) for _, trainings in plans for number, key in trainings.items()):
            if training and training not in finished:
                why = f"the training at a rung failed; units/{training}.failed says why"
                found[number] = _failed(found[number], why)
                continue
            utility[number] = dict(beside(self.store.read(training)).metrics) if training else {}
            found[number] = with_metric(found[number], utility[number], request.sweep.metric)
        return utility


def with_metric(one: Configuration, metrics: Mapping[str, float], wanted: str) -> Configuration:
    """The configuration; failed where it has not the metric that is wanted large or small."""
    if wanted in metrics:
        return one
    names = ", ".join(metrics) or "none"
    return _failed(
        one, f"no metric {wanted!r} to be wanted large or small; it has {names}{did_you_mean(wanted, metrics)}"
    )


def _failed(one: Configuration, why: str) -> Configuration:
    return replace(one, state=FAILED, error=f"{one.name}: {why}")


def _merged(plans: Sequence[tuple[Plan, Mapping[int, str]]]) -> Plan:
    """One plan of single trainings and what they need."""
    units = {unit.key: unit for plan, trainings in plans for unit in plan.needed(trainings.values())}
    shared = {name: rows for plan, _ in plans for name, rows in plan.shared.items()}
    first, _ = plans[0]
    return replace(first, units=tuple(units.values()), audits=(), shared=shared)
