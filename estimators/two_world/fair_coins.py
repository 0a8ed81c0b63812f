"""Independent trials of two worlds: three tests of the same scores, the error shared among them.

* the guess band: all numbers of guesses at once, at the bound's delta. It knows the coins, and sees strong leaks.
* the band: all thresholds at once, so all deltas. It speaks about the whole curve, and does not need the coins.
* accuracy: when every trial is guessed, each is right with probability at most (1 + TV) / 2, whatever all the scores
  say of it, TV the total variation between the worlds. Weak leaks are seen here first: a claim bounds TV by its delta
  at epsilon = 0.

Assumed: the trials are independent, and a fair coin of its own decided the world of each. Of two samples, whose sizes
nobody tossed for, as many trials are drawn as fair coins would have made: they are then what coins make, but for a
probability that is charged to the error.
"""

from __future__ import annotations

import bisect
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
from dpaudit.estimators.one_run.right_guesses import GuessRule, as_signed, right_guesses, telling_looks
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.scores import ScoreEstimator, Scores, replay_bounds
from dpaudit.estimators.two_world.two_sample import Band, TwoSampleTally
from dpaudit.registry import register


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
    failed_replays: int = 0  # replays that failed; they show nothing

    @property
    def total_variation(self) -> float:
        some = np.maximum(self.right, 1)
        accuracy = np.where(self.right > 0, special.betaincinv(some, self.trials - some + 1.0, self.error), 0.0)
        limits = np.maximum(0.0, 2 * accuracy * (1 - 1e-11) - 1)
        return float(median_rule(np.append(limits, np.zeros(self.failed_replays))))

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
    method: ClassVar[str] = "fair-coins"
    guess_share: ClassVar[float] = 0.4  # of the error, as the next two
    band_share: ClassVar[float] = 0.4
    accuracy_share: ClassVar[float] = 0.2

    delta: float = 0.0
    confidence: float = 0.95
    guess: GuessRule = "both-tails"

    def __post_init__(self) -> None:
        check_fields(self.delta, self.confidence, self.guess)

    @property
    def band(self) -> Band:
        return Band(delta=self.delta, confidence=1 - self.band_share * (1 - self.confidence))

    def tally(self, scores: Scores) -> FairCoinTally:
        trials = self._of_fair_coins(scores)
        score, guess = as_signed(trials.score, self.guess)
        looks = telling_looks(guess_looks(score.size), score, guess)
        right = right_guesses(score, trials.truth, trials.tie_ranks(), guess, looks)
        return FairCoinTally(**vars(self.band.tally(scores)), looks=looks, right=right)

    def bound(self, tallies: Sequence[FairCoinTally], *, failed_replays: int = 0) -> Bound:
        """The larger of both bands' bounds; the evidence speaks about the whole of a claim's curve."""
        ordered = in_order(tallies)
        by_band = self.band.bound(ordered, failed_replays=failed_replays)
        guessed = self._guess_bounds(ordered, failed_replays)
        by_guesses = float(median_rule(guessed))
        accuracy = GuessAccuracy(
            np.array([tally.right[-1] for tally in ordered]),
            np.array([tally.looks[-1] for tally in ordered]),
            self._error(self.accuracy_share, guessed.size),
            failed_replays,
        )
        found = replace(
            by_band,
            confidence=self.confidence,
            method=self.method,
            selection="all thresholds at once, error shared with two more candidates",
            evidence=(*by_band.evidence, accuracy),
        )
        if by_band.lower >= by_guesses:
            return found
        return replace(
            found,
            lower=by_guesses,
            selection="all numbers of guesses at once, error shared with two more candidates",
            counts=deciding_counts(ordered, guessed, failed_replays, of="trials"),
            notes=(),
        )

    def series(self, tallies: Sequence[FairCoinTally], *, failed_replays: int = 0) -> dict[str, Series]:
        """What `band` draws of the same tallies, at its share of the error; replays by the larger of both bounds."""
        ordered = in_order(tallies)
        drawn = self.band.series(ordered, failed_replays=failed_replays)
        by_band = drawn["replays"]
        best = np.maximum(by_band["epsilon"], self._guess_bounds(ordered, failed_replays))[: len(ordered)]
        alone = np.maximum(by_band["alone"], [self._guess_bounds([tally], 0)[0] for tally in ordered])
        both = replay_bounds(
            [tally.replay for tally in ordered], best, alone, failed_replays=failed_replays, mean=False
        )
        return drawn | {"replays": both}

    def _of_fair_coins(self, scores: Scores) -> Scores:
        return scores

    def _guess_bounds(self, tallies: Sequence[FairCoinTally], failed_replays: int) -> Floats:
        """Each replay's bound by the guess band; lost ones come last with 0."""
        error = self._error(self.guess_share, len(tallies) + failed_replays)
        bounds = bounds_of_guesses(tallies, lambda one: IndependentTrials(int(one.looks[-1]), self.delta), error)
        return np.append(bounds, np.zeros(failed_replays))

    def _error(self, share: float, replays: int) -> float:
        """What a test of one replay may err: a median over replays needs half."""
        return 1 - per_replay_confidence(1 - share * (1 - self.confidence), replays)


@register("estimator", "two-samples", source="Ours: as many trials drawn as coins would make, then as fair-coins")
@dataclass(frozen=True)
class TwoSamples(FairCoins):
    """Two samples of independent trials: all thresholds for all of them, all guesses for those that coins would draw.

    As many as a fair binomial allows are drawn at random (73 of 50 + 50, 9,683 of 5,000 + 5,000): their worlds are then
    as fair coins make them. Guesses of both worlds together see what two limits, one for each sample, lose.
    """

    method: ClassVar[str] = "two-samples"
    guess_share: ClassVar[float] = 0.45
    band_share: ClassVar[float] = 0.4
    accuracy_share: ClassVar[float] = 0.1
    drawing_share: ClassVar[float] = 0.05

    def _of_fair_coins(self, scores: Scores) -> Scores:
        """Trials whose worlds fair coins chose, up to the share of the error, for each of several replays."""
        members, others = (np.sort(scores.score[scores.truth == world]) for world in (True, False))
        if not members.size or not others.size:
            return scores
        total = _drawn(members.size, others.size, self.drawing_share * (1 - self.confidence) / 2)
        rng = np.random.default_rng(Scores.content_seed(*((one, one >= 0) for one in (members, others))))
        count = int(np.clip(rng.binomial(total, 0.5), total - others.size, members.size))
        drawn = np.append(rng.permutation(members)[:count], rng.permutation(others)[: total - count])
        return Scores(drawn, np.arange(total) < count, scores.replay)


def _drawn(members: int, others: int, error: float) -> int:
    """The most fair coins that leave neither sample short with more than this probability."""

    def short(coins: int) -> float:
        return sum(float(special.bdtrc(size, coins, 0.5)) for size in (members, others) if coins > size)

    return bisect.bisect_right(range(2, members + others + 1), error, key=short) + 1
