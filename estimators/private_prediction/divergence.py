"""Exact Renyi divergence of two laws over the same few answers: the classes, or "the answer is in O" and its
complement.

Laws are passed as probabilities or as their logarithms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.estimators.arguments import Floats, unboxed
from dpaudit.estimators.private_prediction._laws import as_orders, as_probabilities, divergences, require_same_answers


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
