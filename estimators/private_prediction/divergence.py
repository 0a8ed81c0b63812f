"""Renyi divergences of two laws over the same few answers (the classes, or "the answer is in O" and its complement).

Laws are passed as probabilities, or as their logarithms, so that no probability is too small. A guarantee (an upper
bound) on the divergence converts to (epsilon, delta). A lower bound, converted to epsilon, is *not* a lower bound on
epsilon: compare Renyi with Renyi (Chadha et al. 2024, section 5).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, unboxed

ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Default orders of the divergences."""
ROUNDING = 1e-12  # subtracted from every bound: more than the rounding errors of limits, powers and logarithms together


def renyi_divergence(p: ArrayLike, q: ArrayLike, orders: ArrayLike) -> float | Floats:
    """Return D_a(p || q) = log(sum_i p_i^a q_i^(1-a)) / (a - 1), exact, in nats.

    Args:
        p, q: Probabilities, shape (..., k), that broadcast; each row sums to 1.
        orders: Orders a > 0, scalar or shape (m,); 1 is the Kullback-Leibler divergence, `inf` the largest log ratio.
    Returns: Shape (...,) + shape of `orders`; `inf` if a >= 1 and p has mass where q has none.
    Source: Mironov (2017), Definition 3. (Chadha et al. 2024 print another exponent.)
    Slow twin: `divergence` of tests/twins/renyi_twin.py.
    """
    p, q = as_probabilities(p, "p"), as_probabilities(q, "q")
    with np.errstate(divide="ignore"):
        return renyi_divergence_of_logs(np.log(p), np.log(q), orders)


def renyi_divergence_of_logs(log_p: ArrayLike, log_q: ArrayLike, orders: ArrayLike) -> float | Floats:
    """Return `renyi_divergence` of laws given by logarithms, whose probabilities may underflow a float."""
    log_p, log_q = np.atleast_1d(np.asarray(log_p, np.float64)), np.atleast_1d(np.asarray(log_q, np.float64))
    require_same_answers(log_p, log_q)
    log_p, log_q = np.broadcast_arrays(log_p, log_q)
    flat = np.atleast_1d(as_orders(orders, above=0.0))
    values = divergences(log_p, log_q, flat)
    return unboxed(values.reshape(log_p.shape[:-1] + np.shape(orders)))


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
    Slow twin: `rdp_to_epsilon` of tests/twins/renyi_twin.py.
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


def divergences(log_p: Floats, log_q: Floats, orders: Floats) -> Floats:
    """Return D over the last axis, for laws that sum to 1 up to rounding; shapes (..., k) and (m,) to (..., m)."""
    ratio = _log_ratio(log_p, log_q)
    order = np.where((orders == 1) | np.isinf(orders), 2.0, orders)  # the limiting orders are set below
    with np.errstate(over="ignore"):
        mass, power = np.exp(log_p)[..., None, :], (order - 1)[:, None] * ratio[..., None, :]
        # Near p = q, or near order 1, the sum is 1 plus a small number: add up the small number.
        little = np.log1p(np.sum(mass * np.expm1(np.clip(power, -1, 1)), axis=-1))
        whole = _log_sum(log_p[..., None, :] + power)
        values = np.where(np.all(np.abs(power) < 1, axis=-1), little, whole) / (order - 1)
        values[..., orders == 1] = np.sum(mass * ratio[..., None, :], axis=-1)
    values[..., np.isinf(orders)] = _largest_ratio(log_p, ratio)
    return np.asarray(np.maximum(values, 0.0))


def log_power_sum(log_p: Floats, log_q: Floats, orders: Floats) -> Floats:
    """Return log(sum p^a q^(1-a)) / (a - 1), a > 1; p and q need not sum to 1. Shapes (..., k) and (m,) to (..., m)."""
    ratio = _log_ratio(log_p, log_q)
    order = np.where(np.isinf(orders), 2.0, orders)
    values = _log_sum(log_p[..., None, :] + (order - 1)[:, None] * ratio[..., None, :]) / (order - 1)
    values[..., np.isinf(orders)] = _largest_ratio(log_p, ratio)
    return np.asarray(values)


def _log_ratio(log_p: Floats, log_q: Floats) -> Floats:
    """Return log(p/q), and 0 where p is 0."""
    with np.errstate(invalid="ignore"):
        return np.where(log_p > -np.inf, log_p - log_q, 0.0)


def _largest_ratio(log_p: Floats, ratio: Floats) -> Floats:
    return np.asarray(np.max(np.where(log_p > -np.inf, ratio, -np.inf), axis=-1, keepdims=True))


def _log_sum(terms: Floats) -> Floats:
    """Return log(sum(exp(terms))) over the last axis; five times faster than scipy for a few terms."""
    top = np.max(terms, axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(terms - top), axis=-1)) + top[..., 0])


def as_orders(orders: ArrayLike, *, above: float) -> Floats:
    """Return one order or a row of orders, all greater than `above`."""
    values = np.asarray(orders, np.float64)
    require(values.ndim <= 1 and values.size >= 1, "orders must be one order or a row of orders", shape=values.shape)
    require(bool(np.all(values > above)), f"orders must be > {above:g}", orders=orders)
    return values


def as_probabilities(values: ArrayLike, name: str) -> Floats:
    """Return laws along the last axis, which sum to 1 within 1e-9."""
    law = np.asarray(values, np.float64)
    require(law.ndim >= 1, f"{name} must list the probabilities of all outcomes", given=values)
    require(bool(np.all((law >= 0) & (law <= 1 + 1e-9))), f"{name} must be probabilities in [0, 1]", given=values)
    require(bool(np.all(np.abs(np.sum(law, axis=-1) - 1) <= 1e-9)), f"{name} must sum to 1", given=np.sum(law, axis=-1))
    return law


def require_same_answers(first: NDArray[Any], second: NDArray[Any]) -> None:
    """Raise InputError if the last axes of two laws differ."""
    require(
        first.shape[-1] == second.shape[-1],
        "both laws must list the same answers",
        first=first.shape,
        second=second.shape,
    )
