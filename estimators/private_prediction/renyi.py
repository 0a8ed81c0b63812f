"""What the answers of a private prediction leak, in Renyi divergence: exact values, audits from samples, conversion.

Two neighbouring data sets give two laws over the same few answers (the classes, or the event "the answer is in O").
`renyi_divergence` and `noisy_argmax_probabilities` are exact for a known mechanism; the `*_bound` functions bound the
divergence from below from independent draws of both laws. Draws must not have been used to choose the event O.

A bound speaks of D(first || second). Every method shares its error over *both* directions, so the call with the two
samples swapped holds at the same time, at the same confidence; `two_cut_audit` and `k_cut_audit` return the pair.
`VALIDITY` says in what sense each method's confidence holds. A lower bound on the Renyi divergence turned into epsilon
by `rdp_to_epsilon` is *not* a lower bound on epsilon: compare Renyi with Renyi (Chadha et al. 2024, section 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp

from dpaudit.errors import require
from dpaudit.estimators.bound import Validity
from dpaudit.estimators.proportions.binomial import clopper_pearson, goodman, sison_glaz

Floats = NDArray[np.float64]
TwoCut = Literal["corner", "termwise"]
KCut = Literal["clopper-pearson", "goodman", "sison-glaz"]
Conversion = Literal["improved", "classical"]

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

_ROUNDING = 1e-12  # taken off every bound: more than the rounding errors of limits, powers and logarithms together


def renyi_divergence(p: ArrayLike, q: ArrayLike, orders: ArrayLike) -> float | Floats:
    """D_a(p || q) = log(sum_i p_i^a q_i^(1-a)) / (a - 1), exact.

    Args:
        p, q: Probabilities, shape (..., k), that broadcast; each row sums to 1.
        orders: Orders a > 0, scalar or shape (m,); 1 is the Kullback-Leibler divergence, `inf` the largest log ratio.
    Returns: Nats, shape (...,) + shape of `orders`; `inf` where p has mass that q has not and a >= 1.
    Raises: InputError for values that are no probabilities.
    Source: Mironov (2017), Definition 3. (Chadha et al. 2024 print another exponent.)
    """
    p, q = _probabilities(p, "p"), _probabilities(q, "q")
    with np.errstate(divide="ignore"):
        return renyi_divergence_of_logs(np.log(p), np.log(q), orders)


def renyi_divergence_of_logs(log_p: ArrayLike, log_q: ArrayLike, orders: ArrayLike) -> float | Floats:
    """`renyi_divergence` of probabilities given by their logarithms, which may be far below what a float holds."""
    log_p, log_q = np.atleast_1d(np.asarray(log_p, np.float64)), np.atleast_1d(np.asarray(log_q, np.float64))
    _check_same_answers(log_p, log_q)
    log_p, log_q = np.broadcast_arrays(log_p, log_q)
    flat = np.atleast_1d(_orders(orders, above=0.0))
    values = _divergence(log_p, log_q, flat)
    return _scalar(values.reshape(log_p.shape[:-1] + np.shape(orders)))


def two_cut_bound(
    k1: ArrayLike,
    n1: ArrayLike,
    k2: ArrayLike,
    n2: ArrayLike,
    orders: ArrayLike,
    *,
    confidence: float,
    method: TwoCut = "corner",
) -> float | Floats:
    """Lower bound on D_a(first || second) from how often an answer fell into one fixed set O.

    The four Clopper-Pearson limits of the two proportions have error (1 - confidence) / 4 each, so all orders and the
    swapped call hold together. `corner` is the exact minimum over the rectangle of the limits, which is its corner
    nearest to p1 = p2; `termwise` is the published bound, valid and looser.

    Args:
        k1, n1: Answers in O and all answers of the first law; integers that broadcast.
        k2, n2: The same for the second law.
        orders: Orders a > 1, scalar or shape (m,).
        confidence: In (0, 1).
        method: "corner" or "termwise".
    Returns: Nats, >= 0, shape of the counts + shape of `orders`.
    Source: Chadha et al. (2024), section 4.2 and appendix B; the corner is ours.
    """
    require(method in ("corner", "termwise"), "method must be 'corner' or 'termwise'", method=method)
    flat = np.atleast_1d(_orders(orders, above=1.0))
    k1, n1, k2, n2 = (np.asarray(count) for count in (k1, n1, k2, n2))
    # The limits of the complement are computed from its own count: 1 - p would lose the digits of small values.
    ends = [*_limits(k1, n1, confidence), *_limits(n1 - k1, n1, confidence)]
    ends += [*_limits(k2, n2, confidence), *_limits(n2 - k2, n2, confidence)]
    lower1, upper1, lower1c, upper1c, lower2, upper2, lower2c, upper2c = np.broadcast_arrays(*ends)
    if method == "termwise":
        values = _log_power_sum(_logs(lower1, lower1c), _logs(upper2, upper2c), flat)
    else:
        above, below = lower1 > upper2, upper1 < lower2
        p = _logs(np.where(above, lower1, upper1), np.where(above, upper1c, lower1c))
        q = _logs(np.where(above, upper2, lower2), np.where(above, lower2c, upper2c))
        values = np.where((above | below)[..., None], _divergence(p, q, flat), 0.0)
    return _scalar(_lowered(values).reshape(lower1.shape + np.shape(orders)))


def k_cut_bound(
    counts1: ArrayLike, counts2: ArrayLike, orders: ArrayLike, *, confidence: float, method: KCut = "clopper-pearson"
) -> float | Floats:
    """Lower bound on D_a(first || second) from how often each of k answers was given.

    `clopper-pearson` is valid for every sample size: 2k intervals with error (1 - confidence) / 2k each, and the exact
    minimum of the divergence over all pairs of laws inside them. `goodman` and `sison-glaz` are as published:
    simultaneous intervals of each law with error (1 - confidence) / 2, whose ends are put into the sum term by term;
    they hold only for many draws.

    Args:
        counts1, counts2: Answers of each class, shape (..., k); integers that broadcast.
        orders: Orders a > 1, scalar or shape (m,).
        confidence: In (0, 1).
        method: "clopper-pearson", "goodman" or "sison-glaz".
    Returns: Nats, >= 0, shape (...,) + shape of `orders`.
    Source: Chadha et al. (2024), appendix B; the finite-sample bound is ours, after Huber and Strassen (1973): the pair
        of laws inside probability intervals that is hardest to tell apart is so for every order at once.
    """
    require(method in _INTERVALS, f"method must be one of {', '.join(_INTERVALS)}", method=method)
    flat = np.atleast_1d(_orders(orders, above=1.0))
    counts1, counts2 = _counts(counts1, "counts1"), _counts(counts2, "counts2")
    _check_same_answers(counts1, counts2)
    counts1, counts2 = np.broadcast_arrays(counts1, counts2)
    rows = zip(counts1.reshape(-1, counts1.shape[-1]), counts2.reshape(-1, counts2.shape[-1]), strict=True)
    values = np.array([_k_cut(first, second, flat, confidence, method) for first, second in rows])
    return _scalar(_lowered(values).reshape(counts1.shape[:-1] + np.shape(orders)))


def bootstrap_bound(
    counts1: ArrayLike,
    counts2: ArrayLike,
    orders: ArrayLike,
    *,
    confidence: float,
    rng: np.random.Generator,
    resamples: int = 1000,
) -> float | Floats:
    """A low quantile of the divergence of resampled counts. **Not a valid bound**: here to reproduce the paper only.

    The divergence of two empirical laws is hardly ever 0, so where the true divergence is 0 nearly every "bound" is
    above it, whatever the confidence; below about n^(-1/2) it is unreliable. Never report it as an audit.

    Args:
        counts1, counts2: Answers of each class, shape (k,); k = 2 is the published 2-cut bootstrap.
        orders: Orders a > 1, scalar or shape (m,).
        confidence: Stated, not reached; half the error for each direction.
        rng: Draws the resamples.
        resamples: How many, >= 1.
    Returns: Nats, >= 0, shape of `orders`.
    Source: Chadha et al. (2024), appendix B, whose Table 2 says the same.
    """
    flat = np.atleast_1d(_orders(orders, above=1.0))
    _check_confidence(confidence)
    require(resamples >= 1, "resamples must be >= 1", resamples=resamples)
    laws, rows = [], (_counts(counts1, "counts1"), _counts(counts2, "counts2"))
    _check_same_answers(*rows)
    for row in rows:
        require(row.ndim == 1, "bootstrapped counts must be one row", shape=row.shape)
        with np.errstate(divide="ignore"):
            laws.append(np.log(rng.multinomial(row.sum(), row / row.sum(), size=resamples) / row.sum()))
    draws = np.atleast_2d(renyi_divergence_of_logs(laws[0], laws[1], flat))
    # "lower" never interpolates between a finite draw and an infinite one.
    values = np.quantile(draws, (1 - confidence) / 2, axis=0, method="lower")
    return _scalar(np.asarray(values, np.float64).reshape(np.shape(orders)))


def two_cut_set(p: ArrayLike, q: ArrayLike, order: float) -> NDArray[np.bool_]:
    """The set of answers whose 2-cut D_a(p || q) is largest, shape (k,) to (k,).

    By the Neyman-Pearson lemma it is a level set of the likelihood ratio, so k - 1 candidates are looked at, not all
    2^k - 2. Choose it on other draws than those the bound is computed from.

    Args:
        p, q: Probabilities or frequencies of the k >= 2 answers; each sums to 1.
        order: Order a > 0.
    """
    p, q = _probabilities(p, "p"), _probabilities(q, "q")
    require(
        p.ndim == 1 and p.shape == q.shape and p.size >= 2,
        "p and q must be two equally long rows",
        p=p.shape,
        q=q.shape,
    )
    ratio = np.divide(p, q, out=np.where(p > 0, np.inf, 1.0), where=q > 0)
    ranked = np.argsort(-ratio, kind="stable")
    inside = [np.clip(np.cumsum(law[ranked])[:-1], 0.0, 1.0) for law in (p, q)]
    first, second = (np.stack([law, 1 - law], axis=-1) for law in inside)
    best = int(np.argmax(np.atleast_1d(renyi_divergence(first, second, order))))
    chosen = np.zeros(p.size, dtype=bool)
    chosen[ranked[: best + 1]] = True
    return chosen


# --- Bounds that carry their evidence, and their composition --------------------------------------------------------


@dataclass(frozen=True)
class RdpBound:
    """Lower bounds on the Renyi divergence of two neighbouring data sets, in both directions and for every order.

    Attributes:
        orders: The orders a > 1.
        forward: Lower bounds on D_a(first || second) in nats, one for each order.
        backward: Lower bounds on D_a(second || first).
        confidence: With this probability all of them hold together; in (0, 1).
        method: The method, a key of `VALIDITY`.
        validity: In what sense the confidence holds.
        queries: How many queries' bounds it was made from.
    """

    orders: tuple[float, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    confidence: float
    method: str
    validity: Validity
    queries: int = 1

    def __post_init__(self) -> None:
        _check_confidence(self.confidence)
        lengths = {len(self.orders), len(self.forward), len(self.backward)}
        require(len(lengths) == 1, "orders, forward and backward must be equally long", lengths=sorted(lengths))

    @property
    def lower(self) -> tuple[float, ...]:
        """What the mechanism's RDP is at least: the larger direction at each order."""
        return tuple(max(pair) for pair in zip(self.forward, self.backward, strict=True))

    def __str__(self) -> str:
        value, order = max(zip(self.lower, self.orders, strict=True))
        shown = math.floor(value * 1e6) / 1e6 if math.isfinite(value) else value
        queries = f"{self.queries} queries, " if self.queries > 1 else ""
        how = f"{queries}{self.confidence:.6g} confidence, {self.validity}; {self.method}"
        return f"RDP >= {shown:.6f} at order {order:g} ({how})"


