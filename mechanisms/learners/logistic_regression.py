"""Differentially private logistic regression: exact minimisation, with noise in the coefficients or the objective.

J(w) = (1/n) sum of log(1 + exp(-y w.x)) + (penalty / 2) |w|^2. Rows longer than `norm` are shortened to it, and all
rows are divided by `norm`. The bias is a column of the rows and is penalised like the others; rows have length at most
1 with it. The number of rows n is public: the relation is replace. For K > 2 classes, each one-against-rest problem
costs epsilon / K.

Output perturbation: replacing one record moves the minimiser by at most 2 / (n penalty). The noise b has density
proportional to exp(-n penalty epsilon |b| / 2): a uniform direction, and a length from Gamma(d, 2 / (n penalty
epsilon)). The bound holds for the exact minimiser, so Newton's method runs until the gradient is far below the noise.

Objective perturbation: minimises J(w) + b.w / n + (extra / 2) |w|^2, with |b| from Gamma(d, 2 / eps') and a uniform
direction. Let c = 1/4, the largest second derivative of the loss; rows have length at most R = 1, so the Hessian
changes by at most c R^2. Then eps' = epsilon - 2 log(1 + c / (n penalty)) and extra = 0. If that eps' is not positive,
extra = c / (n (e^(epsilon / 4) - 1)) - penalty and eps' = epsilon / 2.

Many perturbed problems are minimised at once. They start from the minimiser without noise and share its factorised
Hessian; problems that have not converged after some steps continue with Newton's method. The proof needs exact
minimisers. A point with gradient r is the exact minimiser for noise b - n r, and r is at most `NOISE_TOLERANCE` of the
noise scale.

Source: Chaudhuri, Monteleoni and Sarwate (2011), "Differentially Private Empirical Risk Minimization", Algorithms 1
and 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from dpaudit.claims import Claim, Relation
from dpaudit.mechanisms.compute import Compute, TrainingError, limited_threads
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.learners.gaussian_naive_bayes import FlatFeaturesLearner, flat_features
from dpaudit.mechanisms.ranges import require_finite_epsilon, require_positive
from dpaudit.registry import register

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

GRADIENT_TOLERANCE = 1e-11  # Newton's method ends here; the minimiser is then exact to this divided by the penalty
MAX_STEPS = 100
NOISE_TOLERANCE = 1e-6  # effective change of the noise by an inexact minimiser, as a share of the noise scale
SHARED_STEPS = 20
"""Steps with the shared factorisation. Each costs two matrix products, and gains a digit or more if noise is small."""
HISTORY = 5  # earlier steps that correct the next one
BLOCK_SIZE = 4_000_000  # numbers in a block of margins or Hessians
MIN_MINIMISERS = 256  # per block; matrix products with fewer columns are slower
CACHED_MARGINS = 250_000  # margins computed and used together
CURVATURE = 0.25  # largest second derivative of the logistic loss


@dataclass(frozen=True)
class PrivateLogistic(ABC, FlatFeaturesLearner):
    """Base of both mechanisms.

    Attributes:
        penalty: Weight of the squared length of the coefficients in the mean objective, > 0.
        norm: Rows longer than this are shortened to it, > 0.
    """

    epsilon: float
    penalty: float = 0.01
    norm: float = 1.0

    def __post_init__(self) -> None:
        require_finite_epsilon(self.epsilon)
        require_positive(self, "penalty", "norm")

    def claim(self) -> Claim:
        """Claim pure epsilon under replacing one record; the number of records is public."""
        return Claim(self.epsilon, relation=Relation.REPLACE)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> LinearModel:
        summaries = self.sample_summaries(train, np.empty((0, 0), np.float32), 1, seed=seed, compute=compute)
        return LinearModel(summaries[0].reshape(len(self.problems(train.classes)), -1), self)

    @abstractmethod
    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> Floats:
        """Return the coefficients of `count` trainings, shape (count, problems (d + 1))."""

    def rows(self, features: Features) -> Floats:
        """Return records of length at most 1, with the bias in the last column; shape (n, d + 1)."""
        flat = flat_features(features) / self.norm
        length = np.linalg.norm(flat, axis=1, keepdims=True)
        shortened = flat / np.maximum(length, 1.0)
        rows: Floats = np.hstack([shortened, np.ones((len(flat), 1))]) / np.sqrt(2.0)
        return rows

    def problems(self, classes: int) -> list[int]:
        """Return the positive class of each one-against-rest problem: one problem for two classes, else K."""
        return [1] if classes == 2 else list(range(classes))


def minimiser(rows: Floats, signs: Floats, penalty: float) -> Floats:
    """Return the exact minimiser of J for rows (n, d) with signs -1 or 1, by damped Newton steps."""
    signed = rows * signs[:, None]
    w = np.zeros(rows.shape[1])
    for _ in range(MAX_STEPS):
        margins = signed @ w
        wrong = expit(-margins)
        gradient = penalty * w - signed.T @ wrong / len(rows)
        if np.linalg.norm(gradient) <= GRADIENT_TOLERANCE:
            return w
        curvature = (rows * (wrong * (1 - wrong))[:, None]).T @ rows / len(rows)
        curvature[np.diag_indices_from(curvature)] += penalty
        step = np.linalg.solve(curvature, gradient)
        before, size = _objective(margins, w, penalty), 1.0
        while size > 1e-4 and _objective(signed @ (w - size * step), w - size * step, penalty) > before + 1e-15:
            size /= 2
        w = w - size * step
    raise TrainingError("Newton's method did not converge. Increase penalty.")


def _objective(margins: Floats, w: Floats, penalty: float) -> float:
    return float(np.logaddexp(0.0, -margins).mean() + penalty / 2 * (w @ w))


def spherical_noise(count: int, d: int, scale: float, rng: np.random.Generator) -> Floats:
    """Draw vectors b with density proportional to exp(-|b| / scale), shape (count, d)."""
    direction = rng.standard_normal((count, d))
    length = rng.gamma(d, scale, (count, 1))
    noise: Floats = direction / np.linalg.norm(direction, axis=1, keepdims=True) * length
    return noise


@register("mechanism", "logistic-output-perturbation", source="Chaudhuri, Monteleoni and Sarwate (2011), Algorithm 1")
class LogisticOutputPerturbation(PrivateLogistic):
    """Logistic regression with noise of density exp(-n penalty epsilon |b| / 2) added to the exact minimiser."""

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> Floats:
        """Fit once and draw noise for each training; returns coefficients, shape (count, problems (d + 1))."""
        rng = np.random.default_rng(seed)
        exact = self.noiseless(train, compute)
        noise = spherical_noise(count * len(exact), exact.shape[1], self.scale(len(train), len(exact)), rng)
        summaries: Floats = (exact + noise.reshape(count, *exact.shape)).reshape(count, exact.size)
        return summaries

    def log_density(self, train: Examples, summaries: Floats, *, compute: Compute) -> Floats:
        """Sum -|noise| / scale over the problems, up to a term that depends only on the shape of the data."""
        exact = self.noiseless(train, compute)
        scale = self.scale(len(train), len(exact))
        noise = summaries.reshape(len(summaries), *exact.shape) - exact
        return np.asarray(-np.linalg.norm(noise, axis=2).sum(1) / scale - exact.size * np.log(scale))

    def scale(self, rows: int, problems: int) -> float:
        """Return the scale of the noise's length for each problem, at epsilon / problems."""
        return 2 * problems / (rows * self.penalty * self.epsilon)

    def noiseless(self, train: Examples, compute: Compute) -> Floats:
        """Return the minimisers without noise, shape (problems, d + 1)."""
        return _cached_minimisers(replace(self, epsilon=1.0), train, compute)


