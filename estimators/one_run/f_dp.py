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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dpaudit.errors import InputError, require
from dpaudit.estimators.arguments import Floats, Ints, as_confidence, as_delta, as_reals, common_shape, elementwise
from dpaudit.estimators.bisection import last_true, last_true_from
from dpaudit.estimators.one_run.guessing_game import binomial_epsilon, checked_counts

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
            `delta`), or a function from the parameter to a trade-off function (`dpaudit.estimators.one_run.f_dp`).
        tau: Largest total variation distance between the law of a canary's true label and of its counterfactual, in [0,
            1] (Theorem 10). Nothing is rejected if guesses / canaries <= 1 - f(tau), nor unless (1 - confidence) (2
            correct - guesses) / canaries > tau.
        delta: Second parameter of "approx-dp", in [0, 1); None for every other family.
    Returns: The parameter, >= 0, rounded down by at most 2e-9 (1 + parameter); 0 if the counts reject nothing.
    Raises: InputError for arguments out of range.
    Source: Definition 9, its maximal accepted f being the smallest accepted parameter; Algorithm 3; Theorem 10 with
        f_bar^-1(r) = max(0, f^-1(1 - r) - tau).
    """
    n, k, m = checked_counts(guesses, correct, canaries)
    level, shift, d = _checked(confidence, tau, delta, family)
    rejects = _rejects(family)

    def bounds(*columns: Floats) -> Floats:
        return np.array([_largest_rejected(rejects, row) for row in _rows(columns)])

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
    """Return the p-value of `parameter`: the smallest significance at which the counts reject it.

    It is a p-value because Lemma 15 is monotone in the significance. The parameter is finite and >= 0. The p-value is
    in [1e-300, 1] and rounded up by at most 2e-9 relative.
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
        _best(rejects, _rows([column[sweep] for column in sweeps]), order.tolist())
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
    from dpaudit.estimators.one_run._f_dp_walk import rejects_by  # compiled code is loaded when first used

    if isinstance(family, str):
        return rejects_by(family)

    def rejects(parameter: float, *rest: Any) -> bool:
        return rejects_by(member(family, parameter).false_positive_rate)(parameter, *rest)

    return rejects


