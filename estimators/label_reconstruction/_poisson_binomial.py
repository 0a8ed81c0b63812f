"""Sums of independent labels with different probabilities: compiled kernels over bags, called by `advantage`.

All additions and multiplications are of numbers >= 0, so no digits cancel. The law of "all but one" is built from the
other labels by halving (O(k^2 log k) for all k of them), never by dividing one factor out.
"""

from __future__ import annotations

import math

import numpy as np

from dpaudit.compiling import compiled
from dpaudit.estimators.arguments import Floats

# Below this likelihood of a bag, relative to its likeliest sum, underflow may affect the ratios.
SMALLEST = 1e-250


def log_ratios(prior: Floats, log_channel: Floats) -> tuple[Floats, list[int]]:
    """Return the changes of the log-odds, shape (bags, k), and the indices of impossible bags."""
    ratio, likelihood = _log_ratios(prior, np.exp(log_channel))
    unlikely = np.flatnonzero(~(likelihood > SMALLEST))
    if not unlikely.size:
        return ratio, []
    ratio[unlikely], log_likelihood = _log_ratios_in_logarithms(prior[unlikely], log_channel[unlikely])
    return ratio, unlikely[np.isneginf(log_likelihood)].tolist()


@compiled()
def _log_ratios(prior: Floats, channel: Floats) -> tuple[Floats, Floats]:
    """Return the change of the log-odds for every example, shape (bags, k), and likelihoods, shape (bags,).

    The channel, shape (bags, k + 1), is the likelihood of the release given the true sum, scaled to a maximum of 1. The
    likelihood of each bag is on that scale; if it exceeds 1e-250, underflow cannot matter.
    """
    bags, k = prior.shape
    shift = np.empty((bags, k))
    total = np.empty(bags)
    suffix = np.empty((k + 1, k + 1))  # suffix[i, s]: likelihood when labels before i sum to s
    prefix = np.empty(k + 1)  # law of the sum of the labels before i
    for bag in range(bags):
        eta = prior[bag]
        suffix[k] = channel[bag]
        for i in range(k - 1, -1, -1):
            for s in range(i + 1):
                suffix[i, s] = (1 - eta[i]) * suffix[i + 1, s] + eta[i] * suffix[i + 1, s + 1]
        total[bag] = suffix[0, 0]
        prefix[:] = 0.0
        prefix[0] = 1.0
        for i in range(k):
            likelihood_1 = likelihood_0 = 0.0
            for s in range(i + 1):
                likelihood_1 += prefix[s] * suffix[i + 1, s + 1]
                likelihood_0 += prefix[s] * suffix[i + 1, s]
            shift[bag, i] = _log(likelihood_1) - _log(likelihood_0)
            for s in range(i + 1, 0, -1):
                prefix[s] = (1 - eta[i]) * prefix[s] + eta[i] * prefix[s - 1]
            prefix[0] *= 1 - eta[i]
    return shift, total


@compiled()
def _log_ratios_in_logarithms(prior: Floats, log_channel: Floats) -> tuple[Floats, Floats]:
    """Return `_log_ratios` computed in logarithms, for improbable bags: ten times slower; NaN in impossible ones."""
    bags, k = prior.shape
    shift = np.empty((bags, k))
    total = np.empty(bags)
    suffix = np.empty((k + 1, k + 1))
    prefix = np.empty(k + 1)
    for bag in range(bags):
        suffix[k] = log_channel[bag]
        for i in range(k - 1, -1, -1):
            yes, no = _log(prior[bag, i]), _log1m(prior[bag, i])
            for s in range(i + 1):
                suffix[i, s] = _log_add(no + suffix[i + 1, s], yes + suffix[i + 1, s + 1])
        total[bag] = suffix[0, 0]
        prefix[:] = -np.inf
        prefix[0] = 0.0
        for i in range(k):
            yes, no = _log(prior[bag, i]), _log1m(prior[bag, i])
            log_likelihood_1, log_likelihood_0 = (
                _log_dot(prefix, suffix[i + 1, 1:], i + 1),
                _log_dot(prefix, suffix[i + 1], i + 1),
            )
            shift[bag, i] = log_likelihood_1 - log_likelihood_0
            for s in range(i + 1, 0, -1):
                prefix[s] = _log_add(no + prefix[s], yes + prefix[s - 1])
            prefix[0] += no
    return shift, total


@compiled()
def advantages(prior: Floats, epsilon: float, noise: int) -> Floats:
    """Return the additive advantage of the noisy sum for every example; shape (bags, k) to (bags, k).

    The noise is none (0), Laplace(1/epsilon) (1), or two-sided geometric, clipped to [0, k] (2).
    """
    bags, k = prior.shape
    advantage = np.empty((bags, k))
    depth = 2 + math.ceil(math.log2(k))
    laws = np.empty((depth, k))  # laws[d]: law of the sum of everything outside the range at depth d
    ends = np.empty((depth, 2), dtype=np.int64)
    stage = np.empty(depth, dtype=np.int64)
    for bag in range(bags):
        eta = prior[bag]
        laws[0] = 0.0
        laws[0, 0] = 1.0
        ends[0] = (0, k)
        stage[0] = 0
        d = 0
        while d >= 0:
            start, end = ends[d]
            if end - start == 1:
                advantage[bag, start] = _gain(eta[start], laws[d], epsilon, noise)
                d -= 1
            elif stage[d] == 2:
                d -= 1
            else:
                middle = (start + end) // 2
                laws[d + 1] = laws[d]
                size = k - (end - start)  # number of labels in the law so far
                if stage[d] == 0:
                    _include(laws[d + 1], size, eta[middle:end])
                    ends[d + 1] = (start, middle)
                else:
                    _include(laws[d + 1], size, eta[start:middle])
                    ends[d + 1] = (middle, end)
                stage[d] += 1
                stage[d + 1] = 0
                d += 1
    return advantage


