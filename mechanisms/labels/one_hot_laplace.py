"""Laplace noise on one-hot labels, the release of ALIBI, and what a learner may infer from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.ranges import NoiseByEpsilon, require_epsilon
from dpaudit.registry import register


@register("mechanism", "one-hot-laplace", source="Malek et al. (2021), arXiv:2106.03408, ALIBI")
@dataclass(frozen=True)
class OneHotLaplace(NoiseByEpsilon):
    """Adds Laplace noise of scale 2 / eps to each coordinate of the one-hot label; releases the most likely label.

    Another label changes two coordinates by one each, an L1 distance of 2, so noise of scale b costs 2 / b. The noisy
    vectors themselves (`observe`) are as private as the label read from them.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP; tight for the noisy vectors, not for the most likely label."""
        return Claim(self.epsilon)

    def scale(self) -> float:
        """Laplace scale b of the noise (its standard deviation is sqrt(2) b)."""
        return 2 / self.epsilon

    def observe(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """One noisy one-hot row for each label, to be drawn once; shape (n,) to (n, classes)."""
        noise = rng.laplace(scale=self.scale(), size=(len(labels), classes))
        return np.asarray(np.eye(classes)[labels] + noise)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The most likely label of each noisy row under a flat prior, its largest coordinate; shape (n,) to (n,)."""
        return np.asarray(self.observe(labels, classes=classes, rng=rng).argmax(axis=1), dtype=np.int64)

    def evidence(self, observed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood of each label given its noisy row o, up to a constant: (|o_i| - |o_i - 1|) / b."""
        require(self.scale() > 0, "scale must be > 0", scale=self.scale())
        return np.asarray((np.abs(observed) - np.abs(observed - 1)) / self.scale())

    def posterior(self, observed: NDArray[np.float64], log_prior: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability of each label given its noisy row, shape (n, K); log prior weights of shape (n, K) or (K,)."""
        return np.asarray(softmax(log_prior + self.evidence(observed), axis=1))