def _rows(columns: Iterable[NDArray[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


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


Profile: TypeAlias = Callable[[Floats], Floats]
"""Epsilons >= 0, shape (n,) -> upper bounds on the smallest delta of (epsilon, delta)-DP in both directions at each."""

LARGEST_EPSILON = 2.0**14  # a profile that still exceeds delta here has no epsilon at this delta
SMALLEST_FALL = 5e-324  # smallest positive float: the difference of neighbouring values may round to 0
ROUNDING = 1e-12  # relative and absolute amount by which roots are moved to the safe side


@runtime_checkable
class TradeOff(Protocol):
    """Trade-off function f: convex, decreasing, f(x) <= 1 - x on [0, 1], symmetric in the two data sets."""

    def __call__(self, x: float, /) -> float:
        """Return the smallest miss rate at false positive rate x."""

    def false_positive_rate(self, power: float, /) -> float:
        """Return f^-1(1 - power), the smallest false positive rate of a test with this power; increasing and convex."""

    def epsilon(self, delta: float, /) -> float:
        """Return the smallest epsilon >= 0 for which f implies (epsilon, delta)-DP; inf if there is none."""


Family: TypeAlias = "str | Callable[[float], TradeOff | Callable[[float], float]]"
"""Name of a built-in family, or a function from a parameter >= 0 to a trade-off function.

The function returns a `TradeOff`, or the bare function f, which is then inverted numerically.
"""

BUILT_IN = ("gaussian", "laplace", "approx-dp")


def member(family: Family, parameter: float, delta: float = 0.0) -> TradeOff:
    """Return a family's trade-off function at `parameter`; `delta` is the second parameter of "approx-dp"."""
    if isinstance(family, str):
        if family == "approx-dp":
            return ApproximateDP(parameter, delta)
        return Gaussian(parameter) if family == "gaussian" else Laplace(parameter)
    trade_off = family(parameter)
    return trade_off if isinstance(trade_off, TradeOff) else Inverted(trade_off)


@dataclass(frozen=True)
class Gaussian:
    """Trade-off function of two unit normal laws whose means differ by `mu`."""

    mu: float  # >= 0

    def __call__(self, x: float, /) -> float:
        return float(special.ndtr(-special.ndtri(x) - self.mu))

    def false_positive_rate(self, power: float, /) -> float:
        return float(special.ndtr(special.ndtri(power) - self.mu))

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

    def false_positive_rate(self, power: float, /) -> float:
        return self(1 - power)  # f is its own inverse

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

    def false_positive_rate(self, power: float, /) -> float:
        return self(1 - power)

    def epsilon(self, delta: float, /) -> float:
        if delta < self.delta:
            return math.inf
        if delta == self.delta:
            return self.level
        odds = (1 - delta) / (1 - self.delta) * (1 + math.exp(self.level)) - 1
        return _conservative_root(math.log(odds)) if odds > 1 else 0.0


@dataclass(frozen=True)
class Inverted:
    """Trade-off function given as a plain function f, which must be convex, decreasing and symmetric (not checked)."""

    f: Callable[[float], float]

    def __call__(self, x: float, /) -> float:
        return float(self.f(x))

    def false_positive_rate(self, power: float, /) -> float:
        """Invert f by bisection; the lower end, which rejects less, is returned."""
        if self.f(0.0) <= 1 - power:
            return 0.0
        return last_true(lambda x: 1 - self.f(x) < power, 0.0, 1.0)

    def epsilon(self, delta: float, /) -> float:
        """Return the maximum over x of log((1 - f(x) - delta) / x) (Definition 9), or 0.

        The value is attained at some x, so it never exceeds the true maximum.
        """
        if 1 - self.f(0.0) > delta:
            return math.inf

        def loss(log_x: float) -> float:
            gain = 1 - self.f(math.exp(log_x)) - delta
            return math.log(gain) - log_x if gain > 0 else -1e300

        from scipy import optimize  # slow to import

        grid = np.linspace(-40.0, 0.0, 2001)
        top = int(np.argmax([loss(float(x)) for x in grid]))
        around = (float(grid[max(top - 1, 0)]), float(grid[min(top + 1, 2000)]))
        best = optimize.minimize_scalar(
            lambda x: -loss(float(x)), bounds=around, method="bounded", options={"xatol": 1e-9}
        )
        return max(0.0, loss(float(grid[top])), -float(best.fun))


@dataclass(frozen=True, eq=False)
class FromProfile:
    """Trade-off function of a privacy profile: the envelope of its (epsilon, delta) guarantees on a grid.

    A finite grid, and a delta rounded up, lower f and therefore reject less.
    """

    profile: Profile
    grid: Floats  # epsilons >= 0, ascending
    deltas: Floats  # deltas at the grid

    def __call__(self, x: float, /) -> float:
        rest = 1 - self.deltas
        steep, flat = rest - np.exp(self.grid) * x, np.exp(-self.grid) * (rest - x)
        return max(0.0, float(steep.max()), float(flat.max()))

    def false_positive_rate(self, power: float, /) -> float:
        steep = 1 - self.deltas - np.exp(self.grid) * (1 - power)
        flat = np.exp(-self.grid) * (power - self.deltas)
        return max(0.0, float(steep.max()), float(flat.max()))

    def epsilon(self, delta: float, /) -> float:
        """Return the epsilon at which the profile falls to delta; too large by as much as the profile is rounded up."""

        def exceeds_delta(epsilon: float) -> bool:
            return float(self.profile(np.array([epsilon]))[0]) > delta

        epsilon = last_true_from(exceeds_delta, largest=LARGEST_EPSILON)
        return epsilon if epsilon < LARGEST_EPSILON else math.inf


def from_profile(profiles: Callable[[float], Profile], *, grid: Floats | None = None) -> Family:
    """Return a family from privacy profiles, such as those of a privacy accountant.

    Its bounds are valid for every grid, and tighter for a finer one.

    Args:
        profiles: Parameter >= 0 -> its profile. Called once for each parameter tried, about 40 times for each bound.
        grid: Epsilons >= 0 at which each profile is evaluated; by default 0 to 20 in steps of 0.01.
    """
    points = np.arange(2001) / 100 if grid is None else np.sort(np.asarray(grid, dtype=np.float64).ravel())
    require(points.size > 0 and bool(points[0] >= 0), "grid must hold epsilons >= 0", grid=points)

    @cache
    def trade_off_at(parameter: float) -> TradeOff:
        profile = profiles(parameter)
        return FromProfile(profile, points, np.asarray(profile(points), dtype=np.float64))

    return trade_off_at


def dp_sgd(sampling_rate: float, steps: int, *, interval: float = 1e-3) -> Family:
    """Return the DP-SGD family: Poisson-subsampled Gaussian, composed; the parameter is 1 / noise multiplier.

    Args:
        sampling_rate: Probability that an example is in a batch, in (0, 1].
        steps: Number of batches, >= 1.
        interval: Discretisation of the privacy loss, > 0; a coarser one is faster and rounds the profile up further.
    Raises: InputError when out of range, or if the package dp_accounting is not installed.
    Source: privacy loss distributions of dp_accounting, add-remove neighbours.
    """
    require(0 < sampling_rate <= 1, "sampling_rate must be in (0, 1]", sampling_rate=sampling_rate)
    require(steps >= 1, "steps must be >= 1", steps=steps)
    require(interval > 0, "interval must be > 0", interval=interval)
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
    except ImportError:
        raise InputError(
            'the DP-SGD family needs dp_accounting: pip install "dpaudit[accounting]", or use `from_profile`'
        ) from None

    def profiles(parameter: float) -> Profile:
        if parameter == 0:
            return np.zeros_like
        step = pld.from_gaussian_mechanism(
            1 / parameter, value_discretization_interval=interval, sampling_prob=sampling_rate
        )
        run = step.self_compose(steps)
        return lambda epsilons: np.asarray(run.get_delta_for_epsilon(epsilons.tolist()), dtype=np.float64)

    return from_profile(profiles)


def _log_profile_far_out(mu: float, epsilon: float) -> float:
    """Return log of Phi(-a) - exp(epsilon) Phi(-a - mu) = phi(a) (M(a) - M(a + mu)), where M is Mills' ratio."""
    a = epsilon / mu - mu / 2
    root = math.sqrt(0.5)
    fall = 0.5 * float(special.erfcx(a * root) - special.erfcx((a + mu) * root))
    return -a * a / 2 + math.log(max(fall, SMALLEST_FALL))


def _conservative_root(root: float) -> float:
    """Return `root`, lowered by more than its numerical error, at least 0."""
    return max(0.0, root - ROUNDING * (1 + root))
