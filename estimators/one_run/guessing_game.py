"""The guessing game of one run: its counts, and the law of right guesses where delta is 0.

One training run (or one release) answers for `canaries` hidden fair bits; the adversary guesses `guesses` of them and
is right on `correct`. Every bound on this game takes the same arguments, all of which broadcast:

    guesses: Number of bits guessed, 0 .. canaries; fixed before the output was seen.
    correct: Number of right guesses, 0 .. guesses.
    canaries: Number of hidden fair bits, >= 1.
    confidence: Probability at least with which the bound is below the truth, in (0, 1).

With delta = 0, given any output, each guess is right with probability at most beta = e^epsilon / (1 + e^epsilon),
whatever the others are, so that the right guesses are dominated by Binomial(guesses, beta).

Source: Kalemaj et al. (2025), arXiv:2511.14084, section 10, Theorem 17 with as many trials as guesses.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints, as_counts, common_shape, successes_of_trials

SAFETY = 1e-12
"""Relative (and absolute) amount by which closed forms are moved to the safe side: over ten times the error of the
incomplete Beta function and its inverse against 40 digits (`tests/estimators/test_one_run.py`)."""


def checked_counts(guesses: ArrayLike, correct: ArrayLike, canaries: ArrayLike) -> tuple[Ints, Ints, Ints]:
    """The counts of a game, of one shape; refuses all but 0 <= correct <= guesses <= canaries and canaries >= 1."""
    k, n = successes_of_trials(correct, guesses, names=("correct", "guesses"), fewest=0)
    m = as_counts("canaries", canaries)
    require(bool(np.all(m >= 1)), "canaries must be >= 1", canaries=canaries)
    shape = common_shape(n, k, m, names=("guesses", "correct", "canaries"))
    n, k, m = (np.broadcast_to(column, shape) for column in (n, k, m))
    require(bool(np.all(n <= m)), "guesses must be <= canaries", guesses=guesses, canaries=canaries)
    return n, k, m


def binomial_epsilon(n: Ints, k: Ints, alpha: Floats, likelihood_ratio: Floats) -> Floats:
    """The epsilon with Pr[Bin(n, beta) >= k] = alpha, >= 0 and rounded down; beta is a quantile of a Beta law."""
    positive = np.maximum(k, 1)
    hit = special.betaincinv(positive, n - positive + 1.0, alpha)
    miss = special.betainccinv(n - positive + 1.0, positive, alpha)  # 1 - hit, without losing its digits
    root = np.where(k > 0, np.log(hit) - np.log(miss) - np.log(likelihood_ratio), 0.0)
    return np.maximum(0.0, root - SAFETY * (1 + np.abs(root)))


def binomial_p_value(n: Ints, k: Ints, epsilon: Floats, likelihood_ratio: Floats) -> Floats:
    """Pr[Bin(n, beta) >= k], rounded up."""
    return np.minimum(1.0, (1 + SAFETY) * upper_tail(n, k, epsilon + np.log(likelihood_ratio)))


def upper_tail(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Pr[Bin(n, 1 / (1 + e^-log_odds)) >= k]."""
    inside = np.clip(k, 1, np.maximum(n, 1))
    tail = cast(Floats, special.betaincc(np.maximum(n - inside, 0) + 1.0, inside, special.expit(-log_odds)))
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, tail))


def lower_tail(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Pr[Bin(n, 1 / (1 + e^-log_odds)) <= k]."""
    inside = np.clip(k, 0, np.maximum(n - 1, 0))
    tail = cast(Floats, special.betainc(np.maximum(n - inside, 1), inside + 1.0, special.expit(-log_odds)))
    return np.where(k < 0, 0.0, np.where(k >= n, 1.0, tail))
