"""Lower bounds on a whole trade-off function from the guesses of one run of the game.

A trade-off function f gives the smallest miss rate f(x) of a test between neighbouring data sets with false positive
rate x. A family orders such functions by one parameter, larger = less private. Algorithm 3 proves, for one function,
that so many right guesses have probability at most 1 - confidence; the bound is the smallest parameter for which it
does not.

The bound is valid if the mechanism's trade-off function belongs to the family, or lies above one with the stated
parameter. Only "approx-dp" is unconditional: *every* (epsilon, delta)-DP mechanism satisfies it. The Gaussian family's
epsilon, for one, is no lower bound off the family: randomised response with epsilon = 1, pure DP, has 1.65 by it.

Source: Annamalai et al., observational label auditing, section 9, Definition 9, Algorithm 3, Theorem 10; Mahloujifar et
al. (2025). `False` of Algorithm 3 means rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, overload, runtime_checkable

import numpy as np
from scipy import optimize, special

from dpaudit.errors import require
from dpaudit.estimators.one_run import Floats, Integers, Reals, broadcast, guess_counts

SEARCH_TOLERANCE = 1e-9
"""Width, relative to 1 + parameter, at which the search stops."""
SAFETY = 1e-10
"""Relative amount by which the last rejected parameter is lowered: more than the rounding of a walk can move it."""
LARGEST_PARAMETER = 1e6
"""A search that still rejects here reports this parameter."""
SMALLEST_P_VALUE = 1e-300


@runtime_checkable
class TradeOff(Protocol):
    """A trade-off function f: convex, falling, f(x) <= 1 - x on [0, 1], symmetric in the two data sets."""

    def __call__(self, x: float, /) -> float:
        """f(x): the smallest miss rate at false positive rate x."""

    def false_positive_rate(self, power: float, /) -> float:
        """f^-1(1 - power): the smallest false positive rate of a test that misses with probability 1 - power or less."""

    def epsilon(self, delta: float, /) -> float:
        """The smallest epsilon >= 0 for which f implies (epsilon, delta)-DP; inf where there is none."""


Family: TypeAlias = "str | Callable[[float], TradeOff | Callable[[float], float]]"
"""The name of a built-in family, or a function from a parameter >= 0 to a trade-off function (an object as `TradeOff`,
or the bare function f, which is then inverted numerically). Larger parameters must be less private."""


@dataclass(frozen=True)
class Gaussian:
    """Trade-off function of two unit normal laws `mu` apart (Dong, Roth and Su, 2022)."""

    mu: float  # >= 0

    def __call__(self, x: float, /) -> float:
        return float(special.ndtr(-special.ndtri(x) - self.mu))

    def false_positive_rate(self, power: float, /) -> float:
        return float(special.ndtr(special.ndtri(power) - self.mu))

    def epsilon(self, delta: float, /) -> float:
        """Root of delta = Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) (Balle and Wang, 2018), within 1e-12, rounded down."""
        mu = self.mu
        if delta >= 2 * special.ndtr(mu / 2) - 1:
            return 0.0
        if delta == 0:
            return math.inf

        def excess(epsilon: float) -> float:
            lost = special.log_ndtr(mu / 2 - epsilon / mu)
            kept = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
            return float(lost + np.log1p(-np.exp(kept - lost)) - math.log(delta))

        high = 1.0
        while excess(high) > 0:
            high *= 2
        root = optimize.brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-14)
        return max(0.0, float(root) - 1e-12 * (1 + float(root)))


@dataclass(frozen=True)
class Laplace:
    """Trade-off function of two unit Laplace laws `mu` apart, the Laplace mechanism with epsilon = mu."""

    mu: float  # >= 0

    def __call__(self, x: float, /) -> float:
        scale = math.exp(-self.mu)
        if x < scale / 2:
            return 1 - x / scale
        return scale / (4 * x) if x <= 0.5 else scale * (1 - x)

    def false_positive_rate(self, power: float, /) -> float:
        return self(1 - power)  # f is its own inverse

    def epsilon(self, delta: float, /) -> float:
        """mu + 2 log(1 - delta), or 0."""
        return max(0.0, self.mu + 2 * math.log1p(-delta))


@dataclass(frozen=True)
class ApproximateDP:
    """Trade-off function implied by (`level`, `delta`)-DP in both directions: max(0, 1 - d - e^l x, e^-l (1 - d - x))."""

    level: float  # epsilon, >= 0
    delta: float  # in [0, 1)

    def __call__(self, x: float, /) -> float:
        left = 1 - self.delta - x
        return max(0.0, 1 - self.delta - math.exp(self.level) * x, math.exp(-self.level) * left)

    def false_positive_rate(self, power: float, /) -> float:
        return self(1 - power)

    def epsilon(self, delta: float, /) -> float:
        if delta < self.delta:
            return math.inf
        # (1 - delta)/(1 - own) (1 + e^level) - 1, without losing the digits of a small level
        growth = math.expm1(math.log1p(-delta) - math.log1p(-self.delta)) * (1 + math.exp(self.level))
        odds = math.exp(self.level) + growth
        return math.log(odds) if odds > 1 else 0.0


@dataclass(frozen=True)
class Inverted:
    """A trade-off function given as a plain function f, inverted by bisection; f must be convex and falling."""

    f: Callable[[float], float]

    def __call__(self, x: float, /) -> float:
        return float(self.f(x))

    def false_positive_rate(self, power: float, /) -> float:
        """Within 1e-16 of the root relative to it; the lower end, which rejects less."""
        low, high = 0.0, 1.0
        if self.f(low) <= 1 - power:
            return low
        while high - low > 1e-16 + 1e-15 * high:
            middle = 0.5 * (low + high)
            if not low < middle < high:
                break
            low, high = (middle, high) if 1 - self.f(middle) < power else (low, middle)
        return low

    def epsilon(self, delta: float, /) -> float:
        """max over x of log((1 - f(x) - delta) / x) of Definition 9, or 0: a value attained, so never above the maximum."""
        if 1 - self.f(0.0) > delta:
            return math.inf

        def loss(log_x: float) -> float:
            gain = 1 - self.f(math.exp(log_x)) - delta
            return math.log(gain) - log_x if gain > 0 else -math.inf

        grid = np.linspace(-60.0, 0.0, 2001)
        top = int(np.argmax([loss(x) for x in grid]))
        around = (grid[max(top - 1, 0)], grid[min(top + 1, 2000)])
        best = optimize.minimize_scalar(lambda x: -loss(x), bounds=around, method="bounded", options={"xatol": 1e-10})
        return max(0.0, loss(float(grid[top])), -float(best.fun))


_BUILT_IN = ("gaussian", "laplace", "approx-dp")


@overload
def f_dp_parameter(  # type: ignore[overload-overlap]
    guesses: int,
    correct: int,
    *,
    canaries: int,
    confidence: float,
    family: Family = "gaussian",
    tau: float = 0.0,
    delta: float | None = None,
) -> float: ...
@overload
def f_dp_parameter(
    guesses: Integers,
    correct: Integers,
    *,
    canaries: Integers,
    confidence: Reals,
    family: Family = "gaussian",
    tau: Reals = 0.0,
    delta: Reals | None = None,
) -> Floats: ...
def f_dp_parameter(
    guesses: Integers,
    correct: Integers,
    *,
    canaries: Integers,
    confidence: Reals,
    family: Family = "gaussian",
    tau: Reals = 0.0,
    delta: Reals | None = None,
) -> float | Floats:
    """The smallest parameter of the family that the count does not reject; every argument but `family` broadcasts.

    Args:
        guesses: Number of bits guessed, 0 .. canaries; fixed beforehand.
        correct: Number of right guesses, 0 .. guesses.
        canaries: Number of hidden fair bits, >= 1.
        confidence: Probability at least with which the bound is below the true parameter, in (0, 1).
        family: "gaussian" (parameter mu), "laplace" (epsilon of the Laplace mechanism), "approx-dp" (epsilon, at
            `delta`), or a function from the parameter to a trade-off function (`Family`).
        tau: Largest total variation distance between the law of a canary's shown label and its counterfactual, in
            [0, 1]: Theorem 10's shift. Rejects nothing once guesses / canaries <= 1 - f(tau).
        delta: For "approx-dp" only: its delta, in [0, 1).
    Returns: The parameter within 1e-8 relative to 1 + itself, rounded down; 0 where the count shows nothing.
    Raises: InputError for arguments out of range.
    Source: Definition 9 with Algorithm 3 and Theorem 10's shift, f_bar^-1(r) = max(0, f^-1(1 - r) - tau).
    """
    n, k, m = guess_counts(guesses, correct, canaries)
    level, shift, d = _checked(confidence, tau, delta, family)
    verdict = _verdict(family)

    def bounds(*columns: Floats) -> Floats:
        return np.array([_climb(_at(verdict, *row)) for row in zip(*(c.tolist() for c in columns), strict=True)])

    return broadcast(bounds, d, shift, n, k, m, 1 - level)


def f_dp_p_value(
    guesses: Integers,
    correct: Integers,
    *,
    canaries: Integers,
    parameter: Reals,
    family: Family = "gaussian",
    tau: Reals = 0.0,
    delta: Reals | None = None,
) -> float | Floats:
    """The smallest significance at which Algorithm 3 rejects `parameter`: a p-value, rounded up, at least 1e-300.

    Args as for `f_dp_parameter`; `parameter` is the hypothesis, >= 0 and finite. Returns: In (0, 1], within 1e-9
    relative.
    """
    n, k, m = guess_counts(guesses, correct, canaries)
    _, shift, d = _checked(0.5, tau, delta, family)
    hypothesis = np.asarray(parameter, dtype=np.float64)
    require(bool(np.all(np.isfinite(hypothesis) & (hypothesis >= 0))), "parameter must be finite and >= 0", given=parameter)
    verdict = _verdict(family)

    def p_values(*columns: Floats) -> Floats:
        return np.array([_p_value(verdict, *row) for row in zip(*(c.tolist() for c in columns), strict=True)])

    return broadcast(p_values, hypothesis, d, shift, n, k, m)


Verdict: TypeAlias = Callable[[float, float, float, int, int, int, float], bool]


def _checked(confidence: Reals, tau: Reals, delta: Reals | None, family: Family) -> tuple[Floats, Floats, Floats]:
    level, shift = np.asarray(confidence, dtype=np.float64), np.asarray(tau, dtype=np.float64)
    require(bool(np.all((level > 0) & (level < 1))), "confidence must be in (0, 1)", confidence=confidence)
    require(bool(np.all((shift >= 0) & (shift <= 1))), "tau must be in [0, 1]", tau=tau)
    require(
        callable(family) or family in _BUILT_IN,
        f"family must be one of {', '.join(_BUILT_IN)}, or a function from the parameter to a trade-off function",
        family=family,
    )
    if family == "approx-dp":
        require(delta is not None, 'family "approx-dp" needs delta', delta=delta)
        d = np.asarray(delta, dtype=np.float64)
        require(bool(np.all((d >= 0) & (d < 1))), "delta must be in [0, 1)", delta=delta)
        return level, shift, d
    require(delta is None, 'delta is the second parameter of family "approx-dp" only', do="use f_dp_epsilon", delta=delta)
    return level, shift, np.zeros(())


def _verdict(family: Family) -> Verdict:
    from dpaudit.estimators import f_dp_walk

    if isinstance(family, str):
        return {
            "gaussian": f_dp_walk.gaussian_rejects,
            "laplace": f_dp_walk.laplace_rejects,
            "approx-dp": f_dp_walk.approximate_dp_rejects,
        }[family]

    def verdict(parameter: float, delta: float, tau: float, *counts: float) -> bool:
        rate = trade_off(family, parameter).false_positive_rate
        return f_dp_walk.walk(lambda power, _, __: rate(power))(parameter, delta, tau, *counts)  # type: ignore[arg-type]

    return verdict


def trade_off(family: Family, parameter: float, delta: float = 0.0) -> TradeOff:
    """The member of a family; `delta` is for "approx-dp"."""
    if isinstance(family, str):
        if family == "approx-dp":
            return ApproximateDP(parameter, delta)
        return Gaussian(parameter) if family == "gaussian" else Laplace(parameter)
    member = family(parameter)
    return member if isinstance(member, TradeOff) else Inverted(member)


def _at(
    verdict: Verdict, delta: float, tau: float, guesses: int, correct: int, canaries: int, significance: float
) -> Callable[[float], bool]:
    return lambda parameter: verdict(parameter, delta, tau, guesses, correct, canaries, significance)


def _climb(rejects: Callable[[float], bool], low: float = 0.0) -> float:
    """The largest parameter found rejected, a little lowered; `low` when not even that is rejected."""
    if not rejects(low):
        return low
    high = low + 1.0
    while rejects(high):
        if high >= LARGEST_PARAMETER:
            return high
        low, high = high, 2 * high
    while high - low > SEARCH_TOLERANCE * (1 + high):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low * (1 - SAFETY)


def _p_value(
    verdict: Verdict, parameter: float, delta: float, tau: float, guesses: int, correct: int, canaries: int
) -> float:
    def rejects(log_p: float) -> bool:
        return verdict(parameter, delta, tau, guesses, correct, canaries, math.exp(log_p))

    low, high = math.log(SMALLEST_P_VALUE), 0.0
    while high - low > SEARCH_TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if rejects(middle) else (middle, high)
    return min(1.0, math.exp(high) * (1 + SAFETY))
