"""Small data sets that are made for the game `label-crafted`, in which nearly all labels are known to the attacker."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import LabelMechanism

MOST_POINTS = 64
"""Points far apart that a data set has at most."""
FAR = 5.0
"""How far they are from the middle, in units of the largest number among the features."""
LARGEST_SIZE = 5_000
"""Rows of a data set that is made, at most."""
MOST_SIZES = 4
"""Sizes that a mechanism's own fields may add."""


@dataclass(frozen=True)
class Design:
    """A small data set that is made for the purpose."""

    rows: int  # at points of their own, >= 1
    others: int = 0  # further rows, all at one other point, half of class 0 and half of class 1, all known; >= 0
    # how many of the first rows have labels that may be at stake, half of which are in each release; None for `rows`
    at_stake: int | None = None
    # "drawn" from all classes; from "two"; or, but for those at stake, which are drawn from two, "balanced" between the
    # two so that one label more decides, or "alike"
    labels: Literal["drawn", "two", "balanced", "alike"] = "drawn"

    @property
    def size(self) -> int:
        return self.rows + self.others

    @property
    def stake(self) -> int:
        return ((self.at_stake or self.rows) + 1) // 2

    def used(self, classes: int) -> int:
        """How many of the first classes labels at stake are drawn from."""
        return classes if self.labels == "drawn" else 2

    def planted(self, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        labels = np.zeros(self.size, np.int64)
        drawn = (self.at_stake or self.rows) if self.labels in ("balanced", "alike") else self.rows
        labels[:drawn] = rng.integers(0, self.used(classes), drawn)
        if self.labels != "alike":
            labels[drawn:] = np.arange(self.size - drawn) % 2 == 0
        return labels

    def __str__(self) -> str:
        stake = "one label" if self.stake == 1 else f"{self.stake} labels"
        rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
        others = f" and {self.others} at one point" if self.others else ""
        law = {
            "drawn": "of all classes",
            "two": "of two classes",
            "balanced": "others in balance",
            "alike": "others alike",
        }
        return f"{rows}{others}, {stake} at stake, {law[self.labels]}"


def designs_for(mechanism: Any, target: Examples) -> tuple[Design, ...]:
    """The data sets that are tried on a mechanism, in place of some data."""
    if isinstance(mechanism, LabelMechanism):
        made = _of_labels(public_sizes(mechanism))
    else:
        made = _of_learners(public_sizes(mechanism), points_of(target.features))
    if target.classes == 2:  # two classes are all there are
        made = [replace(one, labels="drawn") if one.labels == "two" else one for one in made]
    return tuple(dict.fromkeys(made))


def most_at_stake(mechanism: Any) -> int:
    """Labels at stake in one release, at most, whichever data set is taken."""
    sizes = public_sizes(mechanism)
    made = _of_labels(sizes) if isinstance(mechanism, LabelMechanism) else _of_learners(sizes, MOST_POINTS)
    return max(design.stake for design in made)


def public_sizes(mechanism: Any) -> list[int]:
    """Whole numbers among the fields of a mechanism that could be numbers of rows, the smallest first."""
    if not is_dataclass(mechanism):
        return []
    values = [getattr(mechanism, field.name) for field in fields(mechanism) if field.init]
    whole = {value for value in values if isinstance(value, int) and not isinstance(value, bool)}
    return sorted(value for value in whole if 2 <= value <= LARGEST_SIZE)[:MOST_SIZES]


def _of_labels(sizes: list[int]) -> list[Design]:
    halves = [Design(rows) for rows in (1, 2, 3, 8, 20, *sizes)]
    two = [Design(8, labels="two")]
    ties = [Design(rows, at_stake=1, labels="balanced") for rows in (3, 20, *sizes)]
    return [*halves, *two, *ties, Design(2, at_stake=1, labels="alike"), Design(20, at_stake=1, labels="alike")]


def _of_learners(sizes: list[int], points: int) -> list[Design]:
    """Data sets of points; those of many rows have all but the first `points` at one point."""
    made = [Design(min(2, points)), Design(points), Design(points, labels="two")]
    for size in sizes:
        if size <= points:
            made += [Design(size, labels="two"), Design(size, at_stake=1, labels="balanced")]
        else:
            made.append(Design(points, size - points, labels="two"))
    return [*made, Design(points, 16 * points, labels="two")]


def points_of(features: Features) -> int:
    """How many points far apart there are for such features."""
    if isinstance(features, np.ndarray):
        return min(MOST_POINTS, 2 * int(np.prod(features.shape[1:])))
    return min(MOST_POINTS, len(features) - 1)


def crafted_features(features: Features, design: Design) -> Features:
    """Points far apart, one a row, and the middle for the others; of a table, its own rows."""
    if not isinstance(features, np.ndarray):
        places = np.minimum(np.arange(design.size), design.rows) % len(features)
        return features.take(pa.array(places))
    width = int(np.prod(features.shape[1:]))
    largest = float(np.abs(features).max(initial=0.0)) or 1.0
    made = np.zeros((design.size, width), np.float32)
    place = np.arange(design.rows)
    made[place, place % width] = FAR * largest * np.where(place // width % 2 == 0, 1.0, -1.0)
    return made.reshape(design.size, *features.shape[1:])
