"""Independent trials whose world a fair coin chose: three tests of the same scores, the error shared among them.

* the guess band: all numbers of guesses at once, at the bound's delta. It knows the coins, and sees strong leaks.
* the band: all thresholds at once, so all deltas. It speaks about the whole curve, and does not need the coins.
* accuracy: when every trial is guessed, each is right with probability at most (1 + TV) / 2, whatever all the scores
  say of it, TV the total variation between the worlds. Weak leaks are seen here first: a claim bounds TV by its delta
  at epsilon = 0.

Assumed: the trials are independent, and a fair coin of its own decided the world of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy import special

from dpaudit.claims import PrivacyCurve
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.best_candidate import in_order
from dpaudit.estimators.bound import Bound, along_curve
from dpaudit.estimators.finding import Comparison, Series
from dpaudit.estimators.one_run.guess_band import (
    IndependentTrials,
    bounds_of_guesses,
    check_fields,
    deciding_counts,
    guess_looks,
)
from dpaudit.estimators.one_run.right_guesses import GuessRule, right_guesses, telling_looks
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.scores import ScoreEstimator, Scores, replay_bounds
from dpaudit.estimators.two_world.two_sample import Band, TwoSampleTally
from dpaudit.registry import register

GUESS_SHARE, BAND_SHARE, ACCURACY_SHARE = 0.4, 0.4, 0.2  # of the error, for each test


@dataclass(frozen=True, eq=False)
class FairCoinTally(TwoSampleTally):
    """The counts of one replay: at all thresholds, and at all numbers of guesses."""

    looks: Ints  # numbers of guesses looked at, ascending, the last one all trials, shape (guess looks,)
    right: Ints  # right ones among them, shape (guess looks,)


@dataclass(frozen=True, eq=False)
class GuessAccuracy:
    """Evidence against a claim's total variation: right guesses when each of a replay's trials is guessed."""

    right: Ints  # of each replay, shape (replays,)
    trials: Ints  # of each replay, shape (replays,)
    error: float  # probability that one replay's limit is wrong, in (0, 1)
    lost: int = 0  # replays that failed; they show nothing

    @property
    def total_variation(self) -> float:
        some = np.maximum(self.right, 1)
        accuracy = np.where(self.right > 0, special.betaincinv(some, self.trials - some + 1.0, self.error), 0.0)
        limits = np.maximum(0.0, 2 * accuracy * (1 - 1e-11) - 1)
        return float(median_rule(np.append(limits, np.zeros(self.lost))))

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        return along_curve("total variation", "epsilon = 0", self.total_variation, curve.delta(0.0))


@register("estimator", "fair-coins", source="Ours: the guess band, the band and total variation, error shared")
@dataclass(frozen=True)
class FairCoins(ScoreEstimator[FairCoinTally]):
    """Two-sample scores whose worlds fair coins chose: guess band, band and total variation share the error.

    Attributes:
        delta: The delta the bound is stated at, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
        guess: Which trials are guessed first, and what is guessed; "both-tails" needs no scores centred on 0.
    """

    independent_trials: ClassVar[bool] = True
    tally_type: ClassVar[type[Any]] = FairCoinTally

    delta: float = 0.0
    confidence: float = 0.95
    guess: GuessRule = "both-tails"

    def __post_init__(self) -> None:
        check_fields(self.delta, self.confidence, self.guess)

    @property
    def band(self) -> Band:
        return Band(delta=self.delta, confidence=1 - BAND_SHARE * (1 - self.confidence))

    def tally(self, scores: Scores) -> FairCoinTally:
        looks = telling_looks(guess_looks(scores.score.size), scores.score, self.guess)
        right = right_guesses(scores.score, scores.truth, scores.tie_ranks(), self.guess, looks)
        return FairCoinTally(**vars(self.band.tally(scores)), looks=looks, right=right)

    def bound(self, tallies: Sequence[FairCoinTally], *, lost: int = 0) -> Bound:
        """The larger of both bands' bounds; the evidence speaks about the whole of a claim's curve."""
        ordered = in_order(tallies)
        by_band = self.band.bound(ordered, lost=lost)
        guessed = self._guess_bounds(ordered, lost)
        by_guesses = float(median_rule(guessed))
        accuracy = GuessAccuracy(
            np.array([tally.right[-1] for tally in ordered]),
            np.array([tally.looks[-1] for tally in ordered]),
            self._error(ACCURACY_SHARE, guessed.size),
            lost,
        )
        found = replace(
            by_band,
            confidence=self.confidence,
            method="fair-coins",
            selection="all thresholds at once, error shared with two more candidates",
            evidence=(*by_band.evidence, accuracy),
        )
        if by_band.lower >= by_guesses:
            return found
        return replace(
            found,
            lower=by_guesses,
            selection="all numbers of guesses at once, error shared with two more candidates",
            counts=deciding_counts(ordered, guessed, lost, of="trials"),
            notes=(),
        )

    def series(self, tallies: Sequence[FairCoinTally], *, lost: int = 0) -> dict[str, Series]:
        """What `band` draws of the same tallies, at its share of the error; replays by the larger of both bounds."""
        ordered = in_order(tallies)
        drawn = self.band.series(ordered, lost=lost)
        by_band = drawn["replays"]
        best = np.maximum(by_band["epsilon"], self._guess_bounds(ordered, lost))[: len(ordered)]
        alone = np.maximum(by_band["alone"], [self._guess_bounds([tally], 0)[0] for tally in ordered])
        both = replay_bounds([tally.replay for tally in ordered], best, alone, lost=lost, mean=False)
        return drawn | {"replays": both}

    def _guess_bounds(self, tallies: Sequence[FairCoinTally], lost: int) -> Floats:
        """Each replay's bound by the guess band; lost ones come last with 0."""
        error = self._error(GUESS_SHARE, len(tallies) + lost)
        bounds = bounds_of_guesses(tallies, lambda trials: IndependentTrials(trials, self.delta), error)
        return np.append(bounds, np.zeros(lost))

    def _error(self, share: float, replays: int) -> float:
        """What a test of one replay may err: a median over replays needs half."""
        return 1 - per_replay_confidence(1 - share * (1 - self.confidence), replays)
