"""Bounds that take long, found part by part as units of the run: by replays, or by thresholds.

What a finding is put together from is a pure function of the counts, so the parts give the digits that the driver would
find itself: a part that is missing is found there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.unit import Resources, Unit
from dpaudit.actors.work import Call, Work, unit, value_of
from dpaudit.engine.games.fits import Reading
from dpaudit.engine.games.protocol import Played
from dpaudit.estimators.remembered import DividedByReplay, DividedByThreshold, ReplayBounds

WORTH_S = 1.0
"""Bounds that take less are found by the driver: a unit costs milliseconds there, and a second in the worst case."""
PART_S = 2.0
"""How long one part should take."""
MOST_PARTS = 256


@dataclass(frozen=True, eq=False)
class ThresholdBounds:
    """Bounds at some thresholds, in nats, shape (thresholds,)."""

    bound: NDArray[np.float64]


@unit
def bound_replays(estimator: Any, tallies: tuple[list[Any], ...], *, replays: int) -> ReplayBounds:
    """The bounds of some of `replays` replays, in the order of their numbers, by a `DividedByReplay`."""
    bounds: ReplayBounds = estimator.bounds_of_replays([tally for group in tallies for tally in group], replays)
    return bounds


@unit
def bound_thresholds(estimator: Any, tallies: list[Any], *, part: int, parts: int) -> ThresholdBounds:
    """The bounds at one of several equal parts of the thresholds of the only replay, by a `DividedByThreshold`."""
    (tally,) = tallies
    looks = tally.threshold.size
    return ThresholdBounds(estimator.bounds_at(tally, slice(looks * part // parts, looks * (part + 1) // parts)))


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
    if isinstance(estimator, DividedByThreshold):
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
    if not isinstance(estimator, DividedByReplay | DividedByThreshold):
        return 0
    seconds = estimator.seconds(replays, rows)
    return math.ceil(seconds / PART_S) if seconds >= WORTH_S else 0


def take_over(estimator: Any, tallies: dict[str, list[Any]], units: Sequence[Unit], read: Callable[[str], Any]) -> None:
    """Has the estimator remember what finished units found.

    Args:
        estimator: The audit's.
        tallies: Those of each unit that counted, by its key.
        units: Finished ones of `bound_units`.
        read: The table of a finished unit, by its key.
    """
    if isinstance(estimator, DividedByThreshold):
        (tally,) = (tally for group in tallies.values() for tally in group)
        found = {_number(part, "part"): value_of(part, read(part.key)).bound for part in units}
        if len(found) == _number(units[0], "parts"):
            estimator.remember_thresholds(tally, np.concatenate([found[part] for part in range(len(found))]))
        return
    for part in units:
        if all(key in tallies for key in part.needs):
            own = [tally for key in part.needs for tally in tallies[key]]
            estimator.remember_replays(own, _number(part, "replays"), value_of(part, read(part.key)))


def _number(bounds: Unit, name: str) -> int:
    """One of the numbers that a unit was given."""
    assert isinstance(bounds.task, Call)
    return int(bounds.task.argument(name))
