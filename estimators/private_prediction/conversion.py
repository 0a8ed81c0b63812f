"""Conversion of an RDP guarantee to (epsilon, delta), for guarantees only.

A lower bound on the Renyi divergence, converted to epsilon, is *not* a lower bound on epsilon: compare Renyi with Renyi
(Chadha et al. 2024, section 5).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, unboxed
from dpaudit.estimators.private_prediction._laws import as_orders


def rdp_to_epsilon(
    orders: ArrayLike, rdp: ArrayLike, *, delta: float, conversion: Literal["improved", "classical"] = "improved"
) -> float | Floats:
    """Return the smallest epsilon >= 0 that an RDP guarantee implies at `delta`, over the given orders.

    For upper bounds (guarantees) only: applied to lower bounds it gives no lower bound on epsilon.

    Args:
        orders: Orders a > 1, shape (m,) or scalar.
        rdp: Guarantee at each order in nats, shape (..., m).
        delta: In (0, 1).
        conversion: "improved": rdp + log((a-1)/a) - (log delta + log a)/(a-1); "classical": rdp - log(delta)/(a-1).
    Source: Balle et al. (2020), Theorem 21 (Theorem 1 of Chadha et al. 2024); Mironov (2017), Proposition 3.
    """
    require(
        conversion in ("improved", "classical"), "conversion must be 'improved' or 'classical'", conversion=conversion
    )
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
    orders, rdp = np.atleast_1d(as_orders(orders, above=1.0)), np.atleast_1d(np.asarray(rdp, np.float64))
    require(rdp.shape[-1] == orders.size, "rdp must have one value for each order", orders=orders.shape, rdp=rdp.shape)
    require(bool(np.all(rdp >= 0)), "rdp must be >= 0", rdp=rdp)
    cost = -math.log(delta) / (orders - 1)
    if conversion == "improved":
        finite = np.where(np.isinf(orders), 2.0, orders)  # both terms vanish in the limit
        cost = cost + np.where(np.isinf(orders), 0.0, np.log1p(-1 / finite) - np.log(finite) / (finite - 1))
    return unboxed(np.maximum(0.0, np.min(rdp + cost, axis=-1)))
