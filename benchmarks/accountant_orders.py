"""dp_accounting's Renyi divergences of a Poisson-subsampled Gaussian at fractional orders, and ours, against 50 digits.

    python -m benchmarks.accountant_orders [--write]

Needs the packages dp-accounting and mpmath.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.campaign import measurement
from dpaudit.claims import SubsampledGaussian
from tools.rows import Row, setting

RATES, NOISES, ORDERS = (0.001, 0.01, 0.05, 0.1, 0.5), (0.5, 0.8, 1, 2, 4), (1.25, 1.5, 1.75, 2.5, 4.5)
TRAININGS = ((0.01, 1, 1000), (0.05, 0.8, 300), (0.1, 1, 1000), (0.5, 4, 100), (0.5, 2, 100), (0.1, 0.5, 1000))
"""Rate, noise and steps."""
DELTA = 1e-5


def divergence(rate: float, noise: float, order: float, *, removed: bool = False) -> Any:
    """Renyi divergence in nats of the mixture from noise, or (`removed`) the reverse, as an mpmath number; order > 1.

    The trapezoid rule at 50 digits. The integrand is analytic up to |Im z| = pi noise^2; its humps lie at 0 and, for
    the mixture from noise, at the order.
    """
    from mpmath import mp, mpf

    with mp.workdps(50):
        q, s, power = mpf(rate), mpf(noise), mpf(1 - order if removed else order)
        step = min(s, s * s) / 4
        points = (-16 * s + k * step for k in range(int((order + 33 * s) / step)))
        terms = (
            mp.exp(-z * z / (2 * s * s)) * (1 - q + q * mp.exp((2 * z - 1) / (2 * s * s))) ** power for z in points
        )
        return mp.log(mp.fsum(terms) * step / (s * mp.sqrt(2 * mp.pi))) / (mpf(order) - 1)


def by_dp_accounting(rate: float, noise: float, orders: Any) -> Any:
    """Return dp_accounting's divergences of one step at each order."""
    import dp_accounting

    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return np.asarray(dp_accounting.rdp.RdpAccountant(orders).compose(event).rdp)


def one_step() -> Iterator[Row]:
    """Yield the exact divergences at each order in both directions, and both libraries' errors on the larger one."""
    for rate, noise, order in itertools.product(RATES, NOISES, ORDERS):
        conditions = setting({"rate": f"{rate:g}", "noise": f"{noise:g}", "order": f"{order:g}"})
        true, reverse = divergence(rate, noise, order), divergence(rate, noise, order, removed=True)
        theirs, ours = by_dp_accounting(rate, noise, [order])[0], SubsampledGaussian(noise, rate, 1).renyi(order)
        above = f"{100 * float(theirs / true - 1):.3g} %" if theirs < math.inf else "infinite"
        yield Row(conditions, "divergence", f"{float(true):.10g}")
        yield Row(conditions, "the other direction, of it", f"{float(reverse / true):.4f}")
        yield Row(conditions, "dp_accounting, above it", above)
        yield Row(conditions, "dpaudit, above it", f"{100 * float(ours / true - 1):.3g} %")


def whole_trainings() -> Iterator[Row]:
    """Yield epsilons of whole trainings at dp_accounting's orders, from its divergences and from exact ones."""
    from dp_accounting.rdp import rdp_privacy_accountant as accountant

    orders = np.array(accountant.DEFAULT_RDP_ORDERS, dtype=float)
    for rate, noise, steps in TRAININGS:
        conditions = setting({"rate": f"{rate:g}", "noise": f"{noise:g}", "steps": f"{steps:,}"})
        theirs = by_dp_accounting(rate, noise, orders)
        exact = np.where(orders % 1 == 0, theirs, [float(divergence(rate, noise, order)) for order in orders])
        finite = np.where(theirs < math.inf, exact, math.inf)
        for name, values in {"dp_accounting": theirs, "exact, its finite orders": finite, "exact": exact}.items():
            epsilon, order = accountant.compute_epsilon(orders, steps * values, DELTA)
            yield Row(conditions, name, f"{epsilon:.4f}", f"at order {order:g}")


def rows(_: int) -> Iterator[Row]:
    """Yield all measurements."""
    if not all(map(importlib.util.find_spec, ("dp_accounting", "mpmath"))):
        sys.exit("nothing was measured: this needs dp-accounting and mpmath (pip install dp-accounting mpmath)")
    yield from one_step()
    yield from whole_trainings()


if __name__ == "__main__":
    measurement(rows)
