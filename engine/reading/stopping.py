"""Sequential audits: trials are read in the order of the plan as they are finished, until enough is known.

Only an anytime-valid estimator may be looked at while trials come in. What it is shown is always a prefix of the plan,
whichever trials happen to be finished first: how long a trial takes may depend on what is audited. So the same spec
stops at the same trial on one worker and on many, and a resumed run where the first one would have.
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
class Stopped:
    """How far a sequential audit went."""

    reason: str  # why it needed no more trials; "" when it read all of the plan, or is not finished
    trainings: int  # units finished that ran the mechanism, those in flight at the end among them
    planned: int  # units planned that run the mechanism

    def __str__(self) -> str:
        saved = f"{self.trainings:,} of {self.planned:,} training units run, {self.planned - self.trainings:,} saved"
        return f"stopped: {self.reason}; {saved}" if self.reason else saved


def wealth_line(share: float) -> float:
    """The log wealth below which an audit is hopeless after so large a share of its trials, over the one that refutes.

    Of a thousand streams that refute by their last trial, a handful lie below it on their way (`benchmarks.futility`).
    """
    return 1.2 * share - 1.05


def hopeless(log_wealth: float, share: float, confidence: float) -> bool:
    """Whether wealth against a claim, after this share of all trials, hardly ever comes to refute it by its end."""
    return 0.5 <= share < 1 and log_wealth < wealth_line(share) * -math.log1p(-confidence)


class SequentialReader:
    """Reads the tallies of one audit in the order of the plan, and says when it is enough.

    Attributes:
        tallies: Keys of the tallies read so far: a prefix of the plan's.
        reason: Why no more are read; "" while there is none.
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
        self._claimed = entry.audit.game.fits.compared(entry.effective_claim).claim.epsilon

    def advance(self, finished: Set[str], failed: Set[str]) -> None:
        """Reads on, up to the first tally that is missing or as far as is needed."""
        while not self.reason and len(self.tallies) < len(self.entry.tallies):
            key = self.entry.tallies[len(self.tallies)]
            if key in failed:
                # Leaving its trials out would bias the bound; ending before them does not.
                self.reason = "a unit failed, and trials after it are not read (run again to retry it)"
            if key not in finished:
                return
            for trials in decode(self._store.read(key), self._estimator.tally_type):
                self._state = self._estimator.update(self._state, trials)
            self.tallies += (key,)
            lower = self._estimator.lower(self._state)
            self.reason = self._rule.reached(lower, self._state.trials, self._claimed)
            if not self.reason and self._rule.hopeless and not self.entry.confirms and self._hopeless():
                self.reason = "what the trials show makes it unlikely that the rest would refute the claim"

    def _hopeless(self) -> bool:
        """Whether the wealth against the claim lies so low that it hardly ever comes to refute it by the last trial."""
        if math.isinf(self._claimed):
            return False
        wealth = self._estimator.log_wealth(self._state, self._claimed)
        return hopeless(wealth, len(self.tallies) / len(self.entry.tallies), self._estimator.confidence)

    def stopped(self, finished: Set[str]) -> Stopped:
        """What was run and what was saved."""
        trainings = self.entry.trainings
        return Stopped(self.reason, sum(key in finished for key in trainings), len(trainings))
