"""Two records that pull a logistic regression in opposite directions, one in either world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.influence import (
    PENALTY,
    Surrogate,
    penalty_of,
    with_bias,
    within_length,
)
from dpaudit.engine.games.neighbours.poisonings.protocol import Worlds, features_of, nearest_to_a_corner, replaced
from dpaudit.engine.games.two_world.canaries import last_direction
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

Floats = NDArray[np.float64]

MOVED = ("coefficients", "slope")
ROUNDS = 6
"""Of ascent by one record and the other in turn."""


@register(
    "poisoning",
    "opposing-records",
    source="Ours: influence functions as Lu et al. (2022), of both worlds' records at once",
)
@dataclass(frozen=True)
class OpposingRecords:
    """In either world some rows are a crafted record; the two are those whose influences differ most.

    A changed label moves the slope of a logistic loss by the length of the record. Two records that a large coefficient
    puts on the wrong side, and that lie apart across it, move it by nearly twice as much, all that noise is paid for.
    Of class 1 against the others.

    Attributes:
        penalty: Of the squared length in the mean objective, > 0; None takes the learner's, else 0.01.
        moved: What is moved most: "coefficients", to which output perturbation adds noise, or the "slope" of the
            objective, to which objective perturbation does.
        steps: Of each ascent, >= 1.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    penalty: float | None = None
    moved: Literal["coefficients", "slope"] = "coefficients"
    steps: int = 60

    def __post_init__(self) -> None:
        require(self.penalty is None or self.penalty > 0, "penalty must be > 0", penalty=self.penalty)
        require(self.moved in MOVED, f"moved must be one of {', '.join(MOVED)}", moved=self.moved)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)

    def for_mechanism(self, mechanism: Any) -> OpposingRecords:
        """With the learner's penalty, where it states one and none was given."""
        return self if self.penalty is not None else replace(self, penalty=penalty_of(mechanism))

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws nothing."""
        surrogate = Surrogate.of(data, 1, self.penalty or PENALTY)
        if self.moved == "slope":
            surrogate = replace(surrogate, inverse=np.eye(len(surrogate.weights)))
        flat = features_of(data).astype(np.float64)
        start = surrogate.longest * last_direction(flat)
        either = (True, False)
        found = [self._apart(surrogate, start, (first, second)) for first in either for second in either]
        (zero, one), (zero_class, one_class) = max(found, key=lambda pair: _distance(surrogate, *pair))
        rows = np.sort(nearest_to_a_corner(data)[:copies])
        taken = data.take(rows)
        points = np.stack([zero, one]).astype(np.float32)
        other = next((int(label) for label in data.labels if label != 1), 0)

        def crafted(point: NDArray[np.float32], positive: bool) -> Examples:
            labels = np.full(copies, 1 if positive else other, np.int64)
            return taken.with_(features=np.repeat(point[None], copies, 0), labels=labels)

        return replaced(data, rows, crafted(points[0], zero_class), crafted(points[1], one_class), points)

    def _apart(
        self, surrogate: Surrogate, start: Floats, classes: tuple[bool, bool]
    ) -> tuple[tuple[Floats, Floats], tuple[bool, bool]]:
        """The two records of these classes, each of shape (d,)."""
        points = [start, -start]
        for turn in range(ROUNDS):
            moving = turn % 2
            still = surrogate.influence(points[1 - moving], classes[1 - moving])
            points[moving] = self._ascended(surrogate, points[moving], classes[moving], still)
        return (points[0], points[1]), classes

    def _ascended(self, surrogate: Surrogate, point: Floats, positive: bool, other: Floats) -> Floats:
        """Farther from the other's influence with every step that is taken."""
        size = surrogate.longest / 2
        here = _squared(surrogate.influence(point, positive) - other)
        for _ in range(self.steps):
            slope = _slope(surrogate, point, positive, other)
            length = float(np.linalg.norm(slope))
            if length == 0 or size < 1e-6 * surrogate.longest:
                break
            there = within_length(point + size * slope / length, surrogate.longest)
            value = _squared(surrogate.influence(there, positive) - other)
            if value > here:
                point, here, size = there, value, 2 * size
            else:
                size /= 2
        return point


def _distance(surrogate: Surrogate, points: tuple[Floats, Floats], classes: tuple[bool, bool]) -> float:
    first, second = (surrogate.influence(point, own) for point, own in zip(points, classes, strict=True))
    return _squared(first - second)


def _squared(vector: Floats) -> float:
    return float(vector @ vector)


def _slope(surrogate: Surrogate, point: Floats, positive: bool, other: Floats) -> Floats:
    """The gradient of |influence - other|^2 by the point, shape (d,)."""
    row = with_bias(point[None].astype(np.float64))[0]
    likely = 1 / (1 + np.exp(-float(row @ surrogate.weights)))
    apart = surrogate.inverse @ (surrogate.influence(point, positive) - other)
    whole = 2 * (float(positive) - likely) * apart - 2 * likely * (1 - likely) * float(row @ apart) * surrogate.weights
    slope: Floats = whole[:-1]
    return slope
