"""Differentially private Gaussian naive Bayes: noisy counts, sums and sums of squares of each class.

A third of epsilon each, the last two evenly over the d features. With l and u the range of a feature (its values are
clipped to it) and m its middle, one record that is added or removed changes

- one class's count by 1: two-sided geometric noise;
- its sum of (x - m), in each feature, by at most (u - l) / 2: Laplace noise. Sums of x itself change by up to
  max(|l|, |u|), which is more unless 0 is the middle;
- its sum of squares about its released mean by at most the square of that mean's distance to the farther end.

Classes share no records, so noise on one is not paid for by the others; `relation: replace`, where a record changes two
classes, adds twice the noise. The number of records is not told: counts need not sum to it.

Source: Vaidya et al. (2013), "Differentially Private Naive Bayes Classification"; sums about the middle are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.ranges import NoiseByEpsilon, require_finite_epsilon
from dpaudit.registry import register

Floats = NDArray[np.float64]

SMALLEST_VARIANCE = 1e-9  # As a share of the squared range
BLOCK_SIZE = 4_000_000  # Numbers of one block of draws: tens of megabytes


@dataclass(frozen=True, eq=False)
class ClassSums:
    """What the learner needs of its data: each class's exact count, sums and sums of squares about the middle."""

    count: NDArray[np.int64]  # shape (K,)
    total: Floats  # sums of x - middle, shape (K, d)
    squares: Floats  # sums of (x - middle)^2, shape (K, d)


@dataclass(frozen=True, eq=False)
class NoisySums:
    """What is released, of each of some trainings."""

    count: Floats  # at least 1, shape (trainings, K)
    mean: Floats  # within the range, shape (trainings, K, d)
    variance: Floats  # > 0, shape (trainings, K, d)

    def vectors(self) -> Floats:
        """Counts, sums and sums of squares, all that is released, shape (trainings, K (1 + 2 d))."""
        trainings = len(self.count)
        count = self.count[..., None]
        parts = (self.count, self.mean * count, self.variance * count)
        return np.concatenate([part.reshape(trainings, -1) for part in parts], axis=1)


