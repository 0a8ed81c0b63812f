"""Users' own learners that claim epsilon 1: honest ones, and ones with a defect on purpose.

Games scale features to [0, 1]. Learners of a ball map them to [-1, 1] and shorten rows to length 1. A neighbour has one
record replaced, so the number of rows is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin

from dpaudit import Claim, Relation, from_callable, from_sklearn, from_summary
from dpaudit.claims import GaussianDP

Floats = NDArray[np.float64]
REPLACE = Claim(1.0, relation=Relation.REPLACE)
GAUSSIAN = Claim.of(GaussianDP(1.0), relation=Relation.REPLACE, delta=1e-5)
PENALTY = 0.1


def rows_in_ball(X: Any, constant: bool = True) -> Floats:
    """Return rows of length at most 1: features in [-1, 1], and a constant for the intercept."""
    rows = 2 * np.clip(np.nan_to_num(np.asarray(X, np.float64)), 0, 1) - 1
    if constant:
        rows = np.column_stack([rows, np.ones(len(rows))])
    return shortened(rows)


def shortened(rows: Floats, longest: float = 1.0) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths / longest, 1.0))


def rows_in_range(X: Any) -> Floats:
    """Return rows of length at most 1 if features are in [0, 1], as the caller must ensure."""
    rows = rows_of_any_length(X)
    return np.asarray(rows / math.sqrt(rows.shape[1]))


def rows_of_any_length(X: Any) -> Floats:
    return np.column_stack([2 * np.asarray(X, np.float64) - 1, np.ones(len(X))])


def spherical(d: int, scale: float, seed: int) -> Floats:
    """Return noise of density proportional to exp(-length / scale)."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=d)
    return np.asarray(rng.gamma(d, scale) * direction / np.linalg.norm(direction))


def laplace(d: int, scale: float, seed: int) -> Floats:
    return np.random.default_rng(seed).laplace(0, scale, d)


def logistic_weights(rows: Floats, y: Any, penalty: float) -> Floats:
    """Return the minimiser of the mean logistic loss plus penalty / 2 times the squared length, by Newton's method."""
    weights = np.zeros(rows.shape[1])
    for _ in range(50):
        p = expit(rows @ weights)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows / len(y) + penalty * np.eye(len(weights))
        step = np.linalg.solve(hessian, rows.T @ (p - y) / len(y) + penalty * weights)
        length = float(np.linalg.norm(step))
        weights -= step * min(1.0, 2.0 / max(length, 1e-12))
        if length < 1e-9:
            break
    return weights


def huber_weights(rows: Floats, y: Any, penalty: float) -> Floats:
    """Return the minimiser for the Huber loss of a support vector machine, whose slope is at most 1.

    Newton's method with halved steps: full ones may cycle.
    """
    signed = rows * (2.0 * np.asarray(y) - 1)[:, None]

    def objective(weights: Floats) -> float:
        margin = signed @ weights
        bent = np.where(margin < 0.5, 1 - margin, np.where(margin < 1.5, (1.5 - margin) ** 2 / 2, 0.0))
        return float(bent.mean() + penalty / 2 * weights @ weights)

    weights = np.zeros(rows.shape[1])
    for _ in range(100):
        margin = signed @ weights
        gradient = -signed.T @ np.clip(1.5 - margin, 0, 1) / len(y) + penalty * weights
        curved = ((margin > 0.5) & (margin < 1.5)).astype(float)
        hessian = (signed * curved[:, None]).T @ signed / len(y) + penalty * np.eye(len(weights))
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while size > 1e-6 and objective(weights - size * step) > objective(weights) - 0.25 * size * gradient @ step:
            size /= 2
        weights = weights - size * step
        if np.abs(step).max() < 1e-10:
            break
    return weights


def answers_of(weights: Floats, rows_of: Callable[[Any], Floats] = rows_in_ball) -> Callable[[Any], Floats]:
    def answer(X: Any) -> Floats:
        p = expit(rows_of(X) @ weights)
        return np.column_stack([1 - p, p])

    return answer


# Output perturbation (Chaudhuri et al., 2011): a replaced record moves the minimiser by at most 2 / (n penalty).


def output_perturbed(
    X: Any,
    y: Any,
    seed: int,
    factor: float = 1.0,
    penalty: float = PENALTY,
    assumed_penalty: float | None = None,
    weights_of: Callable[..., Floats] = logistic_weights,
    rows_of: Callable[[Any], Floats] = rows_in_ball,
    draw: Callable[..., Floats] = spherical,
    bare: tuple[int, ...] = (),
) -> Floats:
    rows = rows_of(X)
    weights = weights_of(rows, y, penalty)
    noise = draw(len(weights), factor * 2 / (len(y) * (assumed_penalty or penalty)), seed)
    noise[list(bare)] = 0.0
    return weights + noise