def two_cut_audit(
    k1: int, n1: int, k2: int, n2: int, orders: Sequence[float], *, confidence: float, method: TwoCut = "corner"
) -> RdpBound:
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
) -> RdpBound:
    """`k_cut_bound` of one query in both directions, with its validity; counts of shape (k,)."""
    forward = k_cut_bound(counts1, counts2, orders, confidence=confidence, method=method)
    backward = k_cut_bound(counts2, counts1, orders, confidence=confidence, method=method)
    return _rdp_bound(orders, forward, backward, confidence, method)


def query_confidence(confidence: float, queries: int) -> float:
    """The confidence each of `queries` bounds needs so that all hold together at `confidence` (union bound)."""
    _check_confidence(confidence)
    require(queries >= 1, "queries must be >= 1", queries=queries)
    return 1 - (1 - confidence) / queries


def compose_bounds(bounds: Sequence[RdpBound]) -> RdpBound:
    """The bound on answering all queries: divergences add up order by order, and so do the errors.

    Take each query's bound at `query_confidence(confidence, queries)`, and the composition holds at `confidence`. Exact
    for queries answered independently given the data set, as with fixed queries.

    Raises: InputError for no bounds, unequal orders, or errors that add up to 1 or more.
    Source: Mironov (2017), Proposition 1; Chadha et al. (2024), section 4.2, without their uncorrected confidence.
    """
    return _joined(bounds, math.fsum)


