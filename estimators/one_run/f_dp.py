"""Lower bounds on a whole trade-off function from the guesses of one run of the game.

Algorithm 3 proves, for one trade-off function, that so many right guesses have probability at most 1 - confidence. The
bound is the smallest parameter of a family for which it does not. (`False` in the paper's listing is this proof.)

Assumed: the number of guesses was fixed beforehand, and the mechanism's trade-off function lies nowhere below the
family's at the true parameter. Only "approx-dp" makes that no assumption: *every* (epsilon, delta)-DP mechanism
satisfies it. An epsilon from the Gaussian family is no lower bound off the family: randomised response with epsilon 1,
a pure DP mechanism, would get 1.65 at delta = 1e-5.

Source: Kalemaj et al. (2025), arXiv:2511.14084, section 9, Definition 9, Algorithm 3 and Theorem 10; Mahloujifar et al.
(2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.errors import InputError, require
from dpaudit.estimators.arguments import Floats, Ints, as_confidence, as_delta, as_reals, common_shape, elementwise
from dpaudit.estimators.bisection import last_true, last_true_from
from dpaudit.estimators.one_run.guessing_game import binomial_epsilon, checked_counts
from dpaudit.estimators.one_run.trade_off import BUILT_IN, Family, member

SEARCH_TOLERANCE = 1e-9
"""Width, relative to 1 + parameter, at which the search for it stops; the lower end is taken."""
SAFETY = 1e-10
"""Relative amount by which that end is lowered: more than rounding within a walk can move it."""
LARGEST_PARAMETER = 1e6
"""A search that still rejects here ends here."""
SMALLEST_P_VALUE = 1e-300

Rejects: TypeAlias = Callable[[float, float, float, int, int, int, float], bool]
"""(parameter, delta, tau, guesses, correct, canaries, significance) -> whether Algorithm 3 rejects the parameter."""


def f_dp_parameter(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    canaries: ArrayLike,
    confidence: ArrayLike,
    family: Family = "gaussian",
    tau: ArrayLike = 0.0,
    delta: ArrayLike | None = None,
) -> float | Floats:
    """The smallest parameter of the family that the count does not reject; every argument but `family` broadcasts.

    Args:
        guesses, correct, canaries, confidence: As in `guessing_game`.
        family: "gaussian" (parameter mu), "laplace" (epsilon of the Laplace mechanism), "approx-dp" (epsilon, at
            `delta`), or a function from the parameter to a trade-off function (`dpaudit.estimators.one_run.trade_off`).
        tau: Largest total variation distance between the law of a canary's true label and of its counterfactual, in
            [0, 1] (Theorem 10). Nothing is rejected once guesses / canaries <= 1 - f(tau), and nothing at all unless
            (1 - confidence) (2 correct - guesses) / canaries > tau.
        delta: Second parameter of "approx-dp", in [0, 1); None for every other family.
    Returns: The parameter, >= 0, within 2e-9 (1 + parameter) and never above; 0 where the count shows nothing.
    Raises: InputError for arguments out of range.
    Source: Definition 9, its maximal accepted f being the smallest accepted parameter; Algorithm 3; Theorem 10 with
        f_bar^-1(r) = max(0, f^-1(1 - r) - tau).
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    level, shift, d = _checked(confidence, tau, delta, family)
    rejects = _rejects(family)

    def bounds(*columns: Floats) -> Floats:
        return np.array([_climb(_hypothesis(rejects, *row)) for row in _rows(columns)])

    return elementwise(bounds, d, shift, n, k, m, 1 - level)


def f_dp_epsilon(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    canaries: ArrayLike,
    delta: ArrayLike,
    confidence: ArrayLike,
    family: Family = "gaussian",
    tau: ArrayLike = 0.0,
) -> float | Floats:
    """The epsilon at `delta` of the smallest parameter that the count does not reject.

    Args:
        delta: Where epsilon is read, in [0, 1); for "approx-dp" also the delta of the family.
        guesses, correct, canaries, confidence, family, tau: As for `f_dp_parameter`.
    Returns: Epsilon in nats, >= 0, rounded down; inf at delta = 0 for a family without pure DP, as the Gaussian.
    Raises: InputError for arguments out of range.
    Source: Definition 9, with a negative epsilon raised to 0.
    """
    at = as_delta(delta)
    parameter = f_dp_parameter(
        guesses,
        correct,
        canaries=canaries,
        confidence=confidence,
        family=family,
        tau=tau,
        delta=at if family == "approx-dp" else None,
    )

    def epsilons(*columns: Floats) -> Floats:
        return np.array([member(family, p, d).epsilon(d) for p, d in _rows(columns)])

    return elementwise(epsilons, np.asarray(parameter), at)


