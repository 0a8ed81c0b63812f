"""Negative control for proxies: the same game on held-out rows, which the mechanism never saw.

A bound from an observational game assumes that the proxy's draws follow the true law, or allows a total variation tau
between the two at every point (Theorem 10). Tau cannot be measured, because each point is seen once. Held-out rows can
show how well a distinguisher separates the proxy's draws from true ones without the training data. The bound owes at
most that much to the proxy; the rest is due to the mechanism.

Three fixed distinguishers are tried: the attack with the answers of the trained model, the attack with uninformative
answers, which leaves it the reference model only, and a classifier trained on other rows. A better one may exist, so
the result is `conditional-on-proxy`.

Why the difference is a bound: let p be the law of the shown value in world 1 and q that of the proxy, given everything
the attack sees except the mechanism's answers. Before it sees those answers, the odds of a canary's bit are e^s with s
= log p/q at the shown value. Afterwards, under epsilon-DP, they are at most e^(|s| + epsilon). As a probability, the
odds a e^epsilon / (1 - a) of a correct guess are concave in a. By Jensen's inequality, the share of correct guesses
among any share of the canaries therefore has odds of at most e^epsilon a / (1 - a). Here a is the best share of correct
guesses among as many canaries that can be reached *without* the mechanism. So the log-odds in the game minus those of
the best distinguisher without the mechanism are at most epsilon.

Held-out rows bound the latter for each distinguisher tried. The result holds if no distinguisher is better than those:
evidence, not a theorem. At delta > 0 the log-odds of the game are replaced by its bound at 2 a delta: given the shown
value, a bit that is true with probability a weighs the mass that the mechanism may hide with probability delta by 2 a
instead of 1. That part is ours.

Source: arXiv:2511.14084, sections 5 and 9 (Theorem 10), and the remark before Theorem 6 on what an adversary can infer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.claims import PrivacyCurve
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunEstimator, OneRunFDP, Shiftable, control_estimator
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.replays import median_rule, per_replay_confidence

MAX_ROWS = 10**9  # largest number of held-out rows that is tried
_STEP = 1.1  # ratio of consecutive numbers of rows that are tried; the result is an estimate
_FEWEST = 20  # guesses on held-out rows that a candidate needs; fewer make the limits too wide
_LARGEST_DELTA = 0.999


@dataclass(frozen=True)
class ShiftControl:
    """Negative control: success of distinguishers on held-out rows, and the part of the bound beyond it."""

    where: str  # description of the held-out rows
    rows: int  # rows in a replay
    distinguishers: int  # number of distinguishers tried
    epsilon: float  # lower bound at delta = 0 by the best distinguisher; a value above 0 shows a shift
    confidence: float  # confidence of `epsilon`, `advantage` and `beyond`
    tau: float  # shift that the bound of the audit already allows for
    # Limits of the best distinguisher's advantage |2 Pr[correct] - 1| over all rows, in [0, 1]. The lower one is a
    # lower bound of the mean total variation over the rows, and so of its maximum; there is no upper bound
    advantage: tuple[float, float]
    # Bound of the audit minus the upper limit of the best distinguisher, at a few fixed numbers of guesses; each gets
    # half of the error. None for an estimator without guesses
    beyond: Bound | None
    explained: ShiftCorrected | None  # the number of guesses with the largest bound

    @property
    def shift_detected(self) -> bool:
        """True if the proxy's draws differ from true ones by more than tau allows."""
        return self.advantage[0] > self.tau if self.tau else self.epsilon > 0

    def exceeds(self, curve: PrivacyCurve) -> bool:
        """True if the bound beyond the shift exceeds the claim."""
        return self.beyond is not None and self.beyond.violation_point(curve) is not None

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences on the control and on a detected shift."""
        chance = f"(by chance with probability <= {1 - self.confidence:.4g})"
        lines = [f"control: on {self.rows:,} {self.where} {self._size_in_words()}"]
        if self.shift_detected and self.tau:
            lines.append(
                f"the proxy's draws differ from true ones there with advantage >= {format_lower(self.advantage[0])} "
                f"{chance}: tau = {self.tau:g} is too small"
            )
        elif self.shift_detected:
            lines.append(
                f"the proxy is inaccurate: its draws differ from true ones there, which alone looks like epsilon >= "
                f"{format_lower(self.epsilon)} {chance}"
            )
        return tuple(lines)

    def _size_in_words(self) -> str:
        tried = "the attack" if self.distinguishers == 1 else f"the best of {self.distinguishers} distinguishers"
        if self.explained is None or self.beyond is None:
            return (
                f"{tried} shows epsilon >= {format_lower(self.epsilon)}; how much of the bound it explains is unknown"
            )
        if np.isinf(self.explained.shift):
            return "the shift has no upper limit: there are too few rows"
        return (
            f"{tried} reaches log-odds of at most {format_upper(self.explained.shift)} when guessing "
            f"{100 * self.explained.share:.3g} %; beyond that, epsilon >= {format_lower(self.beyond.lower)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with `beyond` as a number."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "beyond"}
        values |= {"shift_detected": self.shift_detected, "says": self.lines}
        return values | {"epsilon_beyond_shift": None if self.beyond is None else self.beyond.lower}


def shift_control(
    estimator: Any,
    tallies: Sequence[Any],
    held_out: Sequence[Sequence[OneRunTally]],
    *,
    where: str,
    failed_replays: int = 0,
) -> ShiftControl | None:
    """Return the negative control of an audit; None if no distinguisher was run."""
    if not held_out:
        return None
    control = control_estimator(estimator, len(held_out))
    error = (1 - estimator.confidence) / len(held_out)
    limits = [advantage_limits(replays, confidence=1 - error) for replays in held_out]
    lower, upper = (max(ends) for ends in zip(*limits, strict=True))
    explained = beyond = None
    if isinstance(estimator, Shiftable):
        unshifted = estimator.unshifted()
        explained = bound_beyond_shift(unshifted, tallies, held_out, failed_replays=failed_replays)
        beyond = dataclasses.replace(
            unshifted.bound(tallies, failed_replays=failed_replays),
            lower=explained.epsilon,
            upper=None,
            method="beyond the shift that held-out rows allow",
            validity=Validity.CONDITIONAL_ON_PROXY,
            evidence=(),  # the control covers no other point of a curve
        )
    return ShiftControl(
        where=where,
        rows=held_out[0][0].all_canaries,
        distinguishers=len(held_out),
        epsilon=max(control.bound(replays).lower for replays in held_out),
        confidence=estimator.confidence,
        tau=estimator.tau if isinstance(estimator, OneRun | OneRunFDP) else 0.0,
        advantage=(lower, upper),
        beyond=beyond,
        explained=explained,
    )


def advantage_limits(tallies: Sequence[OneRunTally], *, confidence: float) -> tuple[float, float]:
    """Return exact limits of |2 Pr[correct] - 1| for a distinguisher that guesses every row, as medians over replays.

    Rows and their bits are independent, so the number of correct guesses in a replay is binomial. Replays share the
    rows.

    Args:
        confidence: Joint confidence of both limits, in (0, 1).
    Returns: Lower and upper limit, in [0, 1].
    """
    right = np.array([tally.sweep_correct[-1] for tally in tallies])
    rows = np.array([tally.all_canaries for tally in tallies])
    single = per_replay_confidence(confidence, len(tallies))
    low, high = (2 * np.asarray(end) - 1 for end in clopper_pearson(right, rows, confidence=single))
    at_least = np.maximum(0.0, np.maximum(low, -high))
    at_most = np.maximum(high, -low)
    # The median rule is for lower bounds, and the negative of an upper bound is a lower bound.
    return float(median_rule(at_least)), min(1.0, -float(median_rule(-at_most)))


@dataclass(frozen=True)
class ShiftCorrected:
    """The part of a bound that the measured shift does not explain; in nats."""

    epsilon: float  # lower bound, >= 0
    share: float  # share of canaries guessed in the median replay, at the candidate with the largest bound
    game: float  # lower limit of the game at that candidate
    shift: float  # upper limit of the log-odds there without the mechanism; inf if rows are too few


def bound_beyond_shift(
    estimator: OneRunEstimator,
    tallies: Sequence[OneRunTally],
    held_out: Sequence[Sequence[OneRunTally]],
    *,
    failed_replays: int = 0,
) -> ShiftCorrected:
    """Return a bound on epsilon beyond the shift, at the estimator's delta and confidence.

    Game and control get half of the error each. The estimator's allowance for a shift (tau) is not used. A failed
    replay of the game counts as a bound of 0.

    Args:
        held_out: Tallies of the game without the mechanism, by distinguisher and replay. The largest limit of all
            distinguishers is used, so the best of them need not be known.
    """
    candidates = _Candidates.of(tallies).with_enough_rows(
        min(tally.all_canaries for control in held_out for tally in control)
    )
    error = _error_of_a_candidate(estimator, candidates, failed_replays)
    shift = np.max([_upper_log_odds(control, candidates, error) for control in held_out], axis=0)
    return _combined(candidates, _game_limits(estimator, candidates, shift, error), shift, failed_replays)


def rows_to_decide(
    estimator: OneRunEstimator,
    tallies: Sequence[OneRunTally],
    held_out: Sequence[Sequence[OneRunTally]],
    *,
    epsilon: float,
    failed_replays: int = 0,
) -> int | None:
    """Return the approximate number of held-out rows that would show more than `epsilon` beyond the shift.

    It assumes that further rows resemble those in `held_out`, or show no shift if there are none.

    Returns: The number to within a tenth; None if no number of such rows suffices.
    """
    candidates = _Candidates.of(tallies)
    error = _error_of_a_candidate(estimator, candidates, failed_replays)
    right = np.max(
        [np.full(candidates.share.shape, 0.5), *(_correct_share(control, candidates) for control in held_out)], axis=0
    )
    game = _game_limits(estimator, candidates, special.logit(right), error)
    if _combined(candidates, game, special.logit(right), failed_replays).epsilon <= epsilon:
        return None
    rows = 10.0
    while rows < MAX_ROWS:
        guesses = candidates.share * rows
        limit = special.betainccinv(right * guesses + 1, (1 - right) * guesses, error / 2)
        if _combined(candidates, game, special.logit(limit), failed_replays).epsilon > epsilon:
            return round(rows)
        rows *= _STEP
    return None


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Guesses and correct guesses of the game, shape (replays, candidates), and canaries, shape (replays, 1)."""

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

    def with_enough_rows(self, rows: int) -> _Candidates:
        """Return the candidates with enough guesses on `rows` held-out rows, and always the largest one."""
        enough_rows: NDArray[np.bool_] = np.all(self.share * rows >= _FEWEST, axis=0)
        enough_rows |= np.arange(enough_rows.size) == enough_rows.size - 1
        return _Candidates(self.guesses[:, enough_rows], self.correct[:, enough_rows], self.canaries)


