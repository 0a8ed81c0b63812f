"""Sensitivity of a planned audit: maximum detectable epsilon, expected bound, and trials needed to reject a claim.

The estimator reads scores of a typical game against a mechanism that spends exactly a given epsilon
(`dpaudit.engine.games.reference`). The number of correct guesses is set to its median or its lower decile. A bound
grows with that number, so the result is approximately the median bound, or the bound that nine in ten games exceed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from dpaudit.engine.games.reference import Reference
from dpaudit.engine.planning.plan import PlannedAudit
from dpaudit.engine.planning.sensitivity_words import MOST_SCALED, POWER, factor_in_words, number_in_words
from dpaudit.errors import require
from dpaudit.estimators.bisection import last_true
from dpaudit.estimators.bound import Bound, format_lower
from dpaudit.estimators.estimator import Estimator

MOST_FOR_FACTOR = 40_000  # rows up to which the detectable factor is computed: a second or two
MORE = 4  # factor on the number of trials for which the sensitivity is printed too
MAX_ROWS = 1 << 20  # largest number of canaries or trials that is tried


@dataclass(frozen=True)
class Outlook:
    """Sensitivity of a planned audit."""

    reference: Reference  # reference game from which it was computed
    ceiling: float  # the bound that a mechanism with no privacy would get, in nats
    claimed: float  # claimed epsilon at the estimator's delta, in nats; inf if nothing is claimed
    at_claim: float | None  # median bound for a mechanism that spends the claim; None if nothing is claimed
    # Factor by which the noise would have to be too small to be detected with probability `POWER`; inf if not even
    # `MOST_SCALED` is enough, None if nothing is claimed or there are more than `MOST_FOR_FACTOR` rows
    factor: float | None
    factor_of_more: float | None  # the same with `MORE` times the rows
    # canaries or trials with which twice the claim is rejected with probability `POWER`; None if nothing is claimed, or
    # `MAX_ROWS` are too few
    needed: int | None

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences on the sensitivity of the audit."""
        rows, unit, assumes = self.reference.rows, self.reference.unit, self.reference.response.assumes
        maximum = f"maximum detectable epsilon {number_in_words(self.ceiling)} ({assumes or f'{rows:,} {unit}'})"
        if self.at_claim is None:
            return (f"sensitivity: {maximum}",)
        needed = f"more than {MAX_ROWS:,}" if self.needed is None else f"{self.needed:,}"
        factors = [None if factor is None else factor_in_words(factor) for factor in (self.factor, self.factor_of_more)]
        return (
            f"sensitivity: {'; '.join(filter(None, [factors[0], maximum]))}",
            *([f"with {MORE} times as many {unit}: {factors[1]}"] if factors[1] else []),
            f"noise scaled down 2 times needs {needed} {unit}; {rows:,} are planned",
            f"expected lower bound if the claim holds exactly: {format_lower(self.at_claim)} "
            "(best attack on randomised response)",
        )

    @property
    def line(self) -> str:
        """One line on what the audit can show at its claim."""
        most = f"can show at most {number_in_words(self.ceiling)}"
        if self.at_claim is None:
            return most
        if self.ceiling <= self.claimed:
            return f"claims {self.claimed:.4g}; {most}: it cannot reject its claim"
        detects = "" if self.factor is None else f"; {factor_in_words(self.factor)}"
        return (
            f"claims {self.claimed:.4g}; {most}, and about {format_lower(self.at_claim)} if the claim holds exactly"
            f"{detects}"
        )


def planned_outlook(entry: PlannedAudit) -> Outlook | None:
    """Return the outlook of a planned audit; None for a game without a reference."""
    audit, reference = entry.audit, entry.game.reference
    if reference is None:
        return None
    curve = audit.game.traits.compared(entry.effective_claim).claim.curve
    return outlook(audit.estimator, reference, curve.epsilon(audit.estimator.delta))


