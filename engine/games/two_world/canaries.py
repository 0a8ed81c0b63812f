"""Canaries: choices of the challenge points of a two-world game (registered as "canary").

The attacker chooses them with knowledge of the pool and of shadow models, but not of the audited models, so any choice
is valid. A good choice gives a larger bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.views import Challenges, Shadows
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


@runtime_checkable
class Canary(Protocol):
    """Function that chooses or crafts challenge points."""

    @property
    def crafted(self) -> bool:
        """True if the points are crafted instead of chosen from the pool."""
        ...

    @property
    def needs_shadows(self) -> bool:
        """True if the choice needs shadow models."""
        ...

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        """Return the challenge points; `shadows` is None unless `needs_shadows`.

        Raises: InputError if the pool does not fit.
        """
        ...


@runtime_checkable
class GradientCanary(Protocol):
    """Function that makes a gradient, which takes part in DP-SGD as the clipped gradient of an example."""

    def gradient(self, parameters: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return a vector of norm 1 in units of the clipping norm, shape (parameters,)."""
        ...


@dataclass(frozen=True)
class PointCanary:
    """Base of canaries with several points.

    Attributes:
        count: Number of challenge points, >= 1; each trial draws one at random.
    """

    count: int = 1
    crafted: ClassVar[bool] = False
    needs_shadows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.count >= 1, "count must be >= 1", count=self.count)


def array_features(pool: Examples) -> NDArray[np.float32]:
    """Return the features of the pool, an array; InputError for tables."""
    require(isinstance(pool.features, np.ndarray), "crafted points need features in an array, not a table")
    assert isinstance(pool.features, np.ndarray)
    return pool.features


def crafted_challenges(
    pool: Examples, features: NDArray[np.float32], labels: NDArray[np.int64], rows: NDArray[np.int64]
) -> Challenges:
    examples = pool.with_(features=np.ascontiguousarray(features, np.float32), labels=labels.astype(np.int64))
    return Challenges(examples, rows.astype(np.int64), True, np.zeros(len(rows)))


@register("canary", "given-row", source="arXiv:2206.05199, Experiment 2 with z given")
@dataclass(frozen=True)
class GivenRow:
    """Rows of the target part, by number.

    Attributes:
        rows: Distinct numbers in 0 .. size of the target part - 1, at least one.
    """

    rows: tuple[int, ...] = (0,)
    crafted: ClassVar[bool] = False
    needs_shadows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        require(len(self.rows) > 0, "rows must have at least one row", rows=self.rows)
        require(len(set(self.rows)) == len(self.rows), "rows must be different", rows=self.rows)

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        rows = np.array(self.rows, np.int64)
        require(rows.min() >= 0 and rows.max() < len(pool), f"rows must be in 0..{len(pool) - 1}", rows=self.rows)
        return Challenges(pool.take(rows), rows, False, np.zeros(len(rows)))


@register("canary", "mislabelled", source="Nasr et al. (2021), arXiv:2101.04535; Steinke et al. (2023)")
@dataclass(frozen=True)
class Mislabelled(PointCanary):
    """Random rows of the pool with a random wrong label; the original rows are excluded from training.

    Attributes:
        count: Number of challenge points, >= 1.
    """

    crafted: ClassVar[bool] = True

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        """Return distinct random rows with labels that are uniform over the other classes."""
        require(self.count <= len(pool), "count must be at most the rows of the pool", count=self.count)
        rows = rng.choice(len(pool), self.count, replace=False)
        labels = (pool.labels[rows] + rng.integers(1, pool.classes, self.count)) % pool.classes
        return crafted_challenges(pool, array_features(pool)[rows], labels, rows)