@lru_cache(maxsize=2)
def _cached_minimisers(learner: PrivateLogistic, train: Examples, compute: Compute) -> Floats:
    """Return the minimisers, cached for the last two data sets: densities are computed at many epsilons."""
    rows = learner.rows(train.features)
    with limited_threads(compute.threads):
        signs = [np.where(train.labels == label, 1.0, -1.0) for label in learner.problems(train.classes)]
        return np.array([minimiser(rows, labels, learner.penalty) for labels in signs])


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Released coefficients."""

    weights: Floats  # bias last, shape (problems, d + 1)
    learner: PrivateLogistic  # shortens the rows

    def probabilities(self, features: Features) -> Floats:
        """Return class probabilities, shape (n, K); for K > 2, one-against-rest scores scaled to sum to 1."""
        scores = expit(self.learner.rows(features) @ self.weights.T)
        if len(self.weights) == 1:
            return np.hstack([1 - scores, scores])
        positive = scores + 1e-300
        probabilities: Floats = positive / positive.sum(1, keepdims=True)
        return probabilities


@register(
    "mechanism",
    "logistic-objective-perturbation",
    source="Chaudhuri, Monteleoni and Sarwate (2011), Algorithm 2, with the jump c R^2",
)
class LogisticObjectivePerturbation(PrivateLogistic):
    """Logistic regression with a random linear term in its objective, minimised exactly."""

    def sample_summaries(
        self, train: Examples, points: NDArray[np.float32], count: int, *, seed: SeedSequence, compute: Compute
    ) -> Floats:
        """Draw noise for each training and minimise all objectives; returns shape (count, problems (d + 1))."""
        rng, rows, problems = np.random.default_rng(seed), self.rows(train.features), self.problems(train.classes)
        extra, scale = self.noise(len(rows), len(problems))
        coefficients = np.empty((count, len(problems), rows.shape[1]))
        with limited_threads(compute.threads):
            for place, label in enumerate(problems):
                signs = np.where(train.labels == label, 1.0, -1.0)
                tilt = spherical_noise(count, rows.shape[1], scale, rng) / len(rows)
                coefficients[:, place] = minimisers(
                    rows, signs, self.penalty + extra, tilt, NOISE_TOLERANCE * scale / len(rows)
                )
        return coefficients.reshape(count, coefficients.shape[1] * coefficients.shape[2])

    def noise(self, n: int, problems: int) -> tuple[float, float]:
        """Return the extra penalty and the scale 2 / eps' of the length of b, at epsilon / problems each."""
        epsilon = self.epsilon / problems
        remaining = epsilon - 2 * math.log1p(CURVATURE / (n * self.penalty))
        if remaining > 0:
            return 0.0, 2 / remaining
        # Above 700, e^(epsilon / 4) may overflow; its reciprocal is then 0 to 300 digits.
        return CURVATURE / (n * math.expm1(min(epsilon / 4, 700.0))) - self.penalty, 4 / epsilon


