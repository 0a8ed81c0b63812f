"""Accountants of DP-SGD: epsilon of a noise multiplier, and the least noise that keeps to an epsilon.

Each step samples every record with probability q and adds N(0, (m C)^2) to a sum of vectors of norm at most C. This is
the Poisson-subsampled Gaussian mechanism under adding or removing a record.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.claims.renyi import rdp_to_epsilon
from dpaudit.errors import require
from dpaudit.mechanisms.ranges import require_delta, require_epsilon
from dpaudit.mechanisms.training.recipe import require_one_of

ORDERS = np.concatenate([np.arange(1.1, 11.0, 0.1), np.arange(11, 64), 2.0 ** np.arange(6, 11)])
"""Orders of the Renyi divergence that the accountant minimises over; fractional below 11."""

ACCOUNTANTS = ("rdp", "pld")


def dp_sgd_epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """Return epsilon of `steps` >= 1 at `delta` in (0, 1) under add/remove; noise > 0, sample rate in (0, 1]."""
    require_one_of("accountant", accountant, ACCOUNTANTS)
    require(steps >= 1, "steps must be >= 1", steps=steps)
    if accountant == "pld":
        return SubsampledGaussian(noise_multiplier, sample_rate, steps).epsilon(delta)
    single_step = SubsampledGaussian(noise_multiplier, sample_rate, steps=1)
    return rdp_to_epsilon(ORDERS, steps * np.asarray([single_step.renyi(order) for order in ORDERS]), delta)


@cache
def dp_sgd_noise_multiplier(
    epsilon: float, *, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """Return the smallest noise multiplier <= 1e6 with at most `epsilon`, to 1e-4; 0 for infinite epsilon."""
    require_epsilon(epsilon)
    require_delta(delta)
    if math.isinf(epsilon):
        return 0.0

    def is_affordable(multiplier: float) -> bool:
        spent = dp_sgd_epsilon(
            noise_multiplier=multiplier, sample_rate=sample_rate, steps=steps, delta=delta, accountant=accountant
        )
        return spent <= epsilon

    low, high = 0.0, 1.0
    while not is_affordable(high):
        require(high < 1e6, "epsilon must be reachable with a noise multiplier of at most 1e6", epsilon=epsilon)
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_affordable(middle) else (middle, high)
    return high
