"""Poisonings: in which records the two worlds of the game `neighbours` differ (registered as "poisoning").

The adversary may choose any two neighbouring data sets, knowing the data and the learner, so every choice is valid; a
good one shows more. What a learner limits (a box, a ball) limits the records. Recipe: `docs/guides/ml-audit.md`.
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
    """Makes two neighbouring data sets from one."""

    @property
    def relation(self) -> Relation:
        """How they differ: in labels, in records replaced, or in records that come or go."""
        ...

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """D (world 0) and D' (world 1), which differ in `copies` records.

        Args:
            data: n rows of numbers.
            copies: In 1 .. n - 1.
            rng: What is drawn.
        Raises: InputError when the data do not fit.
        """
        ...


@runtime_checkable
class InformedPoisoning(Protocol):
    """A poisoning that knows which learner it is for."""

    def for_mechanism(self, mechanism: Any) -> Poisoning:
        """The poisoning for this learner."""
        ...


@runtime_checkable
class PoisoningSearch(Protocol):
    """Several poisonings, of which the game takes what shows most on trainings of their own."""

    @property
    def relation(self) -> Relation | None:
        """How the two data sets differ, whichever is taken; None takes the claim's."""
        ...

    @property
    def share(self) -> float:
        """Of the search trainings of the game, what is spent on trying."""
        ...

    @property
    def among(self) -> tuple[str, ...]:
        """What must be tried, by name; () leaves out the last candidates where trainings are too few for all."""
        ...

    def for_claim(self, claim: Claim) -> PoisoningSearch:
        """The search among neighbours that the claim speaks of."""
        ...

    def candidates(self, mechanism: Any) -> dict[str, Poisoning]:
        """What is tried, by name, the most general first."""
        ...


def farther(poisoning: Poisoning) -> Poisoning | None:
    """The same with records farther beyond the box; None for a poisoning whose records stay within."""
    variant: Poisoning | None = getattr(poisoning, "farther", None)
    return variant


def for_learner(poisoning: Poisoning, mechanism: Any) -> Poisoning:
    """The poisoning, told which learner it is for if it asks for it."""
    return poisoning.for_mechanism(mechanism) if isinstance(poisoning, InformedPoisoning) else poisoning


def other_class(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    return (labels + 1) % classes


def box(data: Examples) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The smallest box around the data: lower and upper corner, each of shape (d,)."""
    features = features_of(data)
    return features.min(0), features.max(0)


def nearest_to_a_corner(data: Examples) -> NDArray[np.int64]:
    """The rows in the order of their distance to the nearest corner of the box, that of the sides counting as 1."""
    lower, upper = box(data)
    side = np.maximum(upper - lower, 1e-12)
    place = (features_of(data) - lower) / side
    return np.argsort(np.linalg.norm(np.minimum(place, 1 - place), axis=1), kind="stable")


@dataclass(frozen=True, eq=False)
class Worlds:
    """D and D' as marked rows of one table, so that a row of both is held once, and the order is that of the data."""

    rows: Examples  # all rows of either; features of shape (n, d)
    in_d: NDArray[np.bool_]  # which are in D, shape (n,)
    in_d_prime: NDArray[np.bool_]  # which are in D', shape (n,)
    # what trained models are asked about, where no parameters are seen, shape (m, d)
    points: NDArray[np.float32] = field(metadata={"stored": "float32"})

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
        """The same with every number brought into a range: a claim says nothing of records outside of it."""
        rows = self.rows.with_(features=np.clip(features_of(self.rows), lower, upper), labels=self.rows.labels)
        return replace(self, rows=rows, points=np.clip(self.points, lower, upper))

    def shortened_to(self, longest: float) -> Worlds:
        """The same with every longer row, but no point that is asked about, shortened to a length."""
        features = features_of(self.rows)
        length = np.maximum(np.linalg.norm(features, axis=1, keepdims=True) / longest, 1).astype(np.float32)
        return replace(self, rows=self.rows.with_(features=features / length))

    def world(self, truth: bool) -> Examples:
        return self.world_one if truth else self.world_zero

    def row_numbers(self, truth: bool) -> NDArray[np.int64]:
        """Which rows the world has, ascending."""
        return np.flatnonzero(self.in_d_prime if truth else self.in_d)


def features_of(data: Examples) -> NDArray[np.float32]:
    """Features as an array of shape (n, d)."""
    require(
        isinstance(data.features, np.ndarray) and data.features.ndim == 2, "features must be an array of shape (n, d)"
    )
    assert isinstance(data.features, np.ndarray)
    return data.features


def replace_rows(
    data: Examples,
    rows: NDArray[np.int64],
    rows_zero: Examples | None,
    rows_one: Examples | None,
    points: NDArray[np.float32],
) -> Worlds:
    """Worlds that differ in k rows: `zero` stands in their places in D and `one` in D'; None leaves the places out."""
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
