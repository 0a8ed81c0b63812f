"""Theorem 16: the binomial tail of the guesses, plus what delta may add if it all goes to the likeliest windows.

Source: Kalemaj et al. (2025), arXiv:2511.14084, section 10, Theorem 16; Steinke, Nasr and Jagielski (2023).
"""

from __future__ import annotations

import numpy as np
from scipy import special

from dpaudit.estimators.arguments import Counts, Floats
from dpaudit.estimators.bisection import last_true_of_each
from dpaudit.estimators.one_run.guessing_game import SAFETY, binomial_epsilon, lower_tail, upper_tail

SEARCH_TOLERANCE = 1e-9
"""Width, relative to 1 + epsilon, at which the search for a root stops; the lower end is reported."""


def theorem_16_epsilon(n: Counts, k: Counts, m: Counts, delta: Floats, alpha: Floats) -> Floats:
    """inf{epsilon: formula >= alpha}, by bisection below the root at delta = 0; the formula increases up to there."""
    low, high = np.zeros(n.shape), binomial_epsilon(n, k, alpha, np.ones(n.shape)) + 2 * SAFETY
    high = np.where(_formula(n, k, m, delta, low) < alpha, high, 0.0)
    return last_true_of_each(
        lambda epsilon: _formula(n, k, m, delta, epsilon) < alpha,
        low,
        high,
        absolute=SEARCH_TOLERANCE,
        relative=SEARCH_TOLERANCE,
    )


def theorem_16_p_value(n: Counts, k: Counts, m: Counts, delta: Floats, epsilon: Floats) -> Floats:
    """The formula, rounded up; 1 where it is 1/2 or more, for it is false there."""
    formula = _formula(n, k, m, delta, epsilon)
    return np.where(formula < 0.5, formula, 1.0)


def _formula(n: Counts, k: Counts, m: Counts, delta: Floats, epsilon: Floats) -> Floats:
    """Pr[Bin(n, beta) >= k] + m delta max_j Pr[k - j <= Bin(n, beta) <= k - 1] / j, rounded up."""
    from dpaudit.estimators.one_run._window import steepest_window  # compiled code is loaded when first used

    beta = special.expit(epsilon)
    # Windows may as well start 12 deviations above the mean: what lies higher weighs next to nothing and is counted in.
    above = np.ceil(n * beta + 12 * np.sqrt(n * beta * (1 - beta)) + 40).astype(np.int64)
    start = np.maximum(np.minimum(k, above) - 1, 0)
    skipped = np.maximum(k - 1 - start, 0)
    heap = np.where(skipped > 0, upper_tail(n, start + 1, epsilon), 0.0)
    columns = (n, start, skipped, _mass(n, start, epsilon), heap, np.exp(epsilon))
    steepest = np.array([steepest_window(*row) for row in zip(*columns, strict=True)])
    formula: Floats = upper_tail(n, k, epsilon) + m * delta * np.where(k > 0, steepest, 0.0)
    return formula * (1 + 1e-9)


def _mass(n: Counts, k: Counts, log_odds: Floats) -> Floats:
    """Pr[Bin = k] for k < n: a difference of tails, from the side on which they are small."""
    above = upper_tail(n, k, log_odds) - upper_tail(n, k + 1, log_odds)
    below = lower_tail(n, k, log_odds) - lower_tail(n, k - 1, log_odds)
    return np.where(k > n * special.expit(log_odds), above, below)