def minimisers(rows: Floats, signs: Floats, penalty: float, tilt: Floats, tolerance: float) -> Floats:
    """Return the minimiser of mean log(1 + exp(-y w.x)) + (penalty / 2) |w|^2 + tilt.w for each tilt (count, d).

    The gradient at each minimiser is no longer than `tolerance`.
    """
    signed = rows * signs[:, None]
    signed32 = signed.astype(np.float32)
    noiseless = minimiser(rows, signs, penalty)
    wrong = expit(-signed @ noiseless)
    hessian = (rows * (wrong * (1 - wrong))[:, None]).T @ rows / len(rows) + penalty * np.eye(rows.shape[1])
    factor = cho_factor(hessian)
    minima = np.empty_like(tilt)
    block = max(MIN_MINIMISERS, BLOCK_SIZE // len(rows))
    for first in range(0, len(tilt), block):
        part = slice(first, first + block)
        w = noiseless - cho_solve(factor, tilt[part].T).T
        w -= cho_solve(factor, _gradient(signed32, penalty, tilt[part], w).T).T
        unfinished = _shared_steps(signed, penalty, tilt[part], w, factor, tolerance)
        # Steps with the shared Hessian may diverge, so those problems restart with their own Hessians.
        w[unfinished] = _newton(
            rows, signed, penalty, tilt[part][unfinished], np.repeat(noiseless[None], len(unfinished), 0), tolerance
        )
        minima[part] = w
    return minima


def _shared_steps(signed: Floats, penalty: float, tilt: Floats, w: Floats, factor: Any, tolerance: float) -> Ints:
    """Move w with one shared Hessian, corrected by earlier steps; returns the problems that did not converge."""
    rows_left = np.arange(len(w))
    moves, changes = np.empty((2, len(w), 0, w.shape[1]))
    current, before = w, np.empty_like(w)
    for step_number in range(SHARED_STEPS + 1):
        gradient = _gradient(signed, penalty, tilt[rows_left], current)
        w[rows_left] = current
        unfinished = np.linalg.norm(gradient, axis=1) > tolerance
        rows_left, current, gradient, before = (
            rows_left[unfinished],
            current[unfinished],
            gradient[unfinished],
            before[unfinished],
        )
        if step_number == SHARED_STEPS or not len(rows_left):
            break
        step = -cho_solve(factor, gradient.T).T
        moves, changes = moves[unfinished], changes[unfinished]
        move = step.copy()
        if step_number:
            changes = np.concatenate([changes[:, 1 - HISTORY :], (step - before)[:, None]], axis=1)
            products = changes @ changes.transpose(0, 2, 1)
            ridge = 1e-12 * np.trace(products, axis1=1, axis2=2)
            products += ridge[:, None, None] * np.eye(products.shape[1])
            share = np.linalg.solve(products, changes @ step[..., None])
            move -= (share * (moves + changes)).sum(1)
        moves = np.concatenate([moves[:, 1 - HISTORY :], move[:, None]], axis=1)
        current, before = current + move, step
    return rows_left


def _gradient(signed: NDArray[Any], penalty: float, tilt: Floats, w: Floats) -> Floats:
    """Return the gradient at w for each tilt, shape (count, d); sums over records have the precision of `signed`."""
    weights, pull = w.astype(signed.dtype), np.zeros_like(w)
    block = max(1, CACHED_MARGINS // max(1, len(w)))
    with np.errstate(over="ignore"):  # 1 / (1 + inf) = 0 is right
        for first in range(0, len(signed), block):
            rows = signed[first : first + block]
            wrong = weights @ rows.T
            np.exp(wrong, out=wrong)
            wrong += 1
            pull += np.reciprocal(wrong, out=wrong) @ rows
    gradient: Floats = penalty * w + tilt - pull / len(signed)
    return gradient


def _objectives(signed: Floats, penalty: float, tilt: Floats, w: Floats) -> Floats:
    value: Floats = np.logaddexp(0.0, -(w @ signed.T)).mean(1) + penalty / 2 * (w * w).sum(1) + (tilt * w).sum(1)
    return value


def _newton(rows: Floats, signed: Floats, penalty: float, tilt: Floats, start: Floats, tolerance: float) -> Floats:
    """Minimise by damped Newton steps with a Hessian for each problem, in blocks that fit into memory."""
    n, d = rows.shape
    products = (rows[:, :, None] * rows[:, None, :]).reshape(n, d * d) if n * d * d <= 8 * BLOCK_SIZE else None
    block = max(1, BLOCK_SIZE // max(n, d * d))
    minima = start.copy()
    for first in range(0, len(tilt), block):
        part = slice(first, first + block)
        minima[part] = _newton_block(rows, products, signed, penalty, tilt[part], minima[part], tolerance)
    return minima


def _newton_block(
    rows: Floats, products: Floats | None, signed: Floats, penalty: float, tilt: Floats, w: Floats, tolerance: float
) -> Floats:
    n, d = rows.shape
    for _ in range(MAX_STEPS):
        gradient = _gradient(signed, penalty, tilt, w)
        unfinished = np.flatnonzero(np.linalg.norm(gradient, axis=1) > tolerance)
        if not len(unfinished):
            return w
        wrong = expit(-(w[unfinished] @ signed.T))
        weight = wrong * (1 - wrong) / n
        if products is not None:
            hessian = (weight @ products).reshape(len(unfinished), d, d)
        else:
            hessian = np.stack([(rows * row_weights[:, None]).T @ rows for row_weights in weight])
        hessian += penalty * np.eye(d)
        step = np.linalg.solve(hessian, gradient[unfinished][..., None])[..., 0]
        w[unfinished] -= step * _step_sizes(signed, penalty, tilt[unfinished], w[unfinished], step)[:, None]
    raise TrainingError("Newton's method did not converge. Increase penalty.")


def _step_sizes(signed: Floats, penalty: float, tilt: Floats, w: Floats, step: Floats) -> Floats:
    """Return the largest of 1, 1/2, 1/4, ... that does not increase each objective."""
    before, size = _objectives(signed, penalty, tilt, w), np.ones(len(w))
    for _ in range(14):
        after = _objectives(signed, penalty, tilt, w - size[:, None] * step)
        grows = after > before + 1e-14 * (1 + np.abs(before))
        if not grows.any():
            break
        size[grows] /= 2
    return size
