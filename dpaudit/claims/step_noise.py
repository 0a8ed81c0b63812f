"""Claimed noise of the steps of a training: its law, its size, and how it depends on earlier steps.

All sizes are in clips, the largest norm of one record's contribution to a step.

A matrix mechanism releases y = x + C^-1 z for the sums x of the steps, white noise z and a lower-triangular matrix C,
the strategy. The product u = C y = C x + z is white noise plus C x, so it is decoded step by step. A record in the
steps P moves u by the sum of the columns of C in P. The norm of that sum, at most the sensitivity, over the deviation
of z is the mu of the record.

A strategy with more rows than steps, such as a tree, has several decoders. For any noise M z on the sums, let L be the
lower-triangular matrix with L L^T = M M^T. Then M z has the law of L w for white noise w, so L^-1 decodes it.
Source: Denisov et al. (2022), arXiv:2202.08312; Choquette-Choo et al. (2023), arXiv:2306.08153.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from dpaudit.claims.composition import ComposedLaplace
from dpaudit.claims.curve import GaussianDP, PrivacyCurve
from dpaudit.errors import require

Floats = NDArray[np.float64]

OFF_GRID = 0.02
"""Distance from the grid in shares of its step, and share of numbers, beyond which numbers are not on it."""
SEARCHES = 64
"""Steps from which the largest sensitivity of a matrix is searched for."""


class StepNoise(ABC):
    """Claimed noise of the steps of a training."""

    is_independent: ClassVar[bool] = True
    """True if the noise of a step is claimed to be independent of that of other steps."""
    grid: float = 0.0
    """Distance of neighbouring values of sums and noise, in clips; 0 if they are any numbers."""

    def is_on_grid(self, released: Floats) -> bool:
        """Return True if at most `OFF_GRID` of the numbers, in clips, are further than this share of a step from it."""
        steps = released / self.grid if self.grid else np.zeros(1)
        return bool((np.abs(steps - np.round(steps)) > OFF_GRID).mean() <= OFF_GRID)

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Standard deviation of the white noise z in one coordinate, in clips, > 0."""

    def weights(self, step: int) -> Floats:
        """Return the row of C of a step: weights of this release and of those before, the latest first."""
        return np.ones(1)

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

    def curve(self, step: int) -> PrivacyCurve:
        return GaussianDP(1 / self.multiplier)


@dataclass(frozen=True)
class DiscreteGaussianNoise(StepNoise):
    """Independent discrete Gaussian noise on sums of contributions that are rounded to a grid, as with secure sums.

    A value k `grid` of the noise has a probability proportional to exp(-(k grid)^2 / (2 multiplier^2)). Its moments are
    those of Gaussian noise, to eight digits. Two laws whose means differ by a record differ slightly more than Gaussian
    ones: as if mu were larger by a share of some (grid / multiplier)^2 / 24. The claim of a step allows three times as
    much.

    Attributes:
        multiplier: The parameter sigma, in clips, > 0.
        grid: Distance of neighbouring values, in clips, > 0 and at most `multiplier` / 4. Contributions are clipped so
            that their norm is at most one clip after rounding.
    Source: Canonne, Kamath and Steinke (2020), arXiv:2004.00010; Kairouz, Liu and Steinke (2021), arXiv:2102.06387.
    """

    multiplier: float
    grid: float

    def __post_init__(self) -> None:
        require(0 < self.multiplier < math.inf, "multiplier must be > 0 and finite", multiplier=self.multiplier)
        fits = 0 < self.grid <= min(self.multiplier / 4, 1.0)
        require(fits, "grid must be > 0, at most multiplier / 4 and at most 1", grid=self.grid)

    def __str__(self) -> str:
        return f"discrete Gaussian noise of multiplier {self.multiplier:g} on a grid of {self.grid:g} clips"

    @property
    def deviation(self) -> float:
        return self.multiplier

    def curve(self, step: int) -> PrivacyCurve:
        return GaussianDP((1 + (self.grid / self.multiplier) ** 2 / 8) / self.multiplier)


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

    def curve(self, step: int) -> PrivacyCurve:
        return ComposedLaplace(self.scale, 1)


class MatrixMechanism(StepNoise):
    """Gaussian noise of a matrix mechanism, for records that take part in few steps, or far apart."""

    is_independent = False
    multiplier: float
    steps: int
    participations: int
    separation: int

    def require_participation(self) -> None:
        """Raises: InputError for a multiplier, number of steps or participation out of range."""
        require(0 < self.multiplier < math.inf, "multiplier must be > 0 and finite", multiplier=self.multiplier)
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)
        require(self.participations >= 1, "participations must be >= 1", participations=self.participations)
        require(self.separation >= 1, "separation must be >= 1", separation=self.separation)

    def __str__(self) -> str:
        often = f"{self.participations} participations at least {self.separation} steps apart"
        often = "one participation" if self.participations == 1 else often
        return f"correlated Gaussian noise of multiplier {self.multiplier:g} for {often}"

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Largest norm of a record's part in C x, in clips, for the stated participation."""

    @property
    def deviation(self) -> float:
        return self.multiplier * self.sensitivity

    def curve(self, step: int) -> PrivacyCurve:
        """Return the claim of one step: given earlier releases, a release tells of a record by C[t, t] / deviation."""
        return GaussianDP(float(self.weights(step)[0]) / self.deviation)


