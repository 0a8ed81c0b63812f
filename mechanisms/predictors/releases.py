"""Noisy answers from histograms of votes, and the privacy cost of one answer.

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
    """A noisy function from histograms to answers; all noise of a predictor is added here."""

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        """Return one answer for each histogram, shape (n, K) to (n,); K for a refusal to answer."""

    def curve(self) -> PrivacyCurve:
        """Return the privacy curve of one answer, if one vote moves from one class to another."""


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
        """Return sqrt(2) / sigma-GDP, RDP of order / sigma^2: one count falls by 1, another rises by 1."""
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
        """Return the curve of two Laplace counts that move by 1: epsilon 2 / b at delta = 0."""
        return ComposedLaplace(self.scale, 2)


@dataclass(frozen=True)
class ConfidentArgmax:
    """The argmax of Gaussian-noised counts if the largest count, with separate noise, exceeds a threshold, else K.

    This is Confident-GNMax.
    """

    sigma: float  # standard deviation of the noise on each count, > 0
    threshold: float  # in votes
    threshold_sigma: float  # standard deviation of the noise on the largest count, > 0

    def __post_init__(self) -> None:
        require(0 < self.sigma < math.inf, "sigma must be > 0 and finite", sigma=self.sigma)
        finite = 0 < self.threshold_sigma < math.inf
        require(finite, "threshold_sigma must be > 0 and finite", given=self.threshold_sigma)

    def answers(self, votes: Ints, rng: np.random.Generator) -> Ints:
        passed = self.margins(votes) + rng.normal(scale=self.threshold_sigma, size=len(votes)) > 0
        return np.where(passed, GaussianArgmax(self.sigma).answers(votes, rng), self.otherwise(votes.shape[1]))

    def curve(self) -> PrivacyCurve:
        """Return mu-GDP with mu^2 = 1 / s1^2 + 2 / s2^2: the largest count moves by at most 1, then two counts do."""
        return GaussianDP(math.sqrt(1 / self.threshold_sigma**2 + 2 / self.sigma**2))

    def margins(self, votes: Ints) -> Floats:
        """Return by how many votes each histogram exceeds the threshold before the noise, shape (n, K) to (n,)."""
        return np.asarray(votes.max(axis=1) - self.threshold, np.float64)

    def otherwise(self, classes: int) -> int:
        """Return the answer if the threshold is not exceeded: K, a refusal."""
        return classes


@dataclass(frozen=True)
class InteractiveArgmax(ConfidentArgmax):
    """The argmax of Gaussian-noised counts if the votes contradict a student's prediction (Interactive-GNMax).

    The votes that the student expects are subtracted from the counts. If the largest difference, with separate noise,
    exceeds the threshold, the teachers answer. Otherwise the answer is the student's class if the student is sure of
    it, else K. The student is public: it was trained on public data or on earlier answers.
    """

    expected: tuple[float, ...]  # votes that the student expects for each class, shape (K,), finite
    student_class: int | None = None  # the student's class; None: the student is not sure

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(np.isfinite(self.expected).all()), "expected votes must be finite", expected=self.expected)
        valid = self.student_class is None or 0 <= self.student_class < len(self.expected)
        require(valid, "student_class must be one of the classes", student_class=self.student_class)

    def margins(self, votes: Ints) -> Floats:
        """Return the largest excess of a count over the student's expectation, less the threshold; shape (n,)."""
        return np.asarray((votes - np.asarray(self.expected)).max(axis=1) - self.threshold, np.float64)

    def otherwise(self, classes: int) -> int:
        return classes if self.student_class is None else self.student_class
