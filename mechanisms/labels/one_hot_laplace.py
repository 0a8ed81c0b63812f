"""Laplace noise on one-hot labels (the release of ALIBI) and the posterior of the labels given it."""

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

    Changing a label changes two coordinates by one each, an L1 distance of 2, so noise of scale b costs epsilon 2 / b.
    The noisy vectors themselves (`observe`) have the same epsilon.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP; tight for the noisy vectors, not for the most likely label."""
        return Claim(self.epsilon)

    def scale(self) -> float:
        """Return the Laplace scale b of the noise (its standard deviation is sqrt(2) b)."""
        return 2 / self.epsilon

    def observe(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return a noisy one-hot row for each label, shape (n,) to (n, classes). Each call spends epsilon again."""
        noise = rng.laplace(scale=self.scale(), size=(len(labels), classes))
        return np.asarray(np.eye(classes)[labels] + noise)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the largest coordinate of each noisy row, the most likely label under a uniform prior; shape (n,)."""
        return np.asarray(self.observe(labels, classes=classes, rng=rng).argmax(axis=1), dtype=np.int64)

    def evidence(self, observed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-likelihood of each label for noisy rows o, up to a constant: (|o_i| - |o_i - 1|) / b."""
        require(self.scale() > 0, "scale must be > 0", scale=self.scale())
        return np.asarray((np.abs(observed) - np.abs(observed - 1)) / self.scale())

    def posterior(self, observed: NDArray[np.float64], log_prior: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of each label given its noisy row, shape (n, K); `log_prior` is (n, K) or (K,)."""
        return np.asarray(softmax(log_prior + self.evidence(observed), axis=1))
