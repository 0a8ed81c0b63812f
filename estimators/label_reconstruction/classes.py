"""Posteriors and advantages for any set of labels: k-ary randomised response, and exact counts of every label in a bag.

Source: Busa-Fekete et al. (2024), Definitions 3.1 and 3.6, which are stated for labels 1 .. c.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, as_counts, unboxed


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


MAX_STATES = 20_000_000  # vectors of counts that are gone through for one bag: tenths of a second, and 160 MB


def rr_class_posterior(prior: ArrayLike, released: ArrayLike, *, epsilon: float) -> Floats:
    """P[label = a | released label] under k-ary randomised response, which keeps a label with odds e^epsilon.

    Priors of shape (n, K), rows of sum 1, and released labels in 0 .. K - 1, shape (n,); epsilon in [0, inf).
    """
    eta = _rows(prior)
    labels = as_counts("released", np.asarray(released))
    fits = labels.shape == eta.shape[:1] and bool((labels < eta.shape[1]).all())
    require(fits, f"there must be one released label in 0..{eta.shape[1] - 1} for each example", shape=labels.shape)
    require(0 <= epsilon < math.inf, "epsilon must be in [0, inf)", epsilon=epsilon)
    weight = eta * np.where(np.arange(eta.shape[1]) == labels[:, None], 1.0, math.exp(-epsilon))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def llp_class_posterior(prior: ArrayLike, counts: ArrayLike) -> Floats:
    """P[label = a | how often each label is in the bag] for every example of one bag, shape (k, K).

    Args:
        prior: P[label = a] of each example, rows of sum 1, shape (k, K).
        counts: How often each label is in the bag, whole, of sum k, shape (K,).
    Raises: InputError for a bag that cannot have those counts under its priors, or with too many ways to reach them:
        k + 1 times the product of the counts + 1 is at most 20,000,000.
    """

    eta, released = _rows(prior), as_counts("counts", np.asarray(counts))
    fits = released.shape == eta.shape[1:] and int(released.sum()) == len(eta)
    require(fits, f"there must be one count for each label, of sum {len(eta)}", counts=released.tolist())
    states = (len(eta) + 1) * math.prod((released + 1).tolist())
    must = f"k + 1 times the product of the counts + 1 must be at most {MAX_STATES:,}"
    require(states <= MAX_STATES, must, product=states, do="use smaller bags, or merge labels")
    posterior = np.asarray(class_posteriors(eta, released))
    possible = not np.isnan(posterior).any()
    require(possible, "the bag must be able to have those counts under its priors", counts=released.tolist())
    return posterior


def class_multiplicative_advantage(prior: ArrayLike, posterior: ArrayLike) -> float | Floats:
    """The largest shift of log-odds between any two labels, max over a, b of |I_ab|; 0 between labels of prior 0.

    Rows of probabilities, shape (n, K), to nats, shape (n,), which may be infinite.
    """
    before, after = _rows(prior), _rows(posterior)
    require(before.shape == after.shape, "prior and posterior must have one shape", prior=before.shape)
    open_ = before > 0
    with np.errstate(divide="ignore"):
        moved = np.log(after, where=open_, out=np.zeros_like(after)) - np.log(np.where(open_, before, 1.0))
    highest = np.where(open_, moved, -np.inf).max(axis=1)
    return unboxed(np.asarray(highest - np.where(open_, moved, np.inf).min(axis=1)))


def rr_class_additive_advantage(prior: ArrayLike, *, epsilon: float) -> float | Floats:
    """How much likelier the best guess is right after k-ary randomised response, on average over releases.

    Of priors of shape (n, K): sum over z of max_a eta_a P[z | a], less max_a eta_a; shape (n,).
    """
    eta = _rows(prior)
    require(0 <= epsilon < math.inf, "epsilon must be in [0, inf)", epsilon=epsilon)
    less = math.exp(-epsilon)
    top = np.partition(eta, -2, axis=1)
    # Given z the best guess is z, unless another label is likelier even so.
    rival = np.where(eta == top[:, -1:], top[:, -2:-1], top[:, -1:])
    right = np.maximum(eta, less * rival).sum(axis=1) / (1 + (eta.shape[1] - 1) * less)
    return unboxed(np.maximum(0.0, right - top[:, -1]))


def _rows(prior: ArrayLike) -> Floats:
    eta = np.asarray(prior, np.float64)
    require(eta.ndim == 2 and eta.shape[1] >= 2 and len(eta) > 0, "rows must have the shape (n, K)", shape=eta.shape)
    sums = bool((eta >= 0).all()) and bool(np.allclose(eta.sum(axis=1), 1.0, rtol=0, atol=1e-9))
    require(sums, "each row must hold probabilities of sum 1")
    return eta
