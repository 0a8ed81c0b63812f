"""A claim that an observational game finds exceeded is tested once more by a game that takes nothing on trust.

The second game's trainings wait until the first one is read; where there is nothing to confirm they are spared. Both
follow from finished units alone, so a resumed run decides as the first one would have.
"""

from __future__ import annotations

from collections.abc import Set

from dpaudit.actors.schedule import Spare
from dpaudit.actors.storage.store import UnitStore
from dpaudit.engine.planning.plan import Plan, PlannedAudit
from dpaudit.engine.reading.gather import result_of
from dpaudit.engine.reading.stopping import sequential_readers, spare_of
from dpaudit.engine.reading.verdict import Verdict

CONFIRMED = (Verdict.VIOLATION, Verdict.UNDECIDED)
"""Verdicts of an observational game that are tested once more."""


class Confirmation:
    """An audit that follows another one, and whether it is needed."""

    def __init__(self, entry: PlannedAudit, first: PlannedAudit, store: UnitStore) -> None:
        self.entry = entry
        self._first = first
        self._store = store
        self._unneeded: bool | None = None

    def is_unneeded(self, finished: Set[str]) -> bool:
        """Whether the first audit is read and left nothing to confirm."""
        if self._unneeded is None and finished >= {*self._first.tallies, *self._first.controls}:
            self._unneeded = result_of(self._first, finished, self._store).verdict not in CONFIRMED
        return bool(self._unneeded)


def spared_units(plan: Plan, store: UnitStore) -> Spare | None:
    """Which units of a run need not be started: of sequential audits with enough evidence, and of confirmations.

    Confirmations of several looks at one claim are read with them.
    """
    sequential = spare_of(plan, sequential_readers(plan, store))
    named = {entry.audit.name: entry for entry in plan.audits}
    confirmations = [Confirmation(entry, named[entry.confirms], store) for entry in plan.audits if entry.confirms]
    if not confirmations or plan.spec.together is not None:
        return sequential

    def spare(finished: Set[str], failed: Set[str]) -> Set[str]:
        unneeded = {each.entry.audit.name for each in confirmations if each.is_unneeded(finished)}
        kept = frozenset().union(*(entry.keys for name, entry in named.items() if name not in unneeded))
        spared = frozenset().union(*(named[name].keys for name in unneeded)) - kept
        return spared | sequential(finished, failed) if sequential else spared

    return spare
