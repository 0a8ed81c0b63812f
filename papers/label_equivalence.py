"""Bag sizes and the randomised response with equal advantage, for given priors.

Two measures are compared: the mean additive advantage, and a quantile of the multiplicative one (after Busa-Fekete et
al., 2024, Figure 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.counts import Column, TextTable
from dpaudit.estimators.label_reconstruction.advantage import advantage_quantile, bag_log_ratio, llp_additive_advantage

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LEVEL = 0.98  # quantile of the multiplicative advantage in the paper


@dataclass(frozen=True)
class EquivalentResponse:
    """Advantages of bags of one size, and the randomised response with the same advantages."""

    size: int  # examples in a bag
    additive: float  # mean additive advantage
    # epsilon of the randomised response with the same mean; inf if only the labels themselves have it
    additive_epsilon: float
    # quantile of the multiplicative advantage, in nats; may be inf. It equals the epsilon of the randomised response
    # with that quantile, whose advantage is epsilon for every example
    multiplicative: float
    infinite: float  # share of the examples whose label is revealed


def equivalent_epsilons(
    prior: ArrayLike, sizes: Sequence[int], *, level: float = LEVEL, draws: int = 5, seed: int = 0
) -> list[EquivalentResponse]:
    """Return the equivalent randomised response for exact counts of random bags, for each bag size.

    Bags are drawn `draws` times, and labels from the priors each time. The additive advantage is exact for those bags.
    The quantile (`level`, in (0, 1)) is that of the drawn labels.
    """
    eta = np.asarray(prior, np.float64)
    require(eta.ndim == 1 and eta.size > 0, "priors must be one column", shape=eta.shape)
    require(bool(((eta >= 0) & (eta <= 1)).all()), "a prior must be in [0, 1]")
    require(0 < level < 1, "level must be in (0, 1)", level=level)
    require(draws >= 1, "draws must be >= 1", draws=draws)
    rng = np.random.default_rng(seed)
    equivalents = []
    for size in sizes:
        require(1 <= size <= eta.size, f"the size of a bag must be in 1..{eta.size}, the number of priors", size=size)
        additive, shifts = [], []
        for _ in range(draws):
            bags = eta[rng.permutation(eta.size)[: eta.size - eta.size % size]].reshape(-1, size)
            sums = (rng.random(bags.shape) < bags).sum(axis=1)
            with np.errstate(divide="ignore"):
                law = np.log((np.arange(size + 1) == sums[:, None]).astype(np.float64))
            additive.append(llp_additive_advantage(bags).mean())
            shifts.append(np.abs(bag_log_ratio(bags, law)).ravel())
        mean, shift = float(np.mean(additive)), np.concatenate(shifts)
        quantile = float(advantage_quantile(shift, level))
        equivalents.append(
            EquivalentResponse(size, mean, response_epsilon(eta, mean), quantile, float(np.isinf(shift).mean()))
        )
    return equivalents


def response_epsilon(prior: ArrayLike, advantage: float) -> float:
    """Return the epsilon at which randomised response has this mean additive advantage; the largest one for 0.

    The mean of max(0, min(eta, 1 - eta) - flip) is piecewise linear in the flip probability, so it is solved exactly.
    From the mean of min(eta, 1 - eta) on, up to rounding, only the labels themselves have this advantage: inf.
    """
    eta = np.asarray(prior, np.float64)
    require(advantage >= 0, "an additive advantage must be >= 0", advantage=advantage)
    rarer = -np.sort(-np.minimum(eta, 1 - eta))
    if rarer[0] == 0:
        return math.inf
    flips: Floats = (np.cumsum(rarer) - eta.size * advantage) / np.arange(1, eta.size + 1)
    # With the j rarest labels in play the flip must leave the next one out.
    holds = flips >= np.append(rarer[1:], 0.0)
    flip = float(flips[holds.argmax()]) if holds.any() else 0.0
    return math.inf if flip <= 1e-12 else math.log1p(-flip) - math.log(flip)


def equivalence_table(equivalents: Sequence[EquivalentResponse], level: float, *, examples: int) -> TextTable:
    """Return the printed table of `equivalent_epsilons`."""
    return TextTable(
        f"epsilon of the randomised response that tells as much as exact counts of bags ({examples:,} priors)",
        (
            Column("bag size", tuple(str(row.size) for row in equivalents)),
            Column("mean additive", tuple(row.additive for row in equivalents)),
            Column("same mean: epsilon", tuple(row.additive_epsilon for row in equivalents)),
            Column(f"{level:.0%} multiplicative: epsilon", tuple(row.multiplicative for row in equivalents)),
            Column("labels given away", tuple(f"{row.infinite:.2%}" for row in equivalents)),
        ),
        (
            "counts promise no privacy: an attacker who knows more than these priors gains more, randomised response "
            "with epsilon holds against all",
        ),
    )
