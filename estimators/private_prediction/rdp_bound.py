"""Renyi bounds that carry their evidence: both directions of a query, several queries composed, the worst of them.

`VALIDITY` says in what sense each method's confidence holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require
from dpaudit.estimators.arguments import as_confidence
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.private_prediction.k_cut import KCut, k_cut_bound
from dpaudit.estimators.private_prediction.renyi_bound import RenyiBound
from dpaudit.estimators.private_prediction.two_cut import TwoCut, two_cut_bound

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
"""In what sense each method's confidence holds. The bootstrap's does not hold at all where the divergence is near 0."""


def two_cut_audit(
    k1: int, n1: int, k2: int, n2: int, orders: Sequence[float], *, confidence: float, method: TwoCut = "corner"
) -> RenyiBound:
    """`two_cut_bound` of one query in both directions, with its validity."""
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
    """`k_cut_bound` of one query in both directions, with its validity; counts of shape (k,)."""
    forward = k_cut_bound(counts1, counts2, orders, confidence=confidence, method=method)
    backward = k_cut_bound(counts2, counts1, orders, confidence=confidence, method=method)
    return _rdp_bound(orders, forward, backward, confidence, method)


def query_confidence(confidence: float, queries: int) -> float:
    """The confidence each of `queries` bounds needs so that all hold together at `confidence` (union bound)."""
    as_confidence(confidence)
    require(queries >= 1, "queries must be >= 1", queries=queries)
    return 1 - (1 - confidence) / queries


def compose_bounds(bounds: Sequence[RenyiBound]) -> RenyiBound:
    """The bound on answering all queries: divergences add up order by order, and so do the errors.

    Take each query's bound at `query_confidence(confidence, queries)`, and the composition holds at `confidence`. Exact
    for queries answered independently given the data set, as with fixed queries.

    Raises: InputError for no bounds, unequal orders, or errors that add up to 1 or more.
    Source: Mironov (2017), Proposition 1; Chadha et al. (2024), section 4.2, without their uncorrected confidence.
    """
    return _joined(bounds, math.fsum)


def worst_query(bounds: Sequence[RenyiBound]) -> RenyiBound:
    """The largest bound over the queries at each order; choosing it is a selection, so the errors add up as well."""
    return _joined(bounds, max)


def _rdp_bound(
    orders: Sequence[float], forward: ArrayLike, backward: ArrayLike, confidence: float, method: str
) -> RenyiBound:
    return RenyiBound(_row(orders), _row(forward), _row(backward), confidence, method, VALIDITY[method])


def _row(values: ArrayLike) -> tuple[float, ...]:
    return tuple(float(value) for value in np.atleast_1d(np.asarray(values, np.float64)))


def _joined(bounds: Sequence[RenyiBound], reduce: Callable[[tuple[float, ...]], float]) -> RenyiBound:
    """One bound from many, order by order; the errors add up and the weakest validity stays."""
    require(len(bounds) >= 1, "at least one query's bound is needed", bounds=len(bounds))
    require(len({bound.orders for bound in bounds}) == 1, "all queries must have the same orders")
    error = math.fsum(1 - bound.confidence for bound in bounds)
    require(
        error < 1, "the errors of all queries must add up to less than 1", error=error,
        do="bound each query at query_confidence(confidence, queries)",
    )  # fmt: skip
    forward = tuple(reduce(column) for column in zip(*(bound.forward for bound in bounds), strict=True))
    backward = tuple(reduce(column) for column in zip(*(bound.backward for bound in bounds), strict=True))
    weakest = max((bound.validity for bound in bounds), key=_WEAKNESS.index)
    methods = "+".join(sorted({bound.method for bound in bounds}))
    return RenyiBound(
        bounds[0].orders, forward, backward, 1 - error, methods, weakest, sum(bound.queries for bound in bounds)
    )


_WEAKNESS = (
    Validity.FINITE_SAMPLE,
    Validity.ASYMPTOTIC,
    Validity.CREDIBLE,
    Validity.CONDITIONAL_ON_FAMILY,
    Validity.CONDITIONAL_ON_MODEL,
    Validity.AS_PUBLISHED,
)
