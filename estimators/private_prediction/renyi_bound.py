"""The finding about private predictions: lower bounds on the Renyi divergence, in both directions, at every order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpaudit.claims import Claim, PrivacyCurve
from dpaudit.errors import require
from dpaudit.estimators.bound import format_lower
from dpaudit.estimators.finding import Comparison, Series, Validity, ViolationPoint, breach_at

if TYPE_CHECKING:
    from dpaudit.estimators.chart import Chart


@dataclass(frozen=True)
class RenyiBound:
    """Lower bounds on the Renyi divergence of two neighbouring data sets, in both directions and for every order.

    Attributes:
        orders: The orders a > 1, at least one.
        forward: Lower bounds on D_a(first || second) in nats, one for each order.
        backward: Lower bounds on D_a(second || first).
        confidence: With this probability all of them hold together; in (0, 1).
        method: The method, a key of `renyi.VALIDITY`, or the estimator's registered name with it.
        validity: In what sense the confidence holds.
        queries: How many queries' bounds it was made from.
        selection: How the set of answers was chosen, in words.
        counts: The integers it was computed from, by name.
        notes: Sentences a reader must see beside it.
    """

    orders: tuple[float, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    confidence: float
    method: str
    validity: Validity
    queries: int = 1
    selection: str = "fixed beforehand"
    counts: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)
        lengths = {len(self.orders), len(self.forward), len(self.backward)}
        require(len(lengths) == 1, "orders, forward and backward must be equally long", lengths=sorted(lengths))
        require(len(self.orders) > 0, "a bound on the divergence needs at least one order")

    @property
    def lower(self) -> tuple[float, ...]:
        """What the mechanism's RDP is at least: the larger direction at each order."""
        return tuple(max(pair) for pair in zip(self.forward, self.backward, strict=True))

    @property
    def headline(self) -> str:
        """The largest bound, at its order."""
        return _in_words(*max(zip(self.lower, self.orders, strict=True)))

    @property
    def series(self) -> Mapping[str, Series]:
        """Both directions against the finite orders."""
        ranked = sorted(
            point for point in zip(self.orders, self.forward, self.backward, strict=True) if math.isfinite(point[0])
        )
        if not ranked:
            return {}
        order, forward, backward = (np.array(column) for column in zip(*ranked, strict=True))
        return {"renyi": {"order": order, "forward": forward, "backward": backward}}

    def comparison(self, curve: PrivacyCurve) -> Comparison:
        """At the order where the bound is the largest multiple of what is claimed; all orders hold together."""
        claimed = [
            curve.renyi(order) if math.isfinite(order) else curve.epsilon(0.0)  # the divergence of order inf
            for order in self.orders
        ]
        index = max(range(len(claimed)), key=lambda at: (_multiple(self.lower[at], claimed[at]), self.lower[at]))
        observed, order = self.lower[index], self.orders[index]
        return Comparison("RDP", f"order {order:g}", observed, claimed[index], _in_words(observed, order))

    def violation_point(self, curve: PrivacyCurve) -> ViolationPoint | None:
        """Where the claim broke; None where it did not, or where the bound is `as-published`."""
        return breach_at(self.comparison(curve), self.validity)

    def charts(self, claim: Claim) -> list[Chart]:
        """What there is to see beside a claim."""
        from dpaudit.estimators.finding_charts import charts  # only where something is drawn

        return charts(self.series, claim, self.comparison(claim.curve))

    def to_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON, without the series."""
        return {
            "orders": list(self.orders),
            "forward": list(self.forward),
            "backward": list(self.backward),
            "lower": list(self.lower),
            "confidence": self.confidence,
            "method": self.method,
            "selection": self.selection,
            "validity": self.validity.value,
            "queries": self.queries,
            "counts": dict(self.counts),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        queries = f"{self.queries} queries, " if self.queries > 1 else ""
        how = f"{queries}{self.confidence:.6g} confidence, {self.validity}; {self.method}"
        return f"{self.headline} ({how})"


def _in_words(lower: float, order: float) -> str:
    return f"RDP >= {format_lower(lower, 6)} at order {order:g}"


def _multiple(observed: float, claimed: float) -> float:
    """How many times what is claimed was observed."""
    if math.isinf(claimed) or observed == 0:
        return 0.0
    return observed / claimed if claimed > 0 else math.inf
