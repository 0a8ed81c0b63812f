"""Poisonings that flip classes, add records or replace records, and the search among all poisonings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dpaudit.claims import Claim, Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    Poisoning,
    Worlds,
    box,
    farther,
    features_of,
    for_learner,
    nearest_to_a_corner,
    other_class,
    replace_rows,
)
from dpaudit.engine.games.two_world.canaries import ClipBackdoor, last_direction
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import catalogue, load, register


@register("poisoning", "class-flip", source="Lu et al. (2022), section 4.1, naive Bayes")
@dataclass(frozen=True)
class ClassFlip:
    """Flip the class of the rows nearest to a corner of the box around the data.

    All of them have the class of the nearest row, so that their effects add up.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        nearest = nearest_to_a_corner(data)
        same = data.labels[nearest] == data.labels[nearest[0]]
        rows = np.concatenate([nearest[same], nearest[~same]])[:copies]
        honest = data.take(rows)
        flipped = honest.with_(labels=other_class(honest.labels, data.classes))
        return replace_rows(data, rows, honest, flipped, features_of(honest))


@register("poisoning", "corner-flip", source="Ours, after Lu et al. (2022) and ClipBKD: crafted records, labels differ")
@dataclass(frozen=True)
class CornerFlip:
    """Move some rows of the largest class to the corner farthest from the data in both worlds, and flip their class.

    Only a row in a corner moves a class mean as far as the box allows.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
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
        return replace_rows(data, rows, placed, flipped, corner[None])


MAX_DISTANCE_ROWS = 2_000
"""Largest number of rows in sums of distances; larger data sets are sampled."""


@register("poisoning", "farthest-flip", source="Lu et al. (2022), section 4.1, random forest")
@dataclass(frozen=True)
class FarthestFlip:
    """Flip the class of the row with the largest sum of L1 distances to the others, in the unit cube.

    Several records are copies of this row. They replace the rows nearest to it in both worlds.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        features = features_of(data).astype(np.float64)
        lower, upper = box(data)
        place = (features - lower) / np.maximum(upper - lower, 1e-12)
        reference_rows = (
            place
            if len(place) <= MAX_DISTANCE_ROWS
            else place[rng.choice(len(place), MAX_DISTANCE_ROWS, replace=False)]
        )
        total = np.array([np.abs(reference_rows - row).sum() for row in place])
        farthest = int(total.argmax())
        near = np.argsort(np.abs(place - place[farthest]).sum(1), kind="stable")[:copies]
        honest = data.take(np.full(copies, farthest))
        flipped = honest.with_(labels=other_class(honest.labels, data.classes))
        return replace_rows(data, near, honest, flipped, features_of(honest)[:1])


@register("poisoning", "clip-bkd", source="Jagielski et al. (2020), arXiv:2006.07709, Algorithm 2; its code")
@dataclass(frozen=True)
class ClipBackdoorPair:
    """Move some rows to the last principal direction in both worlds; in world 1 they have their least likely class.

    Models predict at that point, at zero, and at some rows of the data.

    Attributes:
        norm: Length of the point, > 0; None for the median length of the rows.
        asked: Number of rows of the data at which models predict, >= 0.
    """

    relation: ClassVar[Relation] = Relation.LABEL

    norm: float | None = None
    asked: int = 4

    def __post_init__(self) -> None:
        require(self.asked >= 0, "asked must be >= 0", asked=self.asked)
        ClipBackdoor(norm=self.norm)

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        challenge = ClipBackdoor(norm=self.norm).choose(data, None, rng).examples
        rows = np.sort(rng.choice(len(data), copies, replace=False))
        poisoned = challenge.take(np.zeros(copies, np.int64))
        honest = poisoned.with_(labels=other_class(poisoned.labels, data.classes))
        extra_points = features_of(data)[rng.choice(len(data), min(self.asked, len(data)), replace=False)]
        point = features_of(challenge)
        return replace_rows(data, rows, honest, poisoned, np.concatenate([point, np.zeros_like(point), extra_points]))


