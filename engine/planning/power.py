"""What an audit could show, before anything runs: the most, what to expect, and how many trials would decide.

Every number is the estimator's own: it is given the scores of a typical game against a mechanism that spends exactly so
much (`dpaudit.engine.games.reference`). The number of right guesses is put at its median, or at its lower decile; a
bound grows with it, so that is the median bound, or the one that nine in ten games surpass. Approximate by that much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from dpaudit.engine.games.reference import Reference
from dpaudit.engine.planning.plan import PlannedAudit
from dpaudit.errors import require
from dpaudit.estimators.bound import Bound, format_lower
from dpaudit.estimators.scores import ScoreEstimator

POWER = 0.9  # probability with which the planned number of trials refutes
MAX_ROWS = 1 << 20  # canaries or trials that are tried at most


@dataclass(frozen=True)
class Outlook:
    """What an audit could show."""

    reference: Reference  # what it was computed with
    ceiling: float  # the bound that a mechanism with no privacy would get, in nats
    claimed: float  # epsilon that is claimed at the estimator's delta, in nats; inf where nothing is
    at_claim: float | None  # median bound on a mechanism that spends the claim; None where nothing is claimed
    at_twice: float | None  # median bound on one that spends twice the claim; None where nothing is claimed
    # canaries or trials with which the latter is refuted with probability `POWER`; None where nothing is claimed, or
    # `MAX_ROWS` are too few
    needed: int | None

    @property
    def lines(self) -> tuple[str, ...]:
        rows, unit, assumes = self.reference.rows, self.reference.unit, self.reference.response.assumes
        first = f"a mechanism with no privacy would show epsilon >= {format_lower(self.ceiling)} at most"
        first += f" ({assumes})" if assumes else f" ({rows:,} {unit})"
        if self.at_claim is None or self.at_twice is None:
            return (first,)
        expected = (
            f"expected: epsilon >= {format_lower(self.at_claim)} from one that spends the claimed {self.claimed:g}, "
            f"{format_lower(self.at_twice)} from one that spends twice that (the best attack on randomised response)"
        )
        needed = f"more than {MAX_ROWS:,}" if self.needed is None else f"at least {self.needed:,}"
        return first, expected, f"to refute twice the claim with {POWER:.0%} power: {needed} {unit}, {rows:,} planned"


def planned_outlook(entry: PlannedAudit) -> Outlook | None:
    """What a planned audit could show; None for a game that cannot say so beforehand."""
    audit, reference = entry.audit, entry.game.reference
    if reference is None:
        return None
    curve = audit.game.fits.compared(entry.effective_claim).claim.curve
    return outlook(audit.estimator, reference, curve.epsilon(audit.estimator.delta))


def outlook(estimator: ScoreEstimator[Any], reference: Reference, claimed: float) -> Outlook:
    require(claimed >= 0, "a claimed epsilon must be >= 0", claimed=claimed)
    ceiling = ceiling_bound(estimator, reference).lower
    if math.isinf(claimed):
        return Outlook(reference, ceiling, claimed, None, None, None)
    return Outlook(
        reference,
        ceiling,
        claimed,
        at_claim=expected_bound(estimator, reference, claimed),
        at_twice=expected_bound(estimator, reference, 2 * claimed),
        needed=rows_to_refute(estimator, reference, claimed, spent=2 * claimed),
    )


def ceiling_bound(estimator: ScoreEstimator[Any], reference: Reference) -> Bound:
    """The bound of a mechanism with no privacy."""
    return _bound(estimator, reference, math.inf, reference.rows)


def expected_bound(
    estimator: ScoreEstimator[Any],
    reference: Reference,
    spent: float,
    *,
    rows: int | None = None,
    quantile: float = 0.5,
) -> float:
    """The quantile of the bounds on a mechanism that spends so much.

    Args:
        estimator: The audit's.
        reference: The game's.
        spent: The mechanism's epsilon, >= 0; may be inf.
        rows: Canaries or trials; those planned when left out.
        quantile: Share of games with a smaller bound, in (0, 1).
    Returns: Epsilon in nats, >= 0.
    """
    rows, z = reference.rows if rows is None else rows, float(special.ndtri(quantile))
    orders = max(1, min(_ORDERS, _ROWS_OF_ORDERS // rows))
    bounds = [_bound(estimator, reference, spent, rows, z=z, order=order).lower for order in range(orders)]
    return float(np.median(bounds))


def rows_to_refute(estimator: ScoreEstimator[Any], reference: Reference, claimed: float, *, spent: float) -> int | None:
    """The least number of canaries or trials whose bound exceeds the claim with probability `POWER`, to 2 %.

    Returns: None when `MAX_ROWS` are too few.
    """

    def refutes(rows: int) -> bool:
        return expected_bound(estimator, reference, spent, rows=rows, quantile=1 - POWER) > claimed

    enough = _FEWEST
    while not refutes(enough):
        if enough >= MAX_ROWS:
            return None
        enough *= 4
    too_few = enough // 4
    while enough - too_few > max(1, 0.02 * too_few):
        # The bound rises with the rows but for steps of single guesses, which the rounding hides.
        middle = round(math.sqrt(too_few * enough))
        too_few, enough = (too_few, middle) if refutes(middle) else (middle, enough)
    return enough


_FEWEST = 4  # both worlds must have a trial
_ORDERS, _ROWS_OF_ORDERS = 5, 100_000  # where there are many rows, their order matters little and costs much


def _bound(
    estimator: ScoreEstimator[Any], reference: Reference, spent: float, rows: int, *, z: float = 0.0, order: int = 0
) -> Bound:
    tally = estimator.tally(reference.response.levels(spent).typical(rows, z=z, order=order))
    # The median of equal bounds: two of them stand for any number of replays.
    return estimator.bound([tally] * min(reference.replays, 2))
