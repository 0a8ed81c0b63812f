"""Counts of every label of independent examples: recursions over the vectors of counts, called by `classes`."""

from __future__ import annotations

import numba
import numpy as np
from scipy.special import logsumexp

from dpaudit.estimators.arguments import Floats, Ints


@numba.njit(cache=True)
def likelihoods(prior: Floats, counts: Ints) -> Floats:
    """P[counts of all labels | label i = a], up to a factor of each i, shape (k, K).

    A vector of counts v <= `counts` is the number sum_a v_a stride_a. What the labels before i may sum to is carried
    along; what those after i must sum to is kept for every i, each scaled to a largest of 1.
    """
    k, classes = prior.shape
    stride = np.empty(classes, dtype=np.int64)
    states = 1
    for a in range(classes):
        stride[a] = states
        states *= counts[a] + 1
    digit = np.empty((classes, states), dtype=np.int64)
    for v in range(states):
        for a in range(classes):
            digit[a, v] = (v // stride[a]) % (counts[a] + 1)
    after = np.zeros((k + 1, states))  # after[i, v]: the labels i .. k - 1 sum to v
    after[k, 0] = 1.0
    for i in range(k - 1, -1, -1):
        _include(after[i + 1], prior[i], digit, stride, after[i])
    before, grown = np.zeros(states), np.zeros(states)
    before[0] = 1.0
    likelihood = np.empty((k, classes))
    for i in range(k):
        for a in range(classes):
            weight = 0.0
            if counts[a] > 0:
                rest = states - 1 - stride[a]  # the counts without this label
                for v in range(states):
                    if digit[a, v] < counts[a]:
                        weight += before[v] * after[i + 1, rest - v]
            likelihood[i, a] = weight
        _include(before, prior[i], digit, stride, grown)
        before, grown = grown, before
    return likelihood


@numba.njit(cache=True)
def _include(
    law: Floats,
    chances: Floats,
    digit: Ints,
    stride: Ints,
    out: Floats,
) -> None:
    """The law of the sum with one more label, up to a factor."""
    top = 0.0
    for v in range(len(law)):
        total = 0.0
        for a in range(len(chances)):
            if digit[a, v] > 0:
                total += chances[a] * law[v - stride[a]]
        out[v] = total
        top = max(top, total)
    if top > 0:
        for v in range(len(law)):
            out[v] /= top


def log_likelihoods(eta: Floats, released: Ints) -> Floats:
    """`likelihoods` in logarithms: ten times slower, right for priors however small."""
    present = np.flatnonzero(released)
    k, axes = len(eta), range(len(present))
    chances = np.log(eta[:, present])
    start = np.full(released[present] + 1, -np.inf)
    start[(0,) * len(present)] = 0.0
    fewer = [(*(slice(None),) * a, slice(0, -1)) for a in axes]  # counts that can take one more label a
    more = [(*(slice(None),) * a, slice(1, None)) for a in axes]

    def grown(law: Floats, i: int) -> Floats:
        out = np.full_like(law, -np.inf)
        for a in axes:
            out[more[a]] = np.logaddexp(out[more[a]], law[fewer[a]] + chances[i, a])
        return out

    after = [start]  # after[-1 - i]: the law of the counts of the labels i .. k - 1
    for i in reversed(range(k)):
        after.append(grown(after[-1], i))
    before, found = start, np.full(eta.shape, -np.inf)
    for i in range(k):
        rest = np.flip(after[k - 1 - i])  # at v, what is left of the counts
        for a in axes:
            found[i, present[a]] = logsumexp(before[fewer[a]] + rest[more[a]])
        before = grown(before, i)
    return found


@numba.njit(cache=True)
def gains(prior: Floats) -> Floats:
    """Additive advantage of the counts of a bag for each of its examples, shape (k, K) to (k,).

    A vector of counts is the number sum over a >= 1 of v_a (k + 1)^(a - 1): the count of label 0 is what is left of k.
    The others' counts sum to k - 1, so where a digit would have to be borrowed the law is 0.
    """
    k, classes = prior.shape
    stride = (k + 1) ** np.arange(classes - 1)
    law = np.empty((k + 1) ** (classes - 1))  # of the counts of all labels but that of i
    gain = np.empty(k)
    for i in range(k):
        law[:] = 0.0
        law[0] = 1.0
        for j in range(k):
            if j != i:
                for v in range(len(law) - 1, -1, -1):
                    law[v] *= prior[j, 0]
                    for a in range(classes - 1):
                        if v >= stride[a]:
                            law[v] += prior[j, a + 1] * law[v - stride[a]]
        right = 0.0
        for v in range(len(law)):
            best = prior[i, 0] * law[v]
            for a in range(classes - 1):
                if v >= stride[a]:
                    best = max(best, prior[i, a + 1] * law[v - stride[a]])
            right += best
        gain[i] = max(0.0, right - prior[i].max())
    return gain
