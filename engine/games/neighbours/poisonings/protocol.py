"""Poisonings: in which records the two worlds of the game `neighbours` differ (registered as "poisoning").

The adversary may choose any two neighbouring data sets, knowing the data and the learner, so every choice is valid; a
good one shows more. The recipe: 1. sum the learner up as a vector; 2. take its model without noise; 3. find the records
that move that vector most. What a learner limits (a box, a ball) limits the records. `docs/guides/ml-audit.md` has an
example.

Source: Lu et al. (2022), "A General Framework for Auditing Differentially Private Machine Learning", section 4.1.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.worlds import Worlds, features_of
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
    def relation(self) -> Relation:
        """How the two data sets differ, whichever is taken."""
        ...

    @property
    def share(self) -> float:
        """Of the search trainings of the game, what is spent on trying."""
        ...

    def candidates(self, mechanism: Any) -> dict[str, Poisoning]:
        """What is tried, by name."""
        ...


def fitted(poisoning: Poisoning, mechanism: Any) -> Poisoning:
    """The poisoning, told which learner it is for if it asks for it."""
    return poisoning.for_mechanism(mechanism) if isinstance(poisoning, InformedPoisoning) else poisoning


def other_class(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """The next class of each label."""
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
