"""Decide which units of a run are skipped, which wait, and which results are read.

A confirmatory run waits for the result of the first pass. If one of several tests of a claim rejects it, the later
tests wait for its confirmation and are skipped once the claim is rejected. Skipping tests after seeing others makes a
rejection only less likely. Decisions depend on finished units alone, so a resumed run decides as an uninterrupted one.
"""

from __future__ import annotations

import math
import re
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
from dpaudit.claims import Scope
from dpaudit.engine.answer.gather import ReadAudit, SequentialReader, answer_key, link_scores, read_audit
from dpaudit.engine.answer.record import Confirmation, Failure
from dpaudit.engine.answer.result import AuditResult
from dpaudit.engine.answer.verdict import Verdict
from dpaudit.engine.planning.plan import Plan, PlannedAudit, keys_of
from dpaudit.engine.request.audit_spec import slug
from dpaudit.errors import with_line

FRAME = re.compile(r'File "(.+)", line (\d+)')  # file and line of a frame of a traceback
GRACE = 1.1  # multiple of a budget in seconds up to which a started first pass continues
NEEDS_CONFIRMATION = (Verdict.VIOLATION, Verdict.UNDECIDED)  # verdicts of an observational game that call for canaries


class Stage(Enum):
    """Progress of a first pass and its confirmatory run."""

    UNREAD = "the first pass has no result yet"
    NOTHING_TO_CONFIRM = "the first pass did not reject the claim"
    TO_CONFIRM = "the first pass rejected the claim"
    CONFIRMED = "the confirmatory run rejected it too"
    NOT_CONFIRMED = "the confirmatory run did not reject it, or failed"


@dataclass(frozen=True)
class AuditPair:
    """An audit of the first pass and its confirmatory audit, if it has one."""

    first: PlannedAudit
    confirmation: PlannedAudit | None

    @property
    def confirmation_keys(self) -> frozenset[str]:
        return self.confirmation.keys if self.confirmation else frozenset()

    @property
    def keys(self) -> frozenset[str]:
        return self.first.keys | self.confirmation_keys


