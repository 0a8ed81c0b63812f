"""A curve known by its delta at some epsilons: between them delta is convex in e^epsilon, so a chord lies above it.

Such are profiles, and what Google's dp_accounting says of an event (extra `accounting`).
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.claims.curve import PureDP, checked_alarm, checked_delta, checked_epsilon, checked_order
from dpaudit.errors import InputError, require
from dpaudit.registry import register

_DeltaAt = Callable[[NDArray[np.float64]], ArrayLike]


@dataclass(frozen=True, eq=False)
class DeltaTable:
    """Delta at rising epsilons from 0 on; past the last one it stays what it is there."""

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]  # in [0, 1], never rising

    @classmethod
    def of(cls, delta_at: _DeltaAt, last: float) -> DeltaTable:
        """The table of a curve at 20,001 epsilons from 0 to `last`."""
        epsilons = np.linspace(0, last, 20_001)
        deltas = np.clip(np.asarray(delta_at(epsilons), dtype=np.float64), 0, 1)
        return cls(epsilons, np.maximum.accumulate(deltas[::-1])[::-1])

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


class TableCurve(ABC):
    """The faces of a curve that are read off a table of its delta."""

    @property
    @abstractmethod
    def table(self) -> DeltaTable:
        """Delta at some epsilons; where it is computed, not below the true one."""

    def epsilon(self, delta: float, /) -> float:
        return self.table.epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        return self.table.delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        return self.table.miss_rate(alarm)


@register("curve", "profile", source="Balle, Barthe and Gaboardi (2018), arXiv:1807.01647")
@dataclass(frozen=True)
class PrivacyProfile(TableCurve):
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
        epsilons, deltas = len(self.epsilons), len(self.deltas)
        as_many = epsilons == deltas >= 1
        require(as_many, "deltas must hold one value for each epsilon", epsilons=epsilons, deltas=deltas)
        rising = all(low < high for low, high in pairwise(self.epsilons))
        finite = self.epsilons[0] == 0 and self.epsilons[-1] < math.inf
        require(rising and finite, "epsilons must rise from 0 and be finite", epsilons=self.epsilons)
        falling = all(high >= low for high, low in pairwise(self.deltas))
        within = self.deltas[0] <= 1 and self.deltas[-1] >= 0
        require(falling and within, "deltas must be in [0, 1] and never rise", deltas=self.deltas)

    @classmethod
    def of_pld(cls, pld: object) -> PrivacyProfile:
        """The curve of a privacy loss distribution of dp_accounting, which must be a pessimistic one (its default)."""
        delta_at, epsilon_at = pld.get_delta_for_epsilon, pld.get_epsilon_for_delta  # type: ignore[attr-defined]
        table = _pld_table(delta_at, epsilon_at)
        return cls(tuple(table.epsilons.tolist()), tuple(table.deltas.tolist()))

    def __str__(self) -> str:
        return f"a profile of {len(self.epsilons)} points"

    def renyi(self, order: float, /) -> float:
        """inf unless the last delta is 0: then no loss exceeds the last epsilon, and pure DP bounds it."""
        checked_order(order)
        if self.deltas[-1] > 0:
            return math.inf
        return PureDP(self.epsilons[-1]).renyi(order) if self.epsilons[-1] > 0 else 0.0

    @cached_property
    def table(self) -> DeltaTable:
        """The points."""
        return DeltaTable(np.array(self.epsilons), np.array(self.deltas))


@register("curve", "event", source="the package dp-accounting")
@dataclass(frozen=True)
class AccountedEvent(TableCurve):
    """What dp_accounting says of an event, records added or removed; its estimates are pessimistic.

    Attributes:
        event: A `DpEvent`, kept as words: `{name: PoissonSampledDpEvent, sampling_probability: 0.01, event: {name:
            GaussianDpEvent, noise_multiplier: 1.0}}`.
    """

    only_add_remove: ClassVar[bool] = True
    event: Any

    def __post_init__(self) -> None:
        event = _event(self.event)
        object.__setattr__(self, "event", _words(event))
        supported = _package().pld.PLDAccountant().supports(event)
        require(supported, "event must be one that the PLDAccountant of dp_accounting supports", event=event)

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return f"dp_accounting's {_event(self.event)}"

    def renyi(self, order: float, /) -> float:
        """By its RdpAccountant (0.4.4 to 0.6.0: too high at fractional orders); inf for events it does not support."""
        checked_order(order)
        event, accountant = _event(self.event), _package().rdp.RdpAccountant([order])
        return float(accountant.compose(event).rdp[0]) if accountant.supports(event) else float("inf")

    @property
    def table(self) -> DeltaTable:
        """Of the privacy loss distribution."""
        return _table_of_event(self._text)

    @property
    def _text(self) -> str:
        return json.dumps(self.event, sort_keys=True)


def _pld_table(delta_at: _DeltaAt, epsilon_at: Callable[[float], float]) -> DeltaTable:
    """The table of a privacy loss distribution, up to where its delta is 1e-12 or what it always misses."""
    last = next((found for floor in (1e-12, 1e-9, 1e-6, 1e-3) if math.isfinite(found := epsilon_at(floor))), 50.0)
    return DeltaTable.of(delta_at, max(float(last), 1e-6))


@lru_cache(maxsize=64)
def _table_of_event(text: str) -> DeltaTable:
    accountant = _package().pld.PLDAccountant().compose(_event(json.loads(text)))
    # Its own face takes no arrays; a privacy loss distribution does.
    return _pld_table(accountant._pld.get_delta_for_epsilon, accountant.get_epsilon)


def _event(words: Any) -> Any:
    """The event that words describe; an event stands for itself."""
    package = _package()
    if isinstance(words, package.DpEvent):
        return words
    kind = getattr(package, str(words.get("name")), None) if isinstance(words, Mapping) else None
    if not (isinstance(kind, type) and issubclass(kind, package.DpEvent)):
        raise InputError(
            "event must be a DpEvent of dp_accounting, or a mapping with its class as `name` and its fields, got "
            f"{words!r}"
        )
    fields = {name: _part(value) for name, value in words.items() if name != "name"}
    try:
        return kind(**fields)
    except TypeError as err:
        raise InputError(f"event: {kind.__name__} cannot be made from {sorted(fields)}: {err}") from err


def _part(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _event(value)
    return [_part(item) for item in value] if isinstance(value, list | tuple) else value


def _words(event: Any) -> Any:
    if isinstance(event, _package().DpEvent):
        fields = {field.name: _words(getattr(event, field.name)) for field in type(event).__attrs_attrs__}
        return {"name": type(event).__name__, **fields}
    return [_words(item) for item in event] if isinstance(event, list | tuple) else event


def _package() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise InputError(
            'a curve of kind "event" needs the package dp-accounting: pip install "dpaudit[accounting]"; '
            '"subsampled-gaussian", "gaussian" and "renyi" need nothing'
        ) from None
    return dp_accounting
