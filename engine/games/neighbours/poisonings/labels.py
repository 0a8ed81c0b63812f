"""Poisonings of labels: rows of the data, or crafted ones that stand in both worlds, whose class differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    Worlds,
    box,
    features_of,
    nearest_to_a_corner,
    other_class,
    replaced,
)
from dpaudit.engine.games.two_world.canaries import ClipBackdoor
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("poisoning", "class-flip", source="Lu et al. (2022), section 4.1, naive Bayes")
@dataclass(frozen=True)
class ClassFlip:
    """The rows nearest to a corner of the box around the data get the next class, their features stay.

    Several are of one class, that of the nearest, so that they pull in one direction.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        nearest = nearest_to_a_corner(data)
        same = data.labels[nearest] == data.labels[nearest[0]]
        rows = np.concatenate([nearest[same], nearest[~same]])[:copies]
        honest = data.take(rows)
        flipped = honest.with_(labels=other_class(honest.labels, data.classes))
        return replaced(data, rows, honest, flipped, features_of(honest))


@register("poisoning", "corner-flip", source="Ours, after Lu et al. (2022) and ClipBKD: crafted records, labels differ")
@dataclass(frozen=True)
class CornerFlip:
    """In both worlds some rows stand in the corner farthest from all data; their class differs.

    A flip moves a class's mean by as much as the box allows only from a corner, where hardly any row stands; two
    neighbouring data sets may both hold one. The rows come from the largest class.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws which rows are taken."""
        features = features_of(data)
        lower, upper = box(data)
        middle = features.mean(0)
        corner = np.where(middle - lower > upper - middle, lower, upper)
        largest = int(np.bincount(data.labels, minlength=data.classes).argmax())
        # Rows of other classes only where the largest one has too few.
        order = np.lexsort((rng.random(len(data)), data.labels != largest))
        rows = np.sort(order[:copies])
        placed = data.take(rows).with_(
            features=np.repeat(corner[None], copies, 0), labels=np.full(copies, largest, np.int64)
        )
        flipped = placed.with_(labels=other_class(placed.labels, data.classes))
        return replaced(data, rows, placed, flipped, corner[None])


MOST_COMPARED = 2_000
"""Rows that all others' distances are summed over: those of a larger data set are drawn."""


@register("poisoning", "farthest-flip", source="Lu et al. (2022), section 4.1, random forest")
@dataclass(frozen=True)
class FarthestFlip:
    """The row with the largest sum of L1 distances to the others, the box's sides counting as 1, gets the next class.

    Several are copies of it, in the places of the rows nearest to it, in both worlds; their class differs.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws rows to compare with where there are many."""
        features = features_of(data).astype(np.float64)
        lower, upper = box(data)
        place = (features - lower) / np.maximum(upper - lower, 1e-12)
        compared = place if len(place) <= MOST_COMPARED else place[rng.choice(len(place), MOST_COMPARED, replace=False)]
        total = np.array([np.abs(compared - row).sum() for row in place])
        farthest = int(total.argmax())
        near = np.argsort(np.abs(place - place[farthest]).sum(1), kind="stable")[:copies]
        honest = data.take(np.full(copies, farthest))
        flipped = honest.with_(labels=other_class(honest.labels, data.classes))
        return replaced(data, near, honest, flipped, features_of(honest)[:1])


@register("poisoning", "clip-bkd", source="Jagielski et al. (2020), arXiv:2006.07709, Algorithm 2; its code")
@dataclass(frozen=True)
class ClipBackdoorPair:
    """In both worlds some rows stand on the last principal direction; in world 1 with their least likely class.

    Trained models are asked about that point, about zero, and about some rows of the data.

    Attributes:
        norm: Length of the point, > 0; None takes the median length of the rows.
        asked: Rows of the data that models are asked about as well, >= 0.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    norm: float | None = None
    asked: int = 4

    def __post_init__(self) -> None:
        require(self.asked >= 0, "asked must be >= 0", asked=self.asked)
        ClipBackdoor(norm=self.norm)

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws which rows are taken, and which are asked about."""
        challenge = ClipBackdoor(norm=self.norm).choose(data, None, rng).examples
        rows = np.sort(rng.choice(len(data), copies, replace=False))
        poisoned = challenge.take(np.zeros(copies, np.int64))
        honest = poisoned.with_(labels=other_class(poisoned.labels, data.classes))
        asked = features_of(data)[rng.choice(len(data), min(self.asked, len(data)), replace=False)]
        point = features_of(challenge)
        return replaced(data, rows, honest, poisoned, np.concatenate([point, np.zeros_like(point), asked]))
