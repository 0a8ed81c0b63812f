"""Guesses about the steps of a training: given the past, each is right with probability at most (1 + TV) / 2.

An independent fair coin decides the world of each step. TV is the total variation between the two worlds of a step,
given everything released before. Therefore the numbers of right guesses, in the order of the steps, are jointly
dominated by a Bernoulli walk with success probability (1 + TV) / 2. The limits of the guess band hold for all of them
at once, at whichever step the training ends. In another order they would not hold, because a guess may use the coins of
earlier steps. Every step is guessed: the domination is not proved if some steps are left out.

A claim's TV is its delta at epsilon = 0. Under (epsilon, delta)-DP, TV <= 1 - 2 (1 - delta) / (1 + e^epsilon), which
turns the limit on TV into a limit on epsilon.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Ints, require_levels
from dpaudit.estimators.bound import Bound, curve_comparison, mu_of_total_variation
from dpaudit.estimators.estimator import Estimator
from dpaudit.estimators.finding import Comparison, Validity
from dpaudit.estimators.one_run.delta_allowances import IndependentTrials
from dpaudit.estimators.one_run.guess_band import deciding_look, guess_band_p_value, guess_bounds, guess_looks
from dpaudit.estimators.scores import StepScores
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class StepTally:
    """Numbers of right guesses in one game."""

    looks: Ints  # numbers of steps at which guesses are counted, ascending; the last one is all steps; shape (looks,)
    right: Ints  # right guesses among those first steps, shape (looks,)
    further: ClassVar[None] = None  # the order of the steps is the only one

    def p_value(self, claimed: float) -> float:
        """Return a p-value of the claim that the total variation of each step is at most `claimed`, in [0, 1)."""
        return guess_band_p_value(2 * math.atanh(claimed), self.right, self.looks)


class GuessesOfSteps(Protocol):
    """Right guesses about steps, for any number of coins in a step."""

    def p_value(self, claimed: float, /) -> float:
        """Return a p-value of the claim that the total variation of each step is at most `claimed`, in [0, 1)."""


@dataclass(frozen=True, eq=False)
class StepAccuracy:
    """Evidence against a claim's total variation: right guesses about the steps so far."""

    tally: GuessesOfSteps
    odds: float  # lower limit on the log-odds of a right guess, in nats, >= 0

    @property
    def total_variation(self) -> float:
        return math.tanh(self.odds / 2)

    @property
    def mu(self) -> float:
        """Limit up to which every mu of a step is rejected."""
        return mu_of_total_variation(self.total_variation)

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        return curve_comparison("total variation", "epsilon = 0", self.total_variation, curve.delta(0.0))

    def p_value(self, curve: PrivacyCurve, /) -> float:
        """Return a p-value of the claim: at most u with probability <= u if the claim holds."""
        claimed = curve.delta(0.0)
        return self.tally.p_value(claimed) if claimed < 1 else 1.0


T = TypeVar("T", bound=GuessesOfSteps)


@dataclass(frozen=True)
class StepEstimator(Estimator[StepScores, T]):
    """Bound on the total variation of a step from guesses in step order; further trainings add steps to one game.

    Attributes:
        delta: Delta at which a step's bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
    """

    evidence: ClassVar[type[Any]] = StepScores
    chosen_among: ClassVar[str]
    """Numbers of steps that are looked at, in words."""

    delta: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)

    @abstractmethod
    def odds(self, tally: T) -> float:
        """Return the lower limit on the log-odds of a right guess, in nats, >= 0."""

    @abstractmethod
    def counts(self, tally: T, odds: float) -> tuple[tuple[str, int], ...]:
        """Return the counts that are printed with the limit `odds`."""

    def find(self, tallies: Sequence[T], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """Return the bound of one game."""
        require(
            len(tallies) == 1 and failed_replays == 0, "steps must form one game", games=len(tallies) + failed_replays
        )
        (tally,) = tallies
        odds = self.odds(tally)
        return Bound(
            lower=epsilon_of_odds(odds, self.delta),
            delta=self.delta,
            confidence=self.confidence,
            method=self.method,
            selection=self.chosen_among,
            validity=Validity.FINITE_SAMPLE,
            counts=self.counts(tally, odds),
            evidence=(StepAccuracy(tally, odds),),
        )


def right_in_order(scores: StepScores) -> NDArray[np.bool_]:
    """Return True for each right guess in the order of the steps; a score of 0 is a wrong guess."""
    right: NDArray[np.bool_] = np.where(scores.truth, scores.score > 0, scores.score < 0)[np.argsort(scores.canary)]
    return right


@register(
    "estimator", "step-martingale", source="Ours: the guess band in the order of the steps, after Nasr et al. (2023)"
)
@dataclass(frozen=True)
class StepMartingale(StepEstimator[StepTally]):
    """Bound on the total variation of a step from guesses in step order, at all numbers of steps at once.

    Attributes:
        delta: Delta at which a step's bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
    """

    tally_type: ClassVar[type[Any]] = StepTally
    chosen_among: ClassVar[str] = "all numbers of steps at once"

    def tally(self, evidence: StepScores) -> StepTally:
        """Count the right guesses in the order of the steps, each of which has one coin."""
        has_one = evidence.coins == 1
        require(has_one, "a step must have one coin", do="use the estimator coin-averages", coins=evidence.coins)
        look_counts = guess_looks(evidence.score.size)
        return StepTally(look_counts, np.cumsum(right_in_order(evidence), dtype=np.int64)[look_counts - 1])

    def odds(self, tally: StepTally) -> float:
        (odds,) = guess_bounds(tally, IndependentTrials(int(tally.looks[-1])), 1 - self.confidence).tolist()
        return float(odds)

    def counts(self, tally: StepTally, odds: float) -> tuple[tuple[str, int], ...]:
        steps, right = deciding_look(tally, odds)
        return (
            ("steps", int(tally.looks[-1])),
            ("correct", int(tally.right[-1])),
            ("deciding steps", steps),
            ("correct among them", right),
        )


def epsilon_of_odds(odds: float, delta: float) -> float:
    """Return log((1 - delta) (1 + e^odds) - 1), at least 0 and rounded down."""
    factor = (1 - delta) - delta * math.exp(-odds)
    return max(0.0, (odds + math.log(factor)) * (1 - 1e-12)) if factor > 0 else 0.0
