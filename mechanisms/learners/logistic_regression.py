"""Differentially private logistic regression: the exact minimiser and noise, in the coefficients or in the objective.

J(w) = (1/n) sum of log(1 + exp(-y w.x)) + (penalty / 2) |w|^2 over records no longer than 1: rows longer than `norm`
are shortened to it, all are divided by it, and the bias is a column of its own that is penalised as every other is. n
is public: the relation is replace. One of K > 2 classes against the others costs epsilon / K.

Output perturbation: replacing one record moves the minimiser by at most 2 / (n penalty), so noise b of density
proportional to exp(-n penalty epsilon |b| / 2) is added: its direction is uniform, its length Gamma(d, 2 / (n penalty
epsilon)). That holds for the exact minimiser, so Newton's method goes on until the gradient is far below the noise.

Source: Chaudhuri, Monteleoni and Sarwate (2011), "Differentially Private Empirical Risk Minimization", Algorithm 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.special import expit

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.mechanisms.budget import require_finite_epsilon
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.learners.gaussian_naive_bayes import flat_features
from dpaudit.registry import register

Floats = NDArray[np.float64]

GRADIENT = 1e-11
"""Where Newton's method ends: the minimiser is then off by at most this over the penalty."""
MOST_STEPS = 100


@dataclass(frozen=True)
class PrivateLogistic(ABC):
    """What both ways share.

    Attributes:
        epsilon: Privacy loss in nats, > 0.
        penalty: Of the squared length of the coefficients in the mean objective, > 0.
        norm: Rows longer than this are shortened to it, > 0.
    """

    epsilon: float
    penalty: float = 0.01
    norm: float = 1.0

    def __post_init__(self) -> None:
        require_finite_epsilon(self.epsilon)
        require(self.penalty > 0, "penalty must be > 0", penalty=self.penalty)
        require(self.norm > 0, "norm must be > 0", norm=self.norm)

    def claim(self) -> Claim:
        """Pure epsilon when one record is replaced; the number of records is public."""
        return Claim(self.epsilon, relation=Relation.REPLACE)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> LinearModel:
        """One training; `validation` is not used."""
        drawn = self.sample_summaries(train, np.empty((0, 0), np.float32), 1, seed=seed, compute=compute)
        return LinearModel(drawn[0].reshape(len(self.problems(train.classes)), -1), self)

    @abstractmethod
    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> Floats:
        """Coefficients of `count` trainings, shape (count, problems (d + 1))."""

    def rows(self, features: Features) -> Floats:
        """Records of length at most 1, the last column that of the bias; shape (n, d + 1)."""
        flat = flat_features(features) / self.norm
        length = np.linalg.norm(flat, axis=1, keepdims=True)
        shortened = flat / np.maximum(length, 1.0)
        rows: Floats = np.hstack([shortened, np.ones((len(flat), 1))]) / np.sqrt(2.0)
        return rows

    def problems(self, classes: int) -> list[int]:
        """The classes that are told from the others: one problem for two classes, else one each."""
        return [1] if classes == 2 else list(range(classes))


def minimiser(rows: Floats, signs: Floats, penalty: float) -> Floats:
    """The exact minimiser of J, by Newton's method with halved steps.

    Args:
        rows: Shape (n, d).
        signs: -1 or 1, shape (n,).
        penalty: > 0.
    Raises: TrainingError when it does not end.
    """
    signed = rows * signs[:, None]
    w = np.zeros(rows.shape[1])
    for _ in range(MOST_STEPS):
        margins = signed @ w
        wrong = expit(-margins)
        gradient = penalty * w - signed.T @ wrong / len(rows)
        if np.linalg.norm(gradient) <= GRADIENT:
            return w
        curvature = (rows * (wrong * (1 - wrong))[:, None]).T @ rows / len(rows)
        curvature[np.diag_indices_from(curvature)] += penalty
        step = np.linalg.solve(curvature, gradient)
        here, size = _objective(margins, w, penalty), 1.0
        while size > 1e-4 and _objective(signed @ (w - size * step), w - size * step, penalty) > here + 1e-15:
            size /= 2
        w = w - size * step
    raise TrainingError("Newton's method did not reach the minimum; give a larger penalty")


def _objective(margins: Floats, w: Floats, penalty: float) -> float:
    return float(np.logaddexp(0.0, -margins).mean() + penalty / 2 * (w @ w))


def spherical_noise(count: int, d: int, scale: float, rng: np.random.Generator) -> Floats:
    """Vectors of density proportional to exp(-|b| / scale), shape (count, d)."""
    direction = rng.standard_normal((count, d))
    length = rng.gamma(d, scale, (count, 1))
    noise: Floats = direction / np.linalg.norm(direction, axis=1, keepdims=True) * length
    return noise


@register(
    "mechanism",
    "logistic-output-perturbation",
    source="Chaudhuri, Monteleoni and Sarwate (2011), Algorithm 1",
)
@dataclass(frozen=True)
class LogisticOutputPerturbation(PrivateLogistic):
    """Logistic regression whose exact minimiser gets noise of density exp(-n penalty epsilon |b| / 2)."""

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> Floats:
        """One fit, and noise for each training: the coefficients, shape (count, problems (d + 1))."""
        rng = np.random.default_rng(seed)
        exact = self.exact(train, compute)
        noise = spherical_noise(count * len(exact), exact.shape[1], self.noise_scale(len(train), len(exact)), rng)
        summaries: Floats = (exact + noise.reshape(count, *exact.shape)).reshape(count, exact.size)
        return summaries

    def exact(self, train: Examples, compute: Compute) -> Floats:
        """The minimisers without noise, shape (problems, d + 1)."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        rows = self.rows(train.features)
        with threadpool_limits(compute.threads):
            return np.array(
                [
                    minimiser(rows, np.where(train.labels == label, 1.0, -1.0), self.penalty)
                    for label in self.problems(train.classes)
                ]
            )

    def noise_scale(self, n: int, problems: int) -> float:
        """Of the length: 2 / (n penalty epsilon) for each problem's share of epsilon."""
        return 2 * problems / (n * self.penalty * self.epsilon)


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Coefficients as released."""

    weights: Floats  # the bias last, shape (problems, d + 1)
    learner: PrivateLogistic  # what shortened its rows

    def probabilities(self, features: Features) -> Floats:
        """Class probabilities, shape (n, K); of K > 2 classes each against the others, scaled to sum 1."""
        ahead = expit(self.learner.rows(features) @ self.weights.T)
        if len(self.weights) == 1:
            return np.hstack([1 - ahead, ahead])
        safe = ahead + 1e-300
        probabilities: Floats = safe / safe.sum(1, keepdims=True)
        return probabilities
