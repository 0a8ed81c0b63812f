"""Claimed noise of the steps of a training: its law, its size, and how it depends on earlier steps.

All sizes are in clips, the largest norm of one record's contribution to a step.

A matrix mechanism releases y = x + C^-1 z for the sums x of the steps, white noise z and a lower-triangular matrix C,
the strategy. The product u = C y = C x + z is white noise plus C x, so it is decoded step by step. A record in the
steps P moves u by the sum of the columns of C in P. The norm of that sum, at most the sensitivity, over the deviation
of z is the mu of the record.
Source: Denisov et al. (2022), arXiv:2202.08312; Choquette-Choo et al. (2023), arXiv:2306.08153.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims.composition import ComposedLaplace
from dpaudit.claims.curve import GaussianDP, PrivacyCurve
from dpaudit.errors import require

Floats = NDArray[np.float64]


class StepNoise(ABC):
    """Claimed noise of the steps of a training."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Standard deviation of the white noise z in one coordinate, in clips, > 0."""

    @abstractmethod
    def weights(self, step: int) -> Floats:
        """Return the row of C of a step: weights of this release and of those before, the latest first."""

    @abstractmethod
    def curve(self, step: int) -> PrivacyCurve:
        """Return the claim about a record's part in one step, given all earlier releases."""


@dataclass(frozen=True)
class GaussianNoise(StepNoise):
    """Independent Gaussian noise, as DP-SGD adds it.

    Attributes:
        multiplier: Standard deviation of the noise on a sum in one coordinate, in clips, > 0.
    """

    multiplier: float

    def __post_init__(self) -> None:
        require(0 < self.multiplier < math.inf, "multiplier must be > 0 and finite", multiplier=self.multiplier)

    def __str__(self) -> str:
        return f"Gaussian noise of multiplier {self.multiplier:g}"

    @property
    def deviation(self) -> float:
        return self.multiplier

    def weights(self, step: int) -> Floats:
        return np.ones(1)

    def curve(self, step: int) -> PrivacyCurve:
        return GaussianDP(1 / self.multiplier)


@dataclass(frozen=True)
class LaplaceNoise(StepNoise):
    """Independent Laplace noise on sums of contributions that are clipped in the 1-norm.

    Attributes:
        scale: Scale of the noise in one coordinate, in clips, > 0. A step is (1 / scale)-DP.
    """

    scale: float

    def __post_init__(self) -> None:
        require(0 < self.scale < math.inf, "scale must be > 0 and finite", scale=self.scale)

    def __str__(self) -> str:
        return f"Laplace noise of scale {self.scale:g}"

    @property
    def deviation(self) -> float:
        return math.sqrt(2) * self.scale

    def weights(self, step: int) -> Floats:
        return np.ones(1)

    def curve(self, step: int) -> PrivacyCurve:
        return ComposedLaplace(self.scale, 1)


@dataclass(frozen=True)
class CorrelatedNoise(StepNoise):
    """Gaussian noise C^-1 z of a matrix mechanism: DP-FTRL with a banded or Toeplitz strategy C, BandMF, DP-lambdaCGD.

    Attributes:
        multiplier: Deviation of z over the sensitivity of C, in clips, > 0: the training is (1 / multiplier)-Gaussian
            DP for a record that takes part as stated.
        coefficients: First column of a Toeplitz strategy C, largest first, all >= 0; those left out are 0.
        steps: Number of steps of the training, >= 1.
        participations: Largest number of steps in which one record takes part, >= 1.
        separation: Smallest number of steps from one participation of a record to the next, >= 1.
    """

    multiplier: float
    coefficients: Sequence[float]
    steps: int
    participations: int = 1
    separation: int = 1

    def __post_init__(self) -> None:
        column = np.asarray(self.coefficients, np.float64)
        require(0 < self.multiplier < math.inf, "multiplier must be > 0 and finite", multiplier=self.multiplier)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)
        require(
            column.ndim == 1 and column.size > 0 and bool(np.isfinite(column).all()) and column[0] > 0,
            "coefficients must be the first column of C: finite numbers, the first one > 0",
            shape=column.shape,
        )
        # With these, the sensitivity is that of the earliest steps that the separation allows.
        require(
            bool((column >= 0).all() and (np.diff(column) <= 0).all()),
            "coefficients must be >= 0 and must not increase",
            do="other strategies have no simple sensitivity",
        )
        require(self.participations >= 1, "participations must be >= 1", participations=self.participations)
        require(self.separation >= 1, "separation must be >= 1", separation=self.separation)
        object.__setattr__(self, "coefficients", tuple(column[: self.steps].tolist()))

    @classmethod
    def with_factor(cls, factor: float, multiplier: float, steps: int, **participation: int) -> CorrelatedNoise:
        """Return noise z_t - factor z_(t-1), as DP-lambdaCGD adds it.

        Args:
            factor: The factor lambda, in [0, 1).
            multiplier: As in the class.
            steps: As in the class.
            participation: `participations` and `separation`.
        Source: arXiv:2601.22334.
        """
        require(0 <= factor < 1, "factor must be in [0, 1)", factor=factor)
        return cls(multiplier, (factor ** np.arange(steps)).tolist(), steps, **participation)

    def __str__(self) -> str:
        often = f"{self.participations} participations at least {self.separation} steps apart"
        often = "one participation" if self.participations == 1 else often
        return f"correlated Gaussian noise of multiplier {self.multiplier:g} for {often}"

    @property
    def sensitivity(self) -> float:
        """Largest norm of a record's part in C x: that of the earliest participations (arXiv:2306.08153)."""
        column, first = np.zeros(self.steps), np.asarray(self.coefficients)
        for start in range(0, min(self.steps, self.participations * self.separation), self.separation):
            part = first[: self.steps - start]
            column[start : start + part.size] += part
        return float(np.linalg.norm(column))

    @property
    def deviation(self) -> float:
        return self.multiplier * self.sensitivity

    def weights(self, step: int) -> Floats:
        return np.asarray(self.coefficients[: step + 1])

    def curve(self, step: int) -> PrivacyCurve:
        """Return the claim of one step: given earlier releases, a release tells of a record by C[t, t] / deviation."""
        return GaussianDP(self.coefficients[0] / self.deviation)