def _error_of_a_candidate(estimator: OneRunEstimator, candidates: _Candidates, failed_replays: int) -> float:
    """Return the error of one candidate of one replay, in the game and in the control each."""
    half = (1 - estimator.confidence) / 2
    replays, count = map(int, candidates.guesses.shape)
    return (half if replays + failed_replays == 1 else half / 2) / count


def _game_limits(estimator: OneRunEstimator, candidates: _Candidates, shift: Floats, error: float) -> Floats:
    """Return the lower limits of epsilon in the game, shape (replays, candidates)."""
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
    """Return guesses and correct guesses on held-out rows at the shares of the game, shape (replays, *candidates)."""
    guesses, correct = [], []
    for tally in control:
        # Accuracy falls with the number of guesses, so rounding the share down is on the safe side.
        counted, first = np.unique(np.concatenate([tally.guesses, tally.sweep_guesses]), return_index=True)
        right = np.concatenate([tally.correct, tally.sweep_correct])[first]
        most = candidates.share * tally.all_canaries + 0.5 * (1 + tally.all_canaries / candidates.canaries)
        place = np.searchsorted(counted, most, side="right") - 1
        guesses.append(np.where(place < 0, 0, counted[np.maximum(place, 0)]))
        correct.append(np.where(place < 0, 0, right[np.maximum(place, 0)]))
    return np.array(guesses), np.array(correct)


