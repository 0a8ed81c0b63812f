"""Independent trials of two worlds: three tests of the same scores share the error.

* Guess band: all numbers of guesses at once, at the bound's delta. It uses the fair coins, and detects strong leaks.
* Band: all thresholds at once, hence all deltas. It is evidence against a whole curve, and does not need the coins.
* Accuracy: if every trial is guessed, each guess is right with probability at most (1 + TV) / 2, given all scores,
  where TV is the total variation between the worlds. This detects weak leaks first: a claim bounds TV by its delta at
  epsilon = 0.

Assumptions: the trials are independent, and an independent fair coin decided the world of each. If the sizes of two
samples were not decided by coins, as many trials are drawn as fair coins would give. Their worlds then have the law of
fair coins, except with a probability that is charged to the error.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy import special

from dpaudit.claims import PrivacyCurve
from dpaudit.estimators.arguments import Floats, Ints, require_levels, require_one_of
from dpaudit.estimators.bound import Bound, curve_comparison, mu_of_total_variation
from dpaudit.estimators.estimator import Estimator, Replays
from dpaudit.estimators.finding import Comparison
from dpaudit.estimators.one_run.delta_allowances import IndependentTrials
from dpaudit.estimators.one_run.guess_band import (
    deciding_counts,
    guess_bounds,
    guess_looks,
    selection_in_words,
    side_guesses,
)
from dpaudit.estimators.one_run.right_guesses import (
    GUESS_RULES,
    FurtherGuesses,
    GuessRule,
    guess_orders,
    informative_looks,
    right_guesses,
)
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world.two_sample import Band, TwoSampleTally
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class FairCoinTally(TwoSampleTally):
    """Counts of one replay at all thresholds, and at all numbers of guesses."""

    looks: Ints  # numbers of guesses, ascending, the last one all trials, shape (guess looks,)
    right: Ints  # right guesses among them, shape (guess looks,)
    further: FurtherGuesses | None = None  # guesses of further orders, which share the error; None if there are none


@dataclass(frozen=True, eq=False)
class GuessAccuracy:
    """Evidence against a claim's total variation: right guesses when every trial of a replay is guessed."""

    right: Ints  # right guesses of each replay, shape (replays,)
    trials: Ints  # trials of each replay, shape (replays,)
    error: float  # probability that one replay's limit is wrong, in (0, 1)
    failed_replays: int = 0  # number of failed replays, which show nothing

    @property
    def success(self) -> float:
        """Lower limit of the probability of a right guess, rounded down; the median over replays."""
        limits = np.asarray(clopper_pearson(self.right, self.trials, confidence=1 - self.error, side="lower").lower)
        return float(median_rule(np.append(limits * (1 - 1e-11), np.zeros(self.failed_replays))))

    @property
    def total_variation(self) -> float:
        return max(0.0, 2 * self.success - 1)

    @property
    def mu(self) -> float:
        """Limit up to which every mu of mu-Gaussian DP is rejected."""
        return mu_of_total_variation(self.total_variation)

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        return curve_comparison("total variation", "epsilon = 0", self.total_variation, curve.delta(0.0))


