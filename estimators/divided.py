"""Bounds that are found part by part, on several machines: a finding is put together from the parts.

A part is a pure function of its tallies, so it gives the digits that are found without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.finding import Finding


@dataclass(frozen=True, eq=False)
class EachReplay:
    """What combining replays needs of each of them; all of shape (replays,).

    Attributes:
        replay: Its number, ascending.
        best: Its bound, as sure as combining so many needs it, in nats.
        look: The look that gives it.
        alone: What it would report if it were the only one, in nats.
    """

    replay: Ints
    best: Floats
    look: Ints
    alone: Floats


@dataclass(frozen=True, eq=False)
class EachThreshold:
    """Bounds at some thresholds of the only replay, in nats.

    Attributes:
        look: Which thresholds, shape (thresholds,).
        bound: Shape (thresholds,).
    """

    look: Ints
    bound: Floats


@runtime_checkable
class Divided(Protocol):
    """An estimator whose bounds can be found in parts."""

    def seconds(self, replays: int, rows: int) -> float:
        """About how long the bounds of so many replays of so many rows take on one core."""
        ...

    def find(self, tallies: Sequence[Any], *, lost: int = 0, parts: Sequence[Any] = ()) -> Finding:
        """One finding; what is in none of the parts is found now."""
        ...


@runtime_checkable
class DividedByReplay(Divided, Protocol):
    """Its bounds of single replays can be found apart from each other."""

    def bounds_of_replays(self, tallies: Sequence[Any], replays: int) -> EachReplay:
        """Of some of so many replays, in the order of their numbers."""
        ...


@runtime_checkable
class DividedByThreshold(Divided, Protocol):
    """Its bounds at single thresholds of one replay can be found apart from each other."""

    def bounds_at(self, tally: Any, looks: Ints) -> EachThreshold:
        """At some of the thresholds of the only replay."""
        ...


class _Numbered(Protocol):
    @property
    def replay(self) -> int: ...


T = TypeVar("T", bound=_Numbered)


def complete(tallies: Sequence[T], parts: Sequence[EachReplay], find: Callable[[list[T]], EachReplay]) -> EachReplay:
    """The bounds of all these replays, in the order of their numbers: those of the parts, and the others found now."""
    found = {int(number) for part in parts for number in part.replay}
    missing = [tally for tally in tallies if tally.replay not in found]
    if not found:
        return find(missing)
    return joined([*parts, find(missing)] if missing else parts)


def joined(parts: Sequence[EachReplay]) -> EachReplay:
    """The replays of all parts, in the order of their numbers."""
    columns = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(EachReplay)]
    order = np.argsort(columns[0], kind="stable")
    return EachReplay(*(column[order] for column in columns))
