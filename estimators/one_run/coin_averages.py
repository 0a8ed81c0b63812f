"""Guesses about several coins of each step of a training, which may depend on each other in any way.

Each coin of a step is fair and decides about its own canary. Given everything before the step, a guess of one coin is
right with probability at most p = (1 + TV) / 2. TV is the total variation that the claim allows. So

    1 - w + w (share of right guesses of the step) / p,    w in [0, 1],

has expectation at most 1, however the guesses of the step depend on each other. It averages bets on each coin.
The product over steps, averaged over several w, is a nonnegative supermartingale. Under the claim it ever reaches
1 / error with probability at most `error` (Ville, 1939). If steps have different claims, each has its own p. The
product falls as p grows, so the values of p that are rejected form an interval, whose end is the bound. Counts of right
guesses must not be pooled over the coins of a step: all of them may be right or wrong together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp, ndtr, ndtri

from dpaudit.estimators.bisection import last_true
from dpaudit.estimators.one_run.step_martingale import StepEstimator, right_in_order
from dpaudit.estimators.scores import StepScores
from dpaudit.registry import register

BETS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
"""Shares w of the capital that are bet on the guesses of a step."""
START = (0.5, 0.1, 0.1, 0.1, 0.1, 0.1)
"""Parts of the capital that begin with each share: with many coins a step, the whole capital is safe and wins most."""


@dataclass(frozen=True, eq=False)
class CoinTally:
    """Shares of right guesses in one game.

    Attributes:
        share: Share of right guesses of each step, in order, shape (steps,).
        relative: Claimed mu of each step, as a multiple of that of the step whose total variation is bounded, shape
            (steps,); None if all are equal.
        coins: Number of coins of each step.
    """

    share: NDArray[np.float64]
    relative: NDArray[np.float64] | None = None
    coins: int = 1

    def log_wealth(self, accuracy: float) -> float:
        """Return the logarithm, >= 0, of the largest wealth so far if guesses are right with this probability."""
        bets, right = np.array(BETS)[:, None], np.asarray(accuracy)
        if self.relative is not None:
            right = ndtr(self.relative * ndtri(accuracy))
        with np.errstate(divide="ignore"):  # all that was bet is lost if every guess of a step is wrong
            gains = np.log1p(bets * (self.share / right - 1))
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
class CoinAverages(StepEstimator[CoinTally]):
    """Bound on the total variation of a step from guesses about several coins of each step.

    Attributes:
        delta: Delta at which a step's bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
    """

    tally_type: ClassVar[type[Any]] = CoinTally
    chosen_among: ClassVar[str] = "all steps so far at once"

    def tally(self, evidence: StepScores) -> CoinTally:
        """Compute the share of right guesses of each step."""
        return CoinTally(right_in_order(evidence).reshape(-1, evidence.coins).mean(1), coins=evidence.coins)

    def odds(self, tally: CoinTally) -> float:
        return tally.odds(1 - self.confidence)

    def counts(self, tally: CoinTally, odds: float) -> tuple[tuple[str, int], ...]:
        steps = tally.share.size
        correct = round(float(tally.share.sum()) * tally.coins)
        return ("steps", steps), ("coins", steps * tally.coins), ("correct", correct)
