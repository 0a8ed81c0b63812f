"""What is run next, what is held back, and when reading stops: one policy for all the audits of a run.

A confirmatory run waits until the first pass is read. Of several tests of one claim, those after one that refutes it
wait while it is confirmed, and are spared once it is: leaving some out after having seen others only makes a verdict
less likely. All follows from finished units alone, so a resumed run decides as the first one would have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from dpaudit.actors.events import last_line
from dpaudit.actors.schedule import RunOutcome
from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import value_of
from dpaudit.claims.scope import Scope
from dpaudit.engine.planning.plan import Plan, PlannedAudit
from dpaudit.engine.reading.gather import read_audit
from dpaudit.engine.reading.joint import rejects_without_proxy
from dpaudit.engine.reading.record import Confirmation
from dpaudit.engine.reading.result import AuditResult, Failure
from dpaudit.engine.reading.stopping import SequentialReader
from dpaudit.engine.reading.verdict import Verdict
from dpaudit.engine.request.audit_spec import slug

GRACE = 1.1  # of a budget in seconds: until then a first pass that was begun goes on
CONFIRMED = (Verdict.VIOLATION, Verdict.UNDECIDED)  # verdicts of an observational game that are tested once more


class Stage(Enum):
    """How far a first pass and its confirmatory run are read."""

    OPEN = "not read yet"
    SILENT = "read, and nothing to confirm"
    REFUTING = "read, and to be confirmed"
    CONFIRMED = "confirmed"
    REJECTED = "not confirmed, or that cannot be read"


@dataclass(frozen=True)
class Pair:
    """An audit of the first pass, and what confirms it; None where nothing would."""

    first: PlannedAudit
    confirmation: PlannedAudit | None

    @property
    def confirmation_keys(self) -> frozenset[str]:
        return self.confirmation.keys if self.confirmation else frozenset()

    @property
    def keys(self) -> frozenset[str]:
        return self.first.keys | self.confirmation_keys


class Policy:
    """Tells the scheduler of a plan which units need not run and which must wait, and reads what there is to read.

    `spent` tells the seconds so far; after `budget_s` seconds, or what the spec says, no audit but the first is begun.
    """

    def __init__(
        self,
        plan: Plan,
        store: UnitStore,
        spent: Callable[[], float] = lambda: math.inf,
        budget_s: float | None = None,
    ) -> None:
        following = {entry.confirms: entry for entry in plan.audits if entry.confirms}
        together = plan.spec.together
        self.pairs = tuple(Pair(entry, following.get(entry.audit.name)) for entry in plan.audits if not entry.confirms)
        self._plan, self._store, self._spent = plan, store, spent
        self._one_claim = together is not None
        self._budget_s = together.budget_s if together is not None else budget_s
        self._readers = {
            entry.audit.name: SequentialReader(entry, store) for entry in plan.audits if entry.audit.stop is not None
        }
        self._awaited: dict[str, list[str]] = {}
        self._read: dict[str, AuditResult] = {}
        self._known: dict[str, tuple[object, frozenset[str]]] = {}
        self._all_run = not (self._readers or following or self._one_claim or self._budget_s is not None)

    def spared(self, finished: Set[str], failed: Set[str]) -> frozenset[str]:
        """Keys of units that need not be started.

        Those that only sequential audits with enough evidence have asked for, those of tests after one that is
        confirmed, or after time is up, and confirmatory runs of what found nothing.
        """
        if self._all_run:
            return frozenset()
        for reader in self._readers.values():
            reader.advance(finished, failed)
        done = frozenset(name for name, reader in self._readers.items() if reader.reason)
        stages = [self._stage(pair, finished, failed) for pair in self.pairs]
        needed = tuple(place for place, pair in enumerate(self.pairs) if self._goes_on(pair, finished, first=not place))
        decided = [place for place, stage in enumerate(stages) if stage is Stage.CONFIRMED and self._counts(place)]
        if decided:
            needed = tuple(range(decided[0] + 1))
        confirmed = tuple(place for place in needed if stages[place] is not Stage.SILENT)
        enough = self._once("done", done, lambda: self._keys_of_only(done))
        return enough | self._once("needed", (needed, confirmed), lambda: self._keys_beside(needed, confirmed))

    def held(self, finished: Set[str], failed: Set[str]) -> frozenset[str]:
        """Keys of units that must wait: confirmatory runs of what is not read, and tests after one that refutes.

        Outside of a check confirmatory runs need the units that they follow, and so wait by themselves.
        """
        if not self._one_claim:
            return frozenset()
        stages = tuple(self._stage(pair, finished, failed) for pair in self.pairs)
        return self._once("held", stages, lambda: self._keys_waiting(stages))

    def after_violations(self, finished: Set[str], failed: Set[str]) -> tuple[Unit, ...]:
        """What is run where a violation is found: in a check, of what is confirmed.

        The look for memory, before that is said of calls made again and again; and that for where it leaks.
        """
        looks: dict[str, Unit] = {}
        for entry in self._plan.audits:
            asked = [unit for unit in (entry.state, entry.game.where) if unit is not None]
            if asked and (entry.confirms or not self._one_claim):
                found = self._result(entry, finished, failed)
                if found is not None and found.verdict is Verdict.VIOLATION:
                    looks |= {unit.key: unit for unit in asked}
        return tuple(looks.values())

    def results(self, outcome: RunOutcome, folder: Path) -> tuple[AuditResult, ...]:
        """What is read when nothing runs any more, in the order of the spec; the evidence is linked into `scores/`."""
        recorded = self._store.failures()
        for each in self._readers.values():
            each.advance(outcome.finished, recorded.keys() & outcome.failed.keys())
        failures, together = failures_of(self._plan, outcome, recorded), self._plan.spec.together
        results: list[AuditResult] = []
        for entry in self._plan.audits:
            if (entry.confirms or self._one_claim) and _was_left_out(entry, outcome):
                continue  # there was nothing to confirm, or nothing left to find, or no time
            if entry.confirmatory and not (
                results and results[-1].name == entry.confirms and rejects_without_proxy(results[-1])
            ):
                continue  # begun before another one was read
            reader, evidence = self._readers.get(entry.audit.name), folder / "scores" / slug(entry.audit.name)
            several = self._plan.spec.sweep is not None  # configurations, of which only bounds are compared
            result = read_audit(entry, outcome.finished, self._store, reader, failures, evidence, p_value=not several)
            scope = Scope.CLAIM if together is None else together.scope(entry.confirms or entry.audit.name)
            results.append(replace(result, scope=scope))
            counts = together is not None and entry.confirms not in together.side
            if counts and entry.confirms and rejects_without_proxy(results[-1]):
                break  # whatever ran beside it already: the same tests are read on one worker and on many
        return with_explanations(self._plan, self._store, follow_ups_told(self._plan, results))

    @cached_property
    def _shared(self) -> frozenset[str]:
        """Keys that several first passes have asked for."""
        count = Counter(key for pair in self.pairs for key in pair.first.keys)
        return frozenset(key for key, several in count.items() if several > 1)

    def _once(self, what: str, state: object, find: Callable[[], frozenset[str]]) -> frozenset[str]:
        """Keys that follow from how far audits are read alone: put together when that changes, not at every unit."""
        if what not in self._known or self._known[what][0] != state:
            self._known[what] = (state, find())
        return self._known[what][1]

    def _keys_of_only(self, done: Set[str]) -> frozenset[str]:
        """Of units that no other audit has asked for."""
        entries = self._plan.audits if done else ()
        others = _union(entry.keys for entry in entries if entry.audit.name not in done)
        return _union(entry.keys for entry in entries if entry.audit.name in done) - others

    def _keys_beside(self, needed: Sequence[int], confirmed: Sequence[int]) -> frozenset[str]:
        """Of units that neither these first passes nor these confirmatory runs have asked for."""
        first = _union(self.pairs[place].first.keys for place in needed)
        again = _union(self.pairs[place].confirmation_keys for place in confirmed)
        return _union(pair.keys for pair in self.pairs) - first - again

    def _keys_waiting(self, stages: Sequence[Stage]) -> frozenset[str]:
        # a unit without a seed, as a ceiling's may be, is the first pass's own as well.
        waiting = _union(
            pair.confirmation_keys for pair, stage in zip(self.pairs, stages, strict=True) if stage is Stage.OPEN
        ) - _union(pair.first.keys for pair in self.pairs)
        rejecting = [place for place, stage in enumerate(stages) if stage is Stage.REFUTING and self._counts(place)]
        if not rejecting:
            return waiting
        after = rejecting[0] + 1
        later = _union(pair.keys for pair in self.pairs[after:]) - _union(pair.keys for pair in self.pairs[:after])
        return waiting | later

    def _counts(self, place: int) -> bool:
        """True if the tests of a claim at this place are part of the verdict; side findings are not."""
        together = self._plan.spec.together
        return together is not None and self.pairs[place].first.audit.name not in together.side

    def _stage(self, pair: Pair, finished: Set[str], failed: Set[str]) -> Stage:
        if pair.confirmation is None and not self._one_claim:
            return Stage.SILENT
        found = self._result(pair.first, finished, failed)
        if found is None:
            return Stage.OPEN
        if pair.confirmation is None or not calls_for_confirmation(pair.confirmation, found):
            return Stage.SILENT
        if not self._one_claim:
            return Stage.REFUTING
        again = self._result(pair.confirmation, finished, failed)
        if again is not None:
            return Stage.CONFIRMED if rejects_without_proxy(again) else Stage.REJECTED
        return Stage.REFUTING if failed.isdisjoint(pair.confirmation_keys) else Stage.REJECTED

    def _result(self, entry: PlannedAudit, finished: Set[str], failed: Set[str]) -> AuditResult | None:
        """What an audit found; None while it is not read."""
        name = entry.audit.name
        if name not in self._read:
            reader = self._readers.get(name)
            if not self._is_read(entry, reader, finished, failed):
                return None
            self._read[name] = read_audit(entry, finished, self._store, reader)
        return self._read[name]

    def _is_read(
        self, entry: PlannedAudit, reader: SequentialReader | None, finished: Set[str], failed: Set[str]
    ) -> bool:
        if reader is not None:
            reader.advance(finished, failed)
            return bool(reader.reason) or len(reader.tallies) == len(entry.tallies)
        # Looks at one claim are read without what failed. What follows by planted labels is not run without it at all.
        ceilings = entry.ceilings if self._one_claim else ()
        awaited = self._awaited.setdefault(entry.audit.name, [*ceilings, *entry.controls, *entry.tallies])
        while awaited and (awaited[-1] in finished or (self._one_claim and awaited[-1] in failed)):
            awaited.pop()
        return not awaited

    def _goes_on(self, pair: Pair, finished: Set[str], *, first: bool) -> bool:
        """Whether it is played on when time is up: once begun, for a little while; the first one in any case."""
        name = pair.first.audit.name
        if self._budget_s is None or self._spent() <= self._budget_s or name in self._read:
            return True
        if pair.first.audit.stop is not None:  # it can be read as it is
            return first and finished.isdisjoint(pair.first.tallies)
        begun = not finished.isdisjoint(pair.first.keys - self._shared)
        return first or (begun and self._spent() <= GRACE * self._budget_s)


def calls_for_confirmation(confirmation: PlannedAudit, found: AuditResult) -> bool:
    """Whether what a first pass found is to be confirmed: by the same test if that refutes, else by planted labels."""
    return rejects_without_proxy(found) if confirmation.confirmatory else found.verdict in CONFIRMED


def _was_left_out(entry: PlannedAudit, outcome: RunOutcome) -> bool:
    """Whether none of an audit's evidence was counted, and what is missing of it was spared."""
    return entry.keys - outcome.finished <= outcome.skipped and outcome.finished.isdisjoint(entry.tallies)


