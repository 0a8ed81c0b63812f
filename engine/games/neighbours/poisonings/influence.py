"""Records that move a logistic regression most, by its influence function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.poisonings.protocol import (
    Worlds,
    features_of,
    nearest_to_a_corner,
    other_class,
    replaced,
)
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

Floats = NDArray[np.float64]

PENALTY = 0.01
"""Of the surrogate, where neither the user nor the learner says."""


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A logistic regression without privacy: of the class that is told from the others.

    Attributes:
        weights: The bias last, shape (d + 1,).
        inverse: Of the Hessian of the summed objective, shape (d + 1, d + 1).
        longest: Largest length of a row, without the bias.
    """

    weights: Floats
    inverse: Floats
    longest: float

    @classmethod
    def of(cls, data: Examples, label: int, penalty: float) -> Surrogate:
        """Fitted to the data: J is the mean loss and half the penalty times the squared length of all weights."""
        from sklearn.linear_model import LogisticRegression

        rows = with_bias(features_of(data))
        fitted = LogisticRegression(C=1 / (penalty * len(rows)), fit_intercept=False, tol=1e-8, max_iter=2000)
        weights = np.asarray(fitted.fit(rows, data.labels == label).coef_[0], np.float64)
        likely = _expit(rows @ weights)
        hessian = (rows * (likely * (1 - likely))[:, None]).T @ rows + penalty * len(rows) * np.eye(len(weights))
        longest = float(np.linalg.norm(rows[:, :-1], axis=1).max())
        return cls(weights, np.asarray(np.linalg.inv(hessian), np.float64), longest)

    def influence(self, point: Floats, positive: bool) -> Floats:
        """What adding a record does to the weights, to first order, shape (d + 1,)."""
        row = np.append(point, 1.0)
        moved: Floats = (float(positive) - _expit(row @ self.weights)) * (self.inverse @ row)
        return moved


def penalty_of(mechanism: Any) -> float | None:
    """The penalty that a learner states, of the squared length of its coefficients; None where it states none."""
    stated = getattr(mechanism, "penalty", None)
    return float(stated) if isinstance(stated, int | float) and stated > 0 else None


def with_bias(features: NDArray[Any]) -> Floats:
    """Rows with a last column of ones, float64."""
    return np.hstack([features.astype(np.float64), np.ones((len(features), 1))])


def _expit(value: Floats) -> Floats:
    from scipy.special import expit

    likely: Floats = expit(value)
    return likely


@register("poisoning", "influence", source="Lu et al. (2022), section 4.1, logistic regression; Cook (1977)")
@dataclass(frozen=True)
class Influence:
    """Rows nearest to a corner become the record of the other class that moves a logistic regression most.

    From the mean of the other class, ascent of the squared influence; the record stays within the length of the longest
    row. Of class 1 against the others.

    Attributes:
        penalty: Of the squared length in the mean objective, > 0; None takes the learner's, else 0.01.
        steps: Of the ascent, >= 1.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    penalty: float | None = None
    steps: int = 200

    def __post_init__(self) -> None:
        require(self.penalty is None or self.penalty > 0, "penalty must be > 0", penalty=self.penalty)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)

    def for_mechanism(self, mechanism: Any) -> Influence:
        """With the learner's penalty, where it states one and none was given."""
        return self if self.penalty is not None else replace(self, penalty=penalty_of(mechanism))

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws nothing."""
        surrogate = Surrogate.of(data, 1, self.penalty or PENALTY)
        nearest = nearest_to_a_corner(data)
        label = int(data.labels[nearest[0]])
        other = int(other_class(np.array([label]), data.classes)[0])
        same = data.labels[nearest] == label
        rows = np.concatenate([nearest[same], nearest[~same]])[:copies]
        start = features_of(data)[data.labels == other].mean(0).astype(np.float64)
        point = self.ascended(surrogate, start, other == 1)
        honest = data.take(rows)
        crafted = np.repeat(point[None].astype(np.float32), copies, 0)
        poisoned = honest.with_(features=crafted, labels=np.full(copies, other, np.int64))
        return replaced(data, rows, honest, poisoned, np.concatenate([crafted[:1], features_of(honest)]))

    def ascended(self, surrogate: Surrogate, start: Floats, positive: bool) -> Floats:
        """The record, shape (d,); the squared influence never falls from step to step."""
        limit = surrogate.longest
        point, size = within_length(start, limit), limit
        for _ in range(self.steps):
            here = _squared(surrogate, point, positive)
            slope = _slope(surrogate, point, positive)
            length = float(np.linalg.norm(slope))
            if length == 0 or size < 1e-6 * limit:
                break
            there = within_length(point + size * slope / length, limit)
            if _squared(surrogate, there, positive) > here:
                point, size = there, min(2 * size, 2 * limit)
            else:
                size /= 2
        return point


def _squared(surrogate: Surrogate, point: Floats, positive: bool) -> float:
    moved = surrogate.influence(point, positive)
    return float(moved @ moved)


def _slope(surrogate: Surrogate, point: Floats, positive: bool) -> Floats:
    """The gradient of the squared influence by the point, shape (d,)."""
    row = np.append(point, 1.0)
    likely = float(_expit(np.asarray(row @ surrogate.weights)))
    wrong, square = float(positive) - likely, surrogate.inverse @ surrogate.inverse
    spread = float(row @ square @ row)
    whole = -2 * wrong * likely * (1 - likely) * spread * surrogate.weights + 2 * wrong**2 * (square @ row)
    slope: Floats = whole[:-1]
    return slope


def within_length(point: Floats, limit: float) -> Floats:
    """The point, shortened to the limit."""
    length = float(np.linalg.norm(point))
    return point if length <= limit else point * (limit / length)


@register(
    "poisoning", "coefficient-target", source="Ma, Zhu and Hsu (2019), in the form of Lu et al. (2022), section 5"
)
@dataclass(frozen=True)
class CoefficientTarget:
    """Rows become the record that pulls the coefficients of a logistic regression at right angles to what they are.

    The direction is the coefficients turned in the plane of their two largest coordinates; the record lies along it, as
    long as the longest row, with the class whose loss pulls there.

    Attributes:
        penalty: Of the squared length in the mean objective, > 0; None takes the learner's, else 0.01.
    """

    relation: ClassVar[Relation] = Relation.REPLACE

    penalty: float | None = None

    def __post_init__(self) -> None:
        require(self.penalty is None or self.penalty > 0, "penalty must be > 0", penalty=self.penalty)

    def for_mechanism(self, mechanism: Any) -> CoefficientTarget:
        """With the learner's penalty, where it states one and none was given."""
        return self if self.penalty is not None else replace(self, penalty=penalty_of(mechanism))

    def worlds(self, data: Examples, copies: int, rng: np.random.Generator) -> Worlds:
        """Draws nothing.

        Raises: InputError for data with one feature: nothing is at right angles.
        """
        surrogate = Surrogate.of(data, 1, self.penalty or PENALTY)
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
        return replaced(data, rows, honest, poisoned, np.concatenate([crafted[:1], features_of(honest)]))
