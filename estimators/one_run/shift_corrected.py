"""What remains of a one-run bound when its guesses may owe something to a proxy that is off.

Let p be the law of what is shown in world 1 and q the proxy's, given all that the attack sees but the mechanism's
answers. Before it sees those, the odds of a canary's bit are e^s, s = log p/q at what is shown; afterwards, under
epsilon-DP, at most e^(|s| + epsilon). The odds a e^epsilon / (1 - a) of a right guess, as a probability, are concave in
a; so by Jensen the share of right guesses among any share of the canaries has odds of at most e^epsilon a / (1 - a),
where a is the best share of right guesses among as many canaries that anybody reaches *without* the mechanism: log-odds
in the game less those of the best distinguisher without it are at most epsilon.

Held-out rows, which the mechanism never saw, bound the latter for any distinguisher that is tried on them. The result
holds if none is better than the best of those tried: evidence, not a theorem (`conditional-on-proxy`). At delta > 0 the
log-odds of the game give way to its bound at 2 a delta: given the shown value, a bit that is true with probability a
weighs what the mechanism may hide with probability delta by 2 a instead of by 1. Source: ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.signed_scores import OneRunEstimator
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.replays import median_rule

MAX_ROWS = 10**9  # numbers of held-out rows are not looked for beyond this
_STEP = 1.1  # ratio of the numbers of rows that are tried: they are an estimate anyway
_FEWEST = 20  # guesses on held-out rows that a candidate needs: limits from fewer are too wide to leave anything
_LARGEST_DELTA = 0.999


@dataclass(frozen=True)
class ShiftCorrected:
    """The part of a bound that no shift of the size that was measured explains; in nats."""

    epsilon: float  # lower bound, >= 0
    share: float  # of the canaries guessed in the replay in the middle, at the candidate that shows most
    game: float  # the game's lower limit there
    shift: float  # upper limit of what is reached there without the mechanism; inf where no row tells


def bound_beyond_shift(
    estimator: OneRunEstimator,
    tallies: Sequence[OneRunTally],
    held_out: Sequence[Sequence[OneRunTally]],
    *,
    lost: int = 0,
) -> ShiftCorrected:
    """A bound on epsilon at the estimator's delta and confidence, half of the error for the game, half for the control.

    `held_out` holds tallies of the game without the mechanism, replay by replay, for each distinguisher; the largest of
    their limits is taken, so the best of them need not be known. What the estimator allows for a shift itself (tau) is
    left aside. A lost replay of the game counts as a bound of 0.
    """
    candidates = _Candidates.of(tallies).on(min(tally.all_canaries for control in held_out for tally in control))
    error = _error_of_a_candidate(estimator, candidates, lost)
    shift = np.max([_upper_log_odds(control, candidates, error) for control in held_out], axis=0)
    return _combined(candidates, _game_limits(estimator, candidates, shift, error), shift, lost)


def rows_to_decide(
    estimator: OneRunEstimator,
    tallies: Sequence[OneRunTally],
    held_out: Sequence[Sequence[OneRunTally]],
    *,
    epsilon: float,
    lost: int = 0,
) -> int | None:
    """About how many held-out rows would show more than `epsilon` beyond the shift, if they went on as they began.

    Within a tenth; None where no number of such rows would do. Without held-out tallies the rows are taken to show no
    shift.
    """
    candidates = _Candidates.of(tallies)
    error = _error_of_a_candidate(estimator, candidates, lost)
    right = np.max(
        [np.full(candidates.share.shape, 0.5), *(_right(control, candidates) for control in held_out)], axis=0
    )
    game = _game_limits(estimator, candidates, special.logit(right), error)
    if _combined(candidates, game, special.logit(right), lost).epsilon <= epsilon:
        return None
    rows = 10.0
    while rows < MAX_ROWS:
        guesses = candidates.share * rows
        limit = special.betainccinv(right * guesses + 1, (1 - right) * guesses, error / 2)
        if _combined(candidates, game, special.logit(limit), lost).epsilon > epsilon:
            return round(rows)
        rows *= _STEP
    return None


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Of the game: guesses and right guesses, shape (replays, candidates), and canaries, shape (replays, 1)."""

    guesses: Ints
    correct: Ints
    canaries: Ints

    @classmethod
    def of(cls, tallies: Sequence[OneRunTally]) -> _Candidates:
        return cls(
            np.stack([tally.guesses for tally in tallies]),
            np.stack([tally.correct for tally in tallies]),
            np.array([[tally.canaries] for tally in tallies]),
        )

    @property
    def share(self) -> Floats:
        return self.guesses / self.canaries

    def on(self, rows: int) -> _Candidates:
        """Those at which so many held-out rows tell something, decided by numbers alone; the largest always."""
        told: NDArray[np.bool_] = np.all(self.share * rows >= _FEWEST, axis=0)
        told |= np.arange(told.size) == told.size - 1
        return _Candidates(self.guesses[:, told], self.correct[:, told], self.canaries)