@register("mechanism", "gaussian-naive-bayes", source="Vaidya et al. (2013); sums about the middle are ours")
@dataclass(frozen=True)
class GaussianNaiveBayes(NoiseByEpsilon):
    """Gaussian naive Bayes from noisy counts, sums and sums of squares of each class; the classes are public.

    Attributes:
        lower: The range of every feature, from here; what lies outside is clipped.
        upper: To here.
        relation: "add-remove", or "replace" with twice the noise.
    """

    epsilon: float
    lower: float = 0.0
    upper: float = 1.0
    relation: Relation = Relation.ADD_REMOVE

    noiseless_epsilon = 1e4

    def __post_init__(self) -> None:
        require_finite_epsilon(self.epsilon)
        require(self.lower < self.upper, "lower must be below upper", lower=self.lower, upper=self.upper)
        object.__setattr__(self, "relation", Relation(self.relation))
        relations = (Relation.ADD_REMOVE, Relation.REPLACE)
        require(self.relation in relations, "relation must be add-remove or replace", relation=self.relation)

    def claim(self) -> Claim:
        return Claim(self.epsilon, relation=self.relation)

    @property
    def part_epsilon(self) -> float:
        """Epsilon of one of the three parts, for one class that changes."""
        return self.epsilon / 3 / (1 if self.relation == Relation.ADD_REMOVE else 2)

    @property
    def half_range(self) -> float:
        """Half the range: the most by which a record changes a sum about the middle."""
        return (self.upper - self.lower) / 2

    def require_features(self, train: Examples) -> None:
        """Raises InputError for columns of mixed types."""
        require_flat_features(train)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> NaiveBayesModel:
        released = self.noisy(self.sums(train), train.classes, 1, np.random.default_rng(seed))
        return NaiveBayesModel(released.count[0], released.mean[0], released.variance[0], self.lower, self.upper)

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> Floats:
        """The sums are computed once, the noise is drawn for each training; what is released, `NoisySums.vectors`."""
        sums, rng = self.sums(train), np.random.default_rng(seed)
        block = max(1, BLOCK_SIZE // sums.total.size)
        noisy_sums = [
            self.noisy(sums, train.classes, min(block, count - first), rng).vectors()
            for first in range(0, count, block)
        ]
        return np.concatenate(noisy_sums) if noisy_sums else np.empty((0, train.classes + 2 * sums.total.size))

    def log_density(self, train: Examples, summaries: Floats, *, compute: Compute) -> Floats:
        """Each part's own, given what was released before it; what lies at a limit has all that was brought there."""
        sums = self.sums(train)
        classes, d = sums.total.shape
        middle = (self.lower + self.upper) / 2
        count, mean, variance = np.split(summaries, [classes, classes * (1 + d)], axis=1)
        count = np.maximum(np.round(count), 1.0)
        wide = count[..., None]
        mean = mean.reshape(-1, classes, d) / wide - middle
        variance = variance.reshape(-1, classes, d) / wide
        reach = (self.half_range + np.abs(mean)) ** 2
        squares = sums.squares - 2 * mean * sums.total + sums.count[:, None] * mean**2
        density = _log_counts(count, sums.count, self.part_epsilon).sum(1)
        limits = (-self.half_range * wide, self.half_range * wide)
        density += _log_clipped_laplace(mean * wide, sums.total, self.half_range * d / self.part_epsilon, limits).sum(
            (1, 2)
        )
        limits = (SMALLEST_VARIANCE * (2 * self.half_range) ** 2 * wide, reach * wide)
        density += _log_clipped_laplace(variance * wide, squares, reach * d / self.part_epsilon, limits).sum((1, 2))
        return np.asarray(density)

    def sums(self, train: Examples) -> ClassSums:
        features = flat_features(train.features)
        centred = np.clip(features, self.lower, self.upper) - (self.lower + self.upper) / 2
        members = (train.labels[:, None] == np.arange(train.classes)).astype(np.float64)
        return ClassSums(members.sum(0).astype(np.int64), members.T @ centred, members.T @ centred**2)

    def noisy(self, sums: ClassSums, classes: int, trainings: int, rng: np.random.Generator) -> NoisySums:
        d = sums.total.shape[1]
        shape = (trainings, classes, d)
        success, count_shape = -np.expm1(-self.part_epsilon), (trainings, classes)  # two-sided geometric noise
        count = np.maximum(
            sums.count + (rng.geometric(success, count_shape) - rng.geometric(success, count_shape)), 1.0
        )
        wide = count[..., None]
        noise = rng.laplace(0.0, self.half_range * d / self.part_epsilon, shape)
        mean = np.clip((sums.total + noise) / wide, -self.half_range, self.half_range)
        # The farther end of the range, from the released mean: what one record may add to the squares.
        reach = (self.half_range + np.abs(mean)) ** 2
        # Exact squares about the released mean, which is no secret any more.
        squares = sums.squares - 2 * mean * sums.total + sums.count[:, None] * mean**2
        noise = rng.laplace(0.0, 1.0, shape) * (reach * d / self.part_epsilon)
        variance = np.clip((squares + noise) / wide, SMALLEST_VARIANCE * (2 * self.half_range) ** 2, reach)
        return NoisySums(count, mean + (self.lower + self.upper) / 2, variance)


def _log_counts(count: Floats, exact: NDArray[np.int64], epsilon: float) -> Floats:
    """Log-probability of counts with two-sided geometric noise, of which 1 stands for all that are no larger."""
    difference, ratio = count - exact, math.exp(-epsilon)
    no_larger = np.where(
        difference < 0, epsilon * difference, np.log1p(ratio - ratio ** (np.maximum(difference, 0) + 1))
    )
    return np.where(count > 1, math.log1p(-ratio) - epsilon * np.abs(difference), no_larger) - math.log1p(ratio)


def _log_clipped_laplace(value: Floats, exact: Floats, scale: float | Floats, limits: tuple[Floats, Floats]) -> Floats:
    """Log-density of Laplace noise about `exact`; at a limit the logarithm of the whole probability beyond it."""
    low, high = limits
    tolerance = 1e-6 * (high - low)
    beyond = np.where(value <= low + tolerance, (low - exact) / scale, (exact - high) / scale)
    tail = np.where(beyond < 0, beyond - math.log(2), np.log1p(-0.5 * np.exp(-np.maximum(beyond, 0))))
    density = -np.abs(value - exact) / scale - np.log(2 * scale)
    return np.where((value <= low + tolerance) | (value >= high - tolerance), tail, density)


@dataclass(frozen=True, eq=False)
class NaiveBayesModel:
    """Gaussian naive Bayes as released."""

    count: Floats  # noisy counts, shape (K,)
    mean: Floats  # shape (K, d)
    variance: Floats  # shape (K, d)
    lower: float  # features are clipped from here
    upper: float  # to here

    def probabilities(self, features: Features) -> Floats:
        clipped = np.clip(flat_features(features), self.lower, self.upper)
        deviation = clipped[:, None] - self.mean
        log_joint = np.log(self.count) - 0.5 * (np.log(self.variance) + deviation**2 / self.variance).sum(-1)
        joint = np.exp(log_joint - log_joint.max(1, keepdims=True))
        probabilities: Floats = joint / joint.sum(1, keepdims=True)
        return probabilities


def require_flat_features(train: Examples) -> None:
    """Raises InputError for columns of mixed types."""
    flat_features(train.features[:1] if isinstance(train.features, np.ndarray) else train.features)


def flat_features(features: Features) -> Floats:
    """Features as float64 of shape (n, d); refuses columns of mixed types."""
    require(isinstance(features, np.ndarray), "features must be numbers in an array, these are columns of mixed types")
    assert isinstance(features, np.ndarray)
    return features.reshape(len(features), -1).astype(np.float64)
