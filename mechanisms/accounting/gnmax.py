"""What PATE's vote counts are released through, and what that costs.

One record changes the vote of at most one teacher on each query, so two vote counts differ by one up and one down:
an L1 distance of 2, an L2 distance of sqrt(2), and the largest count changes by at most 1. All costs here are
independent of the data, so they may be published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dpaudit.claims.renyi import rdp_to_epsilon
from dpaudit.errors import require

Accounting = Literal["moments", "optimal"]
"""How the cost of T noisy counts is added up.

"moments" is the closed form 4 T g^2 + 2 g sqrt(2 T log(1 / delta)) of Papernot et al. (2017); "optimal" is the exact
composition of pure mechanisms (Kairouz, Oh and Viswanath, 2015), never larger.
"""

ORDERS = 1 + np.geomspace(1e-3, 1e6, 4001)
"""Renyi orders looked at; any set of orders gives a valid cost, a finer one a slightly smaller cost."""


# Laplace noise on the counts


def laplace_counts_epsilon(queries: int, noise: float, delta: float, accounting: Accounting = "moments") -> float:
    """Total cost of `queries` vote counts, each released with Laplace noise on every class.

    Holds for whatever is made of the noisy counts: their argmax, or a label sampled in proportion to them.

    Args:
        queries: Number of queries T, >= 1.
        noise: Laplace scale b on each count, > 0; g = 1 / b.
        delta: In (0, 1).
        accounting: See `Accounting`.
    Returns: epsilon at `delta`.
    Source: Papernot et al. (2017), arXiv:1610.05755; Kairouz et al. (2015), arXiv:1311.0776, theorem 3.3.
    """
    require(queries >= 1, "queries must be >= 1", queries=queries)
    require(noise > 0, "noise must be > 0", noise=noise)
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
    if accounting == "moments":
        return 4 * queries / noise**2 + 2 / noise * math.sqrt(2 * queries * math.log(1 / delta))
    return _optimal_epsilon(queries, 2 / noise, delta)


def laplace_counts_noise(epsilon: float, queries: int, delta: float, accounting: Accounting = "moments") -> float:
    """Smallest Laplace scale b at which `queries` noisy vote counts cost at most `epsilon`; 0 for infinite epsilon.

    Found by bisection to a relative 1e-12, then the larger end: the cost never exceeds `epsilon`.
    """
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)
    if math.isinf(epsilon):
        return 0.0
    low, high = 0.0, 1.0
    while laplace_counts_epsilon(queries, high, delta, accounting) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if laplace_counts_epsilon(queries, middle, delta, accounting) > epsilon:
            low = middle
        else:
            high = middle
    return high


def laplace_counts_queries(epsilon: float, noise: float, delta: float, accounting: Accounting = "moments") -> int:
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


# Gaussian noise on the counts


def gnmax_rdp_data_independent(orders: NDArray[np.float64], vote_noise: float) -> NDArray[np.float64]:
    """Renyi cost of one argmax over counts with N(0, s^2) on each: order / s^2.

    Source: Papernot et al. (2018), arXiv:1802.08908, proposition 8.
    """
    require(vote_noise > 0, "vote_noise must be > 0", vote_noise=vote_noise)
    return orders / vote_noise**2


def confident_gnmax_rdp(
    orders: NDArray[np.float64], *, asked: int, answered: int, threshold_noise: float, vote_noise: float
) -> NDArray[np.float64]:
    """Renyi cost of Confident-GNMax with one Gaussian on the largest count.

    Each query asked pays order / (2 s1^2) for its threshold, each query answered pays order / s2^2 on top. `asked` and
    `answered` are limits fixed beforehand: stopping earlier, on what was seen, costs no more (a Renyi filter, Feldman
    and Zrnic, 2021).

    Args:
        orders: Renyi orders, > 1.
        asked: Queries put to the teachers at most.
        answered: Queries answered at most, <= asked.
        threshold_noise: Standard deviation s1 of the noise on the largest count, > 0.
        vote_noise: Standard deviation s2 of the noise on each count, > 0.
    Source: Papernot et al. (2018), arXiv:1802.08908, algorithm 1.
    """
    require(0 <= answered <= asked, "answered must be in 0..asked", answered=answered, asked=asked)
    require(threshold_noise > 0, "threshold_noise must be > 0", threshold_noise=threshold_noise)
    return asked * orders / (2 * threshold_noise**2) + answered * gnmax_rdp_data_independent(orders, vote_noise)


def confident_gnmax_epsilon(
    *, asked: int, answered: int, threshold_noise: float, vote_noise: float, delta: float
) -> float:
    """Epsilon at `delta` of Confident-GNMax; arguments as in `confident_gnmax_rdp`."""
    rdp = confident_gnmax_rdp(
        ORDERS, asked=asked, answered=answered, threshold_noise=threshold_noise, vote_noise=vote_noise
    )
    return rdp_to_epsilon(ORDERS, rdp, delta)


def confident_gnmax_noise_factor(
    epsilon: float, *, asked: int, answered: int, threshold_noise: float, vote_noise: float, delta: float
) -> float:
    """Smallest factor on both noises at which Confident-GNMax costs at most `epsilon`; 0 for infinite epsilon.

    Found by bisection to a relative 1e-12, then the larger end: the cost never exceeds `epsilon`.
    """
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)
    if math.isinf(epsilon):
        return 0.0
    unit = confident_gnmax_rdp(
        ORDERS, asked=asked, answered=answered, threshold_noise=threshold_noise, vote_noise=vote_noise
    )
    low, high = 0.0, 1.0
    while rdp_to_epsilon(ORDERS, unit / high**2, delta) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if rdp_to_epsilon(ORDERS, unit / middle**2, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high


# The releases themselves


@dataclass(frozen=True, eq=False)
class Answers:
    """Queries that were answered.

    Attributes:
        queries: Row of each answered query, ascending, shape (m,).
        labels: Its released label, shape (m,).
    """

    queries: NDArray[np.int64]
    labels: NDArray[np.int64]


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

    The noise of the threshold is on the largest count alone, which is what `confident_gnmax_rdp` charges for; noise on
    every count and a threshold on their maximum would be another, costlier release.

    Args:
        votes: Votes for each class, shape (queries, K).
        threshold: T on the noisy largest count.
        threshold_noise: Standard deviation s1, >= 0.
        vote_noise: Standard deviation s2 of the noise on each count before the argmax, >= 0.
        rng: Source of the noise.
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

    Args:
        votes: Votes for each class, shape (queries, K).
        noise: Laplace scale, >= 0.
        rng: Source of the noise and of the draw.
    Returns: Released labels, shape (queries,).
    """
    weights = np.maximum(votes + rng.laplace(scale=noise, size=votes.shape), 0)
    weights[weights.sum(axis=1) == 0] = 1
    return sampled_classes(weights, rng)


