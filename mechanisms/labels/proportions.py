"""Label proportions: releases the count of each label in each bag, exactly or with noise.

Bag sizes are public, so counts and proportions are equivalent. Changing a label moves the count of positives by 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.bags import Bags
from dpaudit.mechanisms.ranges import require_finite_epsilon
from dpaudit.registry import register

Rest = Literal["left-out", "smaller-bag"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Aggregation(ABC):
    """Releases of label counts, bag by bag.

    Attributes:
        size: Examples in a random bag, >= 1; not used with `key`.
        key: Column of the features with the aggregation key: a name in a table, a number in an array. Each value of it
            is a bag.
        rest: Treatment of the examples that do not fill a random bag. "left-out" releases nothing about them;
            "smaller-bag" puts them in a smaller bag, which reveals more about each.
    """

    size: int = 8
    key: str | int | None = None
    rest: Rest = "left-out"

    def __post_init__(self) -> None:
        require(self.size >= 1, "the size of a bag must be >= 1", size=self.size)
        require(self.rest in get_args(Rest), f"rest must be one of {', '.join(get_args(Rest))}", rest=self.rest)

    def bags(self, train: Examples, *, rng: np.random.Generator) -> Bags:
        """Return the bags, which do not depend on labels."""
        if self.key is not None:
            return Bags.keyed(train.features, self.key)
        return Bags.random(len(train), self.size, rng, keep_rest=self.rest == "smaller-bag")

    @abstractmethod
    def release_counts(self, counts: Ints, *, rng: np.random.Generator) -> Floats:
        """Return the released counts for the label counts of each bag; shape (B, classes) to (B, classes)."""

    def targets(self, released: Floats) -> Floats:
        return np.asarray(released / released.sum(axis=1, keepdims=True))


@register("mechanism", "llp", source="Busa-Fekete et al. (2024), section 2, LLP; exact label proportions")
class LabelProportions(Aggregation):
    """Releases the exact count of each label in each bag, without differential privacy.

    Bags with a single label value reveal the label of every member.
    """

    def claim(self) -> Claim:
        return Claim(math.inf)

    def release_counts(self, counts: Ints, *, rng: np.random.Generator) -> Floats:
        return counts.astype(np.float64)

    def log_likelihood(self, released: Floats, size: int) -> Floats:
        """Return the log-likelihood of each true count 0 .. size, which is 0 or -inf; shape (B,) to (B, size + 1)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log((released[:, None] == np.arange(size + 1)).astype(np.float64)))


@dataclass(frozen=True)
class NoisyAggregation(Aggregation):
    """Adds noise to the count of positives in each bag, for two classes.

    Attributes:
        epsilon: Privacy loss in nats, > 0 and finite.
    """

    epsilon: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP: changing a label moves the count of one bag by 1."""
        return Claim(self.epsilon)

    def release_counts(self, counts: Ints, *, rng: np.random.Generator) -> Floats:
        """Return noisy counts that sum to the bag's size; rejects more than two classes."""
        classes = counts.shape[1]
        require(classes == 2, f"{type(self).__name__} is for two classes", classes=classes, do="merge classes")
        sizes = counts.sum(axis=1)
        noisy = self._noisy(counts[:, 1], sizes, rng)
        return np.stack([sizes - noisy, noisy], axis=1)

    @abstractmethod
    def _noisy(self, positives: Ints, sizes: Ints, rng: np.random.Generator) -> Floats:
        """Return the released count of positives in each bag, shape (B,)."""

    def _log_likelihood_by_distance(self, counts: Floats, size: int) -> Floats:
        """Return -epsilon |released - true|, shifted to have maximum 0 in each bag."""
        distance = np.abs(counts[:, None] - np.arange(size + 1))
        return np.asarray(-self.epsilon * (distance - distance.min(axis=1, keepdims=True)))


@register("mechanism", "llp-laplace", source="Busa-Fekete et al. (2024), section 4, LLP+Lap")
class LaplaceProportions(NoisyAggregation):
    """Adds Laplace noise of scale 1/eps to the count of positives in each bag, for two classes."""

    def _noisy(self, positives: Ints, sizes: Ints, rng: np.random.Generator) -> Floats:
        return np.asarray(positives + rng.laplace(scale=1 / self.epsilon, size=positives.shape))

    def log_likelihood(self, released: Floats, size: int) -> Floats:
        """Return the log-likelihood of each true count 0 .. size, up to a constant; shape (B,) to (B, size + 1)."""
        return self._log_likelihood_by_distance(released, size)

    def targets(self, released: Floats) -> Floats:
        return np.clip(super().targets(released), 0.0, 1.0)


@register("mechanism", "llp-geometric", source="Busa-Fekete et al. (2024), section 4, LLP+Geom; Ghosh et al. (2012)")
@dataclass(frozen=True)
class GeometricProportions(NoisyAggregation):
    """Adds two-sided geometric noise to the count of positives in each bag, then clips to [0, size]; two classes.

    The noise is t with probability (1 - a)/(1 + a) a^|t|, a = e^-eps. For bags of size 1 it is randomised response.

    Attributes:
        unbiased: Release -a/(1 - a) instead of 0 and size + a/(1 - a) instead of `size`. This is the mean of the values
            clipped there, for every true count, so the release is unbiased. Privacy is unchanged.
    """

    unbiased: bool = False

    def _noisy(self, positives: Ints, sizes: Ints, rng: np.random.Generator) -> Floats:
        success = -math.expm1(-self.epsilon)
        noise = rng.geometric(success, positives.shape) - rng.geometric(success, positives.shape)
        clipped = np.clip(positives + noise, 0, sizes).astype(np.float64)
        if not self.unbiased:
            return clipped
        return np.asarray(clipped + self._mean_excess() * ((clipped == sizes).astype(np.float64) - (clipped == 0)))

    def log_likelihood(self, released: Floats, size: int) -> Floats:
        """Return the log-likelihood of each true count 0 .. size, up to a constant; shape (B,) to (B, size + 1)."""
        return self._log_likelihood_by_distance(np.clip(np.rint(released), 0, size), size)

    def _mean_excess(self) -> float:
        """Return the mean distance of clipped values beyond the end, a / (1 - a)."""
        # Above 700, e^epsilon may overflow; its reciprocal is then 0 to 300 digits.
        return 1 / math.expm1(min(self.epsilon, 700.0))
