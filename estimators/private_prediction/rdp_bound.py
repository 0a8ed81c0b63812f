"""Lower bounds on the Renyi divergence of two neighbouring data sets, from answer counts; one row is one query.

Samples give lower bounds on the divergence, `renyi_divergence` computes it for known laws, and accountants give upper
bounds. All are compared as Renyi divergences, because no conversion turns a lower bound into epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import Ints, as_confidence, require_one_of
from dpaudit.estimators.counts import (
    K_CUT,
    TWO_CUT,
    Column,
    CountEstimator,
    Table,
    TextTable,
    classes,
    count_columns,
)
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.private_prediction.divergence import ORDERS
from dpaudit.estimators.private_prediction.k_cut import KCut, bootstrap_bound, k_cut_bound
from dpaudit.estimators.private_prediction.two_cut import TwoCut, two_cut_bound
from dpaudit.registry import register

NO_EPSILON = (
    "a lower bound on the Renyi divergence must not be converted to epsilon: the conversion holds for upper bounds only"
)

VALIDITY = MappingProxyType(
    {
        "corner": Validity.FINITE_SAMPLE,
        "termwise": Validity.FINITE_SAMPLE,
        "clopper-pearson": Validity.FINITE_SAMPLE,
        "goodman": Validity.ASYMPTOTIC,
        "sison-glaz": Validity.ASYMPTOTIC,
        "bootstrap": Validity.AS_PUBLISHED,
    }
)
"""Sense in which each method's confidence holds; the bootstrap's does not hold if the divergence is near 0."""


@dataclass(frozen=True)
class RenyiBound:
    """Lower bounds on the Renyi divergence of two neighbouring data sets, in both directions and for every order."""

    orders: tuple[float, ...]  # orders a > 1, at least one
    forward: tuple[float, ...]  # lower bounds on D_a(first || second) in nats, one for each order
    backward: tuple[float, ...]  # lower bounds on D_a(second || first)
    confidence: float  # probability with which all bounds hold together, in (0, 1)
    method: str  # a key of `VALIDITY`
    validity: Validity  # sense in which the confidence holds

    @property
    def lower(self) -> tuple[float, ...]:
        """Lower bound on the mechanism's RDP at each order: the larger of both directions."""
        return tuple(max(pair) for pair in zip(self.forward, self.backward, strict=True))

    @property
    def table(self) -> tuple[Column, ...]:
        """Orders and bounds as printed."""
        return (
            Column("order", self.orders),
            Column("D(1 || 2) >=", self.forward, "down"),
            Column("D(2 || 1) >=", self.backward, "down"),
            Column("RDP >=", self.lower, "down"),
        )


def two_cut_audit(
    k1: int, n1: int, k2: int, n2: int, orders: Sequence[float], *, confidence: float, method: TwoCut = "corner"
) -> RenyiBound:
    """Return `two_cut_bound` of one query in both directions, with its validity."""
    forward = two_cut_bound(k1, n1, k2, n2, orders, confidence=confidence, method=method)
    backward = two_cut_bound(k2, n2, k1, n1, orders, confidence=confidence, method=method)
    return _rdp_bound(orders, forward, backward, confidence, method)


def k_cut_audit(
    counts1: ArrayLike,
    counts2: ArrayLike,
    orders: Sequence[float],
    *,
    confidence: float,
    method: KCut = "clopper-pearson",
) -> RenyiBound:
    """Return `k_cut_bound` of one query in both directions, with its validity; counts of shape (k,)."""
    forward = k_cut_bound(counts1, counts2, orders, confidence=confidence, method=method)
    backward = k_cut_bound(counts2, counts1, orders, confidence=confidence, method=method)
    return _rdp_bound(orders, forward, backward, confidence, method)


def query_confidence(confidence: float, queries: int) -> float:
    """Return the confidence of each of `queries` bounds with which all hold together at `confidence` (union bound)."""
    as_confidence(confidence)
    require(queries >= 1, "queries must be >= 1", queries=queries)
    return 1 - (1 - confidence) / queries


def compose_bounds(bounds: Sequence[RenyiBound]) -> RenyiBound:
    """Return the bound on answering all queries: divergences and errors add up, order by order.

    If each query's bound has the confidence `query_confidence(confidence, queries)`, the composition holds at
    `confidence`. Exact for queries answered independently given the data set, as with fixed queries.

    Raises: InputError for no bounds, unequal orders, or errors that add up to 1 or more.
    Source: Mironov (2017), Proposition 1; Chadha et al. (2024), section 4.2, without their uncorrected confidence.
    """
    return _combined(bounds, math.fsum)


def worst_query(bounds: Sequence[RenyiBound]) -> RenyiBound:
    """Return the largest bound over the queries at each order; the selection is paid for by adding the errors."""
    return _combined(bounds, max)


def _rdp_bound(
    orders: Sequence[float], forward: ArrayLike, backward: ArrayLike, confidence: float, method: str
) -> RenyiBound:
    return RenyiBound(_row(orders), _row(forward), _row(backward), confidence, method, VALIDITY[method])


def _row(values: ArrayLike) -> tuple[float, ...]:
    return tuple(float(value) for value in np.atleast_1d(np.asarray(values, np.float64)))


