"""How a histogram of votes becomes an answer, and what one answer costs when votes move.

Source: Papernot et al. (2018), arXiv:1802.08908: GNMax, and its algorithms 1 (Confident) and 2 (Interactive).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import GaussianDP, PrivacyCurve
from dpaudit.claims.composition import ComposedLaplace
from dpaudit.errors import require

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class Release(Protocol):
    """Answers from histograms: the only place where noise is added."""

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        """One answer for each histogram, shape (n, K) to (n,); K where it refuses to answer."""

    def curve(self) -> PrivacyCurve:
        """What one answer tells of one voter, whose vote moves from one class to another."""


@dataclass(frozen=True)
class GaussianArgmax:
    """The largest count after Gaussian noise on each (GNMax)."""

    sigma: float  # standard deviation, > 0

    def __post_init__(self) -> None:
        require(0 < self.sigma < math.inf, "sigma must be > 0 and finite", sigma=self.sigma)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        noisy = votes + rng.normal(scale=self.sigma, size=votes.shape)
        return np.asarray(noisy.argmax(axis=1), np.int64)

    def curve(self) -> PrivacyCurve:
        """sqrt(2) / sigma-GDP, so order / sigma^2 at every order: one count falls by 1, another one rises by 1."""
        return GaussianDP(math.sqrt(2) / self.sigma)


@dataclass(frozen=True)
class LaplaceArgmax:
    """The largest count after Laplace noise on each (LNMax)."""

    scale: float  # b > 0

    def __post_init__(self) -> None:
        require(0 < self.scale < math.inf, "scale must be > 0 and finite", scale=self.scale)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        noisy = votes + rng.laplace(scale=self.scale, size=votes.shape)
        return np.asarray(noisy.argmax(axis=1), np.int64)

    def curve(self) -> PrivacyCurve:
        """Two Laplace counts that move by 1: 2 / b at delta = 0."""
        return ComposedLaplace(self.scale, 2)


@dataclass(frozen=True)
class ConfidentArgmax:
    """The largest count after Gaussian noise on each, where the largest count, noised by itself, exceeds a threshold.

    The answer K says that it does not (Confident-GNMax).
    """

    sigma: float  # standard deviation of the noise on each count, > 0
    threshold: float  # what the largest count must exceed, in votes
    threshold_sigma: float  # standard deviation of the noise on the largest count, > 0

    def __post_init__(self) -> None:
        require(0 < self.sigma < math.inf, "sigma must be > 0 and finite", sigma=self.sigma)
        finite = 0 < self.threshold_sigma < math.inf
        require(finite, "threshold_sigma must be > 0 and finite", given=self.threshold_sigma)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        passed = self.margins(votes) + rng.normal(scale=self.threshold_sigma, size=len(votes)) > 0
        return np.where(passed, GaussianArgmax(self.sigma).answers(votes, rng), self.otherwise(votes.shape[1]))

    def curve(self) -> PrivacyCurve:
        """The largest count moves by at most 1, then two counts do: mu^2 = 1 / s1^2 + 2 / s2^2."""
        return GaussianDP(math.sqrt(1 / self.threshold_sigma**2 + 2 / self.sigma**2))

    def margins(self, votes: Ints) -> Floats:
        """By how many votes each histogram exceeds the threshold before the noise, shape (n, K) to (n,)."""
        return np.asarray(votes.max(axis=1) - self.threshold, np.float64)

    def otherwise(self, classes: int) -> int:
        """What is answered where the threshold is not exceeded: the class K, which is none."""
        return classes


@dataclass(frozen=True)
class InteractiveArgmax(ConfidentArgmax):
    """The largest count after Gaussian noise on each, where votes contradict a student (Interactive-GNMax).

    What the student expects is taken off the counts; where the largest that is left, noised by itself, exceeds the
    threshold, the teachers answer. Elsewhere the student's own class is the answer where it is sure of it, else K. What
    the student expects is public: it was learned from public data, or from earlier answers.
    """

    expected: tuple[float, ...]  # votes that the student expects for each class, shape (K,), finite
    own: int | None = None  # the student's class where it is sure of it; None where it is not

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(np.isfinite(self.expected).all()), "expected votes must be finite", expected=self.expected)
        known = self.own is None or 0 <= self.own < len(self.expected)
        require(known, "own must be one of the classes", own=self.own)

    def margins(self, votes: Ints) -> Floats:
        """Of the class the student expects least of what it gets."""
        return np.asarray((votes - np.asarray(self.expected)).max(axis=1) - self.threshold, np.float64)

    def otherwise(self, classes: int) -> int:
        return classes if self.own is None else self.own
