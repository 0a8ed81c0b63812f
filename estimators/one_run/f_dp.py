"""Lower bounds on a trade-off function from the guesses of one run, and parametric families of trade-off functions.

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
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

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
from dpaudit.estimators.bisection import last_true, last_true_from
from dpaudit.estimators.one_run.guessing_game import Family, binomial_epsilon, checked_counts

SEARCH_TOLERANCE = 1e-9  # width, relative to 1 + parameter, at which the search stops; the lower end is returned
SAFETY = 1e-10  # relative amount by which that end is lowered: more than the rounding errors of Algorithm 3
LARGEST_PARAMETER = 1e6  # the search ends here if even this parameter is rejected
SMALLEST_P_VALUE = 1e-300

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
    return rowwise(lambda value, d: member(family, value, d).epsilon(d), np.asarray(parameter), at)


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
    """Return the p-value of `parameter`: the smallest significance at which the counts reject it.

    It is a p-value because Lemma 15 is monotone in the significance. The parameter is finite and >= 0. The p-value is
    in [1e-300, 1] and rounded up by at most 2e-9 relative.
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    _, shift, d = _checked(0.5, tau, delta, family)
    at = as_reals("parameter", parameter)
    require(bool(np.all(np.isfinite(at) & (at >= 0))), "parameter must be finite and >= 0", parameter=parameter)
    return rowwise(partial(_smallest_significance, _rejects(family)), at, d, shift, n, k, m)


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
    ranking = binomial_epsilon(columns[2], columns[3], columns[5], np.ones(shape))
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


def _smallest_significance(rejects: Rejects, parameter: float, *counts: Any) -> float:
    def rejected(exponent: float) -> bool:
        arguments = (*counts, math.exp(-exponent))
        return rejects(parameter, *arguments)

    exponent = last_true(rejected, 0.0, -math.log(SMALLEST_P_VALUE), absolute=SEARCH_TOLERANCE)
    return min(1.0, math.exp(-exponent) * (1 + SAFETY))


SMALLEST_FALL = 5e-324  # smallest positive float: the difference of neighbouring values may round to 0
ROUNDING = 1e-12  # relative and absolute amount by which roots are moved to the safe side


def member(family: Family, parameter: float, delta: float = 0.0) -> Gaussian | Laplace | ApproximateDP:
    """Return a family's trade-off function at `parameter`; `delta` is the second parameter of "approx-dp"."""
    if family == "approx-dp":
        return ApproximateDP(parameter, delta)
    return Gaussian(parameter) if family == "gaussian" else Laplace(parameter)


@dataclass(frozen=True)
class Gaussian:
    """Trade-off function of two unit normal laws whose means differ by `mu`."""

    mu: float  # >= 0

    def __call__(self, x: float, /) -> float:
        return float(special.ndtr(-special.ndtri(x) - self.mu))

    def epsilon(self, delta: float, /) -> float:
        """Return the root e of delta = Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu), rounded down.

        Source: Balle and Wang (2018).
        """
        mu = self.mu
        if delta >= special.erf(mu / math.sqrt(8)):  # total variation of the two laws
            return 0.0
        if delta == 0:
            return math.inf

        def excess(epsilon: float) -> float:
            first = float(special.log_ndtr(mu / 2 - epsilon / mu))
            second = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
            share = math.exp(min(second - first, 0.0))
            # At a large epsilon and a small mu, rounding hides that `second` is smaller than `first`.
            log_profile = first + math.log1p(-share) if share < 1 else _log_profile_far_out(mu, epsilon)
            return log_profile - math.log(delta)

        from scipy import optimize  # slow to import

        high = 1.0
        while excess(high) > 0:
            high *= 2
        return _conservative_root(float(optimize.brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-14)))


@dataclass(frozen=True)
class Laplace:
    """Trade-off function of two unit Laplace laws whose means differ by `mu`: Laplace mechanism with epsilon = mu."""

    mu: float  # >= 0

    def __call__(self, x: float, /) -> float:
        scale = math.exp(-self.mu)
        if x < scale / 2:
            return 1 - x / scale
        return scale / (4 * x) if x <= 0.5 else scale * (1 - x)

    def epsilon(self, delta: float, /) -> float:
        return max(0.0, self.mu + 2 * math.log1p(-delta))


@dataclass(frozen=True)
class ApproximateDP:
    """Trade-off function max(0, 1 - delta - e^level x, e^-level (1 - delta - x)) of (`level`, `delta`)-DP.

    No (`level`, `delta`)-DP mechanism has a smaller one.
    """

    level: float  # epsilon, >= 0
    delta: float  # in [0, 1)

    def __call__(self, x: float, /) -> float:
        rest = 1 - self.delta
        return max(0.0, rest - math.exp(self.level) * x, math.exp(-self.level) * (rest - x))

    def epsilon(self, delta: float, /) -> float:
        if delta < self.delta:
            return math.inf
        if delta == self.delta:
            return self.level
        odds = (1 - delta) / (1 - self.delta) * (1 + math.exp(self.level)) - 1
        return _conservative_root(math.log(odds)) if odds > 1 else 0.0


def _log_profile_far_out(mu: float, epsilon: float) -> float:
    """Return log of Phi(-a) - exp(epsilon) Phi(-a - mu) = phi(a) (M(a) - M(a + mu)), where M is Mills' ratio."""
    a = epsilon / mu - mu / 2
    root = math.sqrt(0.5)
    fall = 0.5 * float(special.erfcx(a * root) - special.erfcx((a + mu) * root))
    return -a * a / 2 + math.log(max(fall, SMALLEST_FALL))


def _conservative_root(root: float) -> float:
    """Return `root`, lowered by more than its numerical error, at least 0."""
    return max(0.0, root - ROUNDING * (1 + root))