@compiled()
def _include(law: Floats, size: int, eta: Floats) -> None:
    """Add the labels with probabilities `eta` to the law of the sum of `size` others, in place."""
    for j in range(len(eta)):
        for s in range(size + j + 1, 0, -1):
            law[s] = (1 - eta[j]) * law[s] + eta[j] * law[s - 1]
        law[0] *= 1 - eta[j]


@compiled()
def _gain(eta: float, law: Floats, epsilon: float, noise: int) -> float:
    """Return the smaller of the integrals of g+ and g-, with g = eta L1 - (1 - eta) L0.

    L0 is the law of the sum of the k - 1 other labels plus noise, and L1 the same law shifted by 1.
    """
    if noise == 0:
        return _plain_gain(eta, law)
    if noise == 1:
        return _laplace_gain(eta, law, epsilon)
    return _geometric_gain(eta, law, epsilon)


@compiled()
def _plain_gain(eta: float, law: Floats) -> float:
    k = len(law)
    up = down = 0.0
    previous = 0.0
    for z in range(k + 1):
        mass = law[z] if z < k else 0.0
        g = eta * previous - (1 - eta) * mass
        up += max(g, 0.0)
        down += max(-g, 0.0)
        previous = mass
    return float(min(up, down))


@compiled()
def _from_right(law: Floats, a: float) -> Floats:
    """Return right[m] = sum over s >= m of law[s] a^(s - m) for m = 0 .. k; the last value is 0."""
    k = len(law)
    right = np.empty(k + 1)
    right[k] = 0.0
    for m in range(k - 1, -1, -1):
        right[m] = law[m] + a * right[m + 1]
    return right


@compiled()
def _laplace_gain(eta: float, law: Floats, epsilon: float) -> float:
    """Return the gain under Laplace noise, integrated in closed form.

    Between the integers m and m + 1, with x = z - m, 2 g / epsilon = P e^(-epsilon x) + R e^(-epsilon (1 - x)). It
    changes sign at most once, at x = (1 - log(-R/P) / epsilon) / 2.
    """
    k = len(law)
    a = math.exp(-epsilon)
    drop = -math.expm1(-epsilon)
    right = _from_right(law, a)
    tail = 0.5 * right[0] * (eta * a - (1 - eta))  # z < 0
    up, down = max(tail, 0.0), max(-tail, 0.0)
    left_sum = 0.0  # sum over s < m of law[s] a^(m - 1 - s)
    for m in range(k):
        next_left = law[m] + a * left_sum
        P = eta * left_sum - (1 - eta) * next_left
        R = eta * right[m] - (1 - eta) * right[m + 1]
        whole = 0.5 * (P + R) * drop
        part = 0.0
        if P * R < 0:
            x = 0.5 * (1 - (math.log(abs(R)) - math.log(abs(P))) / epsilon)
            if 0 < x < 1:
                part = 0.5 * (-P * math.expm1(-epsilon * x) + R * (math.exp(-epsilon * (1 - x)) - a))
        rest = whole - part
        up += max(part, 0.0) + max(rest, 0.0)
        down += max(-part, 0.0) + max(-rest, 0.0)
        left_sum = next_left
    tail = 0.5 * left_sum * (eta - (1 - eta) * a)  # z > k
    up += max(tail, 0.0)
    down += max(-tail, 0.0)
    return float(min(up, down))


@compiled()
def _geometric_gain(eta: float, law: Floats, epsilon: float) -> float:
    k = len(law)
    a = math.exp(-epsilon)
    right = _from_right(law, a)
    g = right[0] * (eta * a - (1 - eta)) / (1 + a)  # all mass clipped to 0
    up, down = max(g, 0.0), max(-g, 0.0)
    left_sum = law[0]  # sum over s < z of law[s] a^(z - 1 - s)
    for z in range(1, k):
        both = -math.expm1(-epsilon) / (1 + a)
        mass_1 = left_sum + a * right[z]
        mass_0 = a * left_sum + right[z]
        g = both * (eta * mass_1 - (1 - eta) * mass_0)
        up += max(g, 0.0)
        down += max(-g, 0.0)
        left_sum = law[z] + a * left_sum
    g = left_sum * (eta - (1 - eta) * a) / (1 + a)  # all mass clipped to k
    up += max(g, 0.0)
    down += max(-g, 0.0)
    return float(min(up, down))


@compiled()
def _log(value: float) -> float:
    return math.log(value) if value > 0 else -np.inf


@compiled()
def _log1m(value: float) -> float:
    return math.log1p(-value) if value < 1 else -np.inf


@compiled()
def _log_add(x: float, y: float) -> float:
    high, low = max(x, y), min(x, y)
    return high if low == -np.inf else high + math.log1p(math.exp(low - high))


@compiled()
def _log_dot(x: Floats, y: Floats, size: int) -> float:
    top = -np.inf
    for s in range(size):
        top = max(top, x[s] + y[s])
    if top == -np.inf:
        return top
    total = 0.0
    for s in range(size):
        total += math.exp(x[s] + y[s] - top)
    return top + math.log(total)