def sampled_classes(weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """One class for each row, drawn in proportion to its weights >= 0; shape (n, K) to (n,)."""
    rising = np.cumsum(weights, axis=1)
    drawn = rng.random((len(weights), 1)) * rising[:, -1:]
    return np.asarray((rising <= drawn).sum(axis=1).clip(max=weights.shape[1] - 1), dtype=np.int64)


def _optimal_epsilon(times: int, epsilon: float, delta: float) -> float:
    """Smallest epsilon at `delta` of `times` mechanisms of `epsilon` each, by bisection, the larger end."""
    low, high = 0.0, times * epsilon
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if _composed_delta(middle, times, epsilon) > delta:
            low = middle
        else:
            high = middle
    return high


def _composed_delta(total: float, times: int, epsilon: float) -> float:
    """The delta of `times` binary randomised responses of `epsilon` each, at `total`: the worst case of composition."""
    kept = np.arange(times + 1)
    log_keep, log_flip = -np.logaddexp(0, -epsilon), -np.logaddexp(0, epsilon)
    choose = gammaln(times + 1) - gammaln(kept + 1) - gammaln(times - kept + 1)
    log_mass = choose + kept * log_keep + (times - kept) * log_flip
    excess = -np.expm1(np.minimum(total - (2 * kept - times) * epsilon, 0.0))
    return float(np.sum(np.exp(log_mass) * excess))
