"""Sums of independent labels of several kinds: the compiled kernel of `classes`."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True)
def class_posteriors(prior: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """P[label i = a | counts of all labels], shape (k, K); NaN where the counts are impossible.

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
    posterior = np.empty((k, classes))
    for i in range(k):
        for a in range(classes):
            weight = 0.0
            if counts[a] > 0:
                rest = states - 1 - stride[a]  # the counts without this label
                for v in range(states):
                    if digit[a, v] < counts[a]:
                        weight += before[v] * after[i + 1, rest - v]
            posterior[i, a] = prior[i, a] * weight
        total = posterior[i].sum()
        posterior[i] = posterior[i] / total if total > 0 else np.full(classes, np.nan)
        _include(before, prior[i], digit, stride, grown)
        before, grown = grown, before
    return posterior


@numba.njit(cache=True)
def _include(
    law: NDArray[np.float64],
    chances: NDArray[np.float64],
    digit: NDArray[np.int64],
    stride: NDArray[np.int64],
    out: NDArray[np.float64],
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
