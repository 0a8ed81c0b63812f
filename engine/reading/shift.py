"""How far the proxy is from the truth, as far as anybody can tell: the game where the mechanism remembers nothing.

A bound from an observational game takes the proxy's draws for draws from the truth, or allows a total variation tau
between the two at every point (Theorem 10). No data show tau: each point is seen once. What held-out rows do show is
how well a distinguisher tells the proxy's draws from true ones without any help from the training data. The bound owes
the proxy at most what the best distinguisher reaches there; what is more than that is the mechanism's.

Three distinguishers are tried, fixed beforehand: the attack with the trained model's answers, the attack with answers
that say nothing, which leaves it the reference alone, and a classifier that learns on other rows what tells the two
apart. Another one may still be better: `conditional-on-proxy`.

What remains: let p be the law of what is shown in world 1 and q the proxy's, given all that the attack sees but the
mechanism's answers. Before it sees those, the odds of a canary's bit are e^s, s = log p/q at what is shown; afterwards,
under epsilon-DP, at most e^(|s| + epsilon). The odds a e^epsilon / (1 - a) of a right guess, as a probability, are
concave in a; so by Jensen the share of right guesses among any share of the canaries has odds of at most
e^epsilon a / (1 - a), where a is the best share of right guesses among as many canaries that anybody reaches *without*
the mechanism: log-odds in the game less those of the best distinguisher without it are at most epsilon.

Held-out rows, which the mechanism never saw, bound the latter for any distinguisher that is tried on them. The result
holds if none is better than the best of those tried: evidence, not a theorem. At delta > 0 the log-odds of the game
give way to its bound at 2 a delta: given the shown value, a bit that is true with probability a weighs what the
mechanism may hide with probability delta by 2 a instead of by 1. That part is ours.

Source: arXiv:2511.14084, sections 5 and 9 (Theorem 10), and the remark before Theorem 6 on what an adversary can tell.
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
from dpaudit.engine.planning.plan import control_estimator
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunEstimator, OneRunFDP, Shiftable
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.replays import median_rule, per_replay_confidence

MAX_ROWS = 10**9  # numbers of held-out rows are not looked for beyond this
_STEP = 1.1  # ratio of the numbers of rows that are tried: they are an estimate anyway
_FEWEST = 20  # guesses on held-out rows that a candidate needs: limits from fewer are too wide to leave anything
_LARGEST_DELTA = 0.999


@dataclass(frozen=True)
class ShiftControl:
    """What distinguishers show where nothing of the mechanism can be seen, and what is left of the bound beyond it."""

    where: str  # what they were tried on, in words
    rows: int  # rows of a replay
    distinguishers: int  # how many were tried
    epsilon: float  # lower bound at delta = 0 on what the best of them shows; above 0 there is a shift
    confidence: float  # of `epsilon`, of the limits `advantage`, and of `beyond`
    tau: float  # what the audit's bound allows for the shift already
    # Limits of the best distinguisher's advantage |2 Pr[right] - 1| over all rows, in [0, 1]. The mean total variation
    # over the rows, and so its maximum, is at least the lower one; nothing is known above
    advantage: tuple[float, float]
    # The audit's bound without what the best distinguisher may reach by itself, half of the error spent on each, at a
    # few numbers of guesses fixed beforehand; None for an estimator that does not guess
    beyond: Bound | None
    explained: ShiftCorrected | None  # the number of guesses that showed most

    @property
    def shift_detected(self) -> bool:
        """Whether the proxy's draws were told from true ones, beyond what tau allows."""
        return self.advantage[0] > self.tau if self.tau else self.epsilon > 0

    def exceeds(self, curve: PrivacyCurve) -> bool:
        """Whether more than the claim is left beyond the shift."""
        return self.beyond is not None and self.beyond.violation_point(curve) is not None

    @property
    def lines(self) -> tuple[str, ...]:
        """What a reader must know, in sentences."""
        chance = f"(by chance with probability <= {1 - self.confidence:.4g})"
        lines = [f"control: on {self.rows:,} {self.where} {self._size()}"]
        if self.shift_detected and self.tau:
            lines.append(
                f"the proxy's draws are told from true ones there with advantage >= {format_lower(self.advantage[0])} "
                f"{chance}: the given tau = {self.tau:g} is too small"
            )
        elif self.shift_detected:
            lines.append(
                f"the proxy is off: its draws are told from true ones there, which by itself looks like epsilon >= "
                f"{format_lower(self.epsilon)} {chance}"
            )
        return tuple(lines)

    def _size(self) -> str:
        tried = f"the best of {self.distinguishers} distinguishers"
        if self.explained is None or self.beyond is None:
            return (
                f"{tried} shows epsilon >= {format_lower(self.epsilon)}; nothing says how much of the bound it explains"
            )
        if np.isinf(self.explained.shift):
            return "no limit of a shift can be told: there are too few"
        return (
            f"{tried} reaches log-odds of at most {format_upper(self.explained.shift)} where "
            f"{100 * self.explained.share:.3g} % are guessed; beyond that, epsilon >= {format_lower(self.beyond.lower)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Its fields for JSON; the limit beyond the shift as a number."""
        said = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "beyond"}
        said |= {"shift_detected": self.shift_detected, "says": self.lines}
        return said | {"epsilon_beyond_shift": None if self.beyond is None else self.beyond.lower}


def shift_control(
    estimator: Any,
    tallies: Sequence[Any],
    held_out: Sequence[Sequence[OneRunTally]],
    *,
    where: str,
    lost: int = 0,
) -> ShiftControl | None:
    """The control of one audit.

    Returns: None when no distinguisher was played.
    """
    if not held_out:
        return None
    control = control_estimator(estimator, len(held_out))
    error = (1 - estimator.confidence) / len(held_out)
    limits = [advantage_limits(replays, confidence=1 - error) for replays in held_out]
    lower, upper = (max(ends) for ends in zip(*limits, strict=True))
    explained = beyond = None
    if isinstance(estimator, Shiftable):
        unshifted = estimator.unshifted()
        explained = bound_beyond_shift(unshifted, tallies, held_out, lost=lost)
        beyond = dataclasses.replace(
            unshifted.bound(tallies, lost=lost),
            lower=explained.epsilon,
            upper=None,
            method="beyond the shift that held-out rows allow",
            validity=Validity.CONDITIONAL_ON_PROXY,
            evidence=(),  # a control says nothing of the other points of a curve
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
    """Limits of a distinguisher's |2 Pr[right] - 1| when it guesses every row: exact, medians over replays.

    Rows are independent and so are their bits, so the right guesses of a replay are binomial; replays share the rows.

    Args:
        confidence: Of both together, in (0, 1).
    Returns: Lower and upper limit, in [0, 1].
    """
    right = np.array([tally.sweep_correct[-1] for tally in tallies])
    rows = np.array([tally.all_canaries for tally in tallies])
    single = per_replay_confidence(confidence, len(tallies))
    low, high = (2 * np.asarray(end) - 1 for end in clopper_pearson(right, rows, confidence=single))
    at_least = np.maximum(0.0, np.maximum(low, -high))
    at_most = np.maximum(high, -low)
    # The median rule is for lower bounds; minus an upper bound is one.
    return float(median_rule(at_least)), min(1.0, -float(median_rule(-at_most)))


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
