"""Looks at one claim, one after the other: the rest is spared once one refutes it, or time is up.

Each look has its own share of the error, so leaving some out after having seen others only makes a verdict less likely.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from dpaudit.actors.schedule import Spare
from dpaudit.actors.store import UnitStore
from dpaudit.engine.findings.confirmation import spared_units
from dpaudit.engine.findings.gather import result_of
from dpaudit.engine.findings.joint import refutes
from dpaudit.engine.findings.stopping import SequentialReader, sequential_readers
from dpaudit.engine.plan import Plan, PlannedAudit

Spent = Callable[[], float]
"""Seconds that the run has taken so far."""


class LooksReader:
    """Reads the looks of a plan as they are finished, and says which units need not be run."""

    def __init__(self, plan: Plan, store: UnitStore, spent: Spent) -> None:
        self._looks = plan.audits
        self._budget_s = None if plan.spec.together is None else plan.spec.together.budget_s
        self._store = store
        self._spent = spent
        self._readers = sequential_readers(plan, store)
        self._refuting: dict[str, bool] = {}

    def spared(self, finished: Set[str], failed: Set[str]) -> frozenset[str]:
        """Keys of units that need not be started: of looks after one that refutes the claim, or after time is up."""
        every = frozenset().union(*(look.keys for look in self._looks))
        refuting = next(
            (place for place, look in enumerate(self._looks) if self._refutes(look, finished, failed)), None
        )
        needed = self._looks if refuting is None else self._looks[: refuting + 1]
        if refuting is None and self._budget_s is not None and self._spent() > self._budget_s:
            needed = tuple(look for place, look in enumerate(needed) if self._goes_on(look, finished, first=not place))
        return every - frozenset().union(*(look.keys for look in needed))

    def _goes_on(self, look: PlannedAudit, finished: Set[str], *, first: bool) -> bool:
        """Whether it is played on when time is up: once begun, until it can be read; the first one in any case."""
        if look.audit.stop is not None:  # it can be read as it is
            return first and finished.isdisjoint(look.tallies)
        own = look.keys - frozenset().union(*(other.keys for other in self._looks if other is not look))
        return first or not finished.isdisjoint(own)

    def _refutes(self, look: PlannedAudit, finished: Set[str], failed: Set[str]) -> bool:
        name = look.audit.name
        if name not in self._refuting:
            reader = self._readers.get(name)
            if not self._is_read(look, reader, finished, failed):
                return False
            self._refuting[name] = refutes(result_of(look, finished, self._store, reader))
        return self._refuting[name]

    def _is_read(
        self, look: PlannedAudit, reader: SequentialReader | None, finished: Set[str], failed: Set[str]
    ) -> bool:
        if reader is not None:
            reader.advance(finished, failed)
            return bool(reader.reason) or len(reader.tallies) == len(look.tallies)
        return finished >= {*look.tallies, *look.controls, *look.ceilings}


def spare_of_run(plan: Plan, store: UnitStore, spent: Spent) -> Spare | None:
    """Which units of a run need not be started: of audits with enough evidence, of confirmations, of looks."""
    spare = spared_units(plan, store)
    if plan.spec.together is None:
        return spare
    looks = LooksReader(plan, store, spent)

    def spared(finished: Set[str], failed: Set[str]) -> Set[str]:
        return looks.spared(finished, failed) | (spare(finished, failed) if spare else frozenset())

    return spared
