"""Guesses about several coins of each step of a training, which may depend on each other in any way.

Each coin of a step is fair and decides about its own canary. Given everything before the step, a guess of one coin is
right with probability at most p = (1 + TV) / 2. TV is the total variation that the claim allows. So

    1 - w + w (share of right guesses of the step) / p,    w in [0, 1],

has expectation at most 1, however the guesses of the step depend on each other. It averages bets on each coin.
The product over steps, averaged over several w, is a nonnegative supermartingale. Under the claim it ever reaches
1 / error with probability at most `error` (Ville, 1939). It falls as p grows, so the values of p that are rejected form
an interval, whose end is the bound. Counts of right guesses must not be pooled over the coins of a step: all of them
may be right or wrong together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp

from dpaudit.errors import require
from dpaudit.estimators.arguments import require_levels
from dpaudit.estimators.bisection import last_true
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.step_martingale import StepAccuracy, epsilon_of_odds
from dpaudit.estimators.scores import StepScores
from dpaudit.registry import register

BETS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
"""Shares w of the capital that are bet on the guesses of a step."""
START = (0.5, 0.1, 0.1, 0.1, 0.1, 0.1)
"""Parts of the capital that begin with each share: with many coins a step, the whole capital is safe and wins most."""


@dataclass(frozen=True, eq=False)
class CoinTally:
    """Shares of right guesses in one game."""

    share: NDArray[np.float64]  # share of right guesses of each step, in order, shape (steps,)

    def log_wealth(self, accuracy: float) -> float:
        """Return the logarithm, >= 0, of the largest wealth so far if guesses are right with this probability."""
        bets = np.array(BETS)[:, None]
        with np.errstate(divide="ignore"):  # all that was bet is lost if every guess of a step is wrong
            gains = np.log1p(bets * (self.share / accuracy - 1))
        wealth = logsumexp(np.cumsum(gains, axis=1) + np.log(START)[:, None], axis=0)
        return max(0.0, float(wealth.max()))

    def p_value(self, claimed: float) -> float:
        """Return a p-value of the claim that the total variation of each coin is at most `claimed`, in [0, 1)."""
        return math.exp(-self.log_wealth((1 + claimed) / 2))

    def odds(self, error: float) -> float:
        """Return a lower limit on the log-odds of a right guess, in nats, >= 0, wrong with probability <= `error`."""
        least = -math.log(error)

        def is_rejected(odds: float) -> bool:
            return self.log_wealth(float(expit(odds))) >= least

        most = float(logit(1 - 1e-12))
        return last_true(is_rejected, 0.0, most) if is_rejected(0.0) else 0.0


@register("estimator", "coin-averages", source="Ours, after Ville (1939): averages of bets on the coins of a step")
@dataclass(frozen=True)
class CoinAverages(Estimator[StepScores, CoinTally]):
    """Bound on the total variation of a step from guesses about several coins of each step.

    The canaries 0, 1, ... are the coins of the first step, then those of the second, and so on.

    Attributes:
        coins: Number of coins of each step, >= 1.
        delta: Delta at which a step's bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
    """

    evidence: ClassVar[type[Any]] = StepScores
    tally_type: ClassVar[type[Any]] = CoinTally

    coins: int = 1
    delta: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)
        require(self.coins >= 1, "coins must be >= 1", coins=self.coins)

    def tally(self, evidence: StepScores) -> CoinTally:
        """Compute the share of right guesses of each step; a score of 0 is a wrong guess."""
        size = evidence.score.size
        require(size % self.coins == 0, "each step must have the same number of coins", scores=size, coins=self.coins)
        right = np.where(evidence.truth, evidence.score > 0, evidence.score < 0)[np.argsort(evidence.canary)]
        return CoinTally(right.reshape(-1, self.coins).mean(1))

    def find(self, tallies: Sequence[CoinTally], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """Return the bound of one game; further trainings add steps to this game rather than games."""
        require(
            len(tallies) == 1 and failed_replays == 0, "steps must form one game", games=len(tallies) + failed_replays
        )
        (tally,) = tallies
        odds = tally.odds(1 - self.confidence)
        return Bound(
            lower=epsilon_of_odds(odds, self.delta),
            delta=self.delta,
            confidence=self.confidence,
            method="coin-averages",
            selection="all steps so far at once",
            validity=Validity.FINITE_SAMPLE,
            counts=(
                ("steps", tally.share.size),
                ("coins", tally.share.size * self.coins),
                ("correct", round(float(tally.share.sum()) * self.coins)),
            ),
            evidence=(StepAccuracy(tally, odds),),
        )