def _upper_log_odds(control: Sequence[OneRunTally], candidates: _Candidates, error: float) -> Floats:
    """Return upper limits of the log-odds of correct guesses, >= 0, by candidate; medians over replays."""
    guesses, correct = _counts(control, candidates)
    single = error if len(control) == 1 else error / 2
    limit = clopper_pearson(
        np.where(guesses > 0, correct, 1), np.maximum(guesses, 1), confidence=1 - single, side="upper"
    ).upper
    # The median rule is for lower bounds, and the negative of an upper bound is a lower bound.
    highest: Floats = np.maximum(-np.asarray(median_rule(-special.logit(limit), axis=0)), 0.0)
    return highest


def _correct_share(control: Sequence[OneRunTally], candidates: _Candidates) -> Floats:
    """Return the share of correct guesses by candidate, mean over replays of the control; 1 without guesses."""
    guesses, correct = _counts(control, candidates)
    total = guesses.sum(axis=0)
    shares: Floats = np.where(total > 0, correct.sum(axis=0) / np.maximum(total, 1), 1.0)
    return shares


def _combined(candidates: _Candidates, game: Floats, shift: Floats, failed_replays: int) -> ShiftCorrected:
    beyond = np.where(np.isfinite(shift), game - np.where(np.isfinite(shift), shift, 0.0), -np.inf)
    best = beyond.argmax(axis=1)
    replays = np.maximum(beyond.max(axis=1), 0.0)
    middle = int(np.argsort(beyond.max(axis=1), kind="stable")[(best.size - 1) // 2])
    at = middle, best[middle]
    epsilon = float(median_rule(np.concatenate([replays, np.zeros(failed_replays)])))
    return ShiftCorrected(epsilon, float(candidates.share[at]), float(game[at]), float(shift[at]))
