"""Privacy accounting of the Poisson-subsampled Gaussian mechanism, the release of DP-SGD.

Each step includes every record with probability q and adds N(0, (m C)^2) to a sum of vectors of norm at most C; records
are added or removed. Renyi costs add up over the steps and are turned into epsilon at the end.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from dpaudit.claims.renyi import rdp_to_epsilon
from dpaudit.claims.subsampled_gaussian import SubsampledGaussian, subsampled_gaussian_rdp
from dpaudit.errors import require

ORDERS = np.concatenate([np.arange(1.1, 11.0, 0.1), np.arange(11, 64), 2.0 ** np.arange(6, 11)])
"""Renyi orders tried, fractional below 11."""

ACCOUNTANTS = ("rdp", "pld")


def dp_sgd_epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """Epsilon of `steps` steps at `delta` under adding or removing a record.

    Args:
        noise_multiplier: m > 0.
        sample_rate: q in (0, 1].
        steps: Number of steps, >= 1.
        delta: In (0, 1).
        accountant: "rdp", or "pld" for the tighter privacy loss distribution, composed numerically.
    """
    require(accountant in ACCOUNTANTS, f"accountant must be one of {', '.join(ACCOUNTANTS)}", accountant=accountant)
    require(steps >= 1, "steps must be >= 1", steps=steps)
    if accountant == "pld":
        return SubsampledGaussian(noise_multiplier, sample_rate, steps).epsilon(delta)
    rdp = [subsampled_gaussian_rdp(a, noise_multiplier=noise_multiplier, sample_rate=sample_rate) for a in ORDERS]
    return max(0.0, rdp_to_epsilon(ORDERS, steps * np.asarray(rdp), delta))


@cache
def dp_sgd_noise_multiplier(
    epsilon: float, *, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """The smallest noise multiplier that costs at most `epsilon`, rounded up by 1e-4 at most; 0 for infinite epsilon.

    Raises: InputError when no multiplier up to 1e6 is enough.
    """
    require(epsilon > 0, "epsilon must be > 0", epsilon=epsilon)
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
    if math.isinf(epsilon):
        return 0.0

    def enough(multiplier: float) -> bool:
        spent = dp_sgd_epsilon(
            noise_multiplier=multiplier, sample_rate=sample_rate, steps=steps, delta=delta, accountant=accountant
        )
        return spent <= epsilon

    low, high = 0.0, 1.0
    while not enough(high):
        require(high < 1e6, "epsilon must be reachable with a noise multiplier of at most 1e6", epsilon=epsilon)
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
