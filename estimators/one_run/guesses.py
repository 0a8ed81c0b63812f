"""Lower bounds on epsilon from the guesses of one run of the game (`guessing_game`).

Under (epsilon, delta)-DP there is a limit to how often the adversary can be right; the bound is the largest epsilon
whose limit the count exceeds. Assumed: the bits are independent and fair, and the number of guesses was fixed before
the output was seen; with delta = 0 the last is not needed.

Source: Kalemaj et al. (2025), arXiv:2511.14084, section 10, Theorems 16 and 17, and section 9, Algorithm 3; Steinke,
Nasr and Jagielski (2023), arXiv:2305.08846; Mahloujifar et al. (2025).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpaudit.errors import require
from dpaudit.estimators.arguments import (
    Floats,
    Ints,
    as_confidence,
    as_counts,
    as_delta,
    as_reals,
    common_shape,
    elementwise,
    require_one_of,
    successes_of_trials,
)
from dpaudit.estimators.bisection import last_true_of_each

Method: TypeAlias = Literal["auto", "binomial", "theorem-16", "f-dp"]


def one_run_epsilon(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    canaries: ArrayLike,
    delta: ArrayLike,
    confidence: ArrayLike,
    method: Method = "auto",
    likelihood_ratio: ArrayLike = 1.0,
) -> float | Floats:
    """Lower-bounds epsilon from the number of correct guesses; every argument but `method` broadcasts.

    Args:
        guesses, correct, canaries, confidence: As in `guessing_game`. Only delta > 0 uses the canaries: any may leak.
        delta: Delta of the claim, in [0, 1).
        method: "binomial": exact, delta = 0 only (Theorem 17 with as many trials as guesses). "f-dp": Algorithm 3
            with the two-sided (epsilon, delta) trade-off functions, proved and nearly optimal. "theorem-16": the
            published bound for delta > 0, most often weaker, and false for confidence <= 0.5, which is refused. "auto":
            "binomial" where delta is 0 everywhere, else the larger of "f-dp" and "theorem-16": at one number of guesses
            both limit the probability of the same event, so either may be taken, whichever is larger.
        likelihood_ratio: Largest ratio, >= 1, of the two candidate laws of a canary *at every point* (label j under the
            data against label j under the proxy, either way up); "binomial" only. It is not (1 + tau) / (1 - tau) for
            a total variation tau: that bounds no ratio once the adversary may abstain (use the `tau` of
            `dpaudit.estimators.one_run.f_dp`).
    Returns: Epsilon in nats, >= 0 and finite, rounded down; 0 where the count shows nothing.
    Raises: InputError for counts, delta or confidence out of range, and for a method that does not hold for them.
    Source: Theorems 16 and 17 and Algorithm 3 (see the module), with `guesses` trials; the bound is the infimum of the
        epsilons whose limit is at least 1 - confidence.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    d, level, ratio = as_delta(delta), as_confidence(confidence), _as_ratio(likelihood_ratio)
    chosen = _method(method, d, ratio)
    if chosen == "theorem-16":
        require(
            bool(np.all(level > 0.5)),
            "Theorem 16 holds for confidence > 0.5 only",
            do='use method "f-dp"',
            confidence=level.min(),
        )
    return elementwise(partial(_epsilon, chosen), n, k, m, d, 1 - level, ratio)