def laplace_by_l1(d: int, scale: float, seed: int) -> Floats:
    """Laplace noise for the L1 sensitivity, sqrt(d) times that in L2."""
    return laplace(d, scale * math.sqrt(d), seed)


def output_perturbed_model(X: Any, y: Any, seed: int, **parameters: Any) -> Callable[[Any], Floats]:
    return answers_of(output_perturbed(X, y, seed, **parameters), parameters.get("rows_of", rows_in_ball))


def ridge_weights(rows: Floats, y: Any, penalty: float) -> Floats:
    """Return the minimiser of the mean squared error over 2, plus the penalty."""
    return np.asarray(
        np.linalg.solve(rows.T @ rows / len(y) + penalty * np.eye(rows.shape[1]), rows.T @ (2.0 * y - 1) / len(y))
    )


def scaled_by_longest(X: Any) -> Floats:
    """Rows divided by the length of the longest one, which the records decide."""
    rows = rows_of_any_length(X)
    return np.asarray(rows / np.linalg.norm(rows, axis=1).max())


def clipped_by_column(X: Any) -> Floats:
    """Each feature clipped to [-1, 1]; the rows may be sqrt(d) long."""
    return np.clip(rows_of_any_length(X), -1, 1)


# Noisy gradients: per-example gradients, each clipped to length CLIP; a replaced record moves their sum by 2 CLIP.

CLIP = 0.2


def normal(d: int, scale: float, seed: int) -> Floats:
    return np.random.default_rng(seed).normal(0, scale, d)


def noisy_gradients(
    X: Any,
    y: Any,
    seed: int,
    factor: float = 1.0,
    steps: int = 1,
    noised_steps: int | None = None,
    loss: str = "logistic",
    draw: Callable[..., Floats] = spherical,
    clips: str = "each",
) -> Floats:
    """Gradient descent with noise of scale `factor` 2 CLIP on each sum."""
    rows, signs = rows_of_any_length(X), 2.0 * np.asarray(y) - 1
    weights = np.zeros(rows.shape[1])
    for step in range(steps):
        margin = rows @ weights
        if loss == "hinge":
            slope = -signs * (signs * margin < 1)
        else:
            slope = expit(margin) - y if loss == "logistic" else margin - signs
        gradients = rows * slope[:, None]
        if clips == "each":
            gradients = shortened(gradients, CLIP)
        gradient = gradients.sum(0)
        if clips == "mean":
            gradient = shortened(gradient[None], CLIP * len(y))[0]
        if noised_steps is None or step < noised_steps:
            gradient = gradient + draw(len(weights), factor * 2 * CLIP, seed + 1000 * step)
        weights = weights - gradient / (CLIP * len(y))
    return weights


# Linear regression by noisy sufficient statistics.


def products_regression(
    X: Any, y: Any, seed: int, small: str = "", shrink: float = 0.1, honest_scale: float = 1.0
) -> Floats:
    """Ridge regression from noisy products of features in [0, 1], a constant, and the label; returns its inputs too."""
    rows = np.column_stack([np.clip(X, 0, 1), np.ones(len(X)), y]).astype(np.float64)
    d = rows.shape[1]
    places = np.triu_indices(d)
    products = (rows.T @ rows)[places]
    scale = np.full(len(products), honest_scale * len(products))
    pairs = [(int(row), int(column)) for row, column in zip(*places, strict=True)]
    if small == "entry":
        scale[pairs.index((0, d - 1))] *= shrink
    elif small == "diagonal":
        scale[[pairs.index((j, j)) for j in range(d - 2)]] *= shrink
    elif small == "last product":
        scale[pairs.index((1, 2))] = 1e-9
    elif small == "labels":
        scale[[pairs.index((j, d - 1)) for j in range(d)]] *= shrink
    noise = np.random.default_rng(seed).laplace(0, 1, len(products)) * scale
    full = np.zeros((d, d))
    full[places] = products + noise
    full += np.triu(full, 1).T
    gram = full[:-1, :-1] + 10 * np.eye(d - 1)
    return np.concatenate([np.linalg.lstsq(gram, full[:-1, -1], rcond=None)[0], full[places]])


# Naive Bayes: noisy means by class.


