"""Poisoning that moves records between opposite corners of the public box, among rows of the data or crafted rows.

Noise is calibrated to the worst pair of data sets: few rows, all equal, or half of them in each corner. There, one
record has the largest effect on a mean, a median, a minimum, a variance, or data-dependent scaling.
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
"""Rows of crafted data sets: with 20 unmoved rows, common quantiles fall on a row."""
UPPER_COUNTS = (0, 10, 2, 1, 5, 18, 15, 19, 20)
"""Numbers of the 20 unmoved rows in the upper corner: none, or numbers at which the moved row changes the median,
another quantile, an extreme, or crosses a common threshold of a count."""
FAR_SIDES = 1e4
"""Distance of a record outside the box, in sides of the box."""
MAX_QUERY_COLUMNS = 16
"""Largest number of single columns in which models are queried."""


@register("poisoning", "opposite-corners", source="Ours: the worst cases that sensitivity is defined by")
@dataclass(frozen=True)
class OppositeCorners:
    """Move rows from the lower to the upper corner of the box around the data, or change their class there.

    Attributes:
        rows: Number of rows of both data sets, >= 2; None for the rows of the data.
        above: Share of the other rows in the upper corner, in [0, 1]; the rest are in the lower corner. None leaves
            them unchanged. If a class changes, all others are in the lower corner and this is the share of class 1.
        moves: Difference of the data sets: the "place" of a row, its "class" in the upper corner, or "both".
        column: Column in which the corners differ; -1 for all, -2 for all with alternating signs.
        far: Distance of the corners outside the box, in sides of the box, >= 0; for code that limits its input.
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
        require(self.rows is None or self.above is not None, "with `rows`, `above` must be set")

    @property
    def relation(self) -> Relation:
        return Relation.LABEL if self.moves == "class" else Relation.REPLACE

    @property
    def farther(self) -> OppositeCorners | None:
        """Poisoning with records a thousand times farther outside the box; None if they are inside the box."""
        return replace(self, far=1_000 * self.far) if self.far else None

    @classmethod
    def variants(cls) -> dict[str, OppositeCorners]:
        """Return the variants that a search tries by name, the strongest first."""
        return {f"{cls.registered_name} {name}": variant for name, variant in _variants(cls)}  # type: ignore[attr-defined]

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        lower, upper = self._corners(data)
        count = len(data) if self.rows is None else self.rows
        require(copies < count, "copies must be fewer than the rows", copies=copies, rows=count)
        if self.above is None:
            others = data
        else:
            number, labels = round(self.above * (count - copies)), np.arange(count - copies) % data.classes
            if self.moves != "place":  # both worlds need both classes: code may refuse a single class
                number = min(max(number, 1), count - copies - 1)
            high = np.arange(count - copies) < number
            place = np.where(high[:, None], upper, lower)
            if self.moves != "place":
                labels, place = high.astype(np.int64), np.repeat(lower[None], count - copies, 0)
            # The moved records are the first rows.
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
        require(self.column < len(low), "column must be a column of the data", column=self.column, columns=len(low))
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
    """Return both corners, and the lower corner with single columns of the upper one; they determine a linear model."""
    columns = np.arange(min(len(lower), MAX_QUERY_COLUMNS))
    single = np.repeat(lower[None], len(columns), 0)
    single[columns, columns] = upper[columns]
    return np.concatenate([lower[None], upper[None], single])
