"""Where an attack's two error rates can lie, at all thresholds together, and what that says of a promised curve.

A region of upper limits holds for every threshold at once, and each pair of rates bounds epsilon at every delta: so it
speaks about the whole of a claim's curve, and no choice of delta has to be paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.bound import along_curve
from dpaudit.estimators.finding import Standing
from dpaudit.estimators.replays import median_rule

Floats = NDArray[np.float64]

EPSILONS = 128
"""At how many epsilons a claimed curve is looked at: any of them is valid, the best one is shown."""
_ROUND_UP = 1 + 1e-11  # far above the relative error of the Beta quantiles


def epsilon_of_rates(alarm: Floats, miss: Floats, delta: float) -> Floats:
    """The least epsilon that allows both rates to be as small as their upper limits, >= 0.

    Args:
        alarm: Upper limits of the false-alarm rate, in (0, 1], shape (n,).
        miss: Upper limits of the miss rate, in (0, 1], shape (n,).
        delta: In [0, 1].
    """
    alarm, miss = alarm * _ROUND_UP, miss * _ROUND_UP
    # Where the rates could lie on or beyond the line of guessing, the larger logarithm is not positive: 0.
    best = np.maximum((1 - delta - miss) / alarm, (1 - delta - alarm) / miss)
    return np.log(np.maximum(best, 1.0))


@dataclass(frozen=True, eq=False)
class RateRegions:
    """Evidence against a whole curve: upper limits of both rates of one attack, all of them right together.

    Attributes:
        rates: Of each replay, limits of the false-alarm and of the miss rate, both in (0, 1], shape (thresholds,).
        lost: Replays that failed; they show nothing.
    """

    rates: tuple[tuple[Floats, Floats], ...]
    lost: int = 0

    def __post_init__(self) -> None:
        require(len(self.rates) > 0, "regions must be of at least one replay", replays=len(self.rates))

    def epsilon(self, delta: float) -> float:
        """The bound at a delta in [0, 1], the median over replays; at all deltas together right as often as stated."""
        bounds = [float(epsilon_of_rates(*rate, delta).max(initial=0.0)) for rate in self.rates]
        return float(median_rule(np.array(bounds + [0.0] * self.lost)))

    def profile(self, deltas: Sequence[float] | Floats) -> Floats:
        """The bound at each delta, shape as `deltas`."""
        return np.array([self.epsilon(float(delta)) for delta in deltas])

    def standing(self, curve: PrivacyCurve, /) -> Standing:
        """Where on the curve the observed epsilon exceeds the claimed one by most."""
        claimed = np.linspace(0.0, self.epsilon(0.0), EPSILONS)
        deltas = [min(1.0, curve.delta(float(epsilon))) for epsilon in claimed]
        delta = deltas[int(np.argmax(self.profile(deltas) - claimed))]
        printed = self._at(_rounded_up(delta), curve)
        return printed if printed.exceeds else self._at(delta, curve)

    def _at(self, delta: float, curve: PrivacyCurve) -> Standing:
        return along_curve("epsilon", f"delta = {delta:g}", self.epsilon(delta), curve.epsilon(delta))


def _rounded_up(delta: float) -> float:
    """`delta` with three digits, never below it: a breach there is one for the number that is printed."""
    shown = float(f"{delta:.3g}")
    if shown < delta:
        shown = float(f"{delta + 10.0 ** (np.floor(np.log10(delta)) - 2):.3g}")
    return min(1.0, shown)
