"""Exact law of a noisy argmax over votes, and the charge of PATE's data-dependent accounting for one answer."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, unboxed
from dpaudit.estimators.private_prediction.divergence import as_orders


def noisy_argmax_probabilities(histogram: ArrayLike, sigma: ArrayLike, *, log: bool = False) -> Floats:
    """Return the probability that each class is the argmax of its count plus Gaussian noise.

    Every probability has a relative error of about 1e-13, however small it is. The integrand is log-concave and
    analytic, so the trapezoid rule, with a step fitted to its sharpest peak, converges exponentially.

    Args:
        histogram: Counts n_c, finite, shape (..., classes).
        sigma: Standard deviation of the noise on each count, > 0; scalar or shape (...,).
        log: True to return natural logarithms, for probabilities that underflow a float.
    Returns: Probabilities (or their logarithms), shape (..., classes).
    Source: Chadha et al. (2024), Eq. 4, with the 1/sigma that it lacks.
    Slow twin: `noisy_argmax` of tests/twins/renyi_twin.py.
    """
    counts, scale = np.asarray(histogram, np.float64), np.asarray(sigma, np.float64)
    require(counts.ndim >= 1 and counts.shape[-1] >= 1, "a histogram must list at least one class", shape=counts.shape)
    require(bool(np.all(np.isfinite(counts))), "a histogram must be finite", histogram=histogram)
    require(bool(np.all(np.isfinite(scale) & (scale > 0))), "sigma must be finite and > 0", sigma=sigma)
    counts, scale = np.broadcast_arrays(counts, scale[..., None])
    rows = (counts / scale).reshape(-1, counts.shape[-1])
    logs = np.array([_log_argmax(row) for row in rows]).reshape(counts.shape)
    return logs if log else np.exp(logs)


def gnmax_log_flips(histograms: ArrayLike, sigma: float) -> Floats:
    """Return the logarithm of the published bound q on the probability that the noisy argmax differs from the argmax.

    Union bound over the other classes, capped at 1 - 1/classes; shape (n, classes >= 2) to (n,).

    Source: Papernot et al. (2018), Proposition 7.
    Slow twin: `flip` of tests/twins/gnmax_twin.py.
    """
    counts = np.asarray(histograms, np.float64)
    fits = counts.ndim == 2 and counts.shape[1] >= 2
    require(fits, "histograms must have the shape (n, classes), with at least two classes", shape=counts.shape)
    require(sigma > 0, "sigma must be > 0", sigma=sigma)
    ranked = -np.sort(-counts, axis=1)
    logs = log_ndtr((ranked[:, 1:] - ranked[:, :1]) / (math.sqrt(2) * sigma))
    top = logs[:, :1]  # the runner-up has the largest
    union = top[:, 0] + np.log(np.sum(np.exp(logs - top), axis=1))
    return np.asarray(np.minimum(union, math.log1p(-1 / counts.shape[1])))


def gnmax_rdp_data_dependent(histogram: ArrayLike, sigma: float, orders: ArrayLike) -> float | Floats:
    """Return the data-dependent RDP that PATE charges for one noisy-argmax answer to this histogram.

    One vote may move. In nats: the smaller of a / sigma^2 (data-independent) and, if its conditions hold, the
    data-dependent bound. The latter bounds only D_a(this histogram || a neighbour); the other direction can be larger,
    up to a / sigma^2. It depends on the data, so publishing it unprotected leaks. Votes of shape (classes,); orders a >
    1, finite, scalar or shape (m,).

    Source: Papernot et al. (2018), Theorem 6 with Propositions 7 and 10.
    Slow twin: `rdp` of tests/twins/gnmax_twin.py.
    """
    return gnmax_rdp_of_flip(float(gnmax_log_flips(np.atleast_2d(histogram), sigma)[0]), sigma, orders)


def gnmax_rdp_of_flip(log_flip: float, sigma: float, orders: ArrayLike) -> float | Floats:
    """Return `gnmax_rdp_data_dependent` of a histogram with the given `gnmax_log_flips`, which determines it."""
    flat = np.atleast_1d(as_orders(orders, above=1.0))
    require(bool(np.all(np.isfinite(flat))), "orders must be finite", orders=orders)
    values = [min(order / sigma**2, _data_dependent(float(order), log_flip, sigma)) for order in flat]
    return unboxed(np.array(values).reshape(np.shape(orders)))


def _log_argmax(row: Floats) -> Floats:
    """Return log-probabilities for counts in units of sigma; classes with equal counts are computed once."""
    counts, place, copies = np.unique(row - row.max(), return_inverse=True, return_counts=True)
    peaks, curvature = _peaks(counts, copies)
    # Beyond 9 the integrand, which is at least as sharp as a unit Gaussian, is below 3e-18 of its peak.
    step = 0.25 / math.sqrt(curvature)
    first, last = np.floor((peaks - 9) / step).astype(np.int64), np.ceil((peaks + 9) / step).astype(np.int64)
    ticks = np.unique(np.concatenate([np.arange(i, j + 1) for i, j in zip(first, last, strict=True)]))
    x = (ticks * step)[:, None] - counts
    below = log_ndtr(x)
    exponent = -0.5 * x**2 + (below @ copies)[:, None] - below
    top = np.max(exponent, axis=0)
    logs = top + np.log(np.sum(np.exp(exponent - top), axis=0)) + math.log(step) - 0.5 * math.log(2 * math.pi)
    return np.asarray(np.minimum(logs, 0.0)[place.reshape(-1)])


def _peaks(counts: Floats, copies: NDArray[np.int64]) -> tuple[Floats, float]:
    """Return the peak of each class's integrand, to 0.1, and the largest curvature of its logarithm there."""
    others = np.broadcast_to(copies, (counts.size, counts.size)) - np.eye(counts.size)
    # From half way to the winner, where the convex, falling derivative is >= 0, Newton's method never overshoots.
    peaks = counts / 2
    for _ in range(100):
        y = peaks[:, None] - counts
        mills = np.exp(-0.5 * y**2 - log_ndtr(y) - 0.5 * math.log(2 * math.pi))
        curvature = 1 + np.sum(others * np.clip(mills * (mills + y), 0, 1), axis=1)
        move = (counts - peaks + np.sum(others * mills, axis=1)) / curvature
        peaks = peaks + move
        if np.max(np.abs(move)) < 0.1:
            break
    return peaks, float(np.max(curvature))


def _data_dependent(order: float, log_q: float, sigma: float) -> float:
    """Return the data-dependent bound if its conditions hold, else inf; in logarithms, because q may be tiny."""
    variance = sigma**2
    mu2 = sigma * math.sqrt(-log_q)
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / variance, mu2 / variance
    if not (mu1 > order and mu2 > 1 and -log_q > eps2):
        return math.inf
    if log_q > (mu2 - 1) * eps2 - mu2 * (math.log(mu1 / (mu1 - 1)) + math.log(mu2 / (mu2 - 1))):
        return math.inf
    log_stay = math.log1p(-math.exp(log_q))
    log_a = log_stay - math.log(-math.expm1((log_q + eps2) * (mu2 - 1) / mu2))
    log_b = eps1 - log_q / (mu1 - 1)
    return float(np.logaddexp(log_stay + (order - 1) * log_a, log_q + (order - 1) * log_b)) / (order - 1)