class Policy:
    """Decides which units of a plan the scheduler skips or delays, and reads the results.

    `elapsed_s` returns the seconds since the start of the run. After the budget of the spec, or else `budget_s`, only
    the first audit may start.
    """

    def __init__(
        self,
        plan: Plan,
        store: UnitStore,
        elapsed_s: Callable[[], float] = lambda: math.inf,
        budget_s: float | None = None,
    ) -> None:
        following = {entry.confirms: entry for entry in plan.audits if entry.confirms}
        together = plan.spec.together
        self.pairs = tuple(
            AuditPair(entry, following.get(entry.audit.name)) for entry in plan.audits if not entry.confirms
        )
        self._plan, self._store, self._elapsed_s = plan, store, elapsed_s
        self._is_check = together is not None
        self._budget_s = together.budget_s if together is not None else budget_s
        self._readers = {
            entry.audit.name: SequentialReader(entry, store) for entry in plan.audits if entry.audit.stop is not None
        }
        self._awaited: dict[str, list[str]] = {}
        self._results: dict[str, AuditResult] = {}
        self.answers: dict[str, Any] = {}  # results of audits that workers have read, by key; None for failed units
        self._estimates: dict[str, str] = {}  # keys of the units that read audits, by name of the audit
        self._cache: dict[str, tuple[object, frozenset[str]]] = {}
        self._all_run = not (self._readers or following or self._is_check or self._budget_s is not None)

    def skippable(self, finished: Set[str], failed: Set[str]) -> frozenset[str]:
        """Return the keys of units to skip.

        These are units that only stopped sequential audits need, units of tests after a confirmed test or after the
        budget, and confirmatory runs of tests that rejected nothing.
        """
        if self._all_run:
            return frozenset()
        for reader in self._readers.values():
            reader.advance(finished, failed)
        stopped = frozenset(name for name, reader in self._readers.items() if reader.reason)
        stages = [self._stage(pair, finished, failed) for pair in self.pairs]
        needed = tuple(
            index for index, pair in enumerate(self.pairs) if self._may_continue(pair, finished, first=not index)
        )
        decided = [
            index for index, stage in enumerate(stages) if stage is Stage.CONFIRMED and self._is_in_verdict(index)
        ]
        if decided:
            # An average record is compared with the worst one in any verdict.
            averages = [at for at, pair in enumerate(self.pairs) if pair.first.scope is Scope.AVERAGE_RECORD]
            needed = (*range(decided[0] + 1), *(index for index in needed if index > decided[0] and index in averages))
        confirmed = tuple(index for index in needed if stages[index] is not Stage.NOTHING_TO_CONFIRM)

        def only_of_stopped() -> frozenset[str]:
            others = _union(entry.keys for entry in self._plan.audits if entry.audit.name not in stopped)
            return _union(entry.keys for entry in self._plan.audits if entry.audit.name in stopped) - others

        def of_no_needed_test() -> frozenset[str]:
            first = _union(self.pairs[index].first.keys for index in needed)
            confirmatory = _union(self.pairs[index].confirmation_keys for index in confirmed)
            return _union(pair.keys for pair in self.pairs) - first - confirmatory

        enough = self._cached("stopped", stopped, only_of_stopped) if stopped else frozenset()
        return enough | self._cached("needed", (needed, confirmed), of_no_needed_test)

    def waiting(self, finished: Set[str], failed: Set[str]) -> frozenset[str]:
        """Return the keys of units that must wait: confirmatory runs of unread tests, and tests after a rejecting one.

        Outside a check, confirmatory units need the units of the first pass, so they wait without this.
        """
        if not self._is_check:
            return frozenset()
        stages = tuple(self._stage(pair, finished, failed) for pair in self.pairs)
        return self._cached("waiting", stages, lambda: self._keys_waiting(stages))

    def estimates(self, folder: Path) -> tuple[Unit, ...]:
        """Return a unit for each audit that reads it on a worker when its units have finished.

        An audit that may stop early is read in the order of the plan while it runs, here.
        """
        units = [
            ReadAudit.unit(entry, self._evidence(entry, folder), p_value=self._has_p_value)
            for entry in self._plan.audits
            if entry.audit.name not in self._readers
        ]
        names = [entry.audit.name for entry in self._plan.audits if entry.audit.name not in self._readers]
        self._estimates = {name: unit.key for name, unit in zip(names, units, strict=True)}
        return tuple(units)

    def _evidence(self, entry: PlannedAudit, folder: Path) -> Path:
        return folder / "scores" / slug(entry.audit.name)

    @property
    def _has_p_value(self) -> bool:
        return self._plan.spec.sweep is None  # configurations of a sweep are compared by their bounds only

    def units_after_violations(self, finished: Set[str], failed: Set[str]) -> tuple[Unit, ...]:
        """Return the follow-up units of violations; in a check, of confirmed ones.

        They check whether the code keeps state between calls, and where it leaks.
        """
        units: dict[str, Unit] = {}
        for entry in self._plan.audits:
            follow_ups = [unit for unit in (entry.state, entry.game.where) if unit is not None]
            if follow_ups and (entry.confirms or not self._is_check):
                result = self._result(entry, finished, failed)
                if result is not None and result.verdict is Verdict.VIOLATION:
                    units |= {unit.key: unit for unit in follow_ups}
        return tuple(units.values())

    def results(self, outcome: RunOutcome, folder: Path) -> tuple[AuditResult, ...]:
        """Return the results of a finished run, in the order of the spec; link their score files into `scores/`."""
        self.answers |= outcome.answers
        recorded = self._store.failures()
        for each in self._readers.values():
            each.advance(outcome.finished, recorded.keys() & outcome.failed.keys())
        failures = failures_of(self._plan, outcome, recorded)
        results: list[AuditResult] = []
        decided = False
        for entry in self._plan.audits:
            if decided and entry.scope is not Scope.AVERAGE_RECORD:
                continue  # later tests may have run already, but must not be read: results do not depend on workers
            is_skipped = entry.keys - outcome.finished <= outcome.skipped and outcome.finished.isdisjoint(entry.tallies)
            if (entry.confirms or self._is_check) and is_skipped:
                continue  # nothing to confirm, the verdict was certain, or the budget was used up
            if entry.confirmatory and not (
                results and results[-1].name == entry.confirms and results[-1].rejects_without_proxy
            ):
                continue  # it started before an earlier test was confirmed
            reader, evidence = self._readers.get(entry.audit.name), self._evidence(entry, folder)
            key = answer_key(entry, p_value=self._has_p_value)
            result = self.answers.get(key)
            if result is None or result.evidence != str(evidence):
                arguments = entry, outcome.finished, self._store, reader, failures, evidence
                result = read_audit(*arguments, p_value=self._has_p_value)
                if reader is None and entry.keys <= outcome.finished:
                    self.answers[key] = result
            link_scores(entry, outcome.finished, self._store, reader, evidence)
            results.append(result)
            counts = self._is_check and entry.confirms and entry.scope is Scope.CLAIM
            decided = decided or bool(counts and result.rejects_without_proxy)
        return with_explanations(self._plan, self._store, with_confirmations(self._plan, results))

    @cached_property
    def _shared(self) -> frozenset[str]:
        """Keys that several first passes need."""
        counts = Counter(key for pair in self.pairs for key in pair.first.keys)
        return frozenset(key for key, count in counts.items() if count > 1)

    def _cached(self, what: str, state: object, find: Callable[[], frozenset[str]]) -> frozenset[str]:
        """Return the keys that `find` computes; call it only if `state` has changed since the last call."""
        if what not in self._cache or self._cache[what][0] != state:
            self._cache[what] = (state, find())
        return self._cache[what][1]

    def _keys_waiting(self, stages: Sequence[Stage]) -> frozenset[str]:
        # A unit without a seed, as of a ceiling, may serve a first pass too, or the confirmatory run of a read pair.
        unread = _union(
            pair.confirmation_keys for pair, stage in zip(self.pairs, stages, strict=True) if stage is Stage.UNREAD
        )
        waiting = unread - _union(
            pair.first.keys if stage is Stage.UNREAD else pair.keys
            for pair, stage in zip(self.pairs, stages, strict=True)
        )
        rejecting = [
            index for index, stage in enumerate(stages) if stage is Stage.TO_CONFIRM and self._is_in_verdict(index)
        ]
        if not rejecting:
            return waiting
        cut = rejecting[0] + 1
        later = _union(pair.keys for pair in self.pairs[cut:]) - _union(pair.keys for pair in self.pairs[:cut])
        return waiting | later

    def _is_in_verdict(self, index: int) -> bool:
        """True if the pair at `index` is part of the verdict on the claim, not a side finding."""
        return self._is_check and self.pairs[index].first.scope is Scope.CLAIM

    def _stage(self, pair: AuditPair, finished: Set[str], failed: Set[str]) -> Stage:
        if pair.confirmation is None and not self._is_check:
            return Stage.NOTHING_TO_CONFIRM
        result = self._result(pair.first, finished, failed)
        if result is None:
            return Stage.UNREAD
        if pair.confirmation is None:
            return Stage.NOTHING_TO_CONFIRM
        is_rejected = result.rejects_without_proxy
        if not (is_rejected if pair.confirmation.confirmatory else result.verdict in NEEDS_CONFIRMATION):
            return Stage.NOTHING_TO_CONFIRM
        if not self._is_check:
            return Stage.TO_CONFIRM
        confirmation = self._result(pair.confirmation, finished, failed)
        if confirmation is not None:
            return Stage.CONFIRMED if confirmation.rejects_without_proxy else Stage.NOT_CONFIRMED
        return Stage.TO_CONFIRM if failed.isdisjoint(pair.confirmation_keys) else Stage.NOT_CONFIRMED

    def _result(self, entry: PlannedAudit, finished: Set[str], failed: Set[str]) -> AuditResult | None:
        """Return the result of an audit; None while its units are unfinished."""
        name = entry.audit.name
        if name not in self._results:
            reader = self._readers.get(name)
            if not self._is_read(entry, reader, finished, failed):
                return None
            answer = self.answers.get(self._estimates.get(name, ""))
            self._results[name] = answer or read_audit(entry, finished, self._store, reader)
        return self._results[name]

    def _is_read(
        self, entry: PlannedAudit, reader: SequentialReader | None, finished: Set[str], failed: Set[str]
    ) -> bool:
        if reader is not None:
            reader.advance(finished, failed)
            return bool(reader.reason) or len(reader.tallies) == len(entry.tallies)
        # In a check, an audit is read without its failed units. Elsewhere, failed units stop its confirmatory run.
        # A part of its bound that failed is computed when the audit is read.
        ceilings, bounds = entry.ceilings if self._is_check else (), keys_of(entry.bounds)
        awaited = self._awaited.setdefault(entry.audit.name, [*bounds, *ceilings, *entry.controls, *entry.tallies])
        while awaited and (
            awaited[-1] in finished or (awaited[-1] in failed and (self._is_check or awaited[-1] in bounds))
        ):
            awaited.pop()
        if awaited:
            return False
        estimate = self._estimates.get(entry.audit.name)
        return estimate is None or estimate in self.answers or not entry.keys <= finished

    def _may_continue(self, pair: AuditPair, finished: Set[str], *, first: bool) -> bool:
        """True if a pair may run now: within the budget, or briefly after it once started; the first pair always."""
        name = pair.first.audit.name
        if self._budget_s is None or self._elapsed_s() <= self._budget_s or name in self._results:
            return True
        if pair.first.audit.stop is not None:  # a sequential audit can be read at any time
            return first and finished.isdisjoint(pair.first.tallies)
        is_begun = not finished.isdisjoint(pair.first.keys - self._shared)
        return first or (is_begun and self._elapsed_s() <= GRACE * self._budget_s)


