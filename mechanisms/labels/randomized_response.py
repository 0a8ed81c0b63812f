"""Releases of one label for each example: randomised response, among all labels or among the most likely ones (the
core of LP-1ST and LP-2ST), and Laplace noise on one-hot labels (that of ALIBI), with the posterior given it.

A prior must not depend on the label it is used for. Any choice of candidates that ignores the label keeps
epsilon-label-DP. The rule in this module maximises the probability of releasing the true label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.proportions import Bags
from dpaudit.mechanisms.ranges import NoiseByEpsilon, require_epsilon
from dpaudit.registry import register


@register("mechanism", "randomized-response", source="Warner (1965), J. Am. Stat. Assoc. 60(309)")
@dataclass(frozen=True)
class RandomizedResponse(NoiseByEpsilon):
    """Keeps a label with probability e^eps / (e^eps + K - 1), else draws another label uniformly.

    Tightly epsilon-label-DP: two true labels give a released label probabilities whose ratio is at most e^eps.

    Attributes:
        epsilon: Privacy loss in nats, > 0; `inf` releases the true labels.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP, which is tight."""
        return Claim(self.epsilon)

    def keep(self, classes: int) -> float:
        return 1 / (1 + (classes - 1) * math.exp(-self.epsilon))

    def transition(self, classes: int) -> NDArray[np.float64]:
        """Return the probability of each released label (columns) given each true label (rows), shape (K, K)."""
        keep = self.keep(classes)
        return np.where(np.eye(classes, dtype=bool), keep, math.exp(-self.epsilon) * keep)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        changed = rng.random(labels.shape) >= self.keep(classes)
        steps = rng.integers(1, classes, size=labels.shape)  # any other label, uniformly
        return np.where(changed, (labels + steps) % classes, labels)

    def bags(self, train: Examples, *, rng: np.random.Generator) -> Bags:
        return Bags(np.arange(len(train)))

    def release_counts(self, counts: NDArray[np.int64], *, rng: np.random.Generator) -> NDArray[np.float64]:
        classes = counts.shape[1]
        return np.eye(classes)[self.release(counts.argmax(axis=1), classes=classes, rng=rng)]

    def log_likelihood(self, released: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        differs = released[:, None] != np.arange(size + 1)
        return np.where(differs, -self.epsilon, 0.0)

    def targets(self, released: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a row of weights for each example, an unbiased estimate of the one-hot label; some are below 0."""
        classes = released.shape[1]
        keep = self.keep(classes)
        flip = math.exp(-self.epsilon) * keep  # to one particular other label
        return np.asarray((released - flip) / (keep - flip))


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


@register("mechanism", "one-hot-laplace", source="Malek et al. (2021), arXiv:2106.03408, ALIBI")
@dataclass(frozen=True)
class OneHotLaplace(NoiseByEpsilon):
    """Adds Laplace noise of scale 2 / eps to each coordinate of the one-hot label; releases the most likely label.

    Changing a label changes two coordinates by one each, an L1 distance of 2, so noise of scale b costs epsilon 2 / b.
    The noisy vectors themselves (`observe`) have the same epsilon.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP; tight for the noisy vectors, not for the most likely label."""
        return Claim(self.epsilon)

    def scale(self) -> float:
        """Return the Laplace scale b of the noise (its standard deviation is sqrt(2) b)."""
        return 2 / self.epsilon

    def observe(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return a noisy one-hot row for each label, shape (n,) to (n, classes). Each call spends epsilon again."""
        noise = rng.laplace(scale=self.scale(), size=(len(labels), classes))
        return np.asarray(np.eye(classes)[labels] + noise)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the largest coordinate of each noisy row, the most likely label under a uniform prior; shape (n,)."""
        return np.asarray(self.observe(labels, classes=classes, rng=rng).argmax(axis=1), dtype=np.int64)

    def evidence(self, observed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-likelihood of each label for noisy rows o, up to a constant: (|o_i| - |o_i - 1|) / b."""
        require(self.scale() > 0, "scale must be > 0", scale=self.scale())
        return np.asarray((np.abs(observed) - np.abs(observed - 1)) / self.scale())

    def posterior(self, observed: NDArray[np.float64], log_prior: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of each label given its noisy row, shape (n, K); `log_prior` is (n, K) or (K,)."""
        return np.asarray(softmax(log_prior + self.evidence(observed), axis=1))