def f_dp_p_value(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    canaries: ArrayLike,
    parameter: ArrayLike,
    family: Family = "gaussian",
    tau: ArrayLike = 0.0,
    delta: ArrayLike | None = None,
) -> float | Floats:
    """The smallest significance at which the count rejects `parameter`: a p-value, since Lemma 15 is monotone in it.

    Args:
        parameter: The hypothesis, finite and >= 0.
        guesses, correct, canaries, family, tau, delta: As for `f_dp_parameter`.
    Returns: In [1e-300, 1], within 2e-9 relative and never below.
    Raises: InputError for arguments out of range.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    _, shift, d = _checked(0.5, tau, delta, family)
    at = as_reals("parameter", parameter)
    require(bool(np.all(np.isfinite(at) & (at >= 0))), "parameter must be finite and >= 0", parameter=parameter)
    rejects = _rejects(family)

    def p_values(*columns: Floats) -> Floats:
        return np.array([_smallest_significance(rejects, *row) for row in _rows(columns)])

    return elementwise(p_values, at, d, shift, n, k, m)


class Best(NamedTuple):
    """The best candidate of each sweep."""

    candidate: Ints  # position along the last axis
    parameter: Floats


def best_f_dp(
    guesses: ArrayLike,
    correct: ArrayLike,
    *,
    canaries: ArrayLike,
    confidence: ArrayLike,
    family: Family = "gaussian",
    tau: ArrayLike = 0.0,
    delta: ArrayLike | None = None,
) -> Best:
    """The largest `f_dp_parameter` along the last axis, at about one verdict for each candidate.

    A candidate that does not reject the best parameter so far cannot be better. The maximum is not corrected for the
    number of candidates: hand in a confidence that is, 1 - alpha / candidates for one, or call the result as published.

    Args: As for `f_dp_parameter`; broadcast together they have shape (..., candidates), candidates >= 1.
    Returns: `Best`, both of shape (...): the position of the best candidate, and its parameter within 2e-9 (1 + it).
    Raises: InputError for arguments out of range, or without a candidate.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    level, shift, d = _checked(confidence, tau, delta, family)
    shape = common_shape(d, shift, n, k, m, level)
    columns: list[NDArray[Any]] = [np.broadcast_to(column, shape) for column in (d, shift, n, k, m, 1 - level)]
    require(len(shape) >= 1 and shape[-1] >= 1, "a sweep must have at least one candidate", shape=shape)
    rejects = _rejects(family)
    # The exact pure-DP bound ranks candidates well enough for the first one to be nearly the best.
    promise = binomial_epsilon(columns[2], columns[3], columns[5], np.ones(shape))
    sweeps = [column.reshape(-1, shape[-1]) for column in columns]
    winners = [
        _best(rejects, _rows([column[sweep] for column in sweeps]), order.tolist())
        for sweep, order in enumerate(np.argsort(-promise.reshape(-1, shape[-1]), axis=1, kind="stable"))
    ]
    index, value = (np.array(column).reshape(shape[:-1]) for column in zip(*winners, strict=True))
    return Best(index.astype(np.int64), value)


def _best(rejects: Rejects, candidates: list[tuple[Any, ...]], order: list[int]) -> tuple[int, float]:
    best, value = order[0], 0.0
    for candidate in order:
        risen = _climb(_hypothesis(rejects, *candidates[candidate]), value)
        if risen > value:
            best, value = candidate, risen
    return best, value


def _checked(
    confidence: ArrayLike, tau: ArrayLike, delta: ArrayLike | None, family: Family
) -> tuple[Floats, Floats, Floats]:
    level, shift = as_confidence(confidence), as_reals("tau", tau)
    require(bool(np.all((shift >= 0) & (shift <= 1))), "tau must be in [0, 1]", tau=tau)
    require(
        callable(family) or family in BUILT_IN,
        f"family must be one of {', '.join(BUILT_IN)}, or a function from the parameter to a trade-off function",
        family=family,
    )
    if family != "approx-dp":
        require(
            delta is None, 'delta must be None but for family "approx-dp"', do="read it by f_dp_epsilon", delta=delta
        )
        return level, shift, np.zeros(())
    if delta is None:
        raise InputError('family "approx-dp" needs its delta')
    return level, shift, as_delta(delta)


def _rejects(family: Family) -> Rejects:
    from dpaudit.estimators.one_run import _f_dp_walk as f_dp_walk  # compiled code is loaded when first used

    if not isinstance(family, str):
        return lambda parameter, *rest: _of_object(family, parameter)(parameter, *rest)
    compiled: dict[str, Rejects] = {
        "gaussian": f_dp_walk.gaussian_rejects,
        "laplace": f_dp_walk.laplace_rejects,
        "approx-dp": f_dp_walk.approximate_dp_rejects,
    }
    return compiled[family]


def _of_object(family: Family, parameter: float) -> Rejects:
    from dpaudit.estimators.one_run._f_dp_walk import walk

    rate = member(family, parameter).false_positive_rate
    return walk(lambda power, parameter, delta: rate(power))


def _rows(columns: Iterable[NDArray[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _hypothesis(
    rejects: Rejects, delta: float, tau: float, guesses: int, correct: int, canaries: int, significance: float
) -> Callable[[float], bool]:
    return lambda parameter: rejects(parameter, delta, tau, guesses, correct, canaries, significance)


def _climb(rejects: Callable[[float], bool], low: float = 0.0) -> float:
    """The largest parameter found rejected, a little lowered; at most `low` when not even that is rejected."""
    return last_true_from(
        rejects, low, largest=LARGEST_PARAMETER, absolute=SEARCH_TOLERANCE, relative=SEARCH_TOLERANCE
    ) * (1 - SAFETY)


def _smallest_significance(
    rejects: Rejects, parameter: float, delta: float, tau: float, guesses: int, correct: int, canaries: int
) -> float:
    def rejected(exponent: float) -> bool:
        return rejects(parameter, delta, tau, guesses, correct, canaries, math.exp(-exponent))

    exponent = last_true(rejected, 0.0, -math.log(SMALLEST_P_VALUE), absolute=SEARCH_TOLERANCE)
    return min(1.0, math.exp(-exponent) * (1 + SAFETY))
