"""Users' own learners that claim epsilon 1: honest ones, and ones with a defect on purpose.

Games scale features to [0, 1]. Learners of a ball map them to [-1, 1] and shorten rows to length 1. A neighbour has one
record replaced, so the number of rows is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpaudit import Claim, Relation, from_callable, from_summary

Floats = NDArray[np.float64]
REPLACE = Claim(1.0, relation=Relation.REPLACE)
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


def model(train: Callable[..., Any], claim: Claim = REPLACE, **parameters: Any) -> Callable[[], Any]:
    return partial(from_callable, train, claim, **parameters)


def vector(train: Callable[..., Any], claim: Claim = REPLACE, **parameters: Any) -> Callable[[], Any]:
    return partial(from_summary, train, claim, **parameters)


DEFECTS: dict[str, Callable[[], Any]] = {
    "logistic-sixth": vector(output_perturbed, factor=1 / 6),
    "penalty-forgotten": vector(output_perturbed, assumed_penalty=1.0),
    "intercept-bare": vector(output_perturbed, bare=(-1,)),
}
"""Learners with too little noise; `tests/bank/learners.py` has more."""

HONEST: dict[str, Callable[[], Any]] = {
    "logistic-model": model(output_perturbed_model),
    "logistic-vector": vector(output_perturbed),
    "huber-vector": vector(output_perturbed, weights_of=huber_weights),
    "huber-laplace": vector(output_perturbed, weights_of=huber_weights, draw=laplace_by_l1),
    "huber-in-range": vector(output_perturbed, weights_of=huber_weights, rows_of=rows_in_range),
    "logistic-in-range": vector(output_perturbed, penalty=0.01, rows_of=rows_in_range),
}
