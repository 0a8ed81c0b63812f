"""Lower bounds on a trade-off function of a parametric family from the guesses of one run.

A trade-off function f gives the smallest miss rate f(x) of a test between neighbouring data sets with false positive
rate x (Dong, Roth and Su, 2022). A family orders such functions by one parameter >= 0; a larger parameter is less
private. Algorithm 3 tests one trade-off function: it can prove that the observed number of right guesses, or more, has
probability at most 1 - confidence. The bound is the smallest parameter of a family that this proof does not reject.
(`False` in the paper's listing means that the proof succeeded.)

Assumptions: the number of guesses was fixed beforehand, and the mechanism's trade-off function lies nowhere below the
family's at the true parameter. For "approx-dp" the second assumption holds for *every* (epsilon, delta)-DP mechanism.
An epsilon from the Gaussian family is not a lower bound for other mechanisms: randomised response with epsilon 1, a
pure DP mechanism, would get 1.65 at delta = 1e-5.

Source: Kalemaj et al. (2025), arXiv:2511.14084, section 9, Definition 9, Algorithm 3 and Theorem 10; Mahloujifar et al.
    (2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.claims import GaussianDP
from dpaudit.errors import InputError, require
from dpaudit.estimators.arguments import (
    Floats,
    Ints,
    as_confidence,
    as_delta,
    as_reals,
    common_shape,
    require_one_of,
    rowwise,
)
from dpaudit.estimators.bisection import last_true_from
from dpaudit.estimators.one_run.guessing_game import Family, binomial_epsilon, checked_counts

SEARCH_TOLERANCE = 1e-9  # width, relative to 1 + parameter, at which the search stops; the lower end is returned
SAFETY = 1e-10  # relative amount by which parameters and epsilons are lowered: more than their rounding errors
LARGEST_PARAMETER = 1e6  # the search ends here if even this parameter is rejected

Rejects: TypeAlias = Callable[[float, float, float, int, int, int, float], bool]
"""(parameter, delta, tau, guesses, correct, canaries, significance) -> True if Algorithm 3 rejects the parameter."""


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
    """Return the smallest parameter of the family that the counts do not reject; all arguments but `family` broadcast.

    Args:
        guesses, correct, canaries, confidence: As in `guessing_game`.
        family: "gaussian" (parameter mu), "laplace" (epsilon of the Laplace mechanism), "approx-dp" (epsilon, at
            `delta`).
        tau: Largest total variation distance between the law of a canary's true label and of its counterfactual, in [0,
            1] (Theorem 10). Nothing is rejected if guesses / canaries <= 1 - f(tau), nor unless (1 - confidence) (2
            correct - guesses) / canaries > tau.
        delta: Second parameter of "approx-dp", in [0, 1); None for every other family.
    Returns: The parameter, >= 0, rounded down by at most 2e-9 (1 + parameter); 0 if the counts reject nothing.
    Raises: InputError for arguments out of range.
    Source: Definition 9, its maximal accepted f being the smallest accepted parameter; Algorithm 3; Theorem 10 with
        f_bar^-1(r) = max(0, f^-1(1 - r) - tau).
    Slow twin: `f_dp_parameter` of tests/twins/f_dp_twin.py.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    level, shift, d = _checked(confidence, tau, delta, family)
    rejects = _rejects(family)
    return rowwise(lambda *row: _largest_rejected(rejects, row), d, shift, n, k, m, 1 - level)


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
    """Return the epsilon at `delta` of the smallest parameter that the counts do not reject.

    Epsilon is in nats, >= 0 and rounded down. It is inf at delta = 0 for a family without pure DP, such as the
    Gaussian. For "approx-dp", `delta` is also the family's delta. The other arguments are those of `f_dp_parameter`.

    Source: Definition 9, with a negative epsilon raised to 0.
    Slow twin: `f_dp_epsilon` of tests/twins/f_dp_twin.py.
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
    return rowwise(lambda value, d: _epsilon(family, value, d), np.asarray(parameter), at)


def _epsilon(family: Family, parameter: float, delta: float) -> float:
    """Return the epsilon at `delta` of a member of a family, >= 0 and rounded down."""
    if family == "approx-dp" or parameter == 0:
        return parameter
    if family == "laplace":
        return max(0.0, parameter + 2 * math.log1p(-delta))
    epsilon = GaussianDP(parameter).epsilon(delta)  # rounded up by a relative 1e-12
    return max(0.0, epsilon * (1 - 2e-12) - 2e-12)


class Best(NamedTuple):
    """Best candidate of each sweep."""

    candidate: Ints  # index along the last axis
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
    """Return the largest `f_dp_parameter` along the last axis, with about one run of Algorithm 3 for each candidate.

    A candidate that does not reject the best parameter so far cannot be better. The maximum is not corrected for the
    number of candidates. Pass a corrected confidence, such as 1 - alpha / candidates, or report the result as
    published.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    level, shift, d = _checked(confidence, tau, delta, family)
    shape = common_shape(d, shift, n, k, m, level)
    columns: list[NDArray[Any]] = [np.broadcast_to(column, shape) for column in (d, shift, n, k, m, 1 - level)]
    require(len(shape) >= 1 and shape[-1] >= 1, "a sweep must have at least one candidate", shape=shape)
    rejects = _rejects(family)
    # The candidate with the largest exact pure-DP bound is nearly the best one.
    ranking = binomial_epsilon(columns[2], columns[3], columns[5])
    sweeps = [column.reshape(-1, shape[-1]) for column in columns]
    winners = [
        _best(rejects, list(zip(*(column[sweep].tolist() for column in sweeps), strict=True)), order.tolist())
        for sweep, order in enumerate(np.argsort(-ranking.reshape(-1, shape[-1]), axis=1, kind="stable"))
    ]
    index, value = (np.array(column).reshape(shape[:-1]) for column in zip(*winners, strict=True))
    return Best(index.astype(np.int64), value)


def _best(rejects: Rejects, candidates: list[tuple[Any, ...]], order: list[int]) -> tuple[int, float]:
    best, value = order[0], 0.0
    for candidate in order:
        parameter = _largest_rejected(rejects, candidates[candidate], value)
        if parameter > value:
            best, value = candidate, parameter
    return best, value


def _checked(
    confidence: ArrayLike, tau: ArrayLike, delta: ArrayLike | None, family: Family
) -> tuple[Floats, Floats, Floats]:
    level, shift = as_confidence(confidence), as_reals("tau", tau)
    require(bool(np.all((shift >= 0) & (shift <= 1))), "tau must be in [0, 1]", tau=tau)
    require_one_of("family", family, get_args(Family))
    if family != "approx-dp":
        require(
            delta is None, 'delta must be None but for family "approx-dp"', do="read it by f_dp_epsilon", delta=delta
        )
        return level, shift, np.zeros(())
    if delta is None:
        raise InputError('family "approx-dp" needs its delta')
    return level, shift, as_delta(delta)


def _rejects(family: Family) -> Rejects:
    from dpaudit.estimators.one_run._f_dp_walk import REJECTS  # compiled code is loaded when first used

    return REJECTS[family]


def _largest_rejected(rejects: Rejects, arguments: tuple[Any, ...], low: float = 0.0) -> float:
    """Return the largest parameter found to be rejected, slightly lowered; at most `low` if `low` is not rejected."""
    parameter = last_true_from(
        lambda parameter: rejects(parameter, *arguments),
        low,
        largest=LARGEST_PARAMETER,
        absolute=SEARCH_TOLERANCE,
        relative=SEARCH_TOLERANCE,
    )
    return parameter * (1 - SAFETY)
