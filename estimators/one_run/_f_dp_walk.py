"""Algorithm 3: test whether a number of right guesses is too large for a trade-off function; compiled.

Notation of the paper: after k steps `r` and `h` are `r[i]` and `h[i]` with i = correct - k. `rate` is `f_bar^-1(r) =
f^-1(1 - r)`: the smallest false positive rate of a test with power r. Working with r keeps the digits of small numbers
that `1 - r` would lose.

Source: Kalemaj et al. (2025), section 9, Algorithm 3; with tau as in Theorem 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.compiling import compiled, part_of_compiled

Rate: TypeAlias = Callable[[float, Any, float], float]
"""(power, parameter, delta) -> smallest false positive rate."""
Rejects: TypeAlias = Callable[[Any, float, float, int, int, int, float], bool]
"""(parameter, delta, tau, guesses, correct, canaries, significance) -> True if Pr[C >= correct] <= significance."""


def walk(rate: Rate) -> Rejects:
    """Return Algorithm 3 for trade-off functions with this `rate`, as plain Python for the caller to compile."""

    def rejects(
        parameter: Any, delta: float, tau: float, guesses: int, correct: int, canaries: int, significance: float
    ) -> bool:
        target = guesses / canaries
        r = significance * correct / canaries
        h = significance * (guesses - correct) / canaries
        for i in range(correct - 1, -1, -1):
            raised = max(0.0, rate(r, parameter, delta) - tau)
            # r and h rise together or fall together from the first step: if they stop rising, they never rise again.
            if raised <= h:
                return False
            weight = i / (guesses - i)
            step = weight * (raised - h)
            r += step
            h = raised
            if r + h >= target:
                return True
            # Stop early if the rest of the walk stays below the target. `rate` is convex and the weights fall, so below
            # `roof` a step is at most `shrink` times the last one, and r gains at most step * shrink / (1 - shrink).
            roof, beyond = r + 0.25 * (target - r - h), r + 0.5 * (target - r - h)
            if (correct - i) % 16 == 0 and beyond > roof > r:
                at_roof = max(0.0, rate(roof, parameter, delta) - tau)
                slope = (max(0.0, rate(beyond, parameter, delta) - tau) - at_roof) / (beyond - roof)
                shrink = weight * slope
                if shrink < 1 and r + step * shrink / (1 - shrink) < roof and roof + at_roof < target:
                    return False
        return False

    return rejects


@part_of_compiled
def gaussian_rate(power: float, mu: float, delta: float) -> float:
    """Return Phi(Phi^-1(power) - mu)."""
    return 0.5 * math.erfc((mu - normal_quantile(power)) / math.sqrt(2.0))


@part_of_compiled
def laplace_rate(power: float, mu: float, delta: float) -> float:
    """Return the smallest false positive rate between two unit Laplace laws whose means differ by mu."""
    if power <= 0.5:
        return math.exp(-mu) * power
    miss = 1 - power
    if miss >= 0.5 * math.exp(-mu):
        return math.exp(-mu) / (4 * miss)
    return 1 - math.exp(mu) * miss


@part_of_compiled
def approximate_dp_rate(power: float, epsilon: float, delta: float) -> float:
    """Return the smallest false positive rate under two-sided (epsilon, delta)-DP."""
    return max(0.0, math.exp(-epsilon) * (power - delta), 1 - delta - math.exp(epsilon) * (1 - power))


@part_of_compiled
def highest_line(power: float, lines: NDArray[np.float64], delta: float) -> float:
    """Return the smallest false positive rate under the curve given by the lines of `signed_scores.tangents`."""
    line = np.searchsorted(lines[0], power, side="right") - 1
    height: float = lines[1, line] * power + lines[2, line]
    return max(0.0, height)


@part_of_compiled
def normal_quantile(p: float) -> float:
    """Return Phi^-1(p) for p in (0, 1), relative error 1e-15 (Wichura 1988, Applied Statistics 37, AS 241)."""
    q = p - 0.5
    if abs(q) <= 0.425:
        t = 0.180625 - q * q
        top = 3.3430575583588128105e4 + 2.5090809287301226727e3 * t
        top = 4.5921953931549871457e4 + t * (6.7265770927008700853e4 + t * top)
        top = 1.9715909503065514427e3 + t * (1.3731693765509461125e4 + t * top)
        top = 3.3871328727963666080e0 + t * (1.3314166789178437745e2 + t * top)
        low = 2.8729085735721942674e4 + 5.2264952788528545610e3 * t
        low = 2.1213794301586595867e4 + t * (3.9307895800092710610e4 + t * low)
        low = 6.8718700749205790830e2 + t * (5.3941960214247511077e3 + t * low)
        low = 1.0 + t * (4.2313330701600911252e1 + t * low)
        return q * top / low
    tail = math.sqrt(-math.log(min(p, 1 - p)))
    if tail <= 5.0:
        t = tail - 1.6
        top = 2.27238449892691845833e-2 + 7.74545014278341407640e-4 * t
        top = 1.27045825245236838258e0 + t * (2.41780725177450611770e-1 + t * top)
        top = 5.76949722146069140550e0 + t * (3.64784832476320460504e0 + t * top)
        top = 1.42343711074968357734e0 + t * (4.63033784615654529590e0 + t * top)
        low = 5.47593808499534494600e-4 + 1.05075007164441684324e-9 * t
        low = 1.48103976427480074590e-1 + t * (1.51986665636164571966e-2 + t * low)
        low = 1.67638483018380384940e0 + t * (6.89767334985100004550e-1 + t * low)
        low = 1.0 + t * (2.05319162663775882187e0 + t * low)
    else:
        t = tail - 5.0
        top = 2.71155556874348757815e-5 + 2.01033439929228813265e-7 * t
        top = 2.65321895265761230930e-2 + t * (1.24266094738807843860e-3 + t * top)
        top = 1.78482653991729133580e0 + t * (2.96560571828504891230e-1 + t * top)
        top = 6.65790464350110377720e0 + t * (5.46378491116411436990e0 + t * top)
        low = 1.42151175831644588870e-7 + 2.04426310338993978564e-15 * t
        low = 7.86869131145613259100e-4 + t * (1.84631831751005468180e-5 + t * low)
        low = 1.36929880922735805310e-1 + t * (1.48753612908506148525e-2 + t * low)
        low = 1.0 + t * (5.99832206555887937690e-1 + t * low)
    return math.copysign(top / low, q)


RATES: dict[str, Rate] = {
    "gaussian": gaussian_rate,
    "laplace": laplace_rate,
    "approx-dp": approximate_dp_rate,
    "lines": highest_line,
}
REJECTS: dict[str, Rejects] = {name: compiled()(walk(rate)) for name, rate in RATES.items()}