@dataclass(frozen=True)
class CorrelatedNoise(MatrixMechanism):
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
        self.require_participation()
        require(
            column.ndim == 1 and column.size > 0 and bool(np.isfinite(column).all()) and column[0] > 0,
            "coefficients must be the first column of C: finite numbers, the first one > 0",
            shape=column.shape,
        )
        # With these, the sensitivity is that of the earliest steps that the separation allows.
        require(
            bool((column >= 0).all() and (np.diff(column) <= 0).all()),
            "coefficients must be >= 0 and must not increase",
            do="describe other strategies as a MatrixNoise",
        )
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

    @property
    def sensitivity(self) -> float:
        """Largest norm of a record's part in C x: that of the earliest participations (arXiv:2306.08153)."""
        column, first = np.zeros(self.steps), np.asarray(self.coefficients)
        for start in range(0, min(self.steps, self.participations * self.separation), self.separation):
            part = first[: self.steps - start]
            column[start : start + part.size] += part
        return float(np.linalg.norm(column))

    def weights(self, step: int) -> Floats:
        return np.asarray(self.coefficients[: step + 1])


@dataclass(frozen=True, eq=False)
class MatrixNoise(MatrixMechanism):
    """Gaussian noise of any matrix mechanism, with its strategy C as a matrix; see also `of_factors` and `of_tree`.

    The sum of step t is released with the noise (M z)[t]. M is C^-1 unless `noise` states another matrix.

    Attributes:
        multiplier: Deviation of z over the sensitivity of C, in clips, > 0: the training is (1 / multiplier)-Gaussian
            DP for a record that takes part as stated.
        strategy: C, shape (rows, steps); without `noise`, a lower-triangular matrix with a positive diagonal. An
            object of jax_privacy with the method `materialize` for so many `steps`.
        steps: Number of steps of the training; 0 for the number of columns of C.
        participations: Largest number of steps in which one record takes part, >= 1.
        separation: Smallest number of steps from one participation of a record to the next, >= 1.
        stated_sensitivity: Sensitivity of C by your accountant, > 0; None for the largest one found by a search. That
            search never exceeds the true one, so it accuses no noise that is large enough.
        noise: M with M C = 1, shape (steps, rows); None for C^-1.
    """

    multiplier: float
    strategy: Any
    steps: int = 0
    participations: int = 1
    separation: int = 1
    stated_sensitivity: float | None = None
    noise: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        strategy = _matrix(self.strategy, self.steps)
        object.__setattr__(self, "strategy", strategy)
        object.__setattr__(self, "steps", int(strategy.shape[1]))
        self.require_participation()
        stated = self.stated_sensitivity
        require(stated is None or 0 < stated < math.inf, "stated_sensitivity must be > 0 and finite", given=stated)
        noise = self.noise
        is_lower = strategy.shape[0] == self.steps and not np.triu(strategy, 1).any() and (np.diag(strategy) > 0).all()
        require(
            bool(is_lower if noise is None else np.allclose(noise @ strategy, np.eye(self.steps), atol=1e-6)),
            "strategy must be a lower-triangular matrix with a positive diagonal, or `noise` must undo it",
            shape=strategy.shape,
            do="use `of_factors` for other strategies",
        )

    @classmethod
    def of_factors(cls, multiplier: float, decoder: Any, strategy: Any, **options: Any) -> MatrixNoise:
        """Return the noise A^-1 B z on the sums x of a factorization A = B C that releases A x + B z.

        Observe the sums: if A adds up the steps, differences of the releases.

        Args:
            multiplier: As in the class.
            decoder: B, shape (steps, rows).
            strategy: C, shape (rows, steps); B C must have an inverse.
            options: Further fields of the class.
        """
        second, first = _matrix(strategy), _matrix(decoder)
        require(
            first.shape == second.shape[::-1] and np.linalg.matrix_rank(first @ second) == len(first),
            "the factors must have shapes (steps, rows) and (rows, steps), and a product with an inverse",
            decoder=first.shape,
            strategy=second.shape,
        )
        noise = np.asarray(np.linalg.solve(first @ second, first), np.float64)
        return cls(multiplier, second, noise=noise, **options)

    @classmethod
    def of_tree(cls, multiplier: float, steps: int, *, honaker: bool = False, **options: Any) -> MatrixNoise:
        """Return the noise of a binary tree over the steps, as DP-FTRL adds it: `multiplier` is that of prefix sums.

        Each node has separate noise. The prefix sum of a step is the sum of the largest nodes that end by then;
        with Honaker's estimator (from below), each node is averaged with the estimates of its children.

        Args:
            multiplier: Deviation of a node's noise over the sensitivity, which is the root of the number of levels for
                one participation.
            steps: Number of steps, >= 1.
            honaker: True for Honaker's estimator.
            options: `participations`, `separation` and `stated_sensitivity` of the class.
        Source: Kairouz et al. (2021), arXiv:2103.00039; Honaker (2015).
        """
        require(steps >= 1, "steps must be >= 1", steps=steps)
        levels = range(steps.bit_length())
        nodes = sum(steps >> level for level in levels)
        number: dict[tuple[int, int], int] = {}  # of each node, by its first step and its number of steps
        strategy, estimate = np.zeros((nodes, steps)), np.eye(nodes)  # estimates are weights of all nodes
        share = 1.0  # weight of the node itself in its estimate
        for size in (1 << level for level in levels):
            # A node has variance 1, and the sum of its children's estimates twice theirs. By inverse variances, the
            # weight of the node is the variance of the new estimate too.
            share = 1.0 if size == 1 else 2 * share / (1 + 2 * share)
            for first in range(0, steps - size + 1, size):
                node = number[first, size] = len(number)
                strategy[node, first : first + size] = 1
                if honaker and size > 1:
                    children = [number[first, size // 2], number[first + size // 2, size // 2]]
                    estimate[node] = share * estimate[node] + (1 - share) * estimate[children].sum(0)
        prefix = np.zeros((steps, nodes))
        for end in range(1, steps + 1):
            size = end & -end
            prefix[end - 1] = estimate[number[end - size, size]] + (prefix[end - size - 1] if end > size else 0)
        return cls.of_factors(multiplier, prefix, strategy, **options)

    @cached_property
    def sensitivity(self) -> float:
        """Largest norm of a record's part in C x: as stated, or the largest that steps along the gradient reach."""
        if self.stated_sensitivity is not None:
            return self.stated_sensitivity
        gram = self.strategy.T @ self.strategy
        if self.participations == 1:
            return math.sqrt(float(np.diag(gram).max()))
        starts = np.linspace(0, self.steps - 1, SEARCHES).astype(int)
        return max(self._increased(gram, int(start)) for start in np.unique(starts))

    @cached_property
    def _decoder(self) -> Floats:
        """Lower-triangular matrix that turns the noise into white noise of the deviation of z."""
        if self.noise is None:
            return np.asarray(self.strategy, np.float64)
        lower = np.linalg.cholesky(self.noise @ self.noise.T)
        return np.asarray(solve_triangular(lower, np.eye(self.steps), lower=True), np.float64)

    def weights(self, step: int) -> Floats:
        require(step < self.steps, "the noise is described for fewer steps", steps=self.steps, step=step)
        return self._decoder[step, : step + 1][::-1]

    def _increased(self, gram: Floats, start: int) -> float:
        signs = np.zeros(self.steps)
        signs[start] = 1
        norm = math.sqrt(signs @ gram @ signs)
        while True:
            gradient = gram @ signs
            signs = np.sign(gradient) * self._largest(np.abs(gradient))
            if (increased := math.sqrt(signs @ gram @ signs)) <= norm * (1 + 1e-12):
                return norm
            norm = increased

    def _largest(self, values: Floats) -> Floats:
        """Return the allowed participations with the largest sum of values >= 0, shape (steps,), each 0 or 1."""
        most = min(self.participations, -(-self.steps // self.separation))
        best = np.zeros((most + 1, self.steps + 1))  # of so many participations from a step on
        for step in range(self.steps - 1, -1, -1):
            later = best[:-1, min(step + self.separation, self.steps)]
            best[1:, step] = np.maximum(best[1:, step + 1], values[step] + later)
        chosen, step, count = np.zeros(self.steps), 0, most
        while step < self.steps and count:
            if best[count, step] > best[count, step + 1]:
                chosen[step] = 1
                step, count = step + self.separation, count - 1
            else:
                step += 1
        return chosen


def _matrix(values: Any, steps: int = 0) -> Floats:
    """Return a matrix of finite numbers, or that of an object of jax_privacy for a number of steps."""
    if hasattr(values, "materialize"):
        values = values.materialize(steps) if steps else values.materialize()
    matrix = np.asarray(values, np.float64)
    require(matrix.ndim == 2 and bool(np.isfinite(matrix).all()), "a matrix of finite numbers", shape=matrix.shape)
    require(steps in (0, matrix.shape[1]), "steps must be the columns of the strategy", shape=matrix.shape, steps=steps)
    return matrix
