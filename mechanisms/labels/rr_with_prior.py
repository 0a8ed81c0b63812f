"""Randomised response among the labels a prior finds likely, the heart of LP-1ST and LP-2ST.

The prior must not depend on the label it is used for. Any rule that chooses the candidates without looking at the
label keeps epsilon-label-DP; the rule here maximises the probability that the label is released as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.ranges import NoiseByEpsilon
from dpaudit.registry import register


def best_k(prior: NDArray[np.float64], epsilon: float) -> NDArray[np.int64]:
    """How many of the most likely labels to answer among, so that the true one is released most often, shape (n,).

    k* maximises e^eps / (e^eps + k - 1) times the sum of the k largest weights >= 0 of a row, shape (n, K).
    """
    _check(prior, epsilon)
    likely_first = -np.sort(-prior, axis=1)
    others = np.arange(prior.shape[1])
    right = np.cumsum(likely_first, axis=1) / (1 + others * math.exp(-epsilon))
    return np.asarray(right.argmax(axis=1) + 1, dtype=np.int64)


def rr_with_prior(
    labels: NDArray[np.int64], prior: NDArray[np.float64], epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """One private label for each label: randomised response among its k* most likely labels.

    A label among them is kept with probability e^eps / (e^eps + k* - 1), else replaced by another one of them; a label
    outside by any. The prior has rows of weights >= 0, shape (n, K), each independent of its own label.
    """
    k = best_k(prior, epsilon)
    require(len(labels) == len(prior), "labels and prior must have as many rows", labels=len(labels), prior=len(prior))
    order = np.argsort(-prior, axis=1, kind="stable")
    rank = np.argmax(order == labels[:, None], axis=1)
    likely = rank < k
    is_kept = likely & (rng.random(len(labels)) < 1 / (1 + (k - 1) * math.exp(-epsilon)))
    another = (rank + rng.integers(1, np.maximum(k, 2))) % k  # a different candidate; never used where k = 1
    answer = np.where(is_kept, rank, np.where(likely, another, rng.integers(0, k)))
    return np.asarray(order[np.arange(len(labels)), answer], dtype=np.int64)


@register("mechanism", "rr-with-prior", source="Ghazi et al. (2021), arXiv:2102.06062, RRWithPrior")
@dataclass(frozen=True)
class RRWithPrior(NoiseByEpsilon):
    """Randomised response among the classes that a public class prior finds likely.

    Attributes:
        prior: Weight >= 0 of each class, the same for every example; public.
    """

    epsilon: float
    prior: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "prior", tuple(self.prior))
        _check(np.array([self.prior]), self.epsilon)

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP; tight when more than one class is answered, else nothing is revealed."""
        return Claim(self.epsilon)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        require(len(self.prior) == classes, f"prior must hold {classes} weights", weights=len(self.prior))
        rows = np.broadcast_to(np.array(self.prior), (len(labels), classes))
        return rr_with_prior(labels, rows, self.epsilon, rng)


def _check(prior: NDArray[np.float64], epsilon: float) -> None:
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)
    require(prior.ndim == 2 and prior.shape[1] >= 1, "prior must have shape (n, classes)", shape=prior.shape)
    require(bool(np.isfinite(prior).all() and (prior >= 0).all()), "prior weights must be finite and >= 0")
