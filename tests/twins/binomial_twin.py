"""Slow twins of the proportion intervals, in arbitrary precision and from their definitions.

Everything rests on two positive series (the binomial tail and the incomplete beta function), summed term by term.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb

from mpmath import mp, mpf

from tests.twins.answers import recorded

DIGITS = 40
Number = float | int | mpf
"""Numbers that the twins accept. A float stands for its exact binary value."""


def exact_tail(successes: int, trials: int, p: Fraction) -> Fraction:
    """Pr[Bin(trials, p) >= successes] in exact rational arithmetic."""
    return sum(
        (comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(max(successes, 0), trials + 1)), Fraction(0)
    )


def binomial_pmf(successes: int, trials: int, p: Number) -> mpf:
    """Pr[Bin(trials, p) = successes]."""
    with mp.workdps(DIGITS + 10):
        p = mpf(p)
        if not 0 <= successes <= trials:
            return mpf(0)
        if p in (0, 1):
            return mpf(successes == trials * p)
        log_ways = mp.loggamma(trials + 1) - mp.loggamma(successes + 1) - mp.loggamma(trials - successes + 1)
        return mp.exp(log_ways + successes * mp.log(p) + (trials - successes) * mp.log1p(-p))


def binomial_tail(successes: int, trials: int, p: Number) -> mpf:
    """Pr[Bin(trials, p) >= successes], the terms summed away from `successes` on its thinner side."""
    with mp.workdps(DIGITS):
        p = mpf(p)
        if successes <= 0:
            return mpf(1)
        if p in (0, 1):
            return mpf(trials * p >= successes)
        if successes > trials * p:
            return _sum_up(successes, trials, p)
        return 1 - _sum_up(trials - successes + 1, trials, 1 - p)


def _sum_up(start: int, trials: int, p: mpf) -> mpf:
    term = total = binomial_pmf(start, trials, p)
    odds = p / (1 - p)
    for i in range(start, trials):
        term *= odds * (trials - i) / (i + 1)
        total += term
        if term < total * mpf(10) ** -DIGITS:
            break
    return total


def beta_cdf(x: Number, a: Number, b: Number) -> mpf:
    """The Beta(a, b) distribution function: x^a (1-x)^b / (a B(a,b)) sum_n (a+b)_n / (a+1)_n x^n."""
    with mp.workdps(DIGITS + 10):
        x, a, b = mpf(x), mpf(a), mpf(b)
        if x <= 0 or x >= 1:
            return mpf(x >= 1)
        if _terms(x, a, b) <= _terms(1 - x, b, a):
            return _beta_series(x, a, b)
        return 1 - _beta_series(1 - x, b, a)


def _terms(x: mpf, a: mpf, b: mpf) -> float:
    """Approximate number of terms that the series needs: up to its mode and a few standard deviations beyond."""
    return float((max(0, (a + b) * x - a) + 15 * mp.sqrt((a + b) * x * (1 - x)) + 100) / (1 - x))


def _beta_series(x: mpf, a: mpf, b: mpf) -> mpf:
    log_front = mp.loggamma(a + b) - mp.loggamma(a + 1) - mp.loggamma(b) + a * mp.log(x) + b * mp.log1p(-x)
    term = total = mpf(1)
    n = 0
    while True:
        ratio = (a + b + n) / (a + 1 + n) * x
        term *= ratio
        total += term
        n += 1
        if ratio < 1 and term < total * (1 - ratio) * mpf(10) ** -DIGITS:
            return mp.exp(log_front) * total


def beta_quantile(q: Number, a: Number, b: Number) -> mpf:
    """The q quantile of Beta(a, b), by bracketing and a safe secant in log-odds."""
    a, b = mpf(a), mpf(b)
    deviation = mp.sqrt(1 / a + 1 / b)  # about that of the log odds
    return logistic(increasing_root(lambda t: beta_cdf(logistic(t), a, b) - q, mp.log(a / b), deviation))


def logistic(t: mpf) -> mpf:
    """1 / (1 + e^-t)."""
    with mp.workdps(DIGITS + 10):
        return 1 / (1 + mp.exp(-t))


def increasing_root(f: Callable[[mpf], mpf], start: Number, step: Number = 1 / 64, accuracy: Number = 1e-22) -> mpf:
    """Root of the increasing f: doubling steps from `start` until it is bracketed, then the Illinois method."""
    with mp.workdps(DIGITS):
        low = high = mpf(start)
        f_low = f_high = f(low)
        while f_low > 0:
            high, f_high = low, f_low
            low -= step
            f_low = f(low)
            step *= 2
        while f_high < 0:
            low, f_low = high, f_high
            high += step
            f_high = f(high)
            step *= 2
        side = 0
        while high - low > accuracy:
            middle = (low * f_high - high * f_low) / (f_high - f_low) if f_high > f_low else (low + high) / 2
            # Illinois alone may creep up to the root from one side: stop once the step is below the accuracy.
            value = f(middle)
            if value == 0 or min(middle - low, high - middle) < accuracy / 4:
                return middle
            if value < 0:
                low, f_low = middle, value
                f_high = f_high / 2 if side == -1 else f_high
                side = -1
            else:
                high, f_high = middle, value
                f_low = f_low / 2 if side == 1 else f_low
                side = 1
        return (low + high) / 2


@recorded
def clopper_pearson_lower(successes: int, trials: int, error: Number) -> mpf:
    """The p with Pr[Bin(trials, p) >= successes] = error; 0 without a success."""
    if successes == 0:
        return mpf(0)
    failures = trials - successes + mpf(1) / 2
    deviation = mp.sqrt(1 / mpf(successes) + 1 / failures)  # of the observed log odds
    return logistic(
        increasing_root(
            lambda t: binomial_tail(successes, trials, logistic(t)) - error, mp.log(successes / failures), deviation
        )
    )


def clopper_pearson_upper(successes: int, trials: int, error: Number) -> mpf:
    """The p with Pr[Bin(trials, p) <= successes] = error; 1 without a failure."""
    return 1 - clopper_pearson_lower(trials - successes, trials, error)


@recorded
def jeffreys_lower(successes: int, trials: int, error: Number) -> mpf:
    """The `error` quantile of Beta(1/2 + successes, 1/2 + failures); 0 without a success."""
    half = mpf(1) / 2
    return mpf(0) if successes == 0 else beta_quantile(error, successes + half, trials - successes + half)


def jeffreys_upper(successes: int, trials: int, error: Number) -> mpf:
    """The 1 - `error` quantile of the same posterior; 1 without a failure."""
    return 1 - jeffreys_lower(trials - successes, trials, error)


def normal_quantile(q: Number) -> mpf:
    """The q quantile of the standard normal law."""
    with mp.workdps(DIGITS):
        return increasing_root(lambda z: mp.ncdf(z) - q, 0)


def katz_log(k1: int, n1: int, k0: int, n0: int, error: Number) -> tuple[mpf, mpf]:
    """Katz et al. (1978): ln(p1/p0) -+ z sqrt(1/k1 - 1/n1 + 1/k0 - 1/n0), `error` in each tail."""
    with mp.workdps(DIGITS):
        middle = mp.log(mpf(k1) / n1) - mp.log(mpf(k0) / n0)
        reach = -normal_quantile(error) * mp.sqrt(mpf(1) / k1 - mpf(1) / n1 + mpf(1) / k0 - mpf(1) / n0)
        return middle - reach, middle + reach


def goodman(counts: Sequence[int], confidence: float) -> list[tuple[mpf, mpf]]:
    """Goodman (1965): the roots p of n (p - share)^2 = A p (1 - p), A the 1 - error/k quantile of chi-square(1)."""
    with mp.workdps(DIGITS):
        n = sum(counts)
        A = normal_quantile((1 - mpf(confidence)) / len(counts) / 2) ** 2
        intervals = []
        for count in counts:
            share = mpf(count) / n
            # (n + A) p^2 - (2 n share + A) p + n share^2 = 0
            centre, spread = 2 * n * share + A, mp.sqrt(A**2 + 4 * n * share * (1 - share) * A)
            intervals.append(((centre - spread) / (2 * (n + A)), (centre + spread) / (2 * (n + A))))
        return intervals


def sison_glaz_coverage(counts: Sequence[int], reach: int) -> mpf:
    """Sison and Glaz (1995): nu(c), the Edgeworth approximation of Pr[every N_i within c of n_i], N multinomial.

    N is a vector of Poisson(n_i) conditioned on its sum; the sum of the truncated Poissons gets an Edgeworth density.
    """
    with mp.workdps(DIGITS):
        n = sum(counts)
        inside = mpf(1)
        mean = variance = third = excess = mpf(0)
        for count in counts:
            law = {i: _poisson(i, count) for i in range(max(0, count - reach), count + reach + 1)}
            mass = sum(law.values())
            m = sum(i * p for i, p in law.items()) / mass
            mu2, mu3, mu4 = (sum((i - m) ** k * p for i, p in law.items()) / mass for k in (2, 3, 4))
            inside *= mass
            mean, variance, third, excess = mean + m, variance + mu2, third + mu3, excess + mu4 - 3 * mu2**2
        x = (n - mean) / mp.sqrt(variance)
        skew, kurtosis = third / variance ** mpf(1.5), excess / variance**2
        edgeworth = mp.npdf(x) * (
            1
            + skew / 6 * (x**3 - 3 * x)
            + kurtosis / 24 * (x**4 - 6 * x**2 + 3)
            + skew**2 / 72 * (x**6 - 15 * x**4 + 45 * x**2 - 15)
        )
        return inside * edgeworth / mp.sqrt(variance) / _poisson(n, n)


def _poisson(i: int, rate: int) -> mpf:
    return mpf(i == 0) if rate == 0 else mp.exp(i * mp.log(rate) - rate - mp.loggamma(i + 1))


@recorded
def sison_glaz(counts: Sequence[int], confidence: float) -> list[tuple[mpf, mpf]]:
    """Shares - c/n and + (c + 2 g)/n, cut to [0, 1]; c the first with nu(c) <= confidence < nu(c + 1)."""
    n = sum(counts)
    below, c = sison_glaz_coverage(counts, 1), 1
    while (above := sison_glaz_coverage(counts, c + 1)) <= confidence:
        below, c = above, c + 1
    g = (confidence - below) / (above - below)
    return [(max(mpf(0), mpf(k - c) / n), min(mpf(1), (k + c + 2 * g) / mpf(n))) for k in counts]