@register("poisoning", "remove", source="Lu et al. (2022), section 5: data sets that differ in length")
@dataclass(frozen=True)
class Remove:
    """Remove the rows nearest to a corner of the box around the data from world 0."""

    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        rows = nearest_to_a_corner(data)[:copies]
        present = data.take(rows)
        return replace_rows(data, rows, None, present, features_of(present))


@register("poisoning", "coming", source="Ours: the records of another poisoning, under add/remove neighbours")
@dataclass(frozen=True)
class InsertRecords:
    """Add the records that another poisoning has in world 1 to world 1 only.

    Attributes:
        of: The other poisoning; it makes label or replace neighbours.
    """

    relation: ClassVar[Relation] = Relation.ADD_REMOVE

    of: Poisoning = field(default=CornerFlip(), metadata={"kind": "poisoning"})

    def __post_init__(self) -> None:
        fits = not getattr(self.of, "searches", False) and self.of.relation is not Relation.ADD_REMOVE
        require(fits, "of must be a poisoning that makes label or replace neighbours", of=type(self.of).__name__)

    @property
    def farther(self) -> InsertRecords | None:
        """Poisoning with records farther outside the box; None if they are inside the box."""
        of = farther(self.of)
        return None if of is None else replace(self, of=of)

    def for_mechanism(self, mechanism: Any) -> InsertRecords:
        return replace(self, of=for_learner(self.of, mechanism))

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        both = self.of.worlds(data, copies, rng)
        rows = both.rows.take(both.in_d_prime)
        return Worlds(rows, both.in_d[both.in_d_prime], np.ones(len(rows), np.bool_), both.points)


@register("poisoning", "far-corner", source="Lu et al. (2022), section 4.1, naive Bayes, the attack on the means")
@dataclass(frozen=True)
class FarCorner:
    """Move rows of a class from the corner of the box nearest to the class to the opposite corner; their class stays.

    The class is the one whose mean is nearest to a corner, in the unit cube. Its rows nearest to that corner are placed
    in it in world 0.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        lower, upper = box(data)
        place = (features_of(data) - lower) / np.maximum(upper - lower, 1e-12)
        of_class = [data.labels == label for label in range(data.classes)]
        of_class = [members for members in of_class if members.sum() >= copies]
        require(bool(of_class), "far-corner needs `copies` rows of one class", copies=copies)
        means = [place[members].mean(0) for members in of_class]
        best = int(np.argmin([np.linalg.norm(mean - np.round(mean)) for mean in means]))
        corner = np.round(means[best])
        distance = np.where(of_class[best], np.linalg.norm(place - corner, axis=1), np.inf)
        rows = np.sort(np.argsort(distance, kind="stable")[:copies])
        near, far = np.where(corner > 0, upper, lower), np.where(corner > 0, lower, upper)
        honest, moved = (data.take(rows).with_(features=np.repeat(point[None], copies, 0)) for point in (near, far))
        return replace_rows(data, rows, honest, moved, np.stack([near, far]))


@register("poisoning", "swap-x", source="Lu et al. (2022), section 5, the baseline Swap-X")
@dataclass(frozen=True)
class SwapX:
    """Give a random row the features of a random row of another class; its class stays."""

    relation: ClassVar[Relation] = Relation.REPLACE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        label = data.labels[rng.integers(len(data))]
        of_class, others = np.flatnonzero(data.labels == label), np.flatnonzero(data.labels != label)
        require(len(of_class) >= copies and len(others) > 0, "swap-x needs rows of two classes", rows=len(data))
        rows = np.sort(rng.choice(of_class, copies, replace=False))
        donor = features_of(data)[rng.choice(others)]
        honest = data.take(rows)
        swapped = honest.with_(features=np.repeat(donor[None], copies, 0))
        points = np.concatenate([donor[None], features_of(honest)])
        return replace_rows(data, rows, honest, swapped, points)


@register("poisoning", "curvature", source="Ours: the Jacobian of objective perturbation, Chaudhuri et al. (2011)")
@dataclass(frozen=True)
class Curvature:
    """Set the longest rows to zero in world 0; in world 1 they have full length in the direction of least variance.

    Zero rows add nothing to the curvature x x^T of a regression; long rows in that direction add most. The fit without
    noise may be equal in both worlds, but the density of the noise differs.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        flat = features_of(data).astype(np.float64)
        lengths = np.linalg.norm(flat, axis=1)
        rows = np.argsort(-lengths, kind="stable")[:copies]
        point = (lengths.max() * last_direction(np.delete(flat, rows, 0))).astype(np.float32)[None]
        honest = data.take(rows)
        zero_rows = honest.with_(features=np.zeros((copies, flat.shape[1]), np.float32))
        long = honest.with_(features=np.repeat(point, copies, 0))
        return replace_rows(data, rows, zero_rows, long, np.concatenate([point, np.zeros_like(point)]))


