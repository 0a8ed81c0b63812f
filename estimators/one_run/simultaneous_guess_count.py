"""Signed scores of one training, or of many, read by the guess band: no fraction has to be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.best_candidate import EachReplay, in_order
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.finding import Series, Validity
from dpaudit.estimators.one_run.guess_band import (
    bad_guesses,
    bounds_of_guesses,
    check_fields,
    deciding_counts,
    guess_looks,
)
from dpaudit.estimators.one_run.right_guesses import (
    GuessRule,
    OneRunTally,
    guesses_at_fractions,
    right_guesses,
    telling_looks,
)
from dpaudit.estimators.one_run.signed_scores import OneRun
from dpaudit.estimators.replays import median_rule, per_replay_confidence, replay_note
from dpaudit.estimators.scores import ScoreEstimator, Scores, replay_bounds
from dpaudit.estimators.selection import PERCENTS
from dpaudit.registry import register

LEAST_S, ROW_S = 5e-3, 3e-7  # seconds that the bound of a replay takes, and what each canary adds
MAX_DELTA = 0.1
"""Canaries times delta up to which the guess band is the tighter one: measured, docs/statistics/calibration.md."""


@dataclass(frozen=True, eq=False)
class GuessTally(OneRunTally):
    """What one replay showed, at all numbers of guesses that are looked at and at the few of `one-run`."""

    looks: Ints  # numbers of guesses looked at, ascending, the last one all canaries, shape (all looks,)
    right: Ints  # right ones among them, shape (all looks,)


@register("estimator", "simultaneous-guess-count", source="Ours, after Steinke et al. (2023) and Berk and Jones (1979)")
@dataclass(frozen=True)
class SimultaneousGuessCount(ScoreEstimator[GuessTally]):
    """Signed scores of one training: all numbers of guesses at once, exact at delta = 0; holds for trials as well.

    Where more than `MAX_DELTA` canaries are expected to be given away by delta, what is charged for it costs more than
    looking everywhere finds: then `one-run` reads the counts. That is decided by the numbers alone.

    Attributes:
        delta: The delta the bound is stated at, in [0, 1). Above 0 it costs a fifth of the error.
        confidence: Stated confidence of the bound, in (0, 1).
        guess: Which canaries are guessed first, and what is guessed.
        sharing: How many canaries share one training at most, where there are several that share no randomness and each
            canary is scored by its own training alone; None where all share one. Above delta 0 less is charged then.
    """

    tally_type: ClassVar[type[Any]] = GuessTally

    delta: float = 0.0
    confidence: float = 0.95
    guess: GuessRule = "signed"
    sharing: int | None = None

    def __post_init__(self) -> None:
        check_fields(self.delta, self.confidence, self.guess)
        require(self.sharing is None or self.sharing >= 1, "sharing must be >= 1", sharing=self.sharing)

    def unshifted(self) -> OneRun:
        """`one-run`: the walk of the guess band knows no shift, single numbers of guesses do."""
        return OneRun(self.delta, self.confidence, guess=self.guess)

    def tally(self, scores: Scores) -> GuessTally:
        """Right guesses of one replay at numbers of guesses that its size and its ties decide."""
        count = scores.score.size
        looks = telling_looks(guess_looks(count), scores.score, self.guess)
        places = looks, self.unshifted().candidates(count), guesses_at_fractions(PERCENTS, count)
        counted = np.unique(np.concatenate(places))  # one pass over the scores for all of them
        found = right_guesses(scores.score, scores.truth, scores.tie_ranks(), self.guess, counted)
        right, correct, swept = (found[np.searchsorted(counted, place)] for place in places)
        return GuessTally(scores.replay, count, places[1], correct, places[2], swept, count, places[0], right)

    def find(self, tallies: Sequence[GuessTally], *, lost: int = 0, parts: Sequence[Any] = ()) -> Bound:
        """The bound with all there is to draw; the parts are what `bounds_of_replays` gave for some of the tallies."""
        each = EachReplay.complete(tallies, parts, lambda missing: self.bounds_of_replays(missing, len(tallies) + lost))
        bound = self.bound(tallies, lost=lost, each=each)
        return replace(bound, series=self.series(tallies, lost=lost, each=each))

    def bound(self, tallies: Sequence[GuessTally], *, lost: int = 0, each: EachReplay | None = None) -> Bound:
        """The median of the replays' bounds; `counts` are those of the middle replay, at the look that decides."""
        if self._leaves_it(tallies):
            return self.unshifted().bound(tallies, lost=lost, each=each)
        ordered = in_order(tallies)
        each = each or self.bounds_of_replays(ordered, len(ordered) + lost)
        best = np.concatenate([each.best, np.zeros(lost)])
        return Bound(
            lower=float(median_rule(best)),
            delta=self.delta,
            confidence=self.confidence,
            method="simultaneous-guess-count",
            selection="all numbers of guesses at once",
            validity=Validity.FINITE_SAMPLE,
            counts=deciding_counts(ordered, best, lost, of="canaries"),
            notes=replay_note(each.alone, self.confidence),
        )

    def series(
        self, tallies: Sequence[GuessTally], *, lost: int = 0, each: EachReplay | None = None
    ) -> dict[str, Series]:
        """The sweep over guess fractions, as `one-run` bounds them, and the replays one by one."""
        if self._leaves_it(tallies):
            return self.unshifted().series(tallies, lost=lost, each=each)
        ordered = in_order(tallies)
        each = each or self.bounds_of_replays(ordered, len(ordered) + lost)
        replays = replay_bounds(each.replay, each.best, each.alone, lost=lost, mean=False)
        return {"fractions": self.unshifted().sweep(ordered), "replays": replays}

    def seconds(self, replays: int, rows: int) -> float:
        if rows * self.delta > MAX_DELTA:
            return self.unshifted().seconds(replays, rows)
        return 2 * replays * (LEAST_S + rows * ROW_S)  # in the median, and alone

    def bounds_of_replays(self, tallies: Sequence[GuessTally], replays: int) -> EachReplay:
        """Of some of so many replays, in the order of their numbers; the candidate is `one-run`'s where it reads."""
        if self._leaves_it(tallies):
            return self.unshifted().bounds_of_replays(tallies, replays)
        ordered = in_order(tallies)
        numbers = np.array([tally.replay for tally in ordered], dtype=np.int64)
        best = self._bounds(ordered, per_replay_confidence(self.confidence, replays))
        return EachReplay(numbers, best, np.zeros(len(ordered), dtype=np.int64), self._bounds(ordered, self.confidence))

    def _leaves_it(self, tallies: Sequence[GuessTally]) -> bool:
        """Whether `one-run` reads the counts."""
        return max((tally.canaries for tally in tallies), default=0) * self.delta > MAX_DELTA

    def _bounds(self, tallies: Sequence[GuessTally], confidence: float) -> Floats:
        return bounds_of_guesses(tallies, lambda count: bad_guesses(count, self.sharing, self.delta), 1 - confidence)
