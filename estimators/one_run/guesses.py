"""Lower bounds on epsilon from the guesses of one run of the game.

One training run (or one release) answers for `canaries` hidden fair bits. The adversary guesses `guesses` of them and
is right on `correct`. Under (epsilon, delta)-DP there is a limit to how often it can be right; the bound is the
largest epsilon whose limit the count exceeds.

Assumed: the bits are independent and fair, and the number of guesses was fixed before the output was seen. With
delta = 0 the last is not needed: given any output, each guess is right with probability at most
beta = e^epsilon / (1 + e^epsilon), whatever the others are.

Source: Kalemaj et al. (2025), arXiv:2511.14084, section 10, Theorems 16 and 17, and section 9, Algorithm 3; Steinke,
Nasr and Jagielski (2023), arXiv:2305.08846; Mahloujifar et al. (2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpaudit.errors import InputError, require

Method: TypeAlias = Literal["auto", "binomial", "theorem-16", "f-dp"]
Integers: TypeAlias = "int | np.integer[Any] | Sequence[int] | NDArray[np.integer[Any]]"
Reals: TypeAlias = "float | Sequence[float] | NDArray[np.float64]"
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

METHODS = ("auto", "binomial", "theorem-16", "f-dp")

SAFETY = 1e-12
"""Relative (and absolute) amount by which closed forms are moved to the safe side: over ten times the error of the
incomplete Beta function and its inverse against 40 digits (`tests/estimators/test_one_run.py`)."""

SEARCH_TOLERANCE = 1e-9
"""Width, relative to 1 + epsilon, at which the search for a root stops; the lower end is reported."""


@overload
def one_run_epsilon(  # type: ignore[overload-overlap]
    guesses: int,
    correct: int,
    *,
    canaries: int,
    delta: float,
    confidence: float,
    method: Method = "auto",
    likelihood_ratio: float = 1.0,
) -> float: ...
@overload
def one_run_epsilon(
    guesses: Integers,
    correct: Integers,
    *,
    canaries: Integers,
    delta: Reals,
    confidence: Reals,
    method: Method = "auto",
    likelihood_ratio: Reals = 1.0,
) -> Floats: ...
def one_run_epsilon(
    guesses: Integers,
    correct: Integers,
    *,
    canaries: Integers,
    delta: Reals,
    confidence: Reals,
    method: Method = "auto",
    likelihood_ratio: Reals = 1.0,
) -> float | Floats:
    """Lower-bounds epsilon from the number of correct guesses; every argument but `method` broadcasts.

    Args:
        guesses: Number of bits guessed, 0 .. canaries; fixed beforehand (see the module).
        correct: Number of right guesses, 0 .. guesses.
        canaries: Number of hidden bits, >= 1. Only delta > 0 uses it: any of them may leak.
        delta: Delta of the claim, in [0, 1).
        confidence: Probability at least with which the bound is below the true epsilon, in (0, 1).
        method: "binomial": exact, delta = 0 only (Theorem 17 with as many trials as guesses). "f-dp": Algorithm 3
            with the two-sided (epsilon, delta) trade-off functions, proved and nearly optimal. "theorem-16": the
            published bound for delta > 0, weaker, and false for confidence <= 0.5, which is refused. "auto":
            "binomial" where delta is 0 everywhere, else "f-dp".
        likelihood_ratio: Largest ratio, >= 1, of the two candidate laws of a canary *at every point* (label j under the
            data against label j under the proxy, either way up); "binomial" only. It is not (1 + tau) / (1 - tau) for
            a total variation tau: that bounds no ratio once the adversary may abstain (use the `tau` of
            `dpaudit.estimators.one_run.f_dp`).
    Returns: Epsilon in nats, >= 0 and finite, rounded down; 0 where the count shows nothing.
    Raises: InputError for counts, delta or confidence out of range, and for a method that does not hold for them.
    Source: Theorems 16 and 17 and Algorithm 3 (see the module), with `guesses` trials; the bound is the infimum of the
        epsilons whose limit is at least 1 - confidence.
    """
    n, k, m = guess_counts(guesses, correct, canaries)
    d, level, ratio = _reals(delta=delta, confidence=confidence, likelihood_ratio=likelihood_ratio)
    _require_rates(d, level, ratio)
    chosen = _method(method, d, ratio)
    if chosen == "theorem-16":
        require(
            bool(np.all(level > 0.5)),
            "Theorem 16 holds for confidence > 0.5 only",
            do='use method "f-dp"',
            confidence=level.min(),
        )
    bound = _EPSILON[chosen]
    return broadcast(bound, n, k, m, d, 1 - level, ratio)


@overload
def one_run_p_value(  # type: ignore[overload-overlap]
    guesses: int,
    correct: int,
    *,
    epsilon: float,
    canaries: int,
    delta: float,
    method: Method = "auto",
    likelihood_ratio: float = 1.0,
) -> float: ...
@overload
def one_run_p_value(
    guesses: Integers,
    correct: Integers,
    *,
    epsilon: Reals,
    canaries: Integers,
    delta: Reals,
    method: Method = "auto",
    likelihood_ratio: Reals = 1.0,
) -> Floats: ...
def one_run_p_value(
    guesses: Integers,
    correct: Integers,
    *,
    epsilon: Reals,
    canaries: Integers,
    delta: Reals,
    method: Method = "auto",
    likelihood_ratio: Reals = 1.0,
) -> float | Floats:
    """Limit of the probability of so many right guesses under (epsilon, delta)-DP; all but `method` broadcast.

    Args:
        epsilon: The hypothesis, in nats, >= 0 and finite.
        guesses, correct, canaries, delta, method, likelihood_ratio: As for `one_run_epsilon`.
    Returns: A p-value in (0, 1], rounded up. "theorem-16" gives 1 where its formula is 1/2 or more (it is false
        there); "f-dp" gives no p-value below 1e-300.
    Raises: InputError as `one_run_epsilon`.
    """
    n, k, m = guess_counts(guesses, correct, canaries)
    d, eps, ratio = _reals(delta=delta, epsilon=epsilon, likelihood_ratio=likelihood_ratio)
    _require_rates(d, None, ratio)
    require(bool(np.all(np.isfinite(eps) & (eps >= 0))), "epsilon must be finite and >= 0", epsilon=epsilon)
    return broadcast(_P_VALUE[_method(method, d, ratio)], n, k, m, d, eps, ratio)


def guess_counts(guesses: Integers, correct: Integers, canaries: Integers) -> tuple[Ints, Ints, Ints]:
    """The counts as int64 arrays of one shape; refuses all but 0 <= correct <= guesses <= canaries, canaries >= 1."""
    n, k, m = together(_whole("guesses", guesses), _whole("correct", correct), _whole("canaries", canaries))
    require(bool(np.all(m >= 1)), "canaries must be >= 1", canaries=canaries)
    require(bool(np.all(k >= 0)), "correct must be >= 0", correct=correct)
    require(bool(np.all(k <= n)), "correct must be <= guesses", correct=correct, guesses=guesses)
    require(bool(np.all(n <= m)), "guesses must be <= canaries", guesses=guesses, canaries=canaries)
    return n, k, m


def _whole(name: str, value: object) -> Ints:
    given = np.asarray(value)
    require(given.size > 0, f"{name} must not be empty", shape=given.shape)
    finite = given.dtype.kind == "f" and bool(np.all(np.isfinite(given)))
    whole = given.dtype.kind in "iu" or (finite and bool(np.all(given == np.rint(given))))
    require(whole, f"{name} must be whole numbers", do="count canaries, not scores", given=value)
    return given.astype(np.int64)


def _reals(**given: object) -> tuple[Floats, ...]:
    values = {name: np.asarray(value, dtype=np.float64) for name, value in given.items()}
    for name, value in values.items():
        require(value.size > 0, f"{name} must not be empty", shape=value.shape)
    return tuple(values.values())


def _require_rates(delta: Floats, confidence: Floats | None, ratio: Floats) -> None:
    require(bool(np.all((delta >= 0) & (delta < 1))), "delta must be in [0, 1)", delta=delta)
    if confidence is not None:
        inside = (confidence > 0) & (confidence < 1)
        require(bool(np.all(inside)), "confidence must be in (0, 1)", confidence=confidence)
    finite = np.isfinite(ratio) & (ratio >= 1)
    require(bool(np.all(finite)), "likelihood_ratio must be finite and >= 1", likelihood_ratio=ratio)


def _method(method: str, delta: Floats, ratio: Floats) -> str:
    require(method in METHODS, f"method must be one of {', '.join(METHODS)}", method=method)
    if method == "auto":
        method = "f-dp" if np.any(delta > 0) else "binomial"
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


def together(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The arrays, broadcast to one shape; refuses those that do not fit."""
    try:
        return tuple(np.broadcast_arrays(*arrays))
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise InputError(f"arguments must broadcast to one shape, got shapes {shapes}") from None