@register("estimator", "fair-coins", source="Ours: the guess band, the band and total variation, error shared")
@dataclass(frozen=True)
class FairCoins(Estimator[Scores, FairCoinTally]):
    """Two-sample scores whose worlds fair coins chose: guess band, band and total variation share the error.

    Attributes:
        delta: Delta at which the bound is stated, in [0, 1).
        confidence: Stated confidence of the bound and of the verdict on a whole curve, in (0, 1).
        guess: Order of the trials and rule of the guesses; neither "any-tail" nor "both-tails" needs scores centred on
            0.
    """

    independent_trials: ClassVar[bool] = True
    tally_type: ClassVar[type[Any]] = FairCoinTally
    guess_share: ClassVar[float] = 0.4  # share of the error, like the next two
    band_share: ClassVar[float] = 0.4
    accuracy_share: ClassVar[float] = 0.2

    delta: float = 0.0
    confidence: float = 0.95
    guess: GuessRule = "any-tail"

    def __post_init__(self) -> None:
        require_levels(self.delta, self.confidence)
        require_one_of("guess", self.guess, GUESS_RULES)

    @property
    def band(self) -> Band:
        return Band(delta=self.delta, confidence=1 - self.band_share * (1 - self.confidence))

    def tally(self, scores: Scores) -> FairCoinTally:
        trials = self._fair_coin_trials(scores)
        score, guess, side_shares = guess_orders(trials.score, self.guess, fixed_shares=self.delta > 0)
        look_counts, ranks = informative_looks(guess_looks(score.size), score, guess), trials.tie_ranks()
        return FairCoinTally(
            **vars(self.band.tally(scores)),
            looks=look_counts,
            right=right_guesses(score, trials.truth, ranks, guess, look_counts),
            further=side_guesses(trials, ranks, side_shares),
        )

    def lower(self, tally: FairCoinTally, error: float) -> Floats:
        """Return the bound of the guess band."""
        return guess_bounds(tally, IndependentTrials(int(tally.looks[-1]), self.delta), error)

    def bound(self, tallies: Sequence[FairCoinTally], *, failed_replays: int = 0) -> Bound:
        return self._larger(*self._both_bands(tallies, failed_replays))

    def find(self, tallies: Sequence[FairCoinTally], *, failed_replays: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """Return the bound with the series of `band` at its share of the error; replays have the larger bound."""
        by_band, guessed = self._both_bands(tallies, failed_replays)
        larger = replace(
            by_band, best=np.maximum(by_band.best, guessed.best), alone=np.maximum(by_band.alone, guessed.alone)
        )
        series = {**self.band.figures(by_band), "replays": larger.series()}
        return replace(self._larger(by_band, guessed), series=series)

    def _both_bands(
        self, tallies: Sequence[FairCoinTally], failed_replays: int
    ) -> tuple[Replays[TwoSampleTally], Replays[FairCoinTally]]:
        """Return the bounds of the replays by the band and by the guess band, each at its share of the error."""
        guess_band = replace(self, confidence=1 - self.guess_share * (1 - self.confidence))
        return (
            self.band.replays(tallies, failed_replays=failed_replays),
            guess_band.replays(tallies, failed_replays=failed_replays),
        )

    def _larger(self, by_band: Replays[TwoSampleTally], guessed: Replays[FairCoinTally]) -> Bound:
        """Return the larger of both bands' bounds, with evidence against whole curves."""
        bound = self.band.bound_of(by_band)
        test_confidence = per_replay_confidence(1 - self.accuracy_share * (1 - self.confidence), guessed.every.size)
        accuracy = GuessAccuracy(
            np.array([tally.right[-1] for tally in guessed.tallies]),
            np.array([tally.looks[-1] for tally in guessed.tallies]),
            1 - test_confidence,
            guessed.failed,
        )
        bound = replace(
            bound,
            confidence=self.confidence,
            method=self.method,
            selection="all thresholds at once, error shared with two more candidates",
            evidence=(*bound.evidence, accuracy),
        )
        if by_band.lower >= guessed.lower:
            return bound
        return replace(
            bound,
            lower=guessed.lower,
            selection=f"{selection_in_words(self.guess)}, error shared with two more candidates",
            counts=deciding_counts(guessed, of="trials"),
            notes=(),
        )

    def _fair_coin_trials(self, scores: Scores) -> Scores:
        return scores


@register("estimator", "two-samples", source="Ours: as many trials drawn as coins would make, then as fair-coins")
@dataclass(frozen=True)
class TwoSamples(FairCoins):
    """Two samples of independent trials: all thresholds for all trials, all guesses for as many as coins would draw.

    As many trials as a fair binomial allows are drawn at random (73 of 50 + 50, 9,683 of 5,000 + 5,000), so that their
    worlds have the law of fair coins. Joint guesses about both worlds are more powerful than one limit for each sample.
    """

    guess_share: ClassVar[float] = 0.84
    band_share: ClassVar[float] = 0.07
    accuracy_share: ClassVar[float] = 0.04
    drawing_share: ClassVar[float] = 0.05

    def _fair_coin_trials(self, scores: Scores) -> Scores:
        """Return trials whose worlds have the law of fair coins, up to this share of the error for each replay."""
        members, others = (np.sort(scores.score[scores.truth == world]) for world in (True, False))
        if not members.size or not others.size:
            return scores

        def shortage_probability(coins: int) -> float:
            """Return the probability that so many fair coins exceed one of the samples."""
            return sum(float(special.bdtrc(size, coins, 0.5)) for size in (members.size, others.size) if coins > size)

        all_trials, error = members.size + others.size, self.drawing_share * (1 - self.confidence) / 2
        total = bisect.bisect_right(range(2, all_trials + 1), error, key=shortage_probability) + 1
        rng = np.random.default_rng(
            Scores.content_seed(*((sample_scores, sample_scores >= 0) for sample_scores in (members, others)))
        )
        count = int(np.clip(rng.binomial(total, 0.5), total - others.size, members.size))
        sample = np.append(rng.permutation(members)[:count], rng.permutation(others)[: total - count])
        return Scores(sample, np.arange(total) < count, scores.replay)
