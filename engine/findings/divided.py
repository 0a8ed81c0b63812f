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
import pyarrow as pa

from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import decode
from dpaudit.engine.games.fits import Reading
from dpaudit.engine.games.protocol import GamePlan
from dpaudit.estimators.remembered import DividedByReplay, DividedByThreshold, ReplayBounds
from dpaudit.mechanisms.protocols import Compute

WORTH_S = 1.0
"""Bounds that take less are found by the driver: a unit costs milliseconds there, and a second in the worst case."""
PART_S = 2.0
"""How long one part should take."""
MOST_PARTS = 256


@dataclass(frozen=True)
class BoundReplays:
    """The bounds of some of the replays.

    Attributes:
        estimator: A `DividedByReplay`.
        replays: How many replays there are in all.
    """

    estimator: Any
    replays: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a replay, in the order of their numbers."""
        tallies = [tally for table in inputs.tables.values() for tally in decode(table, self.estimator.tally_type)]
        return pa.table(self.estimator.bounds_of_replays(tallies, self.replays)._asdict())


@dataclass(frozen=True)
class BoundThresholds:
    """The bounds at some of the thresholds of the only replay.

    Attributes:
        estimator: A `DividedByThreshold`.
        part: Which, from 0.
        parts: Of so many, as equal as can be.
    """

    estimator: Any
    part: int
    parts: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a threshold."""
        (table,) = inputs.tables.values()
        (tally,) = decode(table, self.estimator.tally_type)
        looks = tally.threshold.size
        some = slice(looks * self.part // self.parts, looks * (self.part + 1) // self.parts)
        return pa.table({"bound": self.estimator.bounds_at(tally, some)})


def bound_units(
    estimator: Any, game: GamePlan, tallies: Sequence[str], name: str, resources: Resources
) -> tuple[Unit, ...]:
    """The units that find an audit's bounds; none where the driver is as quick, or the game cannot say how much it is.

    Args:
        estimator: The audit's.
        game: Its units.
        tallies: Keys of the units that count, in the order of the score table.
        name: The audit's, for people.
        resources: What one unit occupies.
    """
    if game.reference is None or game.reading is Reading.IN_ORDER:
        return ()
    parts = min(MOST_PARTS, _parts(estimator, game.replays, game.reference.rows))
    if parts < 1:
        return ()
    if isinstance(estimator, DividedByThreshold):
        if len(tallies) != 1 or game.replays != 1:
            return ()
        return tuple(
            Unit(
                BoundThresholds(estimator, part, parts),
                f"bounds of {name}, thresholds {part + 1}/{parts}",
                needs=tuple(tallies),
                resources=resources,
            )
            for part in range(parts)
        )
    parts = min(parts, len(tallies))
    cuts = [len(tallies) * part // parts for part in range(parts + 1)]
    return tuple(
        Unit(
            BoundReplays(estimator, game.replays),
            f"bounds of {name}, replays {part + 1}/{parts}",
            needs=tuple(tallies[cuts[part] : cuts[part + 1]]),
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
    thresholds = {unit.task.part: unit for unit in units if isinstance(unit.task, BoundThresholds)}
    if thresholds:
        parts = next(iter(thresholds.values())).task.parts  # type: ignore[attr-defined]
        (tally,) = (tally for group in tallies.values() for tally in group)
        if len(thresholds) == parts:
            found = [read(thresholds[part].key)["bound"].to_numpy() for part in range(parts)]
            estimator.remember_thresholds(tally, np.concatenate(found))
        return
    for unit in units:
        if isinstance(unit.task, BoundReplays) and all(key in tallies for key in unit.needs):
            own = [tally for key in unit.needs for tally in tallies[key]]
            columns = (read(unit.key)[name].to_numpy() for name in ReplayBounds._fields)
            estimator.remember_replays(own, unit.task.replays, ReplayBounds(*columns))