@register("canary", "blank", source="Nasr et al. (2023), arXiv:2302.07956")
@dataclass(frozen=True)
class Blank(PointCanary):
    """A point whose features all have one value; a large value is far from the data.

    Attributes:
        count: Number of challenge points, with labels 0, 1, ..., in 1 .. number of classes.
        value: Value of every feature.
    """

    value: float = 0.0
    crafted: ClassVar[bool] = True

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        require(self.count <= pool.classes, "count must be at most the number of classes", count=self.count)
        shape = (self.count, *array_features(pool).shape[1:])
        return crafted_challenges(
            pool, np.full(shape, self.value, np.float32), np.arange(self.count), np.full(self.count, -1)
        )


@register("canary", "clip-bkd", source="Jagielski et al. (2020), arXiv:2006.07709, Algorithm 2")
@dataclass(frozen=True)
class ClipBackdoor(PointCanary):
    """ClipBKD: a point in the last principal direction, with the label that a logistic regression finds least likely.

    The largest coordinate of the direction is positive. `last_direction` chooses among several directions without
    variance, so that every processor gives the same point. The paper swaps the labels of k copies; here the point
    itself is present or absent.

    Attributes:
        count: Must be 1, since there is one last direction.
        norm: Length of the point, > 0; None for the median length of points of the pool.
    """

    norm: float | None = None
    crafted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.count == 1, "clip-bkd makes one point", count=self.count)
        require(self.norm is None or self.norm > 0, "norm must be > 0", norm=self.norm)

    def choose(self, pool: Examples, shadows: Shadows | None, rng: np.random.Generator) -> Challenges:
        from sklearn.linear_model import LogisticRegression

        features = array_features(pool)
        flat = features.reshape(len(features), -1).astype(np.float64)
        norm = float(np.median(np.linalg.norm(flat, axis=1))) if self.norm is None else self.norm
        point = norm * last_direction(flat)
        fitted = LogisticRegression(max_iter=1000).fit(flat, pool.labels)
        least = fitted.classes_[fitted.predict_proba(point[None])[0].argmin()]
        crafted = point.reshape(1, *features.shape[1:]).astype(np.float32)
        return crafted_challenges(pool, crafted, np.array([least]), np.array([-1]))


def last_direction(flat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unit vector of least variance of rows, shape (n, d) to (d,), with a positive largest coordinate.

    Among several directions without variance, it is the one nearest to a fixed random vector, because the basis of
    eigenvectors depends on the processor.
    """
    centred = flat - flat.mean(0)
    variances, vectors = np.linalg.eigh(centred.T @ centred)
    still = vectors[
        :, variances <= flat.shape[1] * np.finfo(np.float64).eps * variances[-1]
    ]  # no variance up to rounding
    direction = vectors[:, 0]
    if still.shape[1] > 1:
        direction = still @ (still.T @ np.random.default_rng(0).standard_normal(len(direction)))
        direction /= np.linalg.norm(direction)
    return np.asarray(direction * np.sign(direction[np.abs(direction).argmax()]))


@register("canary", "dirac-gradient", source="Nasr et al. (2023), arXiv:2302.07956, section 4")
@dataclass(frozen=True)
class DiracGradient:
    """Gradient on a single weight.

    Attributes:
        weight: Position of the weight, >= 0; None for a random one. A weight whose gradient is always 0 is best.
    """

    weight: int | None = None

    def gradient(self, parameters: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return a gradient of 1 at one weight and 0 elsewhere, shape (parameters,)."""
        weight = int(rng.integers(parameters)) if self.weight is None else self.weight
        require(0 <= weight < parameters, f"weight must be in 0..{parameters - 1}", weight=weight)
        gradient = np.zeros(parameters, np.float32)
        gradient[weight] = 1.0
        return gradient


@register("canary", "random-gradient", source="Andrew et al. (2024), arXiv:2302.03098; Nasr et al. (2023)")
@dataclass(frozen=True)
class RandomGradient:
    """Gradient in a random direction, nearly orthogonal to gradients of the data."""

    def gradient(self, parameters: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return a uniform point on the unit sphere, shape (parameters,)."""
        vector = rng.standard_normal(parameters)
        return (vector / np.linalg.norm(vector)).astype(np.float32)
