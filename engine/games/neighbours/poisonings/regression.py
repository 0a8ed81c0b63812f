"""Poisonings with records that move the coefficients of a logistic regression."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    Worlds,
    features_of,
    nearest_to_a_corner,
    other_class,
    replace_rows,
)
from dpaudit.engine.games.two_world.canaries import last_direction
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

Floats = NDArray[np.float64]

PENALTY = 0.01
"""Penalty of the surrogate if neither the user nor the learner states one."""
MOVED_CHOICES = ("coefficients", "slope")
ASCENT_ROUNDS = 6
"""Number of alternating ascents of the two records."""


@dataclass(frozen=True, eq=False)
class Surrogate:
    """Logistic regression without privacy, of one class against the others."""

    weights: Floats  # weights, then the bias, shape (d + 1,)
    inverse: Floats  # inverse Hessian of the summed objective, shape (d + 1, d + 1)
    longest: float  # largest length of a row, without the bias

    @classmethod
    def fit(cls, data: Examples, label: int, penalty: float) -> Surrogate:
        """Return the minimiser of the mean loss plus half the penalty times the squared length of all weights."""
        from sklearn.linear_model import LogisticRegression

        rows = np.hstack([features_of(data).astype(np.float64), np.ones((len(data), 1))])
        regression = LogisticRegression(C=1 / (penalty * len(rows)), fit_intercept=False, tol=1e-8, max_iter=2000)
        weights = np.asarray(regression.fit(rows, data.labels == label).coef_[0], np.float64)
        probability = special.expit(rows @ weights)
        hessian = (rows * (probability * (1 - probability))[:, None]).T @ rows + penalty * len(rows) * np.eye(
            len(weights)
        )
        longest = float(np.linalg.norm(rows[:, :-1], axis=1).max())
        return cls(weights, np.asarray(np.linalg.inv(hessian), np.float64), longest)

    def influence(self, point: Floats, positive: bool) -> Floats:
        """Return the first-order change of the weights by an added record, shape (d + 1,)."""
        row = np.append(point, 1.0)
        return np.asarray((float(positive) - special.expit(row @ self.weights)) * (self.inverse @ row))


@dataclass(frozen=True)
class RegressionPoisoning:
    """Base of poisonings for a logistic regression of class 1 against the others.

    Attributes:
        penalty: Penalty on the squared length in the mean objective, > 0; None for the learner's penalty, or 0.01.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    penalty: float | None = None

    def __post_init__(self) -> None:
        require(self.penalty is None or self.penalty > 0, "penalty must be > 0", penalty=self.penalty)

    def for_mechanism(self, mechanism: Any) -> Self:
        stated = getattr(mechanism, "penalty", None)
        if self.penalty is None and isinstance(stated, int | float) and stated > 0:
            return replace(self, penalty=float(stated))
        return self

    def surrogate(self, data: Examples) -> Surrogate:
        return Surrogate.fit(data, 1, self.penalty or PENALTY)


@register("poisoning", "influence", source="Lu et al. (2022), section 4.1, logistic regression; Cook (1977)")
@dataclass(frozen=True)
class Influence(RegressionPoisoning):
    """Replace rows nearest to a corner by the record of another class that moves a logistic regression most.

    Gradient ascent of the squared influence starts at the mean of that class. The record is at most as long as the
    longest row.

    Attributes:
        steps: Number of ascent steps, >= 1.
        either_class: Also try a record of the class of the replaced rows, and for each class the mean of the other one
            as a start, which the paper does not; use the record that moves the regression most.
    """

    steps: int = 200
    either_class: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        surrogate = self.surrogate(data)
        nearest = nearest_to_a_corner(data)
        label = int(data.labels[nearest[0]])
        other = int(other_class(np.array([label]), data.classes)[0])
        same = data.labels[nearest] == label
        rows = np.concatenate([nearest[same], nearest[~same]])[:copies]
        classes = (other, label) if self.either_class else (other,)
        records = [(each, self._record(surrogate, data, each, start)) for each in classes for start in classes]
        chosen, point = max(records, key=lambda record: _squared(surrogate.influence(record[1], record[0] == 1)))
        honest = data.take(rows)
        crafted = np.repeat(point[None].astype(np.float32), copies, 0)
        poisoned = honest.with_(features=crafted, labels=np.full(copies, chosen, np.int64))
        return replace_rows(data, rows, honest, poisoned, np.concatenate([crafted[:1], features_of(honest)]))

    def _record(self, surrogate: Surrogate, data: Examples, label: int, start: int) -> Floats:
        """Return the features of the record with this label that ascent from the mean of class `start` ends at."""
        mean = features_of(data)[data.labels == start].mean(0).astype(np.float64)
        origin, longest = np.zeros(len(surrogate.weights)), surrogate.longest
        point = _within_length(mean, longest)
        return _ascend(surrogate, point, label == 1, origin, size=longest, max_size=2 * longest, steps=self.steps)