INCLUDED: Mapping[Relation, tuple[Relation, ...]] = {
    Relation.LABEL: (Relation.LABEL,),
    Relation.REPLACE: (Relation.LABEL, Relation.REPLACE),
    Relation.ADD_REMOVE: (Relation.ADD_REMOVE,),
}
"""Relations of poisonings that make neighbours of each relation: a changed label is a replaced record."""
ORDER = {"opposite-corners": 0, "shadow-adversarial": 2}
"""Positions in the order of a search; others come in between (1), sorted by name."""


@register("poisoning", "automatic", source="Lu et al. (2022), section 4.1; the search by trainings is ours")
@dataclass(frozen=True)
class Automatic:
    """Try all fitting poisonings on a share of the search trainings, and use the one with the strongest evidence.

    Most of these trainings are on the best two candidates. Candidates, attack and verdict use separate trainings, so
    the search costs no confidence. Poisonings that refuse the data or whose trainings all fail are skipped. So are
    records outside the box around the data, unless the code limits its input.

    Attributes:
        relation: Relation of the data sets: "label", "replace" (includes "label") or "add-remove"; None for the
            relation of the claim.
        share: Share of the game's search trainings that the search uses, in (0, 1).
        among: Names of the poisonings to try; () for all, or as many as the trainings allow.
    """

    searches: ClassVar[bool] = True

    relation: Relation | None = None
    share: float = 0.5
    among: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", None if self.relation is None else Relation(self.relation))
        object.__setattr__(self, "among", tuple(self.among))
        require(0 < self.share < 1, "share must be in (0, 1)", share=self.share)
        registered_name = getattr(type(self), "registered_name", "")
        require(
            registered_name not in self.among,
            f"among must name poisonings other than {registered_name}",
            among=self.among,
        )

    def for_claim(self, claim: Claim) -> Automatic:
        """Return the search for the relation of the claim, unless a relation is set."""
        return self if self.relation is not None else replace(self, relation=claim.relation.of_two_inputs)

    def candidates(self, mechanism: Any) -> dict[str, Poisoning]:
        """Return the poisonings to try by name, the most general first, those that train networks last."""
        relation = self.relation or Relation.LABEL
        names = self.among or sorted(catalogue("poisoning"), key=lambda name: (ORDER.get(name, 1), name))
        poisonings: dict[str, Any] = {}
        for name in names:
            part: Any = load("poisoning", name)
            if not getattr(part, "searches", False):
                poisonings |= part.variants() if hasattr(part, "variants") else {name: part()}
        fitting: dict[str, Poisoning] = {
            name: for_learner(poisoning, mechanism)
            for name, poisoning in poisonings.items()
            if poisoning.relation in INCLUDED[relation]
        }
        if relation is Relation.ADD_REMOVE:
            fitting |= {
                f"coming {name}": for_learner(InsertRecords(poisoning), mechanism)
                for name, poisoning in poisonings.items()
                if poisoning.relation is not Relation.ADD_REMOVE
            }
            fitting.pop(InsertRecords.registered_name, None)  # type: ignore[attr-defined]  # InsertRecords itself
        require(bool(fitting), f"no poisoning makes {relation} neighbours", among=names)
        return fitting
