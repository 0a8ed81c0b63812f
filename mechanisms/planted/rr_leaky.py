"""A liar to test audits with: randomised response with three times the privacy loss it claims."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.budget import require_epsilon
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.registry import register

LEAK = 3.0


@register("mechanism", "rr-leaky", source="planted defect")
@dataclass(frozen=True)
class LeakyRandomizedResponse:
    """DEFECT ON PURPOSE: claims epsilon, keeps labels as if it were three times that.

    Attributes:
        epsilon: What is claimed, in nats, > 0. The truth is 3 epsilon.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP, which is false."""
        return Claim(self.epsilon)

    def transition(self, classes: int) -> NDArray[np.float64]:
        """Probability of each released label (columns) given each true one (rows), shape (K, K)."""
        return RandomizedResponse(LEAK * self.epsilon).transition(classes)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """One label for each label, kept with probability e^(3 eps) / (e^(3 eps) + K - 1); shape (n,) to (n,)."""
        return RandomizedResponse(LEAK * self.epsilon).release(labels, classes=classes, rng=rng)
