"""A curve known by its delta at some epsilons: between them delta is convex in e^epsilon, so a chord lies above it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.claims.closed_forms import PureDP
from dpaudit.claims.curve import checked_alarm, checked_delta, checked_epsilon, checked_order
from dpaudit.errors import require
from dpaudit.registry import register


@dataclass(frozen=True, eq=False)
class DeltaTable:
    """Delta at rising epsilons from 0 on; past the last one it stays what it is there.

    Attributes:
        epsilons: Shape (n,), the first is 0.
        deltas: In [0, 1], never rising, shape (n,).
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def delta(self, epsilon: float) -> float:
        """On the chord between the two epsilons around."""
        checked_epsilon(epsilon)
        right = int(np.searchsorted(self.epsilons, epsilon))
        if right == len(self.epsilons):
            return float(self.deltas[-1])
        if self.epsilons[right] == epsilon:
            return float(self.deltas[right])
        left, end = self.epsilons[right - 1], self.epsilons[right]
        share = math.expm1(epsilon - left) / math.expm1(end - left)
        return float(self.deltas[right - 1] + share * (self.deltas[right] - self.deltas[right - 1]))

    def epsilon(self, delta: float) -> float:
        """Where the chords come down to `delta`; inf below the last one."""
        checked_delta(delta)
        right = int(np.searchsorted(-self.deltas, -delta))
        if right == len(self.deltas):
            return math.inf
        if right == 0 or self.deltas[right] == delta:
            return float(self.epsilons[right])
        left, end = self.epsilons[right - 1], self.epsilons[right]
        share = (self.deltas[right - 1] - delta) / (self.deltas[right - 1] - self.deltas[right])
        return float(min(end, left + math.log1p(share * math.expm1(end - left))))

    def miss_rate(self, alarm: float) -> float:
        """The largest over the table of what each (epsilon, delta) implies: the corners of the chords decide."""
        checked_alarm(alarm)
        if alarm == 0:
            return float(1 - self.deltas[-1])
        grown = np.exp(np.minimum(self.epsilons, 700))
        lines = np.maximum(1 - self.deltas - grown * alarm, (1 - self.deltas - alarm) / grown)
        return max(0.0, float(lines.max()))


def tabulated(delta_at: Callable[[NDArray[np.float64]], ArrayLike], last: float) -> DeltaTable:
    """The table of a curve at 20,001 epsilons from 0 to `last`."""
    epsilons = np.linspace(0, last, 20_001)
    deltas = np.clip(np.asarray(delta_at(epsilons), dtype=np.float64), 0, 1)
    return DeltaTable(epsilons, np.maximum.accumulate(deltas[::-1])[::-1])


@register("curve", "profile", source="Balle, Barthe and Gaboardi (2018), arXiv:1807.01647")
@dataclass(frozen=True)
class PrivacyProfile:
    """A curve given by points: (epsilon, delta)-DP at each of several epsilons.

    Attributes:
        epsilons: Rising, the first is 0 (its delta bounds total variation; 1 says nothing).
        deltas: In [0, 1], never rising, as many.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilons", tuple(map(float, self.epsilons)))
        object.__setattr__(self, "deltas", tuple(map(float, self.deltas)))
        require(
            len(self.epsilons) == len(self.deltas) >= 1,
            "deltas must hold one value for each epsilon",
            epsilons=len(self.epsilons),
            deltas=len(self.deltas),
        )
        rising = all(low < high for low, high in zip(self.epsilons, self.epsilons[1:], strict=False))
        require(
            rising and self.epsilons[0] == 0 and self.epsilons[-1] < math.inf,
            "epsilons must rise from 0 and be finite",
            epsilons=self.epsilons,
        )
        falling = all(high >= low for high, low in zip(self.deltas, self.deltas[1:], strict=False))
        require(
            falling and self.deltas[0] <= 1 and self.deltas[-1] >= 0,
            "deltas must be in [0, 1] and never rise",
            deltas=self.deltas,
        )

    @classmethod
    def of_pld(cls, pld: object) -> PrivacyProfile:
        """The curve of a privacy loss distribution of dp_accounting, which must be a pessimistic one (its default).

        Args:
            pld: With `get_delta_for_epsilon` of an array and `get_epsilon_for_delta`.
        """
        delta_at, epsilon_at = pld.get_delta_for_epsilon, pld.get_epsilon_for_delta  # type: ignore[attr-defined]
        table = pld_table(delta_at, epsilon_at)
        return cls(tuple(table.epsilons.tolist()), tuple(table.deltas.tolist()))

    def __str__(self) -> str:
        return f"a profile of {len(self.epsilons)} points"

    def epsilon(self, delta: float, /) -> float:
        """Where the chords between the points come down to `delta`; inf below the last point's."""
        return self._table.epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        """On the chord between the points around, linear in e^epsilon."""
        return self._table.delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        """The envelope of what the points imply."""
        return self._table.miss_rate(alarm)

    def renyi(self, order: float, /) -> float:
        """inf unless the last delta is 0: then no loss exceeds the last epsilon, and pure DP bounds it."""
        checked_order(order)
        if self.deltas[-1] > 0:
            return math.inf
        return PureDP(self.epsilons[-1]).renyi(order) if self.epsilons[-1] > 0 else 0.0

    @cached_property
    def _table(self) -> DeltaTable:
        return DeltaTable(np.array(self.epsilons), np.array(self.deltas))


def pld_table(delta_at: Callable[[NDArray[np.float64]], ArrayLike], epsilon_at: Callable[[float], float]) -> DeltaTable:
    """The table of a privacy loss distribution, up to where its delta is 1e-12 or what it always misses."""
    last = next((found for floor in (1e-12, 1e-9, 1e-6, 1e-3) if math.isfinite(found := epsilon_at(floor))), 50.0)
    return tabulated(delta_at, max(float(last), 1e-6))
