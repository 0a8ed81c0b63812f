"""The guessing game of one run: its counts, and laws of right guesses that are known in closed form.

One training run (or one release) depends on `canaries` hidden fair bits; the adversary guesses `guesses` of them, and
`correct` guesses are right. Every bound on this game takes the same arguments, all of which broadcast:

    guesses: Number of bits guessed, 0 .. canaries; fixed before the output was seen.
    correct: Number of right guesses, 0 .. guesses.
    canaries: Number of hidden fair bits, >= 1.
    confidence: Smallest probability with which the bound is at most the truth, in (0, 1).

At delta = 0, given any output and the other guesses, each guess is right with probability at most beta = e^epsilon / (1
+ e^epsilon). The number of right guesses is therefore dominated by Binomial(guesses, beta).

Source: Kalemaj et al. (2025), arXiv:2511.14084, section 10, Theorem 16, and Theorem 17 with as many trials as guesses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, as_counts, common_shape, successes_of_trials
from dpaudit.estimators.bisection import last_true_of_each

Family: TypeAlias = Literal["gaussian", "laplace", "approx-dp"]
"""Families of trade-off functions of Algorithm 3 (`f_dp`)."""
SAFETY = 1e-12
"""Relative and absolute amount by which closed forms are moved to the safe side.

It is over ten times the error of the incomplete Beta function and its inverse against 40 digits
(`tests/estimators/test_one_run.py`).
"""
# width, relative to 1 + epsilon, at which the search for a root stops; the lower end is returned
SEARCH_TOLERANCE = 1e-9


def checked_counts(guesses: ArrayLike, correct: ArrayLike, canaries: ArrayLike) -> tuple[Ints, Ints, Ints]:
    """Return the counts of a game in one shape, with 0 <= correct <= guesses <= canaries and canaries >= 1."""
    k, n = successes_of_trials(correct, guesses, names=("correct", "guesses"), fewest=0)
    m = as_counts("canaries", canaries)
    require(bool(np.all(m >= 1)), "canaries must be >= 1", canaries=canaries)
    shape = common_shape(n, k, m, names=("guesses", "correct", "canaries"))
    n, k, m = (np.broadcast_to(column, shape) for column in (n, k, m))
    require(bool(np.all(n <= m)), "guesses must be <= canaries", guesses=guesses, canaries=canaries)
    return n, k, m


def binomial_epsilon(n: Ints, k: Ints, alpha: Floats) -> Floats:
    """Return the epsilon with Pr[Bin(n, beta) >= k] = alpha, >= 0 and rounded down; beta is a Beta quantile."""
    positive = np.maximum(k, 1)
    hit = special.betaincinv(positive, n - positive + 1.0, alpha)
    miss = special.betainccinv(n - positive + 1.0, positive, alpha)  # 1 - hit, without cancellation
    root = np.where(k > 0, np.log(hit) - np.log(miss), 0.0)
    return np.maximum(0.0, root - SAFETY * (1 + np.abs(root)))


def theorem_16_epsilon(n: Ints, k: Ints, m: Ints, delta: Floats, alpha: Floats) -> Floats:
    """Return inf{epsilon: formula >= alpha}, by bisection below the root at delta = 0, where the formula increases."""
    low, high = np.zeros(n.shape), binomial_epsilon(n, k, alpha) + 2 * SAFETY
    high = np.where(_formula(n, k, m, delta, low) < alpha, high, 0.0)
    return last_true_of_each(
        lambda epsilon: _formula(n, k, m, delta, epsilon) < alpha,
        low,
        high,
        absolute=SEARCH_TOLERANCE,
        relative=SEARCH_TOLERANCE,
    )


def _formula(n: Ints, k: Ints, m: Ints, delta: Floats, epsilon: Floats) -> Floats:
    """Return Pr[Bin(n, beta) >= k] + m delta max_j Pr[k - j <= Bin(n, beta) <= k - 1] / j, rounded up."""
    beta = special.expit(epsilon)
    # Windows start at most 12 deviations above the mean. The negligible mass above it is added as `heap`.
    above = np.ceil(n * beta + 12 * np.sqrt(n * beta * (1 - beta)) + 40).astype(np.int64)
    start = np.maximum(np.minimum(k, above) - 1, 0)
    skipped = np.maximum(k - 1 - start, 0)
    heap = np.where(skipped > 0, _upper_tail(n, start + 1, epsilon), 0.0)
    columns = (n, start, skipped, _mass(n, start, epsilon), heap, np.exp(epsilon))
    steepest = np.array([_compiled()(*row) for row in zip(*columns, strict=True)])
    formula: Floats = _upper_tail(n, k, epsilon) + m * delta * np.where(k > 0, steepest, 0.0)
    return formula * (1 + 1e-9)


@cache
def _compiled() -> Callable[..., float]:
    from dpaudit.compiling import compiled  # slow to import: numba

    return compiled()(_steepest_window)


def _steepest_window(n: int, start: int, skipped: int, mass: float, heap: float, odds: float) -> float:
    """Return max over j > skipped of Pr[start + skipped - j < Bin(n, beta) <= start + skipped] / j.

    `odds` is beta / (1 - beta), `mass` the probability of `start`, and `heap` an upper bound on the probability of the
    `skipped` values above it.
    """
    total = heap + mass
    width = skipped + 1.0
    best = total / width
    for value in range(start, 0, -1):
        mass *= value / ((n - value + 1) * odds)
        if mass < best and value <= (n + 1) * odds / (1 + odds):
            break
        total += mass
        width += 1
        best = max(best, total / width)
    return best


def _mass(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Return Pr[Bin = k] for k < n, as a difference of tails from the side on which they are small."""
    above = _upper_tail(n, k, log_odds) - _upper_tail(n, k + 1, log_odds)
    below = _lower_tail(n, k, log_odds) - _lower_tail(n, k - 1, log_odds)
    return np.where(k > n * special.expit(log_odds), above, below)


def _upper_tail(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Return Pr[Bin(n, 1 / (1 + e^-log_odds)) >= k]."""
    inside = np.clip(k, 1, np.maximum(n, 1))
    tail = cast(Floats, special.betaincc(np.maximum(n - inside, 0) + 1.0, inside, special.expit(-log_odds)))
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, tail))


def _lower_tail(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Return Pr[Bin(n, 1 / (1 + e^-log_odds)) <= k]."""
    inside = np.clip(k, 0, np.maximum(n - 1, 0))
    tail = cast(Floats, special.betainc(np.maximum(n - inside, 1), inside + 1.0, special.expit(-log_odds)))
    return np.where(k < 0, 0.0, np.where(k >= n, 1.0, tail))