def _combined(bounds: Sequence[RenyiBound], reduce: Callable[[tuple[float, ...]], float]) -> RenyiBound:
    """Return one bound from many, order by order; errors add up and the weakest validity is kept."""
    require(len(bounds) >= 1, "at least one query's bound is needed", bounds=len(bounds))
    require(len({bound.orders for bound in bounds}) == 1, "all queries must have the same orders")
    error = math.fsum(1 - bound.confidence for bound in bounds)
    do = "bound each query at query_confidence(confidence, queries)"
    require(error < 1, "the errors of all queries must add up to less than 1", error=error, do=do)
    forward = tuple(reduce(column) for column in zip(*(bound.forward for bound in bounds), strict=True))
    backward = tuple(reduce(column) for column in zip(*(bound.backward for bound in bounds), strict=True))
    weakest = max((bound.validity for bound in bounds), key=tuple(Validity).index)
    methods = "+".join(sorted({bound.method for bound in bounds}))
    return RenyiBound(bounds[0].orders, forward, backward, 1 - error, methods, weakest)


@dataclass(frozen=True)
class _Cut(CountEstimator):
    """Base of both cuts: several queries share the error."""

    optional_columns: ClassVar[tuple[str, ...]] = ("query",)

    orders: tuple[float, ...] = ORDERS
    confidence: float = 0.95

    def __post_init__(self) -> None:
        orders = self.orders
        require(len(orders) > 0 and all(order > 1 for order in orders), "orders must be numbers > 1", orders=orders)
        require(0 < self.confidence < 1, "confidence must be in (0, 1)", confidence=self.confidence)


@register("estimator", "two-cut", source="Chadha et al. (2024), section 4.2 and appendix B; the corner is ours")
@dataclass(frozen=True)
class TwoCutCounts(_Cut):
    """Counts k1 of n1 and k2 of n2 answers in one fixed set: lower bounds on the Renyi divergence of two data sets.

    Several rows are several queries that share the error: each row's bound, the largest and their sum hold together.

    Attributes:
        orders: Orders > 1.
        confidence: Joint confidence of everything printed, in (0, 1).
        cut: "corner" (exact minimum over the limits) or "termwise" (as published, valid and looser).
    """

    columns: ClassVar[tuple[str, ...]] = TWO_CUT

    cut: TwoCut = "corner"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("cut", self.cut, get_args(TwoCut))

    def read(self, table: Table) -> Sequence[TextTable]:
        rows = np.stack(list(count_columns(table, TWO_CUT).values()), axis=1).tolist()
        each = query_confidence(self.confidence, len(rows))
        bounds = [
            two_cut_audit(k1, n1, k2, n2, self.orders, confidence=each, method=self.cut) for k1, n1, k2, n2 in rows
        ]
        return _queries("two-cut", bounds, table, self.confidence, limits=4)


@register("estimator", "k-cut", source="Chadha et al. (2024), appendix B; Huber and Strassen (1973)")
@dataclass(frozen=True)
class KCutCounts(_Cut):
    """Counts c1_* and c2_* of every answer: lower bounds on the Renyi divergence of two data sets.

    Several rows are several queries that share the error, as with two-cut.

    Attributes:
        orders: Orders > 1.
        confidence: Joint confidence of everything printed, in (0, 1).
        intervals: "clopper-pearson" (holds for every sample size), "goodman", "sison-glaz" (as published, asymptotic),
            or "bootstrap" (as published; not a bound if little leaks).
        seed: Seed of the bootstrap.
    """

    columns: ClassVar[tuple[str, ...]] = K_CUT

    intervals: KCut | Literal["bootstrap"] = "clopper-pearson"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("intervals", self.intervals, (*get_args(KCut), "bootstrap"))
        require(self.seed >= 0, "a seed must be >= 0", seed=self.seed)

    def read(self, table: Table) -> Sequence[TextTable]:
        class_names = classes(table, "c1_", "c2_")
        first, second = (
            np.stack(list(count_columns(table, [prefix + name for name in class_names]).values()), axis=1)
            for prefix in ("c1_", "c2_")
        )
        each = query_confidence(self.confidence, len(first))
        bounds = [self._audit(*pair, each, row) for row, pair in enumerate(zip(first, second, strict=True))]
        return _queries("k-cut", bounds, table, self.confidence, limits=4 * len(class_names))

    def _audit(self, first: Ints, second: Ints, confidence: float, row: int) -> RenyiBound:
        if self.intervals != "bootstrap":
            return k_cut_audit(first, second, self.orders, confidence=confidence, method=self.intervals)
        forward, backward = (
            bootstrap_bound(
                *pair, self.orders, confidence=confidence, rng=np.random.default_rng([self.seed, row, direction])
            )
            for direction, pair in enumerate(((first, second), (second, first)))
        )
        return _rdp_bound(self.orders, forward, backward, confidence, "bootstrap")


def _queries(
    method: str, bounds: Sequence[RenyiBound], table: Table, confidence: float, *, limits: int
) -> list[TextTable]:
    """Return the bound of each query, and of several also the largest and the sum; the last table carries the notes."""
    names = table.get("query", range(1, len(bounds) + 1))
    tables = [_titled(f"{method}, query {name}", bound) for name, bound in zip(names, bounds, strict=True)]
    if len(bounds) > 1:
        tables.append(_titled(f"{method}, worst query", worst_query(bounds)))
        tables.append(_titled(f"{method}, all {len(bounds)} queries answered", compose_bounds(bounds)))
    last = tables.pop()
    validity = bounds[0].validity
    if validity is Validity.FINITE_SAMPLE:
        shared = f"the error {1 - confidence:.3g} is shared by {limits} limits, for both directions and every order"
    else:
        shared = f"the error {1 - confidence:.3g} is shared by both directions; its validity is {validity}"
    shared += f", of each of {len(bounds)} queries" if len(bounds) > 1 else ""
    return [*tables, TextTable(last.title, last.columns, (shared, NO_EPSILON))]


def _titled(title: str, bound: RenyiBound) -> TextTable:
    how = f"{bound.confidence:.6g} confidence, {bound.validity}; {bound.method}"
    return TextTable(f"{title}: RDP lower bounds in nats ({how})", bound.table)