def naive_bayes_means(X: Any, y: Any, seed: int, bounds: str = "public") -> Floats:
    """Noisy sums of the features and noisy sizes, by class; a record changes those of two classes."""
    values = np.asarray(X, np.float64)
    d = values.shape[1]
    if bounds == "public":
        low, high = np.zeros(d), np.ones(d)
    elif bounds == "data":
        low, high = values.min(0), values.max(0)
    elif bounds == "quantiles":
        low, high = np.quantile(values, 0.05, axis=0), np.quantile(values, 0.95, axis=0)
    elif bounds == "deviations":
        low, high = values.mean(0) - 2 * values.std(0), values.mean(0) + 2 * values.std(0)
    elif bounds == "of class":
        low, high = values[y == y[0]].min(0), values[y == y[0]].max(0)
    values = np.clip(values, low, high)
    wide = high - low
    scale = 2.0 * (d + 1)
    released = []
    for c in (0, 1):
        of_class = values[y == c]
        sums = of_class.sum(0) + laplace(d, 1.0, seed + c) * scale * np.maximum(np.abs(low), np.abs(high))
        if bounds != "public":
            sums = (of_class - low).sum(0) + laplace(d, 1.0, seed + c) * scale * wide
        size = len(of_class) + laplace(1, scale, seed + 2 + c)[0]
        released.append(np.append(sums / max(size, 1.0) + (0 if bounds == "public" else low), size))
    return np.concatenate(released)