def worst_query(bounds: Sequence[RdpBound]) -> RdpBound:
    """The largest bound over the queries at each order; choosing it is a selection, so the errors add up as well."""
    return _joined(bounds, max)


def rdp_to_epsilon(
    orders: ArrayLike, rdp: ArrayLike, *, delta: float, conversion: Conversion = "improved"
) -> float | Floats:
    """The smallest epsilon that an RDP guarantee implies at `delta`, over the given orders.

    For upper bounds (guarantees) only: applied to lower bounds it gives no lower bound on epsilon.

    Args:
        orders: Orders a > 1, shape (m,) or scalar.
        rdp: Guarantee at each order in nats, shape (..., m).
        delta: In (0, 1).
        conversion: "improved": rdp + log((a-1)/a) - (log delta + log a)/(a-1); "classical": rdp - log(delta)/(a-1).
    Returns: Epsilon >= 0, shape (...,).
    Source: Balle et al. (2020), Theorem 21 (Theorem 1 of Chadha et al. 2024); Mironov (2017), Proposition 3.
    """
    require(
        conversion in ("improved", "classical"), "conversion must be 'improved' or 'classical'", conversion=conversion
    )
    require(0 < delta < 1, "delta must be in (0, 1)", delta=delta)
    orders, rdp = np.atleast_1d(_orders(orders, above=1.0)), np.atleast_1d(np.asarray(rdp, np.float64))
    require(rdp.shape[-1] == orders.size, "rdp must have one value for each order", orders=orders.shape, rdp=rdp.shape)
    require(bool(np.all(rdp >= 0)), "rdp must be >= 0", rdp=rdp)
    cost = -math.log(delta) / (orders - 1)
    if conversion == "improved":
        finite = np.where(np.isinf(orders), 2.0, orders)  # both terms vanish in the limit
        cost = cost + np.where(np.isinf(orders), 0.0, np.log1p(-1 / finite) - np.log(finite) / (finite - 1))
    return _scalar(np.maximum(0.0, np.min(rdp + cost, axis=-1)))