def _union(several: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*several)


def failures_of(plan: Plan, outcome: RunOutcome, recorded: Mapping[str, str]) -> dict[str, Failure]:
    """What was not finished, by key."""
    return {
        unit.key: Failure(
            unit.label,
            unit.key,
            last_line(outcome.failed[unit.key]),
            skipped=unit.key not in recorded or any(need in outcome.failed for need in unit.needs),
        )
        for unit in plan.units
        if unit.key in outcome.failed
    }


def follow_ups_told(plan: Plan, results: Sequence[AuditResult]) -> tuple[AuditResult, ...]:
    """The results, those of tests that refuted the claim with what was found when they were repeated."""
    again = {entry.confirms: entry.audit.name for entry in plan.audits if entry.confirmatory}
    found = {result.name: result for result in results}
    return tuple(
        _followed(result, found.get(again[result.name]))
        if result.name in again and rejects_without_proxy(result)
        else result
        for result in results
    )


def with_explanations(plan: Plan, store: UnitStore, results: Sequence[AuditResult]) -> tuple[AuditResult, ...]:
    """Return the results; those that reject a claim get the state between calls and the place of the leak."""
    state_units = {entry.audit.name: entry.state for entry in plan.audits if entry.state is not None}
    location_units = {entry.audit.name: entry.game.where for entry in plan.audits if entry.game.where is not None}
    return tuple(
        replace(
            result,
            state=_state(state_units[result.name], store) if result.name in state_units else None,
            leak_location=_leak_location(location_units[result.name], store) if result.name in location_units else (),
        )
        if result.verdict is Verdict.VIOLATION
        else result
        for result in results
    )