class PrivateLogistic(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn estimator with output perturbation."""

    def __init__(
        self,
        factor: float = 1.0,
        penalty: float = PENALTY,
        assumed_penalty: float | None = None,
        bare: tuple[int, ...] = (),
        by_column: bool = False,
        random_state: Any = None,
    ) -> None:
        self.factor = factor
        self.penalty = penalty
        self.assumed_penalty = assumed_penalty
        self.bare = bare
        self.by_column = by_column
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PrivateLogistic:
        self.classes_ = np.unique(y)
        self.coef_ = output_perturbed(
            X,
            y,
            self.random_state,
            factor=self.factor,
            penalty=self.penalty,
            assumed_penalty=self.assumed_penalty,
            bare=self.bare,
            draw=laplace if self.by_column else spherical,
        )
        return self

    def predict_proba(self, X: Any) -> Floats:
        return answers_of(self.coef_)(X)

    def predict(self, X: Any) -> Any:
        return (self.predict_proba(X)[:, 1] > 0.5).astype(int)


@dataclass(frozen=True)
class OwnLearner:
    """A learner with a defect.

    Attributes:
        make: Returns the mechanism.
        kind: Kind of the defect.
    """

    make: Callable[[], Any]
    kind: str


def model(train: Callable[..., Any], claim: Claim = REPLACE, **parameters: Any) -> Callable[[], Any]:
    return partial(from_callable, train, claim, **parameters)


def vector(train: Callable[..., Any], claim: Claim = REPLACE, **parameters: Any) -> Callable[[], Any]:
    return partial(from_summary, train, claim, **parameters)


def estimator(claim: Claim = REPLACE, **parameters: Any) -> Callable[[], Any]:
    return lambda: from_sklearn(PrivateLogistic(**parameters), claim)


NOISE, GRADIENTS, PENALTIES, NORMS = "output noise", "noisy gradients", "penalty in the sensitivity", "norm of rows"
BARE, STATISTICS, BOUNDS = "coefficient without noise", "noisy statistics", "bounds from the data"

DEFECTS: dict[str, OwnLearner] = {
    "logistic-sixth-model": OwnLearner(model(output_perturbed_model, factor=1 / 6), NOISE),
    "logistic-sixth-vector": OwnLearner(vector(output_perturbed, factor=1 / 6), NOISE),
    "logistic-third-vector": OwnLearner(vector(output_perturbed, factor=1 / 3, penalty=0.01), NOISE),
    "logistic-by-column-estimator": OwnLearner(estimator(by_column=True, penalty=0.01), NOISE),
    "huber-half-vector": OwnLearner(vector(output_perturbed, factor=1 / 2, weights_of=huber_weights), NOISE),
    "huber-half-model": OwnLearner(model(output_perturbed_model, factor=1 / 2, weights_of=huber_weights), NOISE),
    "huber-half-laplace": OwnLearner(
        vector(output_perturbed, factor=1 / 2, weights_of=huber_weights, draw=laplace_by_l1), NOISE
    ),
    "gradients-half-spherical": OwnLearner(vector(noisy_gradients, factor=1 / 2), GRADIENTS),
    "gradients-half-laplace": OwnLearner(vector(noisy_gradients, factor=1 / 2, draw=laplace_by_l1), GRADIENTS),
    "gradients-half-hinge": OwnLearner(vector(noisy_gradients, factor=1 / 2, loss="hinge"), GRADIENTS),
    "gradients-half-normal": OwnLearner(vector(noisy_gradients, GAUSSIAN, factor=1.0, steps=4, draw=normal), GRADIENTS),
    "gradients-one-step-charged": OwnLearner(
        vector(noisy_gradients, GAUSSIAN, factor=1.0, steps=9, draw=normal, loss="squares"), GRADIENTS
    ),
    "gradients-first-step-noised": OwnLearner(vector(noisy_gradients, steps=3, noised_steps=1), GRADIENTS),
    "gradients-clipped-mean": OwnLearner(vector(noisy_gradients, clips="mean"), GRADIENTS),
    "penalty-forgotten-vector": OwnLearner(vector(output_perturbed, assumed_penalty=1.0), PENALTIES),
    "penalty-forgotten-model": OwnLearner(model(output_perturbed_model, assumed_penalty=1.0), PENALTIES),
    "penalty-halved": OwnLearner(
        vector(output_perturbed, penalty=0.05, assumed_penalty=0.1, weights_of=huber_weights), PENALTIES
    ),
    "penalty-of-estimator": OwnLearner(estimator(penalty=0.01, assumed_penalty=0.1), PENALTIES),
    "rows-not-clipped-vector": OwnLearner(
        vector(output_perturbed, rows_of=rows_of_any_length, weights_of=huber_weights), NORMS
    ),
    "rows-not-clipped-model": OwnLearner(
        model(output_perturbed_model, rows_of=rows_of_any_length, weights_of=huber_weights), NORMS
    ),
    "rows-clipped-by-column": OwnLearner(
        vector(output_perturbed, rows_of=clipped_by_column, weights_of=huber_weights), NORMS
    ),
    "rows-by-longest": OwnLearner(vector(output_perturbed, rows_of=scaled_by_longest), NORMS),
    "intercept-bare-vector": OwnLearner(vector(output_perturbed, bare=(-1,)), BARE),
    "intercept-bare-model": OwnLearner(model(output_perturbed_model, bare=(-1,)), BARE),
    "first-coefficient-bare": OwnLearner(estimator(bare=(0,)), BARE),
    "two-coefficients-bare": OwnLearner(vector(output_perturbed, bare=(1, 3), weights_of=huber_weights), BARE),
    "products-entry": OwnLearner(vector(products_regression, small="entry", shrink=0.02), STATISTICS),
    "products-diagonal": OwnLearner(vector(products_regression, small="diagonal"), STATISTICS),
    "products-last": OwnLearner(vector(products_regression, small="last product"), STATISTICS),
    "products-labels": OwnLearner(vector(products_regression, small="labels"), STATISTICS),
    "bounds-of-data": OwnLearner(vector(naive_bayes_means, bounds="data"), BOUNDS),
    "bounds-of-quantiles": OwnLearner(vector(naive_bayes_means, bounds="quantiles"), BOUNDS),
    "bounds-of-deviations": OwnLearner(vector(naive_bayes_means, bounds="deviations"), BOUNDS),
    "bounds-of-class": OwnLearner(vector(naive_bayes_means, bounds="of class"), BOUNDS),
}
"""Noise of normal gradients is for one step of mu = 1, and four or nine are taken: mu is 2 and 3."""

HONEST: dict[str, Callable[[], Any]] = {
    "logistic-model": model(output_perturbed_model),
    "logistic-vector": vector(output_perturbed),
    "logistic-weak-penalty": vector(output_perturbed, penalty=0.01),
    "logistic-estimator": estimator(),
    "huber-model": model(output_perturbed_model, weights_of=huber_weights),
    "huber-vector": vector(output_perturbed, weights_of=huber_weights),
    "huber-laplace": vector(output_perturbed, weights_of=huber_weights, draw=laplace_by_l1),
    "huber-in-range": vector(output_perturbed, weights_of=huber_weights, rows_of=rows_in_range),
    "logistic-in-range": vector(output_perturbed, penalty=0.01, rows_of=rows_in_range),
    "gradients-spherical": vector(noisy_gradients),
    "gradients-hinge": vector(noisy_gradients, loss="hinge"),
    "gradients-normal": vector(noisy_gradients, GAUSSIAN, factor=2.0, steps=4, draw=normal),
    "products": vector(products_regression),
    "bayes": vector(naive_bayes_means),
}
