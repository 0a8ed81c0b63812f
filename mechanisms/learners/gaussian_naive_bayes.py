"""Differentially private Gaussian naive Bayes: noisy counts, sums and sums of squares of each class.

Each of the three gets a third of epsilon; the shares of sums and squares are split evenly over the d features. Features
are clipped to [l, u], with middle m. Adding or removing a record changes, in one class:

- the count by 1: two-sided geometric noise.
- the sum of (x - m) in each feature by at most (u - l) / 2: Laplace noise. Sums of x change by up to max(|l|, |u|),
  which is larger unless m = 0.
- the sum of squares about the released mean by at most the squared distance of that mean to the farther end of the
  range: Laplace noise.

Classes share no records, so each class gets the full epsilon. With `relation: replace` a record changes two classes and
the noise is doubled. The number of records stays private: noisy counts need not sum to it.

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

SMALLEST_VARIANCE = 1e-9  # as a share of the squared range
BLOCK_SIZE = 4_000_000  # numbers drawn at once: tens of megabytes


class FlatFeaturesLearner(NoiseByEpsilon):
    """A learner of arrays of numbers whose noise depends on a finite epsilon alone."""

    noiseless_epsilon = 1e4

    def require_features(self, train: Examples) -> None:
        """Raise InputError for columns of mixed types."""
        flat_features(train.features[:1] if isinstance(train.features, np.ndarray) else train.features)


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Exact counts, sums and sums of squares about the middle of each class."""

    count: NDArray[np.int64]  # shape (K,)
    total: Floats  # sums of x - middle, shape (K, d)
    squares: Floats  # sums of (x - middle)^2, shape (K, d)


@dataclass(frozen=True, eq=False)
class NoisySums:
    """Released counts, means and variances of several trainings."""

    count: Floats  # at least 1, shape (trainings, K)
    mean: Floats  # within the range, shape (trainings, K, d)
    variance: Floats  # > 0, shape (trainings, K, d)

    def vectors(self) -> Floats:
        """Return counts, sums and sums of squares, the whole release, shape (trainings, K (1 + 2 d))."""
        trainings = len(self.count)
        count = self.count[..., None]
        parts = (self.count, self.mean * count, self.variance * count)
        return np.concatenate([part.reshape(trainings, -1) for part in parts], axis=1)


@register("mechanism", "gaussian-naive-bayes", source="Vaidya et al. (2013); sums about the middle are ours")
@dataclass(frozen=True)
class GaussianNaiveBayes(FlatFeaturesLearner):
    """Gaussian naive Bayes from noisy counts, sums and sums of squares of each class; the classes are public.

    Attributes:
        lower: Lower end of the range to which every feature is clipped.
        upper: Upper end of that range.
        relation: "add-remove", or "replace" with twice the noise.
    """

    epsilon: float
    lower: float = 0.0
    upper: float = 1.0
    relation: Relation = Relation.ADD_REMOVE

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
        """Epsilon of one of the three parts, for one changed class."""
        return self.epsilon / 3 / (1 if self.relation == Relation.ADD_REMOVE else 2)

    @property
    def half_range(self) -> float:
        """Half the range: the sensitivity of a sum about the middle."""
        return (self.upper - self.lower) / 2

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> NaiveBayesModel:
        released = self.noisy(self.sums(train), train.classes, 1, np.random.default_rng(seed))
        return NaiveBayesModel(released.count[0], released.mean[0], released.variance[0], self.lower, self.upper)

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> Floats:
        """Return `NoisySums.vectors` of `count` trainings; the exact sums are computed once."""
        sums, rng = self.sums(train), np.random.default_rng(seed)
        block = max(1, BLOCK_SIZE // sums.total.size)
        noisy_sums = [
            self.noisy(sums, train.classes, min(block, count - first), rng).vectors()
            for first in range(0, count, block)
        ]
        return np.concatenate(noisy_sums) if noisy_sums else np.empty((0, train.classes + 2 * sums.total.size))

    def log_density(self, train: Examples, summaries: Floats, *, compute: Compute) -> Floats:
        """Sum the log-densities of the parts, each given the earlier ones; a limit has the clipped probability mass."""
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
    """Return the log-probability of counts with two-sided geometric noise; 1 stands for all counts <= 1."""
    difference, ratio = count - exact, math.exp(-epsilon)
    no_larger = np.where(
        difference < 0, epsilon * difference, np.log1p(ratio - ratio ** (np.maximum(difference, 0) + 1))
    )
    return np.where(count > 1, math.log1p(-ratio) - epsilon * np.abs(difference), no_larger) - math.log1p(ratio)


def _log_clipped_laplace(value: Floats, exact: Floats, scale: float | Floats, limits: tuple[Floats, Floats]) -> Floats:
    """Return the log-density of clipped Laplace noise about `exact`; at a limit, the log-probability beyond it."""
    low, high = limits
    tolerance = 1e-6 * (high - low)
    beyond = np.where(value <= low + tolerance, (low - exact) / scale, (exact - high) / scale)
    tail = np.where(beyond < 0, beyond - math.log(2), np.log1p(-0.5 * np.exp(-np.maximum(beyond, 0))))
    density = -np.abs(value - exact) / scale - np.log(2 * scale)
    return np.where((value <= low + tolerance) | (value >= high - tolerance), tail, density)


@dataclass(frozen=True, eq=False)
class NaiveBayesModel:
    """A released Gaussian naive Bayes model."""

    count: Floats  # noisy counts, shape (K,)
    mean: Floats  # shape (K, d)
    variance: Floats  # shape (K, d)
    lower: float  # features are clipped to [lower, upper]
    upper: float

    def probabilities(self, features: Features) -> Floats:
        clipped = np.clip(flat_features(features), self.lower, self.upper)
        deviation = clipped[:, None] - self.mean
        log_joint = np.log(self.count) - 0.5 * (np.log(self.variance) + deviation**2 / self.variance).sum(-1)
        joint = np.exp(log_joint - log_joint.max(1, keepdims=True))
        probabilities: Floats = joint / joint.sum(1, keepdims=True)
        return probabilities


def flat_features(features: Features) -> Floats:
    """Return the features as float64, shape (n, d); rejects columns of mixed types."""
    require(isinstance(features, np.ndarray), "features must be an array of numbers, got a table of mixed types")
    assert isinstance(features, np.ndarray)
    return features.reshape(len(features), -1).astype(np.float64)