def _union(several: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*several)


def failures_of(plan: Plan, outcome: RunOutcome, recorded: Mapping[str, str]) -> dict[str, Failure]:
    """Return the failures by unit key."""
    return {
        unit.key: Failure(
            unit.label,
            unit.key,
            with_line(last_line(outcome.failed[unit.key]), FRAME.findall(outcome.failed[unit.key])),
            skipped=unit.key not in recorded or any(need in outcome.failed for need in unit.needs),
        )
        for unit in plan.units
        if unit.key in outcome.failed
    }


def with_confirmations(plan: Plan, results: Sequence[AuditResult]) -> tuple[AuditResult, ...]:
    """Return the results; those that reject a claim get the outcome of their confirmatory run."""
    confirmation_names = {entry.confirms: entry.audit.name for entry in plan.audits if entry.confirmatory}
    by_name = {result.name: result for result in results}
    return tuple(
        _with_confirmation(result, by_name.get(confirmation_names[result.name]))
        if result.name in confirmation_names and result.rejects_without_proxy
        else result
        for result in results
    )


def with_explanations(plan: Plan, store: UnitStore, results: Sequence[AuditResult]) -> tuple[AuditResult, ...]:
    """Return the results; those that reject a claim get the state between calls and the place of the leak."""
    entries = {entry.audit.name: entry for entry in plan.audits}
    explained = []
    for result in results:
        state_unit, leak_unit = entries[result.name].state, entries[result.name].game.where
        if result.verdict is Verdict.VIOLATION and state_unit is not None:
            from dpaudit.engine.planning.state_between_calls import StateBetweenCalls  # needed after a violation only

            problem = "the check did not run or failed. Run the audit again"
            is_finished = bool(store.finished([state_unit.key]))
            state = value_of(state_unit, store.read(state_unit.key)) if is_finished else None
            result = replace(result, state=state or StateBetweenCalls(math.nan, failure=problem))
        if result.verdict is Verdict.VIOLATION and leak_unit is not None and store.finished([leak_unit.key]):
            result = replace(result, leak_location=tuple(value_of(leak_unit, store.read(leak_unit.key)).lines))
        explained.append(result)
    return tuple(explained)


def _with_confirmation(first: AuditResult, confirmatory: AuditResult | None) -> AuditResult:
    """Return a result that rejects its claim, with the outcome of its confirmatory run.

    `CLOSE` means that the confirmatory run exceeds the claim at the confidence of the first pass only.
    """
    if confirmatory is None:
        return replace(first, confirmation=Confirmation.MISSING)
    at_first_confidence = confirmatory.at_first_confidence
    exceeds = (
        at_first_confidence is not None
        and at_first_confidence.violation_point(confirmatory.compared.claim.curve) is not None
    )
    if confirmatory.rejects_without_proxy:
        outcome = Confirmation.CONFIRMED
    elif confirmatory.finding is None or confirmatory.is_open:
        outcome = Confirmation.MISSING
    else:
        outcome = Confirmation.CLOSE if exceeds else Confirmation.NOT_CONFIRMED
    return replace(first, confirmation=outcome, at_first_confidence=at_first_confidence)
