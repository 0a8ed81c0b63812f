"""Privacy accounting of the Poisson-subsampled Gaussian mechanism, the release of DP-SGD.

Each step includes every record with probability q and adds N(0, (m C)^2) to a sum of vectors of norm at most C; records
are added or removed. Renyi costs add up over the steps and are turned into epsilon at the end.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from dpaudit.errors import InputError, require
from dpaudit.mechanisms.accounting.gnmax import rdp_to_epsilon

ORDERS = np.concatenate([np.arange(1.1, 11.0, 0.1), np.arange(11, 64), 2.0 ** np.arange(6, 11)])
"""Renyi orders tried, fractional below 11."""

ACCOUNTANTS = ("rdp", "pld")


def subsampled_gaussian_rdp(order: float, *, noise_multiplier: float, sample_rate: float) -> float:
    """Renyi cost of one step.

    Args:
        order: a > 1; whole orders by the binomial sum, others by quadrature.
        noise_multiplier: m, standard deviation over sensitivity, > 0.
        sample_rate: q in [0, 1].
    Source: Mironov, Talwar and Zhang (2019), arXiv:1908.10530, section 3.3.
    """
    require(order > 1, "order must be > 1", order=order)
    require(noise_multiplier > 0, "noise_multiplier must be > 0", noise_multiplier=noise_multiplier)
    require(0 <= sample_rate <= 1, "sample_rate must be in [0, 1]", sample_rate=sample_rate)
    if sample_rate == 0:
        return 0.0
    if sample_rate == 1:
        return order / (2 * noise_multiplier**2)
    whole = float(order).is_integer()
    log_moment = (_whole if whole else _fractional)(order, sample_rate, noise_multiplier)
    return max(0.0, log_moment / (order - 1))


def _whole(a: float, q: float, m: float) -> float:
    """log sum_i C(a, i) q^i (1-q)^(a-i) exp(i (i-1) / (2 m^2))."""
    i = np.arange(a + 1)
    return float(
        logsumexp(_log_binomial(a, i) + i * math.log(q) + (a - i) * math.log1p(-q) + i * (i - 1) / (2 * m * m))
    )


def _fractional(a: float, q: float, m: float) -> float:
    """log E[((1-q) + q exp((2z - 1) / (2 m^2)))^a] for z ~ N(0, m^2), by the trapezoid rule.

    The integrand is analytic up to |Im z| = pi m^2 and falls like a Gaussian, so steps of h err by about
    exp(-2 pi^2 m^2 / h): below 1e-30 here. Its mass lies between the humps at 0 and a.
    """
    h = min(m / 8, m * m / 4)
    z = np.arange(-12 * m, a + 12 * m, h)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * m * m))
    log_density = -0.5 * (z / m) ** 2 - math.log(m * math.sqrt(2 * math.pi))
    return float(logsumexp(log_density + a * log_ratio) + math.log(h))


def _log_binomial(a: float, i: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(gammaln(a + 1) - gammaln(i + 1.0) - gammaln(a - i + 1))


def dp_sgd_epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """Epsilon of `steps` steps at `delta` under adding or removing a record.

    Args:
        noise_multiplier: m > 0.
        sample_rate: q in (0, 1].
        steps: Number of steps, >= 1.
        delta: In (0, 1).
        accountant: "rdp", or "pld" for the tighter privacy loss distribution of the package dp-accounting.
    """
    require(accountant in ACCOUNTANTS, f"accountant must be one of {', '.join(ACCOUNTANTS)}", accountant=accountant)
    require(steps >= 1, "steps must be >= 1", steps=steps)
    if accountant == "pld":
        return _pld_epsilon(noise_multiplier, sample_rate, steps, delta)
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


def _pld_epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    try:
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise InputError(
            'the accountant "pld" needs dp_accounting: pip install "dpaudit[accounting]", or use "rdp"'
        ) from None
    step = PoissonSampledDpEvent(sample_rate, GaussianDpEvent(noise_multiplier))
    return float(PLDAccountant().compose(step, steps).get_epsilon(delta))