def broadcast(function: Callable[..., Floats], *arrays: NDArray[Any]) -> float | Floats:
    """Calls `function` with flat arrays of one length; a float when every argument was a scalar."""
    whole = together(*arrays)
    flat = function(*(array.ravel() for array in whole))
    return float(flat[0]) if whole[0].ndim == 0 else flat.reshape(whole[0].shape)


def _binomial_epsilon(n: Ints, k: Ints, m: Ints, delta: Floats, alpha: Floats, ratio: Floats) -> Floats:
    """The root of Pr[Bin(n, beta) >= k] = alpha, that is beta = the alpha quantile of Beta(k, n - k + 1)."""
    some = np.maximum(k, 1)
    hit = special.betaincinv(some, n - some + 1.0, alpha)
    miss = special.betainccinv(n - some + 1.0, some, alpha)  # 1 - hit, without losing its digits
    root = np.where(k > 0, np.log(hit) - np.log(miss) - np.log(ratio), 0.0)
    return np.maximum(0.0, root - SAFETY * (1 + np.abs(root)))


def _binomial_p_value(n: Ints, k: Ints, m: Ints, delta: Floats, epsilon: Floats, ratio: Floats) -> Floats:
    return np.minimum(1.0, (1 + SAFETY) * _upper_tail(n, k, epsilon + np.log(ratio)))


