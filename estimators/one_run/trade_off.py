"""Trade-off functions and families of them.

A trade-off function f gives the smallest miss rate f(x) of a test between neighbouring data sets whose false positive
rate is x (Dong, Roth and Su, 2022). A family orders them by one parameter >= 0; larger = less private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from scipy import special

from dpaudit.errors import InputError, require
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.bisection import last_true

Profile: TypeAlias = Callable[[Floats], Floats]
"""Epsilons >= 0, shape (n,) -> the smallest delta of (epsilon, delta)-DP in both directions at each, or more."""

LARGEST_EPSILON = 1e4
"""A profile still above delta here has no epsilon there."""
SMALLEST_FALL = 5e-324
"""The smallest positive float, for a difference of two values next to each other that rounds to 0."""
ROUNDING = 1e-12
"""Relative (and absolute) amount by which roots are moved to the safe side."""


@runtime_checkable
class TradeOff(Protocol):
    """A trade-off function f: convex, falling, f(x) <= 1 - x on [0, 1], symmetric in the two data sets."""

    def __call__(self, x: float, /) -> float:
        """The smallest miss rate at false positive rate x."""

    def false_positive_rate(self, power: float, /) -> float:
        """f^-1(1 - power), the smallest false positive rate of a test with this power; increasing and convex."""

    def epsilon(self, delta: float, /) -> float:
        """The smallest epsilon >= 0 for which f implies (epsilon, delta)-DP; inf where there is none."""


Family: TypeAlias = "str | Callable[[float], TradeOff | Callable[[float], float]]"
"""The name of a built-in family, or a function from a parameter >= 0 to a trade-off function: an object as `TradeOff`
asks for, or the bare function f, which is then inverted numerically."""

BUILT_IN = ("gaussian", "laplace", "approx-dp")


def member(family: Family, parameter: float, delta: float = 0.0) -> TradeOff:
    """The trade-off function of a family at `parameter`; `delta` is the second parameter of "approx-dp"."""
    if isinstance(family, str):
        if family == "approx-dp":
            return ApproximateDP(parameter, delta)
        return Gaussian(parameter) if family == "gaussian" else Laplace(parameter)
    trade_off = family(parameter)
    return trade_off if isinstance(trade_off, TradeOff) else Inverted(trade_off)


@dataclass(frozen=True)
class Gaussian:
    """Of two unit normal laws `mu` apart."""

    mu: float  # >= 0

    def __call__(self, x: float, /) -> float:
        return float(special.ndtr(-special.ndtri(x) - self.mu))

    def false_positive_rate(self, power: float, /) -> float:
        return float(special.ndtr(special.ndtri(power) - self.mu))

    def epsilon(self, delta: float, /) -> float:
        """Root e of delta = Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) (Balle and Wang, 2018), rounded down."""
        mu = self.mu
        if delta >= special.erf(mu / math.sqrt(8)):  # total variation of the two laws
            return 0.0
        if delta == 0:
            return math.inf

        def excess(epsilon: float) -> float:
            first = float(special.log_ndtr(mu / 2 - epsilon / mu))
            second = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
            share = math.exp(min(second - first, 0.0))
            # Far out at a small mu, rounding in `first` and `second` hides that the second is smaller.
            log_profile = first + math.log1p(-share) if share < 1 else _log_profile_far_out(mu, epsilon)
            return log_profile - math.log(delta)

        from scipy import optimize  # slow to import

        high = 1.0
        while excess(high) > 0:
            high *= 2
        return conservative_root(float(optimize.brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-14)))


@dataclass(frozen=True)
class Laplace:
    """Of two unit Laplace laws `mu` apart: the Laplace mechanism with epsilon = mu."""

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
    """Of every (`level`, `delta`)-DP mechanism, at worst: max(0, 1 - delta - e^level x, e^-level (1 - delta - x))."""

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
        return conservative_root(math.log(odds)) if odds > 1 else 0.0


@dataclass(frozen=True)
class Inverted:
    """A trade-off function given as a plain function f; convex, falling and symmetric, which is not checked."""

    f: Callable[[float], float]

    def __call__(self, x: float, /) -> float:
        return float(self.f(x))

    def false_positive_rate(self, power: float, /) -> float:
        """By bisection; the lower end, which proves less."""
        if self.f(0.0) <= 1 - power:
            return 0.0
        return last_true(lambda x: 1 - self.f(x) < power, 0.0, 1.0)

    def epsilon(self, delta: float, /) -> float:
        """max over x of log((1 - f(x) - delta) / x) (Definition 9), or 0; attained, so not above the maximum."""
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
    """The trade-off function of a privacy profile: all its (epsilon, delta) guarantees on a grid, taken together.

    A finite grid and a delta rounded up both lower f, which proves less.
    """

    profile: Profile
    grid: Floats  # epsilons, ascending, >= 0
    deltas: Floats  # at the grid

    def __call__(self, x: float, /) -> float:
        rest = 1 - self.deltas
        steep, flat = rest - np.exp(self.grid) * x, np.exp(-self.grid) * (rest - x)
        return max(0.0, float(steep.max()), float(flat.max()))

    def false_positive_rate(self, power: float, /) -> float:
        steep = 1 - self.deltas - np.exp(self.grid) * (1 - power)
        flat = np.exp(-self.grid) * (power - self.deltas)
        return max(0.0, float(steep.max()), float(flat.max()))

    def epsilon(self, delta: float, /) -> float:
        """Where the profile itself falls to delta; a profile rounded up makes this as much too large."""

        def short(epsilon: float) -> bool:
            return float(self.profile(np.array([epsilon]))[0]) > delta

        if not short(0.0):
            return 0.0
        high = 1.0
        while short(high):
            if high > LARGEST_EPSILON:
                return math.inf
            high *= 2
        return last_true(short, 0.0, high)


def from_profile(profiles: Callable[[float], Profile], *, grid: Floats | None = None) -> Family:
    """A family from privacy profiles, for one those of a privacy accountant.

    Args:
        profiles: Parameter >= 0 -> its profile. Called once for each parameter looked at, about 40 times a bound.
        grid: Epsilons, >= 0, at which each profile is read; by default 0 to 20 in steps of 0.01.
    Returns: The family; its bounds are valid for every grid, and tighter for a finer one.
    Raises: InputError for a negative or empty grid.
    """
    points = np.arange(2001) / 100 if grid is None else np.sort(np.asarray(grid, dtype=np.float64).ravel())
    require(points.size > 0 and bool(points[0] >= 0), "grid must hold epsilons >= 0", grid=points)

    @cache
    def trade_off_at(parameter: float) -> TradeOff:
        profile = profiles(parameter)
        return FromProfile(profile, points, np.asarray(profile(points), dtype=np.float64))

    return trade_off_at


def dp_sgd(sampling_rate: float, steps: int, *, interval: float = 1e-3) -> Family:
    """The DP-SGD family: Poisson-subsampled Gaussian, composed; the parameter is 1 / noise multiplier.

    Args:
        sampling_rate: Probability with which an example is in a batch, in (0, 1].
        steps: Number of batches, >= 1.
        interval: Discretisation of the privacy loss, > 0; a coarser one rounds the profile up further, and is faster.
    Raises: InputError when out of range, or when the package dp_accounting is not installed.
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
    """Log of Phi(-a) - exp(epsilon) Phi(-a - mu), a = epsilon / mu - mu / 2 >= 0, that is of phi(a) (M(a) - M(a + mu)).

    M is the Mills ratio Phi(-x) / phi(x); its values are near each other, but not their logarithms' rounding errors.
    """
    a = epsilon / mu - mu / 2
    root = math.sqrt(0.5)
    fall = 0.5 * float(special.erfcx(a * root) - special.erfcx((a + mu) * root))
    return -a * a / 2 + math.log(max(fall, SMALLEST_FALL))


def conservative_root(root: float) -> float:
    """`root` >= 0, lowered by more than its numerical error."""
    return max(0.0, root - ROUNDING * (1 + root))