# --- Noisy argmax ---------------------------------------------------------------------------------------------------


def noisy_argmax_probabilities(histogram: ArrayLike, sigma: ArrayLike, *, log: bool = False) -> Floats:
    """Probability that each class is the argmax of its count plus Gaussian noise.

    Every probability is right to about 1e-13 of itself, however small; `log` returns logarithms, for those below what a
    float holds. The integrand is log-concave and analytic, so the trapezoid rule, with a step fitted to its sharpest
    peak, converges exponentially.

    Args:
        histogram: Counts n_c, finite, shape (..., classes).
        sigma: Standard deviation of the noise on each count, > 0; scalar or shape (...,).
        log: Return natural logarithms.
    Returns: Probabilities (or their logarithms), shape (..., classes).
    Source: Chadha et al. (2024), Eq. 4, with the 1/sigma it lacks.
    """
    counts, scale = np.asarray(histogram, np.float64), np.asarray(sigma, np.float64)
    require(counts.ndim >= 1 and counts.shape[-1] >= 1, "a histogram must list at least one class", shape=counts.shape)
    require(bool(np.all(np.isfinite(counts))), "a histogram must be finite", histogram=histogram)
    require(bool(np.all(np.isfinite(scale) & (scale > 0))), "sigma must be finite and > 0", sigma=sigma)
    counts, scale = np.broadcast_arrays(counts, scale[..., None])
    rows = (counts / scale).reshape(-1, counts.shape[-1])
    logs = np.array([_log_argmax(row) for row in rows]).reshape(counts.shape)
    return logs if log else np.exp(logs)