@register(
    "poisoning", "coefficient-target", source="Ma, Zhu and Hsu (2019), in the form of Lu et al. (2022), section 5"
)
@dataclass(frozen=True)
class CoefficientTarget(RegressionPoisoning):
    """Replace rows by a record that pulls the coefficients of a logistic regression in an orthogonal direction.

    The direction is the coefficient vector, rotated in the plane of its two largest coordinates. The record has this
    direction, the length of the longest row, and class 1, whose loss pulls along it.
    """

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        surrogate = self.surrogate(data)
        weights = surrogate.weights[:-1]
        require(len(weights) >= 2, "coefficient-target needs at least two features", features=len(weights))
        first, second = np.argsort(-np.abs(weights))[:2]
        turned = np.zeros(len(weights))
        turned[first], turned[second] = -weights[second], weights[first]
        point = surrogate.longest * turned / max(float(np.linalg.norm(turned)), 1e-300)
        rows = nearest_to_a_corner(data)[:copies]
        honest = data.take(rows)
        crafted = np.repeat(point[None].astype(np.float32), copies, 0)
        poisoned = honest.with_(features=crafted, labels=np.ones(copies, np.int64))
        return replace_rows(data, rows, honest, poisoned, np.concatenate([crafted[:1], features_of(honest)]))


@register(
    "poisoning",
    "opposing-records",
    source="Ours: influence functions as Lu et al. (2022), of both worlds' records at once",
)
@dataclass(frozen=True)
class OpposingRecords(RegressionPoisoning):
    """Replace some rows by one crafted record in each world, so that the influences of the two records differ most.

    A changed label moves the gradient of a logistic loss by the length of the record. Two misclassified records on
    opposite sides move it by nearly twice as much, which is the full sensitivity.

    Attributes:
        moved: Target of the influence: "coefficients", to which output perturbation adds noise, or "slope", the
            gradient of the objective, to which objective perturbation adds noise.
        steps: Number of steps of each ascent, >= 1.
    """

    moved: Literal["coefficients", "slope"] = "coefficients"
    steps: int = 60

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.moved in MOVED_CHOICES, f"moved must be one of {', '.join(MOVED_CHOICES)}", moved=self.moved)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        surrogate = self.surrogate(data)
        if self.moved == "slope":
            surrogate = replace(surrogate, inverse=np.eye(len(surrogate.weights)))
        flat = features_of(data).astype(np.float64)
        start = surrogate.longest * last_direction(flat)
        either = (True, False)
        pairs = [self._opposing_points(surrogate, start, (first, second)) for first in either for second in either]
        (point_zero, point_one), (zero_class, one_class) = max(pairs, key=lambda pair: _distance(surrogate, *pair))
        rows = np.sort(nearest_to_a_corner(data)[:copies])
        honest = data.take(rows)
        points = np.stack([point_zero, point_one]).astype(np.float32)
        other = next((int(label) for label in data.labels if label != 1), 0)

        def crafted(point: NDArray[np.float32], positive: bool) -> Examples:
            labels = np.full(copies, 1 if positive else other, np.int64)
            return honest.with_(features=np.repeat(point[None], copies, 0), labels=labels)

        return replace_rows(data, rows, crafted(points[0], zero_class), crafted(points[1], one_class), points)

    def _opposing_points(
        self, surrogate: Surrogate, start: Floats, classes: tuple[bool, bool]
    ) -> tuple[tuple[Floats, Floats], tuple[bool, bool]]:
        points = [start, -start]
        for turn in range(ASCENT_ROUNDS):
            moving = turn % 2
            still = surrogate.influence(points[1 - moving], classes[1 - moving])
            sizes = {"size": surrogate.longest / 2, "max_size": math.inf}
            points[moving] = _ascend(surrogate, points[moving], classes[moving], still, **sizes, steps=self.steps)
        return (points[0], points[1]), classes


def _distance(surrogate: Surrogate, points: tuple[Floats, Floats], classes: tuple[bool, bool]) -> float:
    first, second = (surrogate.influence(point, positive) for point, positive in zip(points, classes, strict=True))
    return _squared(first - second)


def _squared(vector: Floats) -> float:
    return float(vector @ vector)


def _ascend(
    surrogate: Surrogate, point: Floats, positive: bool, other: Floats, *, size: float, max_size: float, steps: int
) -> Floats:
    """Return a point, at most as long as the longest row, whose influence is far from `other`, another one.

    It is found by gradient ascent of the squared distance, with steps of at most `max_size`, the first of `size`.
    """

    def distance(at: Floats) -> float:
        return _squared(surrogate.influence(at, positive) - other)

    current, limit = distance(point), surrogate.longest
    for _ in range(steps):
        row = np.append(point, 1.0)
        probability = 1 / (1 + np.exp(-float(row @ surrogate.weights)))
        moved = surrogate.inverse @ (surrogate.influence(point, positive) - other)
        along = 2 * probability * (1 - probability) * float(row @ moved)
        direction = (2 * (float(positive) - probability) * moved - along * surrogate.weights)[:-1]
        length = float(np.linalg.norm(direction))
        if length == 0 or size < 1e-6 * limit:
            break
        candidate = _within_length(point + size * direction / length, limit)
        candidate_value = distance(candidate)
        if candidate_value > current:
            point, current, size = candidate, candidate_value, min(2 * size, max_size)
        else:
            size /= 2
    return point


def _within_length(point: Floats, limit: float) -> Floats:
    length = float(np.linalg.norm(point))
    return point if length <= limit else point * (limit / length)
