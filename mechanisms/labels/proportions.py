"""Label proportions: each bag's count of each label is released, as it is or with noise.

Counts and proportions say the same, since the size of a bag is public. Another label moves the count of positives by 1.
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
        key: Column of the features that holds an aggregation key, by name, or by number in an array: examples with one
            value of it are a bag.
        rest: What becomes of the examples beyond the last whole random bag: "left-out" releases nothing about them;
            "smaller-bag" makes them a bag, which tells more about each of them.
    """

    size: int = 8
    key: str | int | None = None
    rest: Rest = "left-out"

    def __post_init__(self) -> None:
        require(self.size >= 1, "the size of a bag must be >= 1", size=self.size)
        require(self.rest in get_args(Rest), f"rest must be one of {', '.join(get_args(Rest))}", rest=self.rest)

    def bags(self, train: Examples, *, rng: np.random.Generator) -> Bags:
        """Who is with whom, without a look at the labels."""
        if self.key is not None:
            return Bags.keyed(train.features, self.key)
        return Bags.random(len(train), self.size, rng, keep_rest=self.rest == "smaller-bag")

    @abstractmethod
    def release_counts(self, counts: Ints, *, rng: np.random.Generator) -> Floats:
        """What is released of each label's count in each bag; shape (B, classes) to (B, classes)."""

    def targets(self, released: Floats) -> Floats:
        return np.asarray(released / released.sum(axis=1, keepdims=True))


@register("mechanism", "llp", source="Busa-Fekete et al. (2024), section 2, LLP; exact label proportions")
class LabelProportions(Aggregation):
    """Releases how often each label is in each bag, exactly; hides nothing of a bag whose labels are all the same.

    It promises no differential privacy.
    """

    def claim(self) -> Claim:
        """Nothing."""
        return Claim(math.inf)

    def release_counts(self, counts: Ints, *, rng: np.random.Generator) -> Floats:
        return counts.astype(np.float64)

    def log_likelihood(self, released: Floats, size: int) -> Floats:
        """Log-likelihood of each true count 0 .. size of positives, shape (B,) to (B, size + 1): 0 or -inf."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log((released[:, None] == np.arange(size + 1)).astype(np.float64)))


@dataclass(frozen=True)
class NoisyAggregation(Aggregation):
    """Noise on each bag's count of positives, for two classes.

    Attributes:
        epsilon: Privacy loss in nats, > 0 and finite.
    """

    epsilon: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP: another label moves one bag's count by 1."""
        return Claim(self.epsilon)

    def release_counts(self, counts: Ints, *, rng: np.random.Generator) -> Floats:
        """Noisy counts that sum to the bag's size; refuses more than two classes."""
        classes = counts.shape[1]
        require(classes == 2, f"{type(self).__name__} is for two classes", classes=classes, do="merge classes")
        sizes = counts.sum(axis=1)
        noisy = self._noisy(counts[:, 1], sizes, rng)
        return np.stack([sizes - noisy, noisy], axis=1)

    @abstractmethod
    def _noisy(self, positives: Ints, sizes: Ints, rng: np.random.Generator) -> Floats:
        """What is released for each bag, shape (B,)."""

    def _by_distance(self, counts: Floats, size: int) -> Floats:
        """Up to a constant, -epsilon |released - true|; its largest is 0."""
        away = np.abs(counts[:, None] - np.arange(size + 1))
        return np.asarray(-self.epsilon * (away - away.min(axis=1, keepdims=True)))


@register("mechanism", "llp-laplace", source="Busa-Fekete et al. (2024), section 4, LLP+Lap")
class LaplaceProportions(NoisyAggregation):
    """Adds Laplace noise of scale 1/eps to each bag's count of positives (of two classes)."""

    def _noisy(self, positives: Ints, sizes: Ints, rng: np.random.Generator) -> Floats:
        return np.asarray(positives + rng.laplace(scale=1 / self.epsilon, size=positives.shape))

    def log_likelihood(self, released: Floats, size: int) -> Floats:
        """Log-likelihood of each true count 0 .. size of positives, up to a constant; shape (B,) to (B, size + 1)."""
        return self._by_distance(released, size)

    def targets(self, released: Floats) -> Floats:
        return np.clip(super().targets(released), 0.0, 1.0)


@register("mechanism", "llp-geometric", source="Busa-Fekete et al. (2024), section 4, LLP+Geom; Ghosh et al. (2012)")
@dataclass(frozen=True)
class GeometricProportions(NoisyAggregation):
    """Adds two-sided geometric noise to each bag's count of positives (of two classes), then cuts it to [0, size].

    The noise is t with probability (1 - a)/(1 + a) a^|t|, a = e^-eps. In bags of one it is randomised response.

    Attributes:
        unbiased: Release -a/(1 - a) for 0 and size + a/(1 - a) for `size`: the mean of what was cut there, whatever the
            true count, so that the release is right on average. As private as without.
    """

    unbiased: bool = False

    def _noisy(self, positives: Ints, sizes: Ints, rng: np.random.Generator) -> Floats:
        stop = -math.expm1(-self.epsilon)
        noise = rng.geometric(stop, positives.shape) - rng.geometric(stop, positives.shape)
        cut = np.clip(positives + noise, 0, sizes).astype(np.float64)
        if not self.unbiased:
            return cut
        return np.asarray(cut + self._beyond() * ((cut == sizes).astype(np.float64) - (cut == 0)))

    def log_likelihood(self, released: Floats, size: int) -> Floats:
        """Log-likelihood of each true count 0 .. size of positives, up to a constant; shape (B,) to (B, size + 1)."""
        return self._by_distance(np.clip(np.rint(released), 0, size), size)

    def _beyond(self) -> float:
        """How far beyond the end lies, on average, what is cut there: a / (1 - a)."""
        # From 700 on e^epsilon may be no number, and what is divided by it is 0 to 300 digits.
        return 1 / math.expm1(min(self.epsilon, 700.0))