def gnmax_log_flip(histogram: ArrayLike, sigma: float) -> float:
    """Logarithm of the published bound q on the probability that the noisy argmax is not the argmax.

    Union bound over the other classes, capped at 1 - 1/classes. Histogram of shape (classes,), classes >= 2.

    Source: Papernot et al. (2018), Proposition 7.
    """
    counts = np.asarray(histogram, np.float64)
    require(counts.ndim == 1 and counts.size >= 2, "a histogram must list at least two classes", shape=counts.shape)
    require(sigma > 0, "sigma must be > 0", sigma=sigma)
    winner = int(np.argmax(counts))
    gaps = counts[winner] - np.delete(counts, winner)
    return min(float(logsumexp(log_ndtr(-gaps / (math.sqrt(2) * sigma)))), math.log1p(-1 / counts.size))


def gnmax_rdp(histogram: ArrayLike, sigma: float, orders: ArrayLike) -> float | Floats:
    """Data-dependent RDP of one noisy-argmax answer when one vote may move: what PATE charges for this histogram.

    The smaller of a / sigma^2 (data-independent) and, where its conditions hold, the data-dependent bound. That bounds
    D_a(this histogram || a neighbour) only: the other direction can be larger, up to a / sigma^2. It depends on the
    data, so publishing it as it is leaks.

    Args:
        histogram: Votes, shape (classes,).
        sigma: Standard deviation of the noise on each count.
        orders: Orders a > 1, finite, scalar or shape (m,).
    Returns: Nats, shape of `orders`.
    Source: Papernot et al. (2018), Theorem 6 with Propositions 7 and 10.
    """
    log_q = gnmax_log_flip(histogram, sigma)
    flat = np.atleast_1d(_orders(orders, above=1.0))
    require(bool(np.all(np.isfinite(flat))), "orders must be finite", orders=orders)
    values = [min(order / sigma**2, _data_dependent(float(order), log_q, sigma)) for order in flat]
    return _scalar(np.array(values).reshape(np.shape(orders)))


# --- Inside ---------------------------------------------------------------------------------------------------------


