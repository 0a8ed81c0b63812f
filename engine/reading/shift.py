"""How far the proxy is from the truth, as far as anybody can tell: the game where the mechanism remembers nothing.

A bound from an observational game takes the proxy's draws for draws from the truth, or allows a total variation tau
between the two at every point (Theorem 10). No data show tau: each point is seen once. What held-out rows do show is
how well a distinguisher tells the proxy's draws from true ones without any help from the training data. The bound owes
the proxy at most what the best distinguisher reaches there; what is more than that is the mechanism's
(`dpaudit.estimators.one_run.shift_corrected`).

Three distinguishers are tried, fixed beforehand: the attack with the trained model's answers, the attack with answers
that say nothing, which leaves it the reference alone, and a classifier that learns on other rows what tells the two
apart. Another one may still be better: `conditional-on-proxy`.

Source: arXiv:2511.14084, sections 5 and 9 (Theorem 10), and the remark before Theorem 6 on what an adversary can tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.claims import PrivacyCurve
from dpaudit.engine.planning.plan import control_estimator
from dpaudit.estimators.bound import Bound, format_lower, format_upper
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.one_run.right_guesses import OneRunTally
from dpaudit.estimators.one_run.shift_corrected import ShiftCorrected, bound_beyond_shift, rows_to_decide
from dpaudit.estimators.one_run.signed_scores import OneRun, OneRunFDP, Shiftable
from dpaudit.estimators.proportions.binomial import clopper_pearson
from dpaudit.estimators.replays import median_rule, per_replay_confidence


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


def rows_needed(
    estimator: Any, tallies: Sequence[Any], held_out: Sequence[Sequence[OneRunTally]], *, claimed: float, lost: int = 0
) -> int | None:
    """About how many rows of the control would show more than the claim beyond the shift; None where no number does."""
    if not isinstance(estimator, Shiftable):
        return None
    return rows_to_decide(estimator.unshifted(), tallies, held_out, epsilon=claimed, lost=lost)


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
