"""A record between opposite corners of the public box, among the data's rows or among crafted ones.

What noise is made for is the worst pair of data sets: few rows, all equal, or one half at each end. There a mean, a
median, a smallest value, a variance, and whatever is scaled by what the data are themselves, move by as much as they
can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds, box, other_class, replace_rows
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

Floats = NDArray[np.float32]

FEW_ROWS, MIN_ROWS = 21, 4
"""Rows of crafted data sets: 20 beside the one that moves, so that usual quantiles fall on a row."""
UPPER_COUNTS = (0, 10, 2, 1, 5, 18, 15, 19, 20)
"""How many of these 20 stand in the upper corner: none; those at which the median, a high, a low quantile, an extreme
moves, and at which usual thresholds of a count are crossed."""
FAR_SIDES = 1e4
"""Sides of the box between it and a record beyond it; a thousand times as far, code that limits it shows the same."""
MAX_QUERY_COLUMNS = 16
"""Columns at most along which models are asked about the corners."""


@register("poisoning", "opposite-corners", source="Ours: the worst cases that sensitivity is defined by")
@dataclass(frozen=True)
class OppositeCorners:
    """Rows move from the lower corner of the box around the data to the upper one, or change their class there.

    Attributes:
        rows: Of both data sets, >= 2; None takes as many as the data have.
        above: Share of the other rows that stand in the upper corner, in [0, 1], the rest in the lower one; None leaves
            them as they are in the data. Where a class changes, all others stand in the lower corner, and this is the
            share of the second class.
        moves: What changes: the "place", the "class" of a row in the upper corner, or "both".
        column: In which column the corners differ; -1 takes all of them, -2 every other one upwards and the rest down.
        far: How far beyond the box the corners lie, in its sides, >= 0: for code that limits what it is given.
    """

    rows: int | None = None
    above: float | None = None
    moves: Literal["place", "class", "both"] = "place"
    column: int = -1
    far: float = 0.0

    def __post_init__(self) -> None:
        require(self.rows is None or self.rows >= 2, "rows must be >= 2", rows=self.rows)
        require(self.above is None or 0 <= self.above <= 1, "above must be in [0, 1]", above=self.above)
        require(self.moves in ("place", "class", "both"), "moves must be place, class or both", moves=self.moves)
        require(self.column >= -2, "column must be >= -2", column=self.column)
        require(0 <= self.far < 1e12, "far must be in [0, 1e12)", far=self.far)
        require(self.rows is None or self.above is not None, "with `rows`, `above` says where the others stand")

    @property
    def relation(self) -> Relation:
        return Relation.LABEL if self.moves == "class" else Relation.REPLACE

    @property
    def farther(self) -> OppositeCorners | None:
        """The same a thousand times as far beyond the box; None where it stays within."""
        return replace(self, far=1_000 * self.far) if self.far else None

    @classmethod
    def variants(cls) -> dict[str, OppositeCorners]:
        """What a search tries, the most telling ones first."""
        return {f"{cls.registered_name} {name}": variant for name, variant in _variants(cls)}  # type: ignore[attr-defined]

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        lower, upper = self._corners(data)
        count = len(data) if self.rows is None else self.rows
        require(copies < count, "copies must be fewer than the rows", copies=copies, rows=count)
        if self.above is None:
            others = data
        else:
            number, labels = round(self.above * (count - copies)), np.arange(count - copies) % data.classes
            if self.moves != "place":  # both classes are there in both worlds: code may refuse to learn from one
                number = min(max(number, 1), count - copies - 1)
            high = np.arange(count - copies) < number
            place = np.where(high[:, None], upper, lower)
            if self.moves != "place":
                labels, place = high.astype(np.int64), np.repeat(lower[None], count - copies, 0)
            # The records that move are the first rows: they stand before the others.
            rows = np.concatenate([np.zeros((copies, len(upper))), place])
            others = data.with_(
                features=rows.astype(np.float32), labels=np.concatenate([np.zeros(copies, np.int64), labels])
            )
        moved = np.arange(copies) if self.above is not None else np.sort(rng.choice(count, copies, replace=False))
        rows_zero = others.take(moved).with_(
            features=np.repeat((upper if self.moves == "class" else lower)[None], copies, 0),
            labels=np.zeros(copies, np.int64),
        )
        rows_one = rows_zero.with_(features=np.repeat(upper[None], copies, 0))
        if self.moves != "place":
            rows_one = rows_one.with_(labels=other_class(rows_one.labels, data.classes))
        return replace_rows(others, moved, rows_zero, rows_one, _query_points(lower, upper))

    def _corners(self, data: Examples) -> tuple[Floats, Floats]:
        low, high = box(data)
        side = high - low
        low, high = low - np.float32(self.far) * side, high + np.float32(self.far) * side
        columns = np.arange(len(low))
        if self.column == -2:
            down = columns % 2 == 1
            return np.where(down, high, low), np.where(down, low, high)
        require(self.column < len(low), "column must be one of the data's", column=self.column, columns=len(low))
        return low, high if self.column == -1 else np.where(columns == self.column, high, low)


def _variants(cls: type[OppositeCorners]) -> Iterator[tuple[str, OppositeCorners]]:
    shares = [number / (FEW_ROWS - 1) for number in UPPER_COUNTS]
    yield "(few rows, equal)", cls(FEW_ROWS, 0.0)
    yield "(few rows, halves)", cls(FEW_ROWS, 0.5)
    yield "(classes, few rows)", cls(FEW_ROWS, 0.5, "class")
    yield "(all rows)", cls()
    yield "(all rows and classes)", cls(moves="both")
    yield "(few rows and classes)", cls(FEW_ROWS, 0.5, "both")
    yield "(beyond the box, equal)", cls(FEW_ROWS, 0.0, far=FAR_SIDES)
    yield "(few rows, into a rare class)", cls(FEW_ROWS, 0.1, "both")
    yield "(all rows, halves)", cls(None, 0.5)
    yield "(all rows, equal)", cls(None, 0.0)
    yield "(very few rows)", cls(MIN_ROWS, 1 / 3)
    yield "(beyond the box, all rows)", cls(far=FAR_SIDES)
    yield "(every other column down)", cls(FEW_ROWS, 0.5, column=-2)
    for share in shares[2:]:
        yield f"(few rows, {share:.0%} above)", cls(FEW_ROWS, share)
    yield "(one column)", cls(FEW_ROWS, 0.0, column=0)
    yield "(beyond the box, halves)", cls(FEW_ROWS, 0.5, far=FAR_SIDES)
    for share in (0.1, 0.2, 0.45):
        yield f"(classes, few rows, {share:.0%})", cls(FEW_ROWS, share, "class")
    yield "(classes, all rows, one of the second)", cls(None, 0.0, "class")


def _query_points(lower: Floats, upper: Floats) -> Floats:
    """The corners, and the lower one with one column of the upper one each: a linear model is known by these."""
    columns = np.arange(min(len(lower), MAX_QUERY_COLUMNS))
    single = np.repeat(lower[None], len(columns), 0)
    single[columns, columns] = upper[columns]
    return np.concatenate([lower[None], upper[None], single])