def _error_of_a_candidate(estimator: OneRunEstimator, candidates: _Candidates, lost: int) -> float:
    """What one candidate of one replay may err, in the game and in the control each."""
    half = (1 - estimator.confidence) / 2
    replays, count = map(int, candidates.guesses.shape)
    return (half if replays + lost == 1 else half / 2) / count


def _game_limits(estimator: OneRunEstimator, candidates: _Candidates, shift: Floats, error: float) -> Floats:
    """The game's lower limits of epsilon, shape (replays, candidates)."""
    unshifted = estimator.unshifted()
    limits = np.empty(candidates.guesses.shape)
    deltas = np.minimum(2 * special.expit(shift) * estimator.delta, _LARGEST_DELTA)
    canaries = candidates.canaries[:, 0]
    for size in np.unique(canaries):
        for place in range(candidates.guesses.shape[1]):
            cell = canaries == size, place
            at = dataclasses.replace(unshifted, delta=float(np.max(deltas[cell])))
            limits[cell] = at.unique_epsilon(candidates.guesses[cell], candidates.correct[cell], int(size), 1 - error)
    return limits


def _counts(control: Sequence[OneRunTally], candidates: _Candidates) -> tuple[Ints, Ints]:
    """Guesses and right guesses of the held-out rows at the game's shares, shape (held-out replays, *candidates)."""
    guesses, correct = [], []
    for tally in control:
        # The best distinguisher is right less often the more it guesses: the next smaller share is on the safe side.
        counted, first = np.unique(np.concatenate([tally.guesses, tally.sweep_guesses]), return_index=True)
        right = np.concatenate([tally.correct, tally.sweep_correct])[first]
        most = candidates.share * tally.all_canaries + 0.5 * (1 + tally.all_canaries / candidates.canaries)
        place = np.searchsorted(counted, most, side="right") - 1
        guesses.append(np.where(place < 0, 0, counted[np.maximum(place, 0)]))
        correct.append(np.where(place < 0, 0, right[np.maximum(place, 0)]))
    return np.array(guesses), np.array(correct)


def _upper_log_odds(control: Sequence[OneRunTally], candidates: _Candidates, error: float) -> Floats:
    """Upper limits of the log-odds of right guesses, >= 0, shape as the candidates; the median over replays."""
    guesses, correct = _counts(control, candidates)
    single = error if len(control) == 1 else error / 2
    limit = clopper_pearson(
        np.where(guesses > 0, correct, 1), np.maximum(guesses, 1), confidence=1 - single, side="upper"
    ).upper
    # The median rule is for lower bounds; minus an upper bound is one.
    highest: Floats = np.maximum(-np.asarray(median_rule(-special.logit(limit), axis=0)), 0.0)
    return highest


def _right(control: Sequence[OneRunTally], candidates: _Candidates) -> Floats:
    """Share of right guesses, shape as the candidates, mean over the control's replays; 1 where nothing was guessed."""
    guesses, correct = _counts(control, candidates)
    total = guesses.sum(axis=0)
    shares: Floats = np.where(total > 0, correct.sum(axis=0) / np.maximum(total, 1), 1.0)
    return shares


def _combined(candidates: _Candidates, game: Floats, shift: Floats, lost: int) -> ShiftCorrected:
    beyond = np.where(np.isfinite(shift), game - np.where(np.isfinite(shift), shift, 0.0), -np.inf)
    best = beyond.argmax(axis=1)
    replays = np.maximum(beyond.max(axis=1), 0.0)
    middle = int(np.argsort(beyond.max(axis=1), kind="stable")[(best.size - 1) // 2])
    at = middle, best[middle]
    epsilon = float(median_rule(np.concatenate([replays, np.zeros(lost)])))
    return ShiftCorrected(epsilon, float(candidates.share[at]), float(game[at]), float(shift[at]))