def _divergence(log_p: Floats, log_q: Floats, orders: Floats) -> Floats:
    """D over the last axis, for laws that sum to 1 up to rounding; shapes (..., k) and (m,) to (..., m)."""
    ratio = _log_ratio(log_p, log_q)
    order = np.where((orders == 1) | np.isinf(orders), 2.0, orders)  # the limits are filled in below
    with np.errstate(over="ignore"):
        mass, power = np.exp(log_p)[..., None, :], (order - 1)[:, None] * ratio[..., None, :]
        # Near p = q, or near order 1, the sum is 1 + a little: add up the little.
        little = np.log1p(np.sum(mass * np.expm1(np.clip(power, -1, 1)), axis=-1))
        whole = _log_sum(log_p[..., None, :] + power)
        values = np.where(np.all(np.abs(power) < 1, axis=-1), little, whole) / (order - 1)
        values[..., orders == 1] = np.sum(mass * ratio[..., None, :], axis=-1)
    values[..., np.isinf(orders)] = _largest_ratio(log_p, ratio)
    return np.asarray(np.maximum(values, 0.0))


def _log_power_sum(log_p: Floats, log_q: Floats, orders: Floats) -> Floats:
    """log(sum p^a q^(1-a)) / (a - 1), a > 1; p and q need not sum to 1. Shapes (..., k) and (m,) to (..., m)."""
    ratio = _log_ratio(log_p, log_q)
    order = np.where(np.isinf(orders), 2.0, orders)
    values = _log_sum(log_p[..., None, :] + (order - 1)[:, None] * ratio[..., None, :]) / (order - 1)
    values[..., np.isinf(orders)] = _largest_ratio(log_p, ratio)
    return np.asarray(values)


def _log_ratio(log_p: Floats, log_q: Floats) -> Floats:
    """log(p/q), 0 where p is 0."""
    with np.errstate(invalid="ignore"):
        return np.where(log_p > -np.inf, log_p - log_q, 0.0)


def _largest_ratio(log_p: Floats, ratio: Floats) -> Floats:
    return np.asarray(np.max(np.where(log_p > -np.inf, ratio, -np.inf), axis=-1, keepdims=True))


def _log_sum(terms: Floats) -> Floats:
    """log(sum(exp(terms))) over the last axis; a fifth of the time of scipy's for a few terms."""
    top = np.max(terms, axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(terms - top), axis=-1)) + top[..., 0])


def _limits(k: NDArray[np.int64], n: NDArray[np.int64], confidence: float) -> tuple[Floats, Floats]:
    """Both Clopper-Pearson limits of one proportion, each with a quarter of the error."""
    _check_confidence(confidence)
    interval = clopper_pearson(k, n, confidence=1 - (1 - confidence) / 2, side="two-sided")
    return np.asarray(interval.lower, np.float64), np.asarray(interval.upper, np.float64)


