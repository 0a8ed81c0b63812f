"""Label proportions: bags of examples, and releases of the count of each label in each bag, exactly or with noise.

Bag sizes are public, so counts and proportions are equivalent. Changing a label moves the count of positives by 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.ranges import require_finite_epsilon
from dpaudit.registry import register

LEFT_OUT = -1  # Bag of an example that no release covers


@dataclass(frozen=True, eq=False)
class Bags:
    """A public assignment of examples to bags."""

    # Bag of each example, shape (n,): 0 .. B - 1 without gaps, or -1 for an example left out
    assignment: NDArray[np.int64]

    def __post_init__(self) -> None:
        bags = np.asarray(self.assignment, np.int64)
        require(bags.ndim == 1, "bags must be one column with the bag of each example", shape=bags.shape)
        require(bool((bags >= LEFT_OUT).all()), "a bag must be a number >= 0, or -1 for an example left out")
        object.__setattr__(self, "of", bags)
        require(self.sizes.size > 0, "at least one bag must hold an example", examples=len(bags))
        empty = np.flatnonzero(self.sizes == 0)
        require(not empty.size, "no bag may be empty", bags=empty[:3].tolist(), do="number the bags without gaps")

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of examples in each bag, >= 1, shape (B,)."""
        return np.bincount(self.assignment[self.assignment != LEFT_OUT])

    def counts(self, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Return the count of each label 0 .. classes - 1 in each bag, shape (n,) to (B, classes)."""
        require(labels.shape == self.assignment.shape, "there must be one label for each example", shape=labels.shape)
        in_range = bool(((labels >= 0) & (labels < classes)).all())
        require(in_range, f"labels must be in 0..{classes - 1}", given=np.unique(labels)[:5].tolist())
        inside = self.assignment != LEFT_OUT
        cells = self.assignment[inside] * classes + labels[inside]
        return np.bincount(cells, minlength=self.sizes.size * classes).reshape(-1, classes)

    @classmethod
    def random(cls, examples: int, size: int, rng: np.random.Generator, *, keep_rest: bool = False) -> Bags:
        """Draw random bags of `size` examples. The last, smaller bag is kept if `keep_rest`, else left out."""
        require(1 <= size <= examples, f"the size of a bag must be in 1..{examples}, the number of examples", size=size)
        rank = rng.permutation(examples)  # a random rank for each example
        bags = rank // size
        if not keep_rest:
            bags[rank >= examples - examples % size] = LEFT_OUT
        return cls(bags)

    @classmethod
    def keyed(cls, features: Features, key: str | int) -> Bags:
        """Build one bag for each value of the column `key` of a table or of an array of shape (n, d)."""
        if isinstance(features, pa.Table):
            names = features.column_names
            require(key in names, f"key must be one of the columns {', '.join(names)}", key=key)
            return cls(_numbered(features[key].combine_chunks()))
        flat = features.reshape(len(features), -1)
        number = isinstance(key, int) and 0 <= key < flat.shape[1]
        require(number, f"key must be the number of a column, 0..{flat.shape[1] - 1}", key=key)
        return cls(_numbered(pa.array(np.ascontiguousarray(flat[:, int(key)]))))


def _numbered(keys: pa.Array) -> NDArray[np.int64]:
    """Number the keys 0 .. B - 1 by first appearance. All missing keys share one number."""
    coded = keys.dictionary_encode(null_encoding="encode")
    return np.asarray(coded.indices.to_numpy(zero_copy_only=False), np.int64)


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
        # The mean distance of clipped values beyond the end, a / (1 - a). Above 700, e^epsilon may overflow; its
        # reciprocal is then 0 to 300 digits.
        excess = 1 / math.expm1(min(self.epsilon, 700.0))
        return np.asarray(clipped + excess * ((clipped == sizes).astype(np.float64) - (clipped == 0)))

    def log_likelihood(self, released: Floats, size: int) -> Floats:
        """Return the log-likelihood of each true count 0 .. size, up to a constant; shape (B,) to (B, size + 1)."""
        return self._log_likelihood_by_distance(np.clip(np.rint(released), 0, size), size)
