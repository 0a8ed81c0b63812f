"""Looks at one claim, one after the other: one that refutes it is played again before the rest, which is then spared.

Each look has its own share of the error of the first pass, and what is played again has its own share of the verdict's:
leaving some out after having seen others only makes a verdict less likely.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from enum import Enum

from dpaudit.actors.schedule import Hold, Spare
from dpaudit.actors.storage.store import UnitStore
from dpaudit.engine.planning.plan import Plan, PlannedAudit
from dpaudit.engine.reading.gather import result_of
from dpaudit.engine.reading.joint import refutes
from dpaudit.engine.reading.result import AuditResult
from dpaudit.engine.reading.stopping import SequentialReader, sequential_readers
from dpaudit.engine.run.confirmation import CONFIRMED, spared_units

Spent = Callable[[], float]
"""Seconds that the run has taken so far."""


class Stage(Enum):
    """How far a look and its confirmation are read."""

    OPEN = "not read yet"
    SILENT = "read, and nothing to confirm"
    REFUTING = "read, and to be confirmed"
    CONFIRMED = "confirmed"
    REJECTED = "not confirmed, or that cannot be read"


@dataclass(frozen=True)
class Paired:
    """A look of the first pass, and what is played when it refutes the claim; None where nothing would be."""

    look: PlannedAudit
    confirmation: PlannedAudit | None

    @property
    def keys(self) -> frozenset[str]:
        """Of both."""
        return self.look.keys | (self.confirmation.keys if self.confirmation else frozenset())


def paired_looks(plan: Plan) -> tuple[Paired, ...]:
    """The looks of a plan in order, each with its confirmation."""
    following = {entry.confirms: entry for entry in plan.audits if entry.confirms}
    return tuple(Paired(entry, following.get(entry.audit.name)) for entry in plan.audits if not entry.confirms)


class LooksReader:
    """Reads the looks of a plan as they are finished, and says which units need not be run, and which must wait."""

    def __init__(self, plan: Plan, store: UnitStore, spent: Spent) -> None:
        self._pairs = paired_looks(plan)
        self._budget_s = None if plan.spec.together is None else plan.spec.together.budget_s
        self._store = store
        self._spent = spent
        self._readers = sequential_readers(plan, store)
        self._read: dict[str, AuditResult] = {}

    def spared(self, finished: Set[str], failed: Set[str]) -> frozenset[str]:
        """Keys of units that need not be started.

        Those of looks after one that is confirmed, or after time is up, and confirmations of looks that found nothing.
        """
        every = frozenset().union(*(pair.keys for pair in self._pairs))
        stages = self._stages(finished, failed)
        if Stage.CONFIRMED in stages:
            needed = self._pairs[: stages.index(Stage.CONFIRMED) + 1]
        else:
            needed = tuple(
                pair for place, pair in enumerate(self._pairs) if self._goes_on(pair, finished, first=not place)
            )
        kept = frozenset().union(*(pair.look.keys for pair in needed))
        for pair in needed:
            stage = stages[self._pairs.index(pair)]
            if pair.confirmation is not None and stage is not Stage.SILENT:
                kept |= pair.confirmation.keys
        return every - kept

    def held(self, finished: Set[str], failed: Set[str]) -> frozenset[str]:
        """Keys of units that must wait: confirmations of looks that are not read, and looks after one that refutes."""
        stages = self._stages(finished, failed)
        # A unit without a seed, as a ceiling's may be, is the look's own as well.
        looks = frozenset().union(*(pair.look.keys for pair in self._pairs))
        waiting = frozenset().union(
            *(
                pair.confirmation.keys - looks
                for pair, stage in zip(self._pairs, stages, strict=True)
                if pair.confirmation is not None and stage is Stage.OPEN
            )
        )
        if Stage.REFUTING not in stages:
            return waiting
        first = stages.index(Stage.REFUTING)
        before = frozenset().union(*(pair.keys for pair in self._pairs[: first + 1]))
        later = frozenset().union(*(pair.keys for pair in self._pairs[first + 1 :]))
        return waiting | (later - before)

    def _stages(self, finished: Set[str], failed: Set[str]) -> list[Stage]:
        return [self._stage(pair, finished, failed) for pair in self._pairs]

    def _stage(self, pair: Paired, finished: Set[str], failed: Set[str]) -> Stage:
        found = self._result(pair.look, finished, failed)
        if found is None:
            return Stage.OPEN
        if pair.confirmation is None or not calls_for_confirmation(pair.confirmation, found):
            return Stage.SILENT
        again = self._result(pair.confirmation, finished, failed)
        if again is not None:
            return Stage.CONFIRMED if refutes(again) else Stage.REJECTED
        return Stage.REFUTING if failed.isdisjoint(pair.confirmation.keys) else Stage.REJECTED

    def _result(self, entry: PlannedAudit, finished: Set[str], failed: Set[str]) -> AuditResult | None:
        """What an audit found; None while it is not read."""
        name = entry.audit.name
        if name not in self._read:
            reader = self._readers.get(name)
            if not self._is_read(entry, reader, finished, failed):
                return None
            self._read[name] = result_of(entry, finished, self._store, reader)
        return self._read[name]

    def _goes_on(self, pair: Paired, finished: Set[str], *, first: bool) -> bool:
        """Whether it is played on when time is up: once begun, until it can be read; the first one in any case."""
        look = pair.look
        if self._budget_s is None or self._spent() <= self._budget_s or look.audit.name in self._read:
            return True
        if look.audit.stop is not None:  # it can be read as it is
            return first and finished.isdisjoint(look.tallies)
        others = frozenset().union(*(other.look.keys for other in self._pairs if other is not pair))
        return first or not finished.isdisjoint(look.keys - others)

    def _is_read(
        self, entry: PlannedAudit, reader: SequentialReader | None, finished: Set[str], failed: Set[str]
    ) -> bool:
        if reader is not None:
            reader.advance(finished, failed)
            return bool(reader.reason) or len(reader.tallies) == len(entry.tallies)
        return {*entry.tallies, *entry.controls, *entry.ceilings} <= finished | failed


def calls_for_confirmation(confirmation: PlannedAudit, found: AuditResult) -> bool:
    """Whether what a look found is to be confirmed: by the same look where that refutes, else by planted labels."""
    return refutes(found) if confirmation.played_again else found.verdict in CONFIRMED


@dataclass(frozen=True)
class Demand:
    """Which units of a run need not be started, and which must wait; None where all are needed."""

    spare: Spare | None = None
    hold: Hold | None = None


def demand_of_run(plan: Plan, store: UnitStore, spent: Spent) -> Demand:
    """What a run needs of its plan: less by audits with enough evidence, by confirmations, by looks."""
    spare = spared_units(plan, store)
    if plan.spec.together is None:
        return Demand(spare)
    looks = LooksReader(plan, store, spent)

    def spared(finished: Set[str], failed: Set[str]) -> Set[str]:
        return looks.spared(finished, failed) | (spare(finished, failed) if spare else frozenset())

    return Demand(spared, looks.held)
