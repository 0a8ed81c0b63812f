"""Planting rates: the estimator of each rate, the largest bound that canaries can show, and how many are needed.

A coin of probability `rate` plants each canary. Fair coins are guessed on both sides, rare coins on the side of the
planted ones (`estimators.extraction.rare_canaries`). Canaries in perfect order show about log(canaries) - 1.4 at every
rate, with 95 % confidence. So the number of canaries decides how large an epsilon can be detected, and the rate how
many of them are trained on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims.curve import PrivacyCurve
from dpaudit.estimators.bound import Bound
from dpaudit.estimators.extraction.rare_canaries import RareCanaries
from dpaudit.estimators.one_run.guess_band import MAX_DELTA, SimultaneousGuessCount
from dpaudit.estimators.scores import SharedOrders

FAIR = 0.5
MOST_NEEDED = 1_000_000
"""Number of canaries above which no advice is given."""
GROWTH = 1.2
"""Factor between the numbers of canaries that are tried."""
CONVICTING = 0.999
"""Confidence that a violation needs: a verdict from one training cannot be confirmed by another run."""


def maximum_bound(
    planted: NDArray[np.bool_], rate: float, *, delta: float, confidence: float, one_attack: bool = False
) -> Bound:
    """Return the bound if every coin is guessed in perfect order.

    Args:
        planted: True for planted canaries, shape (canaries,).
        rate: Probability of the coins, in (0, 1/2].
        delta: Delta of the bound.
        confidence: Confidence of the bound.
        one_attack: True if the scores of one attack order the guesses. It must then look at both tails and at each side
            alone, which costs a share of the error. The learned order knows the sides, and shares the error with
            attacks alone.
    """
    perfect = np.where(planted, 1.0, -1.0) * np.linspace(1, 2, planted.size)
    estimator: Any = RareCanaries(rate, delta, confidence)
    if rate == FAIR:
        learns = planted.size * delta <= MAX_DELTA and not one_attack  # an order learned from coins is proved then
        estimator = SimultaneousGuessCount(delta, confidence, guess="signed" if learns else "any-tail")
    orders = SharedOrders(
        perfect, planted, further=np.zeros((planted.size, 1))
    )  # a learned order has half of the error
    bound: Bound = estimator.bound([estimator.tally(orders)])
    return bound


def canaries_needed(
    curve: PrivacyCurve, *, canaries: int, rate: float, delta: float, confidence: float, one_attack: bool = False
) -> tuple[int, float] | None:
    """Return a number of canaries whose perfect order rejects a claim, and the rate that plants as many as now.

    Args:
        curve: Curve of the claim.
        canaries: Present number of canaries, >= 1; the search starts from it.
        rate: Present probability with which a canary is planted.
        delta: Delta of the bound.
        confidence: Confidence of the bound.
        one_attack: As in `maximum_bound`.
    Returns: Number and rate, to two digits; None above a million canaries.
    """
    claimed = curve.epsilon(delta)
    if claimed > math.log(MOST_NEEDED):
        return None
    wanted = max(float(canaries), 2 * math.exp(claimed))
    while (count := _rounded_up(wanted)) <= MOST_NEEDED:
        smaller_rate = float(f"{min(FAIR, rate * canaries / count):.2g}")
        planted = np.random.default_rng(0).permutation(count) < round(count * smaller_rate)
        most = maximum_bound(planted, smaller_rate, delta=delta, confidence=confidence, one_attack=one_attack)
        if most.violation_point(curve) is not None:
            return count, smaller_rate
        wanted *= GROWTH
    return None


def _rounded_up(count: float) -> int:
    """Return the next whole number of two digits and zeros."""
    unit: int = 10 ** max(0, int(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit
