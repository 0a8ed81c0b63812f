"""Poisonings of whole records: those of the data that come, go or change places, and what others put there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.labels import CornerFlip
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    Poisoning,
    Worlds,
    features_of,
    fitted,
    nearest_to_a_corner,
    replaced,
)
from dpaudit.engine.games.two_world.canaries import last_direction
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@register("poisoning", "remove", source="Lu et al. (2022), section 5: data sets that differ in length")
@dataclass(frozen=True)
class Remove:
    """The rows nearest to a corner of the box around the data are in world 1 only."""

    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
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
        return replace(self, of=fitted(self.of, mechanism))

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws what the other poisoning draws."""
        both = self.of.worlds(data, copies, rng)
        kept = both.rows.take(both.in_d_prime)
        return Worlds(kept, both.in_d[both.in_d_prime], np.ones(len(kept), np.bool_), both.points)


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


@register("poisoning", "curvature", source="Ours: the Jacobian of objective perturbation, Chaudhuri et al. (2011)")
@dataclass(frozen=True)
class Curvature:
    """The longest rows are zero in world 0; in world 1 they are as long as ever, where the others vary least.

    A row of zeros adds nothing to the curvature x x^T of a regression, a long one where there is little adds most.
    Without noise both may fit alike: what changes is how densely the noise is squeezed.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        flat = features_of(data).astype(np.float64)
        lengths = np.linalg.norm(flat, axis=1)
        rows = np.argsort(-lengths, kind="stable")[:copies]
        point = (lengths.max() * last_direction(np.delete(flat, rows, 0))).astype(np.float32)[None]
        honest = data.take(rows)
        nothing = honest.with_(features=np.zeros((copies, flat.shape[1]), np.float32))
        long = honest.with_(features=np.repeat(point, copies, 0))
        return replaced(data, rows, nothing, long, np.concatenate([point, np.zeros_like(point)]))
