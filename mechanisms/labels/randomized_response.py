"""Randomised response: keeps each label with a fixed probability, else replaces it by another label."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.bags import Bags
from dpaudit.mechanisms.ranges import NoiseByEpsilon, require_epsilon
from dpaudit.registry import register


@register("mechanism", "randomized-response", source="Warner (1965), J. Am. Stat. Assoc. 60(309)")
@dataclass(frozen=True)
class RandomizedResponse(NoiseByEpsilon):
    """Keeps a label with probability e^eps / (e^eps + K - 1), else draws another label uniformly.

    Tightly epsilon-label-DP: two true labels give a released label probabilities whose ratio is at most e^eps.

    Attributes:
        epsilon: Privacy loss in nats, > 0; `inf` releases the true labels.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP, which is tight."""
        return Claim(self.epsilon)

    def keep(self, classes: int) -> float:
        return 1 / (1 + (classes - 1) * math.exp(-self.epsilon))

    def transition(self, classes: int) -> NDArray[np.float64]:
        """Return the probability of each released label (columns) given each true label (rows), shape (K, K)."""
        keep = self.keep(classes)
        return np.where(np.eye(classes, dtype=bool), keep, math.exp(-self.epsilon) * keep)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        changed = rng.random(labels.shape) >= self.keep(classes)
        steps = rng.integers(1, classes, size=labels.shape)  # any other label, uniformly
        return np.where(changed, (labels + steps) % classes, labels)

    def bags(self, train: Examples, *, rng: np.random.Generator) -> Bags:
        return Bags(np.arange(len(train)))

    def release_counts(self, counts: NDArray[np.int64], *, rng: np.random.Generator) -> NDArray[np.float64]:
        classes = counts.shape[1]
        return np.eye(classes)[self.release(counts.argmax(axis=1), classes=classes, rng=rng)]

    def log_likelihood(self, released: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        differs = released[:, None] != np.arange(size + 1)
        return np.where(differs, -self.epsilon, 0.0)

    def targets(self, released: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a row of weights for each example, an unbiased estimate of the one-hot label; some are below 0."""
        classes = released.shape[1]
        keep = self.keep(classes)
        flip = math.exp(-self.epsilon) * keep  # to one particular other label
        return np.asarray((released - flip) / (keep - flip))
