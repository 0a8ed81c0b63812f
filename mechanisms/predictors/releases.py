"""How a histogram of votes becomes an answer, and what one answer costs when votes move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import ComposedLaplace, GaussianDP, PrivacyCurve
from dpaudit.errors import require
from dpaudit.mechanisms.accounting.gnmax import laplace_argmax

Ints: TypeAlias = NDArray[np.int64]


class Release(Protocol):
    """Answers from histograms: the only place where noise is added."""

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        """One answer for each histogram, shape (n, K) to (n,); K where it refuses to answer."""
        ...

    def curve(self) -> PrivacyCurve:
        """What one answer tells of one voter, whose vote moves from one class to another."""
        ...


@dataclass(frozen=True)
class GaussianArgmax:
    """The largest count after Gaussian noise on each (GNMax).

    Attributes:
        sigma: Standard deviation, > 0.
    """

    sigma: float

    def __post_init__(self) -> None:
        require(0 < self.sigma < math.inf, "sigma must be > 0 and finite", sigma=self.sigma)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        """Shape (n, K) to (n,)."""
        noisy = votes + rng.normal(scale=self.sigma, size=votes.shape)
        return np.asarray(noisy.argmax(axis=1), np.int64)

    def curve(self) -> PrivacyCurve:
        """sqrt(2) / sigma-GDP, so order / sigma^2 at every order: one count falls by 1, another one rises by 1."""
        return GaussianDP(math.sqrt(2) / self.sigma)


@dataclass(frozen=True)
class LaplaceArgmax:
    """The largest count after Laplace noise on each (LNMax).

    Attributes:
        scale: b > 0.
    """

    scale: float

    def __post_init__(self) -> None:
        require(0 < self.scale < math.inf, "scale must be > 0 and finite", scale=self.scale)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        """Shape (n, K) to (n,)."""
        return laplace_argmax(votes, self.scale, rng)

    def curve(self) -> PrivacyCurve:
        """Two Laplace counts that move by 1: 2 / b at delta = 0."""
        return ComposedLaplace(self.scale, 2)


@dataclass(frozen=True)
class ConfidentArgmax:
    """The largest count after Gaussian noise on each, where the largest count, noised by itself, exceeds a threshold.

    The answer K says that it does not (Confident-GNMax).

    Attributes:
        sigma: Standard deviation of the noise on each count, > 0.
        threshold: What the largest count must exceed, in votes.
        threshold_sigma: Standard deviation of the noise on the largest count, > 0.
    """

    sigma: float
    threshold: float
    threshold_sigma: float

    def __post_init__(self) -> None:
        require(0 < self.sigma < math.inf, "sigma must be > 0 and finite", sigma=self.sigma)
        require(
            0 < self.threshold_sigma < math.inf,
            "threshold_sigma must be > 0 and finite",
            threshold_sigma=self.threshold_sigma,
        )

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        """Shape (n, K) to (n,); K where the threshold is not exceeded."""
        passed = votes.max(axis=1) + rng.normal(scale=self.threshold_sigma, size=len(votes)) > self.threshold
        return np.where(passed, GaussianArgmax(self.sigma).answers(votes, rng), votes.shape[1])

    def curve(self) -> PrivacyCurve:
        """The largest count moves by at most 1, then two counts do: mu^2 = 1 / s1^2 + 2 / s2^2."""
        return GaussianDP(math.sqrt(1 / self.threshold_sigma**2 + 2 / self.sigma**2))
