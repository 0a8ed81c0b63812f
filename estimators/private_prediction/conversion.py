"""What an RDP guarantee says as (epsilon, delta). For guarantees only.

A lower bound on the Renyi divergence turned into epsilon is *not* a lower bound on epsilon: compare Renyi with Renyi
(Chadha et al. 2024, section 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, unboxed
from dpaudit.estimators.bound import format_upper
from dpaudit.estimators.counts import GUARANTEE, CountEstimator, Table, TextTable, number_columns
from dpaudit.estimators.private_prediction.divergence import as_orders
from dpaudit.registry import register

Conversion = Literal["improved", "classical"]


def rdp_to_epsilon(
    orders: ArrayLike, rdp: ArrayLike, *, delta: float, conversion: Conversion = "improved"
) -> float | Floats:
    """The smallest epsilon >= 0 that an RDP guarantee implies at `delta`, over the given orders.

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


@register("estimator", "rdp-to-epsilon", source="Balle et al. (2020), Theorem 21; Mironov (2017), Proposition 3")
@dataclass(frozen=True)
class RdpToEpsilon(CountEstimator):
    """A guarantee rdp at each order, one a row: the epsilon that it implies; a conversion of upper bounds, no audit.

    Attributes:
        delta: Where epsilon is stated, in (0, 1).
        conversion: "improved" or "classical".
    """

    columns: ClassVar[tuple[str, ...]] = GUARANTEE

    delta: float = 1e-5
    conversion: Conversion = "improved"

    def __post_init__(self) -> None:
        require(0 < self.delta < 1, "delta must be in (0, 1)", delta=self.delta)
        known = get_args(Conversion)
        require(self.conversion in known, f"conversion must be one of {', '.join(known)}", conversion=self.conversion)

    def read(self, table: Table) -> Sequence[TextTable]:
        rows = number_columns(table, GUARANTEE)
        return [self.converted(rows["order"], rows["rdp"], "the guarantee of the table")]

    def converted(self, orders: Any, rdp: Any, what: str) -> TextTable:
        """The epsilon of one guarantee, in a line."""
        epsilon = float(rdp_to_epsilon(orders, rdp, delta=self.delta, conversion=self.conversion))
        title = f"epsilon <= {format_upper(epsilon, 6)} at delta={self.delta:g} ({what}, {self.conversion} conversion)"
        return TextTable(title, notes=("a conversion of upper bounds, no result of an audit",))