def _logs(inside: Floats, outside: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(np.stack([inside, outside], axis=-1))


def _lowered(values: Floats) -> Floats:
    return np.maximum(0.0, values - _ROUNDING)


def _clopper_pearson_box(counts: NDArray[np.int64], confidence: float) -> tuple[Floats, Floats]:
    error = (1 - confidence) / (2 * counts.size)
    interval = clopper_pearson(
        counts, np.broadcast_to(counts.sum(), counts.shape), confidence=1 - error, side="two-sided"
    )
    return np.asarray(interval.lower, np.float64), np.asarray(interval.upper, np.float64)


def _goodman_box(counts: NDArray[np.int64], confidence: float) -> tuple[Floats, Floats]:
    interval = goodman(counts, confidence=1 - (1 - confidence) / 2)
    return np.asarray(interval.lower, np.float64), np.asarray(interval.upper, np.float64)


def _sison_glaz_box(counts: NDArray[np.int64], confidence: float) -> tuple[Floats, Floats]:
    interval = sison_glaz(counts, confidence=1 - (1 - confidence) / 2)
    return np.asarray(interval.lower, np.float64), np.asarray(interval.upper, np.float64)


_INTERVALS = {"clopper-pearson": _clopper_pearson_box, "goodman": _goodman_box, "sison-glaz": _sison_glaz_box}


def _k_cut(
    first: NDArray[np.int64], second: NDArray[np.int64], orders: Floats, confidence: float, method: str
) -> Floats:
    _check_confidence(confidence)
    (lower1, upper1), (lower2, upper2) = (_INTERVALS[method](counts, confidence) for counts in (first, second))
    with np.errstate(divide="ignore"):
        if method != "clopper-pearson":
            return _log_power_sum(np.log(lower1), np.log(upper2), orders)
        pairs = np.log(_closest_laws(lower1, upper1, lower2, upper2))
    # Each candidate lies inside the boxes, and one of them is the minimum for every order.
    return np.asarray(np.min(_divergence(pairs[:, 0], pairs[:, 1], orders), axis=0))


def _closest_laws(a: Floats, b: Floats, c: Floats, d: Floats) -> Floats:
    """Pairs of laws p in [a, b] and q in [c, d], one of which has the least D_o(p || q) of all, for every order o > 1.

    The multipliers of sum p = 1 and sum q = 1 enter as two levels s, t of the ratio r = p/q: p is at its lower end
    where r > s and at its upper end where r < s; q at its upper end where r > t and at its lower end where r < t. If
    s < t, both sit at their lower ends in between (p = clip(s c, a, b), q = clip(a/t, c, d)); if s > t, at their upper
    ends; if s = t, there p = s q. The order of the divergence has dropped out.
    Shape (candidates, 2, k).
    """
    low_s, low_u = _level(c, a, b), _level(a, c, d)  # u = 1/t
    high_s, high_u = _level(d, a, b), _level(b, c, d)
    pairs = []
    for s, u, q_end, p_end in ((low_s, low_u, c, a), (high_s, high_u, d, b)):
        if s is not None and u is not None:
            pairs.append((np.clip(s * q_end, a, b), np.clip(u * p_end, c, d)))
    start = max(high_s or 0.0, 1 / low_u if low_u else 0.0)
    end = min(low_s or math.inf, 1 / high_u if high_u else math.inf)
    if start < end < math.inf:
        s = _common_level(a, b, c, d, start, end)
        low, high = np.clip(s * c, a, b), np.clip(s * d, a, b)
        room = float(np.sum(high - low))
        share = min(max((1 - float(np.sum(low))) / room, 0.0), 1.0) if room > 0 else 0.0
        p = low + share * (high - low)
        pairs.append((p, np.clip(p / s, c, d)))
    return np.array(pairs)


def _level(weights: Floats, lower: Floats, upper: Floats) -> float | None:
    """The smallest s >= 0 with sum(clip(s * weights, lower, upper)) = 1, None where none reaches it; exact."""
    used = weights > 0
    bends = np.unique(np.concatenate([[0.0], lower[used] / weights[used], upper[used] / weights[used]]))

    def total(s: float) -> float:
        return float(np.sum(np.clip(s * weights, lower, upper)))

    if total(float(bends[-1])) < 1:  # up to rounding: the ends of complementary limits may sum to 1 - 1e-16
        return float(bends[-1]) if total(float(bends[-1])) > 1 - 1e-12 else None
    under, over = -1, len(bends) - 1
    while over - under > 1:
        middle = (under + over) // 2
        under, over = (middle, over) if total(float(bends[middle])) < 1 else (under, middle)
    if under < 0:
        return float(bends[0])
    left, right = float(bends[under]), float(bends[over])
    return left + (right - left) * (1 - total(left)) / (total(right) - total(left))


def _common_level(a: Floats, b: Floats, c: Floats, d: Floats, start: float, end: float) -> float:
    """The level s = t at which both laws sum to 1; it lies between `start` and `end`."""
    from scipy.optimize import brentq  # here, for loading it takes as long as loading all the rest

    def excess(s: float) -> float:
        return float(np.sum(np.maximum(a - s * d, 0)) - np.sum(np.maximum(s * c - b, 0))) - (1 - s)

    if excess(start) >= 0:
        return start
    if excess(end) <= 0:
        return end
    return float(brentq(excess, start, end, xtol=1e-300, rtol=4 * np.finfo(float).eps))


def _rdp_bound(
    orders: Sequence[float], forward: ArrayLike, backward: ArrayLike, confidence: float, method: str
) -> RdpBound:
    return RdpBound(_row(orders), _row(forward), _row(backward), confidence, method, VALIDITY[method])


def _row(values: ArrayLike) -> tuple[float, ...]:
    return tuple(float(value) for value in np.atleast_1d(np.asarray(values, np.float64)))


def _joined(bounds: Sequence[RdpBound], reduce: Callable[[tuple[float, ...]], float]) -> RdpBound:
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
    return RdpBound(
        bounds[0].orders, forward, backward, 1 - error, methods, weakest, sum(bound.queries for bound in bounds)
    )


_WEAKNESS = (
    Validity.FINITE_SAMPLE,
    Validity.ASYMPTOTIC,
    Validity.CREDIBLE,
    Validity.CONDITIONAL_ON_FAMILY,
    Validity.AS_PUBLISHED,
)


def _log_argmax(row: Floats) -> Floats:
    """Log-probabilities for counts in units of sigma; classes with equal counts are computed once."""
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
    """Where each class's integrand peaks, to 0.1, and the largest curvature of its logarithm there.

    The derivative of the log integrand is convex and decreasing, and not negative half way between the class and the
    winner, so Newton's method started there climbs to the peak without overshooting.
    """
    others = np.broadcast_to(copies, (counts.size, counts.size)) - np.eye(counts.size)
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
    """The data-dependent bound where its conditions hold, else infinity; in logarithms, for q may be tiny."""
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


def _orders(orders: ArrayLike, *, above: float) -> Floats:
    values = np.asarray(orders, np.float64)
    require(values.ndim <= 1 and values.size >= 1, "orders must be one order or a row of orders", shape=values.shape)
    require(bool(np.all(values > above)), f"orders must be > {above:g}", orders=orders)
    return values


def _probabilities(values: ArrayLike, name: str) -> Floats:
    law = np.asarray(values, np.float64)
    require(law.ndim >= 1, f"{name} must list the probabilities of all outcomes", given=values)
    require(bool(np.all((law >= 0) & (law <= 1 + 1e-9))), f"{name} must be probabilities in [0, 1]", given=values)
    require(bool(np.all(np.abs(np.sum(law, axis=-1) - 1) <= 1e-9)), f"{name} must sum to 1", given=np.sum(law, axis=-1))
    return law


def _counts(counts: ArrayLike, name: str) -> NDArray[np.int64]:
    values = np.asarray(counts)
    require(values.ndim >= 1 and values.shape[-1] >= 2, f"{name} must list at least two answers", shape=values.shape)
    whole = np.issubdtype(values.dtype, np.number) and bool(np.all((values >= 0) & (values == np.floor(values))))
    require(whole and bool(np.all(np.isfinite(values))), f"{name} must be whole numbers >= 0", counts=counts)
    require(bool(np.all(np.sum(values, axis=-1) > 0)), f"{name} must hold at least one answer", counts=counts)
    return values.astype(np.int64)


def _check_same_answers(first: NDArray[Any], second: NDArray[Any]) -> None:
    require(
        first.shape[-1] == second.shape[-1],
        "both laws must list the same answers",
        first=first.shape,
        second=second.shape,
    )


def _check_confidence(confidence: float) -> None:
    require(0 < confidence < 1, "confidence must be in (0, 1)", confidence=confidence)


def _scalar(values: Floats) -> float | Floats:
    return float(values) if values.ndim == 0 else values
