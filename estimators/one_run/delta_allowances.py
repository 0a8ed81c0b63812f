"""Right guesses that delta may add to those of the walk that dominates them at delta = 0 (`guess_band`)."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit

from dpaudit.estimators.arguments import Ints

SHARE_FOR_DELTA = 0.8
"""Largest share of the error that the delta of one training may cost: each canary in it less costs more power."""
SHARE_FOR_TRIALS = 0.2  # largest share of the error that the delta of independent trials may cost


class DeltaAllowance(Hashable, Protocol):
    """Bound on the number of right guesses that delta may add to the walk's."""

    def allowance(self, epsilon: float, significance: float) -> tuple[int | Ints, float]:
        """Return a count B and an upper bound on the probability that more than B right guesses are added at this
        epsilon.

        B is one number, or one for each look, and never grows with epsilon. The probability is largest at epsilon 0, or
        it grows only where B falls, to at most `SHARE_FOR_DELTA` of the error.
        """


@dataclass(frozen=True)
class IndependentTrials:
    """Allowance if each guess is about a separate training.

    (eps, delta)-close worlds are eps-close except on an event of probability delta for each trial, so at most a
    Binomial(trials, delta) number of right guesses is not covered by the walk.
    """

    trials: int
    delta: float = 0.0

    def allowance(self, epsilon: float, significance: float) -> tuple[int, float]:
        """Return the smallest B that is exceeded with probability <= `SHARE_FOR_TRIALS` of the error."""
        if self.delta == 0:
            return 0, 0.0
        from scipy.stats import binom  # slow to import, and unused at delta = 0

        allowed = int(binom.isf(SHARE_FOR_TRIALS * significance, self.trials, self.delta))
        return allowed, float(binom.sf(allowed, self.trials, self.delta))


def by_markov(expected: float, significance: float) -> tuple[int, float]:
    """Return the smallest whole B that costs at most `SHARE_FOR_DELTA` of the error, and its cost, expected / (B + 1).

    A count of this mean is B + 1 or more with at most this probability (Markov).

    Args:
        expected: Upper bound on the expected number of right guesses that delta adds.
        significance: Error of the test, in (0, 1).
    """
    allowed = max(1, math.ceil(expected / (SHARE_FOR_DELTA * significance))) - 1
    return allowed, expected / (allowed + 1)


def covering_allowances(
    delta_allowance: DeltaAllowance | None, low: float, high: float, significance: float
) -> list[tuple[int | Ints, float]]:
    """Return allowances of which one, at least, is no smaller than that of any epsilon of [low, high].

    The second one is for the epsilons at which fewer right guesses are allowed for than at `low`.
    """
    if delta_allowance is None:
        return [(0, 0.0)]
    allowed, cost = delta_allowance.allowance(low, significance)
    if np.array_equal(allowed, delta_allowance.allowance(high, significance)[0]):
        return [(allowed, cost)]
    return [(allowed, cost), (allowed - 1, max(cost, SHARE_FOR_DELTA * significance))]


@dataclass(frozen=True)
class OneTraining:
    """Allowance if all canaries share one training and the number of guesses may depend on its output.

    Fix the other bits. For canary j, "its turn comes with a conditional chance q > p and guess g" is a set of outputs,
    and (eps, delta)-DP bounds E[(q - p) 1] by delta / (2 (1 + e^eps)) for each g. Summed over canaries, the expected
    number of right guesses beyond the walk is at most canaries delta / (1 + e^eps). Markov's inequality bounds its
    tail.
    """

    canaries: float  # number of all canaries, guessed or not
    delta: float = 0.0
    prior_log_odds: float = 0.0  # log-odds of a right guess without any leak, 0 for fair coins

    def allowance(self, epsilon: float, significance: float) -> tuple[int, float]:
        """Return the allowance of `by_markov`."""
        return by_markov(self.canaries * self.delta * float(expit(-epsilon - self.prior_log_odds)), significance)


@dataclass(frozen=True)
class SeveralTrainings:
    """Allowance if canaries come in independent trainings, a few in each, and each is guessed from its own training.

    The argument of `OneTraining` holds for each training, and the additions in different trainings are independent. Two
    limits hold, each with half of the error that delta may cost:

    * Each training adds between 0 and m right guesses, with mean at most m delta / (1 + e^eps), where m is its number
      of canaries. The sum is largest in the increasing convex order if each addition is 0 or m. Its tail is then at
      most E(m N - m k)_+ / (x - m k) at any x > m k, where N is Bin(trainings, delta / (1 + e^eps)).
    * The probability that more than b trainings add any is at most Pr[Bin(canaries, delta / (1 + e^eps)) > b]
      (Hoeffding 1956, b >= its mean). Among the first k guesses b trainings add no more than the right guesses of the b
      trainings with the most of them.

    With few trainings of many canaries each, `OneTraining` allows for fewer. Its use at all epsilons is decided by the
    worst case at epsilon 0, and so beforehand.
    """

    canaries: int  # number of all canaries, guessed or not
    sharing: int  # largest number of canaries in one training
    delta: float = 0.0
    # right guesses in the b trainings with the most of them, indexed by b - 1 and look
    fullest: tuple[tuple[int, ...], ...] = ()

    def allowance(self, epsilon: float, significance: float) -> tuple[int | Ints, float]:
        """Return the allowance of `OneTraining` if it is smaller in the worst case, else that of both limits."""
        one_training = OneTraining(self.canaries, self.delta)
        error = SHARE_FOR_TRIALS * significance / (2 if self.fullest else 1)
        allowed, adding = self._limits(0.0, error)
        if min(allowed, self.sharing * adding) > one_training.allowance(0.0, significance)[0]:
            return one_training.allowance(epsilon, significance)
        share = SHARE_FOR_TRIALS * significance
        expected = self.canaries * self.delta * float(expit(-epsilon))
        if expected <= share:
            return 0, expected
        allowed, adding = self._limits(epsilon, error)
        if adding > len(self.fullest):
            return allowed, share
        return np.minimum(allowed, self.fullest[adding - 1]), share

    def _limits(self, epsilon: float, error: float) -> tuple[int, int]:
        """Return a number of right guesses, and one of trainings that add any; exceeded with probability <= `error`."""
        from scipy.stats import binom

        chance = self.delta * float(expit(-epsilon))
        expected, most = self.canaries * chance, min(self.sharing, self.canaries)
        trainings = -(-self.canaries // most)
        tails = binom.sf(np.arange(trainings + 1), trainings, chance)  # Pr[more than 0, 1, ... trainings add any]
        beyond = most * np.cumsum(tails[::-1])[::-1]
        beyond[0] = expected
        counts = most * np.arange(trainings + 1) + np.maximum(np.ceil(beyond / error), 1) - 1
        adding = max(int(binom.isf(error, self.canaries, chance)), math.ceil(expected))
        return int(min(counts.min(), self.canaries)), adding
