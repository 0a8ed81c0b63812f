"""Flipping classes: the attack on class counts, means and variances at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import box, nearest_to_a_corner, other_class
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds, features_of, replaced
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
        """Draws nothing."""
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
