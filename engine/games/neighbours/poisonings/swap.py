"""The baseline: a row of the data in the place of another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds, features_of, replaced
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("poisoning", "swap-x", source="Lu et al. (2022), section 5, the baseline Swap-X")
@dataclass(frozen=True)
class SwapX:
    """A random row gets the features of a random row of another class and keeps its own."""

    relation: ClassVar[Relation] = Relation.REPLACE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws the rows, and one row whose features all of them get."""
        label = data.labels[rng.integers(len(data))]
        of_class, others = np.flatnonzero(data.labels == label), np.flatnonzero(data.labels != label)
        require(len(of_class) >= copies and len(others) > 0, "swap-x needs rows of two classes", rows=len(data))
        rows = np.sort(rng.choice(of_class, copies, replace=False))
        taken = features_of(data)[rng.choice(others)]
        honest = data.take(rows)
        swapped = honest.with_(features=np.repeat(taken[None], copies, 0))
        points = np.concatenate([taken[None], features_of(honest)])
        return replaced(data, rows, honest, swapped, points)
