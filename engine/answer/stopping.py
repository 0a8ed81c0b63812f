"""Sequential audits: finished trials are read in the order of the plan until the stopping rule is met.

This needs an anytime-valid estimator. It always reads a prefix of the plan, whichever trials finish first, because the
duration of a trial may depend on the audited data. The same spec therefore stops at the same trial on one worker, on
many workers and after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpaudit.actors.storage.store import UnitStore
from dpaudit.actors.values import decode
from dpaudit.engine.planning.plan import PlannedAudit

if TYPE_CHECKING:
    from dpaudit.estimators.two_world.betting import Betting


@dataclass(frozen=True)
class SequentialProgress:
    """Progress of a sequential audit."""

    reason: str  # why it stopped early; "" if it read the whole plan or has not finished
    trainings: int  # finished units that ran the mechanism, including those in flight at the end
    planned: int  # units planned that run the mechanism

    def __str__(self) -> str:
        saved = f"{self.trainings:,} of {self.planned:,} training units run, {self.planned - self.trainings:,} saved"
        return f"stopped: {self.reason}; {saved}" if self.reason else saved


def wealth_line(share: float) -> float:
    """Return the futility limit after a share of all trials, as a fraction of the log wealth that rejects the claim.

    Of a thousand streams that reject by their last trial, a handful cross this line (`docs/data/futility.csv`).
    """
    return 1.2 * share - 1.05


def is_hopeless(log_wealth: float, share: float, confidence: float) -> bool:
    """True if, after this share of all trials, the wealth is too low to make a rejection by the end likely."""
    return 0.5 <= share < 1 and log_wealth < wealth_line(share) * -math.log1p(-confidence)


class SequentialReader:
    """Reads the tallies of one audit in the order of the plan until the stopping rule is met.

    Attributes:
        tallies: Keys of the tallies read so far, a prefix of those planned.
        reason: Why reading stopped; "" while it continues.
    """

    def __init__(self, entry: PlannedAudit, store: UnitStore) -> None:
        assert entry.audit.stop is not None
        self.entry = entry
        self.tallies: tuple[str, ...] = ()
        self.reason = ""
        self._store = store
        self._rule = entry.audit.stop
        self._estimator: Betting = entry.audit.estimator
        self._state = self._estimator.start()
        self._claimed = entry.audit.game.traits.compared(entry.effective_claim).claim.epsilon

    def advance(self, finished: Set[str], failed: Set[str]) -> None:
        """Read further tallies, up to the first missing one or until the stopping rule is met."""
        while not self.reason and len(self.tallies) < len(self.entry.tallies):
            key = self.entry.tallies[len(self.tallies)]
            if key in failed:
                # Skipping the trials of a failed unit would bias the bound; stopping before them does not.
                self.reason = "a unit failed, and trials after it are not read. Run again to retry it"
            if key not in finished:
                return
            for trials in decode(self._store.read(key), self._estimator.tally_type):
                self._state = self._estimator.update(self._state, trials)
            self.tallies += (key,)
            lower = self._state.lower
            self.reason = self._rule.reached(lower, self._state.trials, self._claimed)
            if not self.reason and self._rule.hopeless and not self.entry.confirms and self._hopeless():
                self.reason = "the remaining trials are unlikely to reject the claim"

    def _hopeless(self) -> bool:
        """Return `is_hopeless` for the wealth against the claim so far."""
        if math.isinf(self._claimed):
            return False
        wealth = self._estimator.log_wealth(self._state, self._claimed)
        return is_hopeless(wealth, len(self.tallies) / len(self.entry.tallies), self._estimator.confidence)

    def stopped(self, finished: Set[str]) -> SequentialProgress:
        """Return the progress, given the keys of finished units."""
        trainings = self.entry.trainings
        return SequentialProgress(self.reason, sum(key in finished for key in trainings), len(trainings))
