"""What was found of a tally is kept as long as the tally: a bound, its evidence and its figures ask for the same.

Other processes find it too, part by part: a finding is then put together from what they found.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FOUND: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()


def found_of(tally: object) -> dict[Hashable, Any]:
    """What is known of a tally: values by all that decides them beside it."""
    return _FOUND.setdefault(tally, {})


@dataclass(frozen=True, eq=False)
class ReplayBounds:
    """What combining replays needs of each of them; all of shape (replays,).

    Attributes:
        best: Its bound, as sure as combining so many needs it, in nats.
        look: The look that gives it.
        alone: What it would report if it were the only one, in nats.
    """

    best: Floats
    look: Ints
    alone: Floats


@runtime_checkable
class DividedByReplay(Protocol):
    """An estimator whose bounds of single replays can be found apart from each other."""

    def seconds(self, replays: int, rows: int) -> float:
        """About how long the bounds of so many replays of so many rows take on one core."""
        ...

    def bounds_of_replays(self, tallies: Any, replays: int) -> ReplayBounds:
        """Of some of so many replays, in the order of their numbers."""
        ...

    def remember_replays(self, tallies: Any, replays: int, bounds: ReplayBounds) -> None:
        """Takes over what `bounds_of_replays` gave for these tallies, wherever that was."""
        ...


@runtime_checkable
class DividedByThreshold(Protocol):
    """An estimator whose bounds at single thresholds of one replay can be found apart from each other."""

    def seconds(self, replays: int, rows: int) -> float:
        """About how long the bounds of so many replays of so many rows take on one core."""
        ...

    def bounds_at(self, tally: Any, looks: slice) -> Floats:
        """At some of the thresholds of the only replay, in nats."""
        ...

    def remember_thresholds(self, tally: Any, bounds: Floats) -> None:
        """Takes over what `bounds_at` gave for all thresholds of this tally, wherever that was."""
        ...
