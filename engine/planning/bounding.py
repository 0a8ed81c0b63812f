"""Bounds that take long, found part by part as units of the run: by replays, or by thresholds.

The parts give the digits that the driver would find itself: what is missing is found there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.work import Work, unit, value_of
from dpaudit.engine.games.fits import Reading
from dpaudit.engine.games.protocol import Played
from dpaudit.estimators.best_candidate import EachReplay, EachThreshold
from dpaudit.estimators.finding import Finding

WORTH_S = 1.0
"""Bounds that take less are found by the driver: a unit costs milliseconds there, and a second in the worst case."""
PART_S = 2.0
"""How long one part should take."""
MOST_PARTS = 256


@runtime_checkable
class _Divided(Protocol):
    """An estimator whose bounds can be found in parts."""

    def seconds(self, replays: int, rows: int) -> float:
        """About how long the bounds of so many replays of so many rows take on one core."""
        ...

    def find(self, tallies: Sequence[Any], *, lost: int = 0, parts: Sequence[Any] = ()) -> Finding:
        """One finding; what is in none of the parts is found now."""
        ...


@runtime_checkable
class _DividedByReplay(_Divided, Protocol):
    def bounds_of_replays(self, tallies: Sequence[Any], replays: int) -> EachReplay:
        """Of some of so many replays, in the order of their numbers."""
        ...


@runtime_checkable
class _DividedByThreshold(_Divided, Protocol):
    def bounds_at(self, tally: Any, places: NDArray[np.int64]) -> EachThreshold:
        """At some of the thresholds of the only replay."""
        ...


@unit
def bound_replays(estimator: _DividedByReplay, tallies: tuple[list[Any], ...], *, replays: int) -> EachReplay:
    """The bounds of some of `replays` replays, in the order of their numbers."""
    return estimator.bounds_of_replays([tally for group in tallies for tally in group], replays)


@unit
def bound_thresholds(estimator: _DividedByThreshold, tallies: list[Any], *, part: int, parts: int) -> EachThreshold:
    """The bounds at one of several equal parts of the thresholds of the only replay."""
    (tally,) = tallies
    thresholds = tally.threshold.size
    return estimator.bounds_at(tally, np.arange(thresholds * part // parts, thresholds * (part + 1) // parts))


def bound_units(
    estimator: Any, game: Played, tallies: tuple[Unit, ...], reading: Reading, name: str, resources: Resources
) -> tuple[Unit, ...]:
    """The units that find an audit's bounds; none where the driver is as quick, or the game cannot say how much it is.

    Args:
        estimator: The audit's.
        game: What its game planned.
        tallies: The units that count, in the order of the evidence.
        reading: How the evidence is read.
        name: The audit's, for people.
        resources: What one unit occupies.
    """
    if game.reference is None or reading is Reading.IN_ORDER:
        return ()
    parts, work = min(MOST_PARTS, _parts(estimator, game.replays, game.reference.rows)), Work()
    if parts < 1:
        return ()
    if isinstance(estimator, _DividedByThreshold):
        if len(tallies) != 1 or game.replays != 1:
            return ()
        return tuple(
            work.add(
                bound_thresholds,
                estimator,
                tallies[0],
                part=part,
                parts=parts,
                label=f"bounds of {name}, thresholds {part + 1}/{parts}",
                resources=resources,
            )
            for part in range(parts)
        )
    parts = min(parts, len(tallies))
    cuts = [len(tallies) * part // parts for part in range(parts + 1)]
    return tuple(
        work.add(
            bound_replays,
            estimator,
            tallies[cuts[part] : cuts[part + 1]],
            replays=game.replays,
            label=f"bounds of {name}, replays {part + 1}/{parts}",
            resources=resources,
        )
        for part in range(parts)
    )


def _parts(estimator: Any, replays: int, rows: int) -> int:
    if not isinstance(estimator, _DividedByReplay | _DividedByThreshold):
        return 0
    seconds = estimator.seconds(replays, rows)
    return math.ceil(seconds / PART_S) if seconds >= WORTH_S else 0


def found_parts(units: Sequence[Unit], counted: Set[str], read: Callable[[str], Any]) -> list[Any]:
    """What finished units found, for `estimator.find(tallies, parts=...)`.

    Args:
        units: Finished ones of `bound_units`.
        counted: Keys of the units whose tallies are there.
        read: The table of a finished unit, by its key.
    """
    return [value_of(unit, read(unit.key)) for unit in units if counted >= set(unit.needs)]
