"""Records that are there or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.poisonings.protocol import nearest_to_a_corner
from dpaudit.engine.views.worlds import Worlds, features_of, replaced
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("poisoning", "remove", source="Lu et al. (2022), section 5: data sets that differ in length")
@dataclass(frozen=True)
class Remove:
    """The rows nearest to a corner of the box around the data are in world 1 only."""

    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws nothing."""
        rows = nearest_to_a_corner(data)[:copies]
        present = data.take(rows)
        return replaced(data, rows, None, present, features_of(present))