def _upper_tail(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Pr[Bin(n, 1 / (1 + e^-log_odds)) >= k]."""
    some = np.clip(k, 1, np.maximum(n, 1))
    tail = cast(Floats, special.betaincc(np.maximum(n - some, 0) + 1.0, some, special.expit(-log_odds)))
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, tail))


def _theorem_16_epsilon(n: Ints, k: Ints, m: Ints, delta: Floats, alpha: Floats, ratio: Floats) -> Floats:
    """inf{epsilon: formula >= alpha}, by bisection below the root at delta = 0; the formula increases up to there."""
    low, high = np.zeros(n.shape), _binomial_epsilon(n, k, m, delta, alpha, ratio) + 2 * SAFETY
    high = np.where(_theorem_16_formula(n, k, m, delta, low) < alpha, high, 0.0)
    while np.any(high - low > SEARCH_TOLERANCE * (1 + high)):
        middle = 0.5 * (low + high)
        below = _theorem_16_formula(n, k, m, delta, middle) < alpha
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def _theorem_16_p_value(n: Ints, k: Ints, m: Ints, delta: Floats, epsilon: Floats, ratio: Floats) -> Floats:
    formula = _theorem_16_formula(n, k, m, delta, epsilon)
    return np.where(formula < 0.5, formula, 1.0)


def _theorem_16_formula(n: Ints, k: Ints, m: Ints, delta: Floats, epsilon: Floats) -> Floats:
    """Pr[Bin(n, beta) >= k] + m delta max_j Pr[k - j <= Bin(n, beta) <= k - 1] / j, rounded up."""
    from dpaudit.estimators.one_run._window import steepest_window  # compiled code is loaded when first used

    beta = special.expit(epsilon)
    # Windows may as well start 12 deviations above the mean: what lies higher weighs next to nothing and is counted in.
    above = np.ceil(n * beta + 12 * np.sqrt(n * beta * (1 - beta)) + 40).astype(np.int64)
    start = np.maximum(np.minimum(k, above) - 1, 0)
    skipped = np.maximum(k - 1 - start, 0)
    heap = np.where(skipped > 0, _upper_tail(n, start + 1, epsilon), 0.0)
    columns = (n, start, skipped, _mass(n, start, epsilon), heap, np.exp(epsilon))
    steepest = np.array([steepest_window(*row) for row in zip(*columns, strict=True)])
    formula: Floats = _upper_tail(n, k, epsilon) + m * delta * np.where(k > 0, steepest, 0.0)
    return formula * (1 + 1e-9)


def _mass(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Pr[Bin = k] for k < n: a difference of tails, from the side on which they are small."""
    above = _upper_tail(n, k, log_odds) - _upper_tail(n, k + 1, log_odds)
    below = _lower_tail(n, k, log_odds) - _lower_tail(n, k - 1, log_odds)
    return np.where(k > n * special.expit(log_odds), above, below)


def _lower_tail(n: Ints, k: Ints, log_odds: Floats) -> Floats:
    """Pr[Bin(n, 1 / (1 + e^-log_odds)) <= k]."""
    some = np.clip(k, 0, np.maximum(n - 1, 0))
    tail = cast(Floats, special.betainc(np.maximum(n - some, 1), some + 1.0, special.expit(-log_odds)))
    return np.where(k < 0, 0.0, np.where(k >= n, 1.0, tail))


def _f_dp_epsilon(n: Ints, k: Ints, m: Ints, delta: Floats, alpha: Floats, ratio: Floats) -> Floats:
    from dpaudit.estimators.one_run.f_dp import f_dp_parameter

    return np.asarray(f_dp_parameter(n, k, canaries=m, confidence=1 - alpha, family="approx-dp", delta=delta))


def _f_dp_p_value(n: Ints, k: Ints, m: Ints, delta: Floats, epsilon: Floats, ratio: Floats) -> Floats:
    from dpaudit.estimators.one_run.f_dp import f_dp_p_value

    return np.asarray(f_dp_p_value(n, k, canaries=m, parameter=epsilon, family="approx-dp", delta=delta))


_EPSILON = {"binomial": _binomial_epsilon, "theorem-16": _theorem_16_epsilon, "f-dp": _f_dp_epsilon}
_P_VALUE = {"binomial": _binomial_p_value, "theorem-16": _theorem_16_p_value, "f-dp": _f_dp_p_value}
