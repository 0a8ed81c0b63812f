"""The curve of an event of Google's dp_accounting, by its privacy loss distributions (extra `accounting`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dpaudit.claims.curve import checked_order
from dpaudit.claims.table import DeltaTable, pld_table
from dpaudit.errors import InputError, require
from dpaudit.registry import register


@register("curve", "event", source="the package dp-accounting")
@dataclass(frozen=True)
class AccountedEvent:
    """What dp_accounting says of an event, records added or removed; its estimates are pessimistic.

    Attributes:
        event: A `DpEvent`, kept as words: `{name: PoissonSampledDpEvent, sampling_probability: 0.01, event: {name:
            GaussianDpEvent, noise_multiplier: 1.0}}`.
    """

    event: Any

    def __post_init__(self) -> None:
        event = _event(self.event)
        object.__setattr__(self, "event", _words(event))
        require(
            _package().pld.PLDAccountant().supports(event),
            "event must be one that the PLDAccountant of dp_accounting supports",
            event=event,
        )

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return f"dp_accounting's {_event(self.event)}"

    def epsilon(self, delta: float, /) -> float:
        """By the privacy loss distribution, between its epsilons on a chord."""
        return _table(self._text).epsilon(delta)

    def delta(self, epsilon: float, /) -> float:
        """By the privacy loss distribution, between its epsilons on a chord."""
        return _table(self._text).delta(epsilon)

    def miss_rate(self, alarm: float, /) -> float:
        """The envelope of delta(epsilon)."""
        return _table(self._text).miss_rate(alarm)

    def renyi(self, order: float, /) -> float:
        """By its RdpAccountant; inf for an event that does not support."""
        checked_order(order)
        event, accountant = _event(self.event), _package().rdp.RdpAccountant([order])
        return float(accountant.compose(event).rdp[0]) if accountant.supports(event) else float("inf")

    @property
    def _text(self) -> str:
        return json.dumps(self.event, sort_keys=True)


@lru_cache(maxsize=64)
def _table(text: str) -> DeltaTable:
    accountant = _package().pld.PLDAccountant().compose(_event(json.loads(text)))
    # Its own face takes no arrays; a privacy loss distribution does.
    return pld_table(accountant._pld.get_delta_for_epsilon, accountant.get_epsilon)


def _event(words: Any) -> Any:
    """The event that words describe; an event stands for itself.

    Raises: InputError when dp_accounting is not installed or has no such event.
    """
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