def _leak_location(unit: Unit, store: UnitStore) -> tuple[str, ...]:
    return tuple(value_of(unit, store.read(unit.key)).lines) if store.finished([unit.key]) else ()


def _state(unit: Unit, store: UnitStore) -> Any:
    """Return the `StateBetweenCalls` of a finished unit."""
    from dpaudit.engine.planning.state_between_calls import StateBetweenCalls  # needed after a violation only

    if not store.finished([unit.key]):
        return StateBetweenCalls(math.nan, failure="the check did not run or failed. Run the audit again")
    return value_of(unit, store.read(unit.key))


def _followed(first: AuditResult, again: AuditResult | None) -> AuditResult:
    """A test that rejected the claim, with what its confirmatory run says.

    Close is a run that exceeds the claim at the confidence of the first pass, and not at that of the verdict.
    """
    if again is None:
        return replace(first, confirmation=Confirmation.MISSING)
    shown = again.at_first_confidence
    exceeds = shown is not None and shown.violation_point(again.compared.claim.curve) is not None
    if rejects_without_proxy(again):
        outcome = Confirmation.CONFIRMED
    elif again.finding is None or again.record.is_open:
        outcome = Confirmation.MISSING
    else:
        outcome = Confirmation.CLOSE if exceeds else Confirmation.NOT_CONFIRMED
    return replace(first, confirmation=outcome, at_first_confidence=shown)