def one_run_p_value(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    epsilon: ArrayLike,
    canaries: ArrayLike,
    delta: ArrayLike,
    method: Method = "auto",
    likelihood_ratio: ArrayLike = 1.0,
) -> float | Floats:
    """Limit of the probability of so many right guesses under (epsilon, delta)-DP; all but `method` broadcast.

    Args:
        epsilon: The hypothesis, in nats, >= 0 and finite.
        guesses, correct, canaries, delta, method, likelihood_ratio: As for `one_run_epsilon`.
    Returns: A p-value in (0, 1], rounded up. "theorem-16" gives 1 where its formula is 1/2 or more (it is false
        there); "f-dp" gives no p-value below 1e-300.
    Raises: InputError as `one_run_epsilon`.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    d, hypothesis, ratio = as_delta(delta), as_reals("epsilon", epsilon), _as_ratio(likelihood_ratio)
    allowed = bool(np.all(np.isfinite(hypothesis) & (hypothesis >= 0)))
    require(allowed, "epsilon must be finite and >= 0", epsilon=epsilon)
    return elementwise(partial(_p_value, _method(method, d, ratio)), n, k, m, d, hypothesis, ratio)


def _as_ratio(values: ArrayLike) -> Floats:
    ratio = as_reals("likelihood_ratio", values)
    finite = bool(np.all(np.isfinite(ratio) & (ratio >= 1)))
    require(finite, "likelihood_ratio must be finite and >= 1", likelihood_ratio=values)
    return ratio


def _method(method: str, delta: Floats, ratio: Floats) -> str:
    require_one_of("method", method, get_args(Method))
    if method == "auto":
        method = "larger" if np.any(delta > 0) else "binomial"
    if method == "binomial":
        require(
            not np.any(delta > 0),
            'method "binomial" holds at delta = 0 only',
            do='use method "f-dp"',
            delta=delta.max(),
        )
    else:
        require(
            bool(np.all(ratio == 1)),
            f'likelihood_ratio needs method "binomial" (delta = 0), got method "{method}" and ratio',
            do="for a shift in total variation use `tau` of dpaudit.estimators.one_run.f_dp",
            given=ratio.max(),
        )
    return method


def _epsilon(method: str, n: Ints, k: Ints, m: Ints, delta: Floats, alpha: Floats, ratio: Floats) -> Floats:
    """Of flat arrays: guesses, correct, canaries, delta, the error and the likelihood ratio."""
    if method == "binomial":
        return binomial_epsilon(n, k, alpha, ratio)
    found = np.zeros(n.shape)
    if method != "f-dp":
        found = np.where(alpha < 0.5, theorem_16_epsilon(n, k, m, delta, np.minimum(alpha, 0.5)), 0.0)
    if method != "theorem-16":
        from dpaudit.estimators.one_run.f_dp import f_dp_parameter  # only above delta = 0

        proved = f_dp_parameter(n, k, canaries=m, confidence=1 - alpha, family="approx-dp", delta=delta)
        found = np.maximum(proved, found)
    return found


def _p_value(method: str, n: Ints, k: Ints, m: Ints, delta: Floats, epsilon: Floats, ratio: Floats) -> Floats:
    """As `_epsilon`, with the hypothesis for the error."""
    if method == "binomial":
        return binomial_p_value(n, k, epsilon, ratio)
    found = np.ones(n.shape)
    if method != "f-dp":
        found = theorem_16_p_value(n, k, m, delta, epsilon)
    if method != "theorem-16":
        from dpaudit.estimators.one_run.f_dp import f_dp_p_value

        proved = f_dp_p_value(n, k, canaries=m, parameter=epsilon, family="approx-dp", delta=delta)
        found = np.minimum(proved, found)
    return found


SAFETY = 1e-12
"""Relative (and absolute) amount by which closed forms are moved to the safe side: over ten times the error of the
incomplete Beta function and its inverse against 40 digits (`tests/estimators/test_one_run.py`)."""
SEARCH_TOLERANCE = 1e-9  # width, relative to 1 + epsilon, at which the search for a root stops; the lower end is taken


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
    return np.minimum(1.0, (1 + SAFETY) * _upper_tail(n, k, epsilon + np.log(likelihood_ratio)))


def theorem_16_epsilon(n: Ints, k: Ints, m: Ints, delta: Floats, alpha: Floats) -> Floats:
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


def theorem_16_p_value(n: Ints, k: Ints, m: Ints, delta: Floats, epsilon: Floats) -> Floats:
    """The formula, rounded up; 1 where it is 1/2 or more, for it is false there."""
    formula = _formula(n, k, m, delta, epsilon)
    return np.where(formula < 0.5, formula, 1.0)


def _formula(n: Ints, k: Ints, m: Ints, delta: Floats, epsilon: Floats) -> Floats:
    """Pr[Bin(n, beta) >= k] + m delta max_j Pr[k - j <= Bin(n, beta) <= k - 1] / j, rounded up."""
    beta = special.expit(epsilon)
    # Windows may as well start 12 deviations above the mean: what lies higher weighs next to nothing and is counted in.
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
    import numba  # slow to import

    compiled: Callable[..., float] = numba.njit(cache=True, nogil=True)(_steepest_window)
    return compiled


def _steepest_window(n: int, start: int, skipped: int, mass: float, heap: float, odds: float) -> float:
    """max over j of Pr[top - j < Bin(n, beta) <= top] / j, with top = start + skipped and j > skipped.

    `odds` is beta / (1 - beta); `start` the highest value whose mass is counted singly, `mass` that mass; `heap` the
    mass of the `skipped` values above it, or more. The law has one mode, so the averages fall for good once the next
    mass is below them.
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
    """Pr[Bin = k] for k < n: a difference of tails, from the side on which they are small."""
    above = _upper_tail(n, k, log_odds) - _upper_tail(n, k + 1, log_odds)
    below = _lower_tail(n, k, log_odds) - _lower_tail(n, k - 1, log_odds)
    return np.where(k > n * special.expit(log_odds), above, below)


def _upper_tail(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Pr[Bin(n, 1 / (1 + e^-log_odds)) >= k]."""
    inside = np.clip(k, 1, np.maximum(n, 1))
    tail = cast(Floats, special.betaincc(np.maximum(n - inside, 0) + 1.0, inside, special.expit(-log_odds)))
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, tail))


def _lower_tail(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Pr[Bin(n, 1 / (1 + e^-log_odds)) <= k]."""
    inside = np.clip(k, 0, np.maximum(n - 1, 0))
    tail = cast(Floats, special.betainc(np.maximum(n - inside, 1), inside + 1.0, special.expit(-log_odds)))
    return np.where(k < 0, 0.0, np.where(k >= n, 1.0, tail))
