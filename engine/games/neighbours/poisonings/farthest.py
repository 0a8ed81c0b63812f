"""Flipping the class of the record that is farthest from all others: it is alone in its leaf of most trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import box, other_class
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds, features_of, replaced
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

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
