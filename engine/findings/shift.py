"""How far the proxy is from the truth, as far as the attack can tell: the game on rows the mechanism never saw.

A bound from an observational game takes the proxy's draws for draws from the truth, or allows a total variation tau
between the two at every point (Theorem 10). No data show tau: each point is seen once. What held-out rows do show is
whether *this* attack tells the proxy's draws from true ones without any help from the training data. If it does, the
bound owes something to the proxy, and the report says so. If it does not, another distinguisher still might.

Two distinguishers are tried, fixed beforehand: the attack with the trained model's answers, and the attack with answers
that say nothing, which leaves it the reference alone. They share the error.

Source: arXiv:2511.14084, sections 5 and 9 (Theorem 10), and the remark before Theorem 6 on what an adversary can tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.estimators.bound import Bound, rounded_down, rounded_up
from dpaudit.estimators.one_run.signed_scores import GuessRule, OneRun, OneRunEstimator, OneRunFDP, OneRunTally
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.replays import median_rule, per_replay_confidence
from dpaudit.estimators.selection import AsPublished, Split


@dataclass(frozen=True)
class ShiftControl:
    """What the attack shows on rows the mechanism never saw, where it would show nothing with a true proxy.

    Attributes:
        rows: Held-out rows of a replay.
        epsilon: Lower bound at delta = 0 and without a shift; above 0 there is one.
        confidence: Of `epsilon`, and of `advantage` together with `bound`.
        tau: What the audit's bound allows for the shift already.
        advantage: Limits of the better distinguisher's advantage |2 Pr[right] - 1| over all rows, in [0, 1]. The mean
            total variation over the rows, and so its maximum, is at least the lower one; nothing is known above.
        bound: The audit's bound by Theorem 10 at tau = the upper one, half of the error spent on each; None where the
            estimator has no tau, or was given one. Theorem 10 is strict: while tau is not below
            (1 - confidence) (2 right - guesses) / canaries it gives 0.
    """

    rows: int
    epsilon: float
    confidence: float
    tau: float
    advantage: tuple[float, float]
    bound: Bound | None

    @property
    def shift_detected(self) -> bool:
        """Whether the attack tells the proxy's draws from true ones, beyond what tau allows."""
        return self.advantage[0] > self.tau if self.tau else self.epsilon > 0

    @property
    def lines(self) -> tuple[str, ...]:
        """What a reader must know, in sentences."""
        where = f"on {self.rows:,} rows the mechanism never saw the same attack"
        low, high = rounded_down(self.advantage[0]), rounded_up(self.advantage[1])
        chance = f"(by chance with probability <= {1 - self.confidence:.4g})"
        if self.shift_detected and self.tau:
            first = (
                f"NOT TRUSTWORTHY: {where} tells the proxy's draws from true ones with advantage >= {low} {chance}: "
                f"the given tau = {self.tau:g} is too small"
            )
        elif self.shift_detected:
            first = (
                f"NOT TRUSTWORTHY: {where} shows epsilon >= {rounded_down(self.epsilon)} {chance}: the proxy's draws "
                "can be told from true ones without the training data, and the bound above counts that as leakage; "
                "give a better proxy, or a shift `tau`"
            )
        else:
            nothing = f"no advantage above tau = {self.tau:g}" if self.tau else "nothing"
            first = (
                f"control: {where} shows {nothing}; that excludes no other way to tell the proxy's draws from true ones"
            )
        lines = [first]
        if self.bound is not None:
            lines.append(
                f"at tau = {high}, the most these rows allow this attack, Theorem 10 gives "
                f"epsilon >= {rounded_down(self.bound.lower)} at delta={self.bound.delta:g} "
                f"({self.confidence:.6g} confidence for both); it asks for tau at every point, which no data show"
            )
        return tuple(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rows": self.rows,
            "epsilon": self.epsilon,
            "shift_detected": self.shift_detected,
            "confidence": self.confidence,
            "tau": self.tau,
            "advantage": list(self.advantage),
            "epsilon_at_that_tau": None if self.bound is None else self.bound.lower,
            "says": list(self.lines),
        }


def control_estimator(estimator: Any, distinguishers: int) -> OneRun:
    """Reads the control's scores: exact at delta = 0, with the guesses of the audit's estimator, error shared."""
    error = (1 - estimator.confidence) / max(distinguishers, 1)
    guess: GuessRule = estimator.guess if isinstance(estimator, OneRunEstimator) else "signed"
    return OneRun(confidence=1 - error, guess=guess)


def shift_control(
    estimator: Any, tallies: Sequence[Any], held_out: Sequence[Sequence[OneRunTally]], *, lost: int = 0
) -> ShiftControl | None:
    """The control of one audit.

    Args:
        estimator: The audit's.
        tallies: Of the game itself.
        held_out: Of the game on held-out rows, replay by replay, for each distinguisher.
        lost: Replays of the game itself that failed.
    Returns: None when no distinguisher was played.
    """
    if not held_out:
        return None
    control = control_estimator(estimator, len(held_out))
    half = (1 - estimator.confidence) / 2  # one half for the advantage, one for the bound that uses it
    limits = [advantage_limits(replays, confidence=1 - half / len(held_out)) for replays in held_out]
    lower, upper = (max(ends) for ends in zip(*limits, strict=True))
    return ShiftControl(
        rows=held_out[0][0].all_canaries,
        epsilon=max(control.bound(replays).lower for replays in held_out),
        confidence=estimator.confidence,
        tau=estimator.tau if isinstance(estimator, OneRun | OneRunFDP) else 0.0,
        advantage=(lower, upper),
        bound=_bound_at_shift(estimator, tallies, lost, upper, 1 - half),
    )


def advantage_limits(tallies: Sequence[OneRunTally], *, confidence: float) -> tuple[float, float]:
    """Limits of a distinguisher's |2 Pr[right] - 1| when it guesses every row: exact, medians over replays.

    Rows are independent and so are their bits, so the right guesses of a replay are binomial; replays share the rows.

    Args:
        tallies: One for each replay, at least one.
        confidence: Of both together, in (0, 1).
    Returns: Lower and upper limit, in [0, 1].
    """
    right = np.array([tally.sweep_correct[-1] for tally in tallies])
    rows = np.array([tally.all_canaries for tally in tallies])
    single = confidence if len(tallies) == 1 else per_replay_confidence(confidence)
    low, high = (2 * np.asarray(end) - 1 for end in clopper_pearson(right, rows, confidence=single))
    at_least = np.maximum(0.0, np.maximum(low, -high))
    at_most = np.maximum(high, -low)
    # The median rule is for lower bounds; minus an upper bound is one.
    return float(median_rule(at_least)), min(1.0, -float(median_rule(-at_most)))


def _bound_at_shift(estimator: Any, tallies: Sequence[Any], lost: int, tau: float, confidence: float) -> Bound | None:
    """The audit's bound again, at a shift and a confidence."""
    if not isinstance(estimator, OneRun | OneRunFDP) or isinstance(estimator.selection, Split | AsPublished):
        return None
    if estimator.tau or not tallies or tau >= 1:
        return None
    return dataclasses.replace(estimator, tau=tau, confidence=confidence).bound(tallies, lost=lost)
