"""Slow twin of f-DP in one run: Algorithm 3 of S0 as a plain loop, Theorem 10's shift, Definition 9's conversion.

A family gives, for its parameter, the function r -> f^-1(1 - r); every family here is symmetric, f^-1 = f.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mpmath import mp, mpf
from scipy.special import ndtr, ndtri

from tests.twins.answers import recorded
from tests.twins.binomial_twin import DIGITS, Number

TradeOff = Callable[[mpf], mpf]
"""f: the least false-negative rate of any test at the given false-positive rate."""
Inverse = Callable[[Number], Number]
"""r -> f^-1(1 - r), before the shift."""


def gaussian(mu: Number) -> TradeOff:
    """G_mu(x) = Phi(Phi^-1(1 - x) - mu)."""
    return lambda x: mp.ncdf(mp.sqrt(2) * mp.erfinv(1 - 2 * x) - mu) if 0 < x < 1 else mpf(x <= 0)


def laplace(shift: Number) -> TradeOff:
    """Lap(0, 1) against Lap(shift, 1): 1 - F(F^-1(1 - x) read in the shifted law)."""

    def trade_off(x: mpf) -> mpf:
        if not 0 < x < 1:
            return mpf(x <= 0)
        cut = -mp.log(2 * x) if x < 0.5 else mp.log(2 * (1 - x))  # Pr[Lap(0,1) > cut] = x
        return mp.exp(cut - shift) / 2 if cut < shift else 1 - mp.exp(shift - cut) / 2

    return trade_off


def approximate_dp(epsilon: Number, delta: Number) -> TradeOff:
    """max(0, 1 - delta - e^eps x, e^-eps (1 - delta - x))."""
    return lambda x: max(mpf(0), 1 - mpf(delta) - mp.exp(epsilon) * x, mp.exp(-mpf(epsilon)) * (1 - mpf(delta) - x))


def inverse_of(trade_off: TradeOff) -> Inverse:
    """r -> f(1 - r), the inverse of x -> 1 - f(x) for a symmetric f."""
    return lambda r: trade_off(1 - r)


def gaussian_in_doubles(mu: float) -> Inverse:
    """Phi(Phi^-1(r) - mu), written on r itself so that doubles suffice."""
    return lambda r: float(ndtr(ndtri(r) - mu))


def approximate_dp_in_doubles(epsilon: float, delta: float) -> Inverse:
    """max(0, 1 - delta - e^eps (1 - r), e^-eps (r - delta)), in doubles for long recursions."""
    growth = math.exp(epsilon)
    return lambda r: max(0.0, 1 - delta - growth * (1 - r), (r - delta) / growth)


def accepts(inverse: Inverse, guesses: int, correct: int, canaries: int, error: Number, tau: Number = 0) -> bool:
    """Algorithm 3: False when Pr[C >= correct] <= error under f, which rejects f.

    h[i] + r[i] moves one way only as i falls, so the last comparison may be made as soon as it holds; this keeps r < 1.
    """
    r, h = error * correct / canaries, error * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        if r + h >= guesses / canaries if isinstance(r, float) else r + h >= mpf(guesses) / canaries:
            return False
        h_next = max(0, inverse(r) - tau)
        if h_next < h:
            return True
        r, h = r + i * (h_next - h) / (guesses - i), h_next
    return bool(r + h < (guesses / canaries if isinstance(r, float) else mpf(guesses) / canaries))


def smallest_accepted(accepted: Callable[[Number], bool], accuracy: Number = 1e-12) -> mpf:
    """Smallest accepted value, by doubling and halving; 0 if 0 is accepted."""
    if accepted(mpf(0)):
        return mpf(0)
    low, high = mpf(0), mpf(1)
    while not accepted(high):
        low, high = high, 2 * high
    while high - low > accuracy:
        middle = (low + high) / 2
        low, high = (low, middle) if accepted(middle) else (middle, high)
    return high


@recorded
def f_dp_parameter(
    guesses: int,
    correct: int,
    *,
    canaries: int,
    confidence: float,
    family: str = "gaussian",
    tau: float = 0.0,
    delta: float | None = None,
) -> mpf:
    """The smallest parameter of the family that Algorithm 3 accepts, in high precision (up to some 2,000 guesses)."""

    def accepted(parameter: Number) -> bool:
        trade_off = approximate_dp(parameter, delta) if family == "approx-dp" else _FAMILIES[family](parameter)
        return accepts(inverse_of(trade_off), guesses, correct, canaries, 1 - mpf(confidence), mpf(tau))

    with mp.workdps(DIGITS):
        return smallest_accepted(accepted)


@recorded
def f_dp_parameter_in_doubles(
    guesses: int,
    correct: int,
    *,
    canaries: int,
    confidence: float,
    family: str = "gaussian",
    tau: float = 0.0,
    delta: float = 0.0,
) -> float:
    """The smallest accepted parameter in doubles, for many guesses; Gaussian and (epsilon, delta) families."""

    def accepted(parameter: Number) -> bool:
        chosen = approximate_dp_in_doubles(float(parameter), delta)
        if family == "gaussian":
            chosen = gaussian_in_doubles(float(parameter))
        return accepts(chosen, guesses, correct, canaries, 1 - confidence, tau)

    return float(smallest_accepted(accepted, mpf(10) ** -10))


_FAMILIES: dict[str, Callable[[Number], TradeOff]] = {"gaussian": gaussian, "laplace": laplace}


def epsilon_of(trade_off: TradeOff, delta: float) -> mpf:
    """Definition 9, step 3: max over x of log((1 - f(x) - delta)/x), not below 0, by a nested grid over log x."""

    def loss(log_x: mpf) -> mpf:
        x = mp.exp(log_x)
        gain = 1 - trade_off(x) - mpf(delta)
        return mp.log(gain / x) if gain > 0 else -mp.inf

    with mp.workdps(DIGITS):
        low, high = mpf(-400), mpf(0)
        while high - low > mpf(10) ** -14:
            grid = mp.linspace(low, high, 41)
            best = max(range(41), key=lambda i: loss(grid[i]))
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, 40)]
        return max(mpf(0), loss((low + high) / 2))


@recorded
def family_epsilon(family: str, parameter: Number, delta: float) -> mpf:
    """epsilon(delta) of the Gaussian or Laplace family's member with this parameter."""
    return epsilon_of(_FAMILIES[family](mpf(parameter)), delta)


def f_dp_epsilon(
    guesses: int,
    correct: int,
    *,
    canaries: int,
    delta: float,
    confidence: float,
    family: str = "gaussian",
    tau: float = 0.0,
) -> mpf:
    """epsilon(delta) of the smallest accepted member of the family."""
    parameter = f_dp_parameter(
        guesses, correct, canaries=canaries, confidence=confidence, family=family, tau=tau, delta=delta
    )
    return parameter if family == "approx-dp" else family_epsilon(family, parameter, delta)
