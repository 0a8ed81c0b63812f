"""Records that are there or not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.class_flip import CornerFlip
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning, fitted, nearest_to_a_corner
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds, features_of, replaced
from dpaudit.errors import require
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


@register("poisoning", "coming", source="Ours: the records of another poisoning, under add/remove neighbours")
@dataclass(frozen=True)
class InsertRecords:
    """The records that another poisoning puts into world 1 are there in world 1 only; nothing takes their place.

    Attributes:
        of: Where the records come from; one of label or replace neighbours.
    """

    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    of: Poisoning = field(default=CornerFlip(), metadata={"kind": "poisoning"})

    def __post_init__(self) -> None:
        fits = not getattr(self.of, "searches", False) and self.of.relation is not Relation.ADD_REMOVE
        require(fits, "of must be a poisoning that makes label or replace neighbours", of=type(self.of).__name__)

    def for_mechanism(self, mechanism: Any) -> InsertRecords:
        """With that poisoning fitted to the mechanism."""
        return replace(self, of=fitted(self.of, mechanism))

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws what the other poisoning draws.

        Raises: InputError where that one does.
        """
        both = self.of.worlds(data, copies, rng)
        kept = both.rows.take(both.in_d_prime)
        return Worlds(kept, both.in_d[both.in_d_prime], np.ones(len(kept), np.bool_), both.points)
