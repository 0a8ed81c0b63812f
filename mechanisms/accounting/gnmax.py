"""What PATE's vote counts are released through, and what that costs.

One record changes the vote of at most one teacher on each query, so two vote counts differ by one up and one down:
an L1 distance of 2, an L2 distance of sqrt(2), and the largest count changes by at most 1. All costs here are
independent of the data, so they may be published.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpaudit.claims import GaussianDP
from dpaudit.claims.composition import ComposedLaplace
from dpaudit.errors import require

Accounting = Literal["exact", "moments"]
"""How the cost of T noisy counts is added up.

"exact" is the composition of what is released, two counts moved by one on each query; "moments" is the published closed
form 4 T g^2 + 2 g sqrt(2 T log(1 / delta)) of Papernot et al. (2017), about twice that.
"""


def laplace_counts_curve(queries: int, noise: float) -> ComposedLaplace:
    """What `queries` vote counts, each released with Laplace noise on every class, tell of one teacher's votes.

    On each query two counts move by one and the others stay: the two are what can be told apart, and no less. Holds for
    whatever is made of the noisy counts: their argmax, or a label sampled in proportion to them. `noise` is the Laplace
    scale on each count.
    """
    require(queries >= 1, "queries must be >= 1", queries=queries)
    require(noise > 0, "noise must be > 0", noise=noise)
    return ComposedLaplace(noise, 2 * queries)


def laplace_counts_epsilon(queries: int, noise: float, delta: float, accounting: Accounting = "exact") -> float:
    """The epsilon at `delta` of so many vote counts, each with Laplace noise of scale b = 1 / g on every class.

    Source: Papernot et al. (2017), arXiv:1610.05755, for the closed form.
    """
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
    curve = laplace_counts_curve(queries, noise)
    if accounting == "moments":
        return 4 * queries / noise**2 + 2 / noise * math.sqrt(2 * queries * math.log(1 / delta))
    return curve.epsilon(delta)


@cache
def laplace_counts_noise(epsilon: float, queries: int, delta: float, accounting: Accounting = "exact") -> float:
    """Smallest Laplace scale b at which `queries` noisy vote counts cost at most `epsilon`; 0 for infinite epsilon.

    Found to a relative 1e-9, then rounded up: the cost never exceeds `epsilon`.
    """
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)
    if math.isinf(epsilon):
        return 0.0
    return _least_noise(lambda noise: laplace_counts_epsilon(queries, noise, delta, accounting) - epsilon)


def laplace_counts_queries(epsilon: float, noise: float, delta: float, accounting: Accounting = "exact") -> int:
    """Most queries whose vote counts, with Laplace noise of scale `noise`, cost at most `epsilon`; may be 0."""
    require(0 < epsilon < math.inf, "epsilon must be > 0 and finite", epsilon=epsilon, do="give the number of queries")

    def affordable(queries: int) -> bool:
        return laplace_counts_epsilon(queries, noise, delta, accounting) <= epsilon

    if not affordable(1):
        return 0
    low, high = 1, 2
    while affordable(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low


def _least_noise(excess: Callable[[float], float]) -> float:
    """Where a falling function of a noise > 0 reaches 0, to a relative 1e-9, then up to where it is not above 0."""
    low = high = 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    while excess(low) <= 0:
        low, high = low / 2, low
    # Costs are nearly powers of the noise, so steps are taken in its logarithm.
    noise = math.exp(brentq(lambda log_noise: excess(math.exp(log_noise)), math.log(low), math.log(high), xtol=1e-9))
    while excess(noise) > 0:
        noise *= 1 + 1e-9
    return noise


def confident_gnmax_curve(*, asked: int, answered: int, threshold_noise: float, vote_noise: float) -> GaussianDP:
    """What Confident-GNMax with one Gaussian on the largest count tells of one teacher's votes.

    Each query asked moves the largest count by at most 1, each query answered moves two counts by 1:
    mu^2 = asked / s1^2 + 2 answered / s2^2. `asked` and `answered` are limits fixed beforehand: stopping earlier, on
    what was seen, costs no more, and mu^2 adds up also where what is asked next depends on the answers.

    Args:
        threshold_noise: Standard deviation s1 of the noise on the largest count, > 0.
        vote_noise: Standard deviation s2 of the noise on each count, > 0.
    Source: Papernot et al. (2018), arXiv:1802.08908, algorithm 1; Smith and Thakurta (2022), arXiv:2210.17520.
    """
    require(0 <= answered <= asked, "answered must be in 0..asked", answered=answered, asked=asked)
    require(threshold_noise > 0, "threshold_noise must be > 0", threshold_noise=threshold_noise)
    require(vote_noise > 0, "vote_noise must be > 0", vote_noise=vote_noise)
    return GaussianDP(math.sqrt(asked / threshold_noise**2 + 2 * answered / vote_noise**2))


@cache
def confident_gnmax_noise_factor(
    epsilon: float, *, asked: int, answered: int, threshold_noise: float, vote_noise: float, delta: float
) -> float:
    """Smallest factor on both noises at which Confident-GNMax costs at most `epsilon`; 0 for infinite epsilon.

    Found to a relative 1e-9, then rounded up: the cost never exceeds `epsilon`.
    """
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
    if math.isinf(epsilon):
        return 0.0
    unit = confident_gnmax_curve(asked=asked, answered=answered, threshold_noise=threshold_noise, vote_noise=vote_noise)
    return _least_noise(lambda factor: GaussianDP(unit.mu / factor).epsilon(delta) - epsilon)


@dataclass(frozen=True, eq=False)
class Answers:
    """Queries that were answered."""

    queries: NDArray[np.int64]  # row of each answered query, ascending, shape (m,)
    labels: NDArray[np.int64]  # its released label, shape (m,)


def confident_gnmax(
    votes: NDArray[np.int64],
    *,
    threshold: float,
    threshold_noise: float,
    vote_noise: float,
    rng: np.random.Generator,
    answers: int | None = None,
) -> Answers:
    """Answers the queries whose largest count, with one Gaussian on it, exceeds the threshold.

    The noise of the threshold is on the largest count alone, which is what `confident_gnmax_curve` charges for; noise
    on every count and a threshold on their maximum would be another, costlier release.

    Args:
        votes: Votes for each class, shape (queries, K).
        threshold_noise: Standard deviation s1, >= 0.
        vote_noise: Standard deviation s2 of the noise on each count before the argmax, >= 0.
        answers: Stop after this many answers; None answers all that pass.
    Source: Papernot et al. (2018), arXiv:1802.08908, algorithm 1.
    """
    largest = votes.max(axis=1) + rng.normal(scale=threshold_noise, size=len(votes))
    passed = np.flatnonzero(largest > threshold)[:answers]
    noisy = votes[passed] + rng.normal(scale=vote_noise, size=(len(passed), votes.shape[1]))
    return Answers(passed, np.asarray(noisy.argmax(axis=1), dtype=np.int64))


def laplace_argmax(votes: NDArray[np.int64], noise: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The class with the largest count after Laplace noise of scale `noise` >= 0; shape (queries, K) to (queries,)."""
    noisy = votes + rng.laplace(scale=noise, size=votes.shape)
    return np.asarray(noisy.argmax(axis=1), dtype=np.int64)


def laplace_sample(votes: NDArray[np.int64], noise: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """A class drawn in proportion to max(count + Laplace noise, 0), any class where nothing is left.

    The published code falls back to the true share of each class there, which is not private; here it is uniform.
    Shape (queries, K) to (queries,); the noise is of scale `noise` >= 0.
    """
    weights = np.maximum(votes + rng.laplace(scale=noise, size=votes.shape), 0)
    weights[weights.sum(axis=1) == 0] = 1
    return sampled_classes(weights, rng)


def sampled_classes(weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """One class for each row, drawn in proportion to its weights >= 0; shape (n, K) to (n,)."""
    rising = np.cumsum(weights, axis=1)
    drawn = rng.random((len(weights), 1)) * rising[:, -1:]
    return np.asarray((rising <= drawn).sum(axis=1).clip(max=weights.shape[1] - 1), dtype=np.int64)