def outlook(estimator: Estimator[Any, Any], reference: Reference, claimed: float) -> Outlook:
    """Return the outlook of an audit of a claimed epsilon, in nats, at the delta of the estimator."""
    require(claimed >= 0, "a claimed epsilon must be >= 0", claimed=claimed)
    ceiling = ceiling_bound(estimator, reference).lower
    if math.isinf(claimed) or claimed == 0:
        return Outlook(reference, ceiling, claimed, None, None, None, None)
    return Outlook(
        reference,
        ceiling,
        claimed,
        at_claim=expected_bound(estimator, reference, claimed),
        factor=detectable_scaling(estimator, reference, claimed, reference.rows),
        factor_of_more=detectable_scaling(estimator, reference, claimed, MORE * reference.rows),
        needed=rows_to_reject(estimator, reference, claimed, spent=2 * claimed),
    )


def ceiling_bound(estimator: Estimator[Any, Any], reference: Reference) -> Bound:
    """Return the bound of a mechanism with no privacy."""
    return _bound(estimator, reference, math.inf, reference.rows)


def expected_bound(
    estimator: Estimator[Any, Any],
    reference: Reference,
    spent: float,
    *,
    rows: int | None = None,
    quantile: float = 0.5,
) -> float:
    """Return a quantile of the bounds on a mechanism that spends epsilon `spent`, in nats, >= 0.

    Args:
        estimator: The estimator of the audit.
        reference: The reference of its game.
        spent: Epsilon of the mechanism, >= 0; may be inf.
        rows: Canaries or trials; by default as many as planned.
        quantile: Share of games with a smaller bound, in (0, 1).
    """
    rows, z = reference.rows if rows is None else rows, float(special.ndtri(quantile))
    orders = max(1, min(_ORDERS, _ROWS_OF_ORDERS // rows))
    bounds = [_bound(estimator, reference, spent, rows, z=z, order=order).lower for order in range(orders)]
    return float(np.median(bounds))


def detectable_scaling(estimator: Estimator[Any, Any], reference: Reference, claimed: float, rows: int) -> float | None:
    """Return the smallest factor on the noise, to 5 %, at which the claim is rejected with probability `POWER`.

    Noise that is c times too small spends c times the claim. Returns inf if `MOST_SCALED` times is not enough, None for
    more than `MOST_FOR_FACTOR` rows.
    """
    if rows > MOST_FOR_FACTOR:
        return None
    z = float(special.ndtri(1 - POWER))

    def missed(factor: float) -> bool:
        return _bound(estimator, reference, factor * claimed, rows, z=z).lower <= claimed

    if missed(MOST_SCALED):
        return math.inf
    width = 0.05
    below = last_true(missed, 1.0, MOST_SCALED, relative=width) if missed(1.0) else 1.0
    return min(MOST_SCALED, below / (1 - width))


def rows_to_reject(estimator: Estimator[Any, Any], reference: Reference, claimed: float, *, spent: float) -> int | None:
    """Return the smallest number of canaries or trials that rejects the claim with probability `POWER`, to 2 %.

    Returns: None if `MAX_ROWS` are too few.
    """

    def rejects(rows: int) -> bool:
        return expected_bound(estimator, reference, spent, rows=rows, quantile=1 - POWER) > claimed

    enough = _FEWEST
    while not rejects(enough):
        if enough >= MAX_ROWS:
            return None
        enough *= 4
    too_few = enough // 4
    while enough - too_few > max(1, 0.02 * too_few):
        # The bound is not monotone at the scale of single guesses; a tolerance of 2 % hides that.
        middle = round(math.sqrt(too_few * enough))
        too_few, enough = (too_few, middle) if rejects(middle) else (middle, enough)
    return enough


_FEWEST = 4  # both worlds must have a trial
_ORDERS, _ROWS_OF_ORDERS = 5, 100_000  # with many rows, their order matters little and is slow to vary


def _bound(
    estimator: Estimator[Any, Any], reference: Reference, spent: float, rows: int, *, z: float = 0.0, order: int = 0
) -> Bound:
    tally = estimator.tally(reference.response.levels(spent).typical(rows, z=z, order=order))
    # All replays have the same bound here, and the median of two equal bounds is that of any number of them.
    return estimator.bound([tally] * min(reference.replays, 2))
