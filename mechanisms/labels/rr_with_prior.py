"""Randomised response among the most likely labels under a prior, the core of LP-1ST and LP-2ST.

The prior must not depend on the label it is used for. Any choice of candidates that ignores the label keeps
epsilon-label-DP. The rule in this module maximises the probability of releasing the true label.
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
    """Return k*, the number of candidate labels that maximises the probability of releasing the true label; shape (n,).

    k* maximises e^eps / (e^eps + k - 1) times the sum of the k largest weights in a row of `prior`, shape (n, K).
    """
    _require_valid_prior(prior, epsilon)
    likely_first = -np.sort(-prior, axis=1)
    others = np.arange(prior.shape[1])
    truthful = np.cumsum(likely_first, axis=1) / (1 + others * math.exp(-epsilon))
    return np.asarray(truthful.argmax(axis=1) + 1, dtype=np.int64)


def rr_with_prior(
    labels: NDArray[np.int64], prior: NDArray[np.float64], epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return one private label for each label: randomised response among its k* most likely labels.

    A label among the candidates is kept with probability e^eps / (e^eps + k* - 1), else replaced by another candidate.
    A label that is no candidate is replaced by a uniformly drawn candidate. `prior` has weights >= 0, shape (n, K);
    each row must be independent of its label.
    """
    k = best_k(prior, epsilon)
    require(len(labels) == len(prior), "labels and prior must have as many rows", labels=len(labels), prior=len(prior))
    order = np.argsort(-prior, axis=1, kind="stable")
    rank = np.argmax(order == labels[:, None], axis=1)
    likely = rank < k
    is_kept = likely & (rng.random(len(labels)) < 1 / (1 + (k - 1) * math.exp(-epsilon)))
    other_rank = (rank + rng.integers(1, np.maximum(k, 2))) % k  # a different candidate; not used if k = 1
    answer_rank = np.where(is_kept, rank, np.where(likely, other_rank, rng.integers(0, k)))
    return np.asarray(order[np.arange(len(labels)), answer_rank], dtype=np.int64)


@register("mechanism", "rr-with-prior", source="Ghazi et al. (2021), arXiv:2102.06062, RRWithPrior")
@dataclass(frozen=True)
class RRWithPrior(NoiseByEpsilon):
    """Randomised response among the most likely classes under a public class prior.

    Attributes:
        prior: Weight >= 0 of each class, the same for every example; public.
    """

    epsilon: float
    prior: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "prior", tuple(self.prior))
        _require_valid_prior(np.array([self.prior]), self.epsilon)

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP; tight unless there is a single candidate class, which reveals nothing."""
        return Claim(self.epsilon)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        require(len(self.prior) == classes, f"prior must have {classes} weights", weights=len(self.prior))
        rows = np.broadcast_to(np.array(self.prior), (len(labels), classes))
        return rr_with_prior(labels, rows, self.epsilon, rng)


def _require_valid_prior(prior: NDArray[np.float64], epsilon: float) -> None:
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)
    require(prior.ndim == 2 and prior.shape[1] >= 1, "prior must have shape (n, classes)", shape=prior.shape)
    require(bool(np.isfinite(prior).all() and (prior >= 0).all()), "prior weights must be finite and >= 0")
