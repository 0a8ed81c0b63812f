"""Where an attack's two error rates can lie, at all thresholds together, and what that says of a promised curve.

A region of upper limits holds for every threshold at once, and each pair of rates bounds epsilon at every delta: so it
speaks about the whole of a claim's curve, and no choice of delta has to be paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dpaudit.claims import PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.bound import along_curve
from dpaudit.estimators.finding import Comparison
from dpaudit.estimators.replays import median_rule

EPSILONS = 128
"""At how many epsilons a claimed curve is looked at: any of them is valid, the best one is shown."""
_FIRST = 2_048  # thresholds whose limits are computed at once: all of them where there are no more
_GIVEN_AWAY = 3e-4  # relative to a rate or its complement, which is less: no further threshold is tried for less
_ROUND_UP = 1 + 1e-11  # far above the relative error of the Beta quantiles


def epsilon_of_rates(alarm: Floats, miss: Floats, delta: float) -> Floats:
    """The least epsilon >= 0 that allows both rates, in (0, 1], to be as small as their upper limits."""
    alarm, miss = alarm * _ROUND_UP, miss * _ROUND_UP
    # Where the rates could lie on or beyond the line of guessing, the larger logarithm is not positive: 0.
    best = np.maximum((1 - delta - miss) / alarm, (1 - delta - alarm) / miss)
    return np.log(np.maximum(best, 1.0))


def telling_thresholds(limits: Callable[[Ints], tuple[Floats, Floats]], thresholds: int) -> tuple[Ints, Floats, Floats]:
    """The thresholds at which some (epsilon, delta), or any other trade-off function, could be refuted first.

    Trade-off functions are convex: what no vertex of the lower hull of the limits refutes, no threshold does.
    Limits are computed where a vertex can still be: no threshold between two others has smaller rates than the one's
    false alarms and the other's misses. Above 2,048 thresholds 0.0006 nats may be left.

    `limits` gives, at ascending places of thresholds, upper limits of the false-alarm rate, which do not fall with the
    place, and of the miss rate, which do not rise. Returned are the places of the vertices and their limits.
    """
    lower_hull = _compiled()
    places = np.unique(np.linspace(0, thresholds - 1, min(thresholds, _FIRST)).astype(np.int64))
    alarm, miss = limits(places)
    while True:
        hull = lower_hull(alarm, miss)
        could_be = _nearer(miss[1:]) < np.interp(_nearer(alarm[:-1]), alarm[hull], miss[hull])
        between = could_be & (np.diff(places) > 1)
        if not between.any():
            return places[hull], alarm[hull], miss[hull]
        middle = (places[:-1] + places[1:])[between] // 2
        after = np.flatnonzero(between) + 1
        further = limits(middle)
        places = np.insert(places, after, middle)
        alarm, miss = np.insert(alarm, after, further[0]), np.insert(miss, after, further[1])


@cache
def _compiled() -> Callable[..., Ints]:
    import numba  # slow to import

    compiled: Callable[..., Ints] = numba.njit(cache=True, nogil=True)(_lower_hull)
    return compiled


def _lower_hull(x: Floats, y: Floats) -> Ints:
    """Places of the vertices of the lower convex hull of points whose x ascend."""
    kept = np.empty(x.size, np.int64)
    count = 0
    for point in range(x.size):
        while count >= 2:
            first, last = kept[count - 2], kept[count - 1]
            turn = (x[last] - x[first]) * (y[point] - y[first]) - (y[last] - y[first]) * (x[point] - x[first])
            if turn > 0:
                break
            count -= 1
        kept[count] = point
        count += 1
    return kept[:count]


def _nearer(rate: Floats) -> Floats:
    """A rate a little more, by as much as is given away."""
    return rate + _GIVEN_AWAY * np.minimum(rate, 1 - rate)


@dataclass(frozen=True, eq=False)
class RateRegions:
    """Evidence against a whole curve: upper limits of both rates of one attack, all of them right together."""

    # Of each replay, limits of the false-alarm and of the miss rate, both in (0, 1], shape (thresholds,); of
    # `telling_thresholds` alone, as the others refute nothing that those do not.
    rates: tuple[tuple[Floats, Floats], ...]
    lost: int = 0  # replays that failed; they show nothing

    def __post_init__(self) -> None:
        require(len(self.rates) > 0, "regions must be of at least one replay", replays=len(self.rates))

    def epsilon(self, delta: float) -> float:
        """The bound at a delta in [0, 1], the median over replays; at all deltas together right as often as stated."""
        bounds = [float(epsilon_of_rates(*rate, delta).max(initial=0.0)) for rate in self.rates]
        return float(median_rule(np.array(bounds + [0.0] * self.lost)))

    def profile(self, deltas: Sequence[float] | Floats) -> Floats:
        return np.array([self.epsilon(float(delta)) for delta in deltas])

    def comparison(self, curve: PrivacyCurve, /) -> Comparison:
        """Where on the curve the observed epsilon exceeds the claimed one by most."""
        claimed = np.linspace(0.0, self.epsilon(0.0), EPSILONS)
        deltas = [min(1.0, curve.delta(float(epsilon))) for epsilon in claimed]
        delta = deltas[int(np.argmax(self.profile(deltas) - claimed))]
        printed = self._at(_rounded_up(delta), curve)
        return printed if printed.exceeds else self._at(delta, curve)

    def _at(self, delta: float, curve: PrivacyCurve) -> Comparison:
        return along_curve("epsilon", f"delta = {delta:g}", self.epsilon(delta), curve.epsilon(delta))


def _rounded_up(delta: float) -> float:
    """`delta` with three digits, never below it: a breach there is one for the number that is printed."""
    shown = float(f"{delta:.3g}")
    if shown < delta:
        shown = float(f"{delta + 10.0 ** (np.floor(np.log10(delta)) - 2):.3g}")
    return min(1.0, shown)
