"""Poisonings: choices of the records in which the two data sets of a game differ (registered as "poisoning").

The adversary knows the data and the learner and may choose any two neighbouring data sets, so every choice is valid.
A good choice gives a larger bound. A learner that limits records (to a box, a ball) limits the choice. Recipe:
`docs/guides/ml-audit.md`.
Source: Lu et al. (2022), "A General Framework for Auditing Differentially Private Machine Learning", section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples


class Poisoning(Protocol):
    """Function that makes two neighbouring data sets from one."""

    @property
    def relation(self) -> Relation:
        """Relation of the data sets: different labels, replaced records, or added records."""
        ...

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Return D (world 0) and D' (world 1), which differ in `copies` records.

        Args:
            data: n rows of numbers.
            copies: Number of records, in 1 .. n - 1.
            rng: Source of all randomness.
        Raises: InputError if the data do not fit.
        """
        ...


@runtime_checkable
class InformedPoisoning(Protocol):
    """A poisoning that depends on the learner."""

    def for_mechanism(self, mechanism: Any) -> Poisoning:
        """Return the poisoning for this learner."""
        ...


@runtime_checkable
class PoisoningSearch(Protocol):
    """Several poisonings, of which the game uses the one with the strongest evidence on search trainings."""

    @property
    def relation(self) -> Relation | None:
        """Relation of the data sets of all candidates; None for the relation of the claim."""
        ...

    @property
    def share(self) -> float:
        """Share of the game's search trainings that the search uses, in (0, 1)."""
        ...

    @property
    def among(self) -> tuple[str, ...]:
        """Names of candidates that must be tried; () for as many as the trainings allow."""
        ...

    def for_claim(self, claim: Claim) -> PoisoningSearch:
        """Return the search for the neighbouring relation of the claim."""
        ...

    def candidates(self, mechanism: Any) -> dict[str, Poisoning]:
        """Return the candidates by name, the most general first."""
        ...


def farther(poisoning: Poisoning) -> Poisoning | None:
    """Return the poisoning with records farther outside the box; None if its records are inside the box."""
    variant: Poisoning | None = getattr(poisoning, "farther", None)
    return variant


def for_learner(poisoning: Poisoning, mechanism: Any) -> Poisoning:
    """Return the poisoning, specialised for the mechanism if it is an `InformedPoisoning`."""
    return poisoning.for_mechanism(mechanism) if isinstance(poisoning, InformedPoisoning) else poisoning


def other_class(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    return (labels + 1) % classes


def box(data: Examples) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the lower and upper corner of the smallest box around the data, each of shape (d,)."""
    features = features_of(data)
    return features.min(0), features.max(0)


def nearest_to_a_corner(data: Examples) -> NDArray[np.int64]:
    """Return the rows in order of their distance to the nearest corner, with the box scaled to a unit cube."""
    lower, upper = box(data)
    side = np.maximum(upper - lower, 1e-12)
    place = (features_of(data) - lower) / side
    return np.argsort(np.linalg.norm(np.minimum(place, 1 - place), axis=1), kind="stable")


@dataclass(frozen=True, eq=False)
class Worlds:
    """D and D' as marked rows of one table, in the order of the data; common rows are stored once."""

    rows: Examples  # all rows of D or D'; features of shape (n, d)
    in_d: NDArray[np.bool_]  # mask of the rows of D, shape (n,)
    in_d_prime: NDArray[np.bool_]  # mask of the rows of D', shape (n,)
    # points at which models predict, if the attacker does not see parameters, shape (m, d)
    points: NDArray[np.float32] = field(metadata={"stored": "float32"})
    # change of the summary from D to D' by trainings with one seed, shape (width,); empty if unknown
    move: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32), metadata={"stored": "float32"})
    name: str = ""  # name of the poisoning, or description of the data sets

    def __post_init__(self) -> None:
        count = len(self.rows)
        require(self.in_d.shape == (count,) == self.in_d_prime.shape, "each row must be marked for both worlds")
        require(bool(self.in_d.any() and self.in_d_prime.any()), "each world must have a row")

    @cached_property
    def world_zero(self) -> Examples:
        return self.rows.take(self.in_d)

    @cached_property
    def world_one(self) -> Examples:
        return self.rows.take(self.in_d_prime)

    def clipped(self, lower: float, upper: float) -> Worlds:
        """Return the data sets with all features clipped to a range; claims do not cover records outside it."""
        rows = self.rows.with_(features=np.clip(features_of(self.rows), lower, upper), labels=self.rows.labels)
        return replace(self, rows=rows, points=np.clip(self.points, lower, upper))

    def shortened_to(self, longest: float) -> Worlds:
        """Return the data sets with longer rows shortened to a length; `points` stay unchanged."""
        return replace(self, rows=shortened_rows(self.rows, longest))

    def world(self, truth: bool) -> Examples:
        return self.world_one if truth else self.world_zero

    def row_numbers(self, truth: bool) -> NDArray[np.int64]:
        """Return the positions of the rows of a world, ascending."""
        return np.flatnonzero(self.in_d_prime if truth else self.in_d)


def features_of(data: Examples) -> NDArray[np.float32]:
    """Return the features, an array of shape (n, d); InputError for other features."""
    require(
        isinstance(data.features, np.ndarray) and data.features.ndim == 2, "features must be an array of shape (n, d)"
    )
    assert isinstance(data.features, np.ndarray)
    return data.features


def shortened_rows(rows: Examples, longest: float) -> Examples:
    """Return the rows, longer ones shortened to a length."""
    features = features_of(rows)
    length = np.maximum(np.linalg.norm(features, axis=1, keepdims=True) / longest, 1).astype(np.float32)
    return rows.with_(features=features / length)


def replace_rows(
    data: Examples,
    rows: NDArray[np.int64],
    rows_zero: Examples | None,
    rows_one: Examples | None,
    points: NDArray[np.float32],
) -> Worlds:
    """Return data sets that differ in k rows: `rows_zero` replaces them in D and `rows_one` in D'; None omits them."""
    unchanged = np.setdiff1d(np.arange(len(data)), rows)
    parts = [data.take(unchanged), *(part for part in (rows_zero, rows_one) if part is not None)]
    counts = [len(part) for part in parts]
    place = np.concatenate([unchanged, *(rows for part in (rows_zero, rows_one) if part is not None)])
    mark = np.repeat([0, *([1] if rows_zero is not None else []), *([2] if rows_one is not None else [])], counts)
    order = np.lexsort((mark, place))
    together = data.with_(
        features=np.concatenate([features_of(part) for part in parts])[order],
        labels=np.concatenate([part.labels for part in parts])[order],
    )
    return Worlds(together, mark[order] != 2, mark[order] != 1, points)
