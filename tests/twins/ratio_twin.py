"""Slow twin of the bounds from neighbouring data sets (S2): every limit by its definition, epsilon by bisection."""

from __future__ import annotations

from mpmath import mp, mpf

from tests.twins.answers import recorded
from tests.twins.binomial_twin import (
    DIGITS,
    Number,
    clopper_pearson_lower,
    clopper_pearson_upper,
    katz_log,
)


def group_epsilon(high: Number, low: Number, delta: Number, group: int) -> mpf:
    """The least epsilon >= 0 with high <= e^(k eps) low + delta (1 + e^eps + ... + e^((k-1) eps)) (S2, Lemma 3.4)."""
    with mp.workdps(DIGITS):

        def allowed(epsilon: mpf) -> mpf:
            return mp.exp(group * epsilon) * low + delta * mp.fsum(mp.exp(j * epsilon) for j in range(group))

        if high <= allowed(mpf(0)):
            return mpf(0)
        if low == 0 and (delta == 0 or group == 1):
            return mp.inf
        bottom, top = mpf(0), mpf(1)
        while allowed(top) < high:
            bottom, top = top, 2 * top
        while top - bottom > mpf(10) ** -25:
            middle = (bottom + top) / 2
            bottom, top = (middle, top) if allowed(middle) < high else (bottom, middle)
        return (bottom + top) / 2


@recorded
def clopper_pearson_epsilon(
    n1: int, n0: int, trials1: int, trials0: int, *, delta: float, confidence: float, group: int = 1, best: bool = True
) -> mpf:
    """One direction over two limits at half the error, or the best of four events over four limits at a quarter."""
    error, delta = 1 - mpf(confidence), mpf(delta)
    if not best:
        low1 = clopper_pearson_lower(n1, trials1, error / 2)
        return group_epsilon(low1, clopper_pearson_upper(n0, trials0, error / 2), delta, group)
    low1, high1 = (limit(n1, trials1, error / 4) for limit in (clopper_pearson_lower, clopper_pearson_upper))
    low0, high0 = (limit(n0, trials0, error / 4) for limit in (clopper_pearson_lower, clopper_pearson_upper))
    pairs = [(low1, high0), (low0, high1), (1 - high0, 1 - low1), (1 - high1, 1 - low0)]
    return max(group_epsilon(high, low, delta, group) for high, low in pairs)


@recorded
def katz_epsilon(
    n1: int, n0: int, trials1: int, trials0: int, *, confidence: float, group: int = 1, best: bool = True
) -> mpf:
    """The Katz lower limit of ln(p1/p0) over the group size, half the error in its tail; no claim if undefined.

    Best of p1/p0, p0/p1 and the same ratios of the complements, with a quarter of the error each.
    """
    error = 1 - mpf(confidence)
    if not best:
        return _katz_claim(n1, trials1, n0, trials0, error / 2) / group
    m1, m0 = trials1 - n1, trials0 - n0
    tables = [
        (n1, trials1, n0, trials0),
        (n0, trials0, n1, trials1),
        (m0, trials0, m1, trials1),
        (m1, trials1, m0, trials0),
    ]
    return max(_katz_claim(*table, error / 4) for table in tables) / group


def _katz_claim(k1: int, n1: int, k0: int, n0: int, error: mpf) -> mpf:
    return mpf(0) if k1 == 0 or k0 == 0 else max(mpf(0), katz_log(k1, n1, k0, n0, error)[0])


@recorded
def katz_ceiling(trials: int, *, confidence: float) -> tuple[mpf, int, int]:
    """The largest one-direction Katz limit over every pair of counts, with the counts; trials**2 evaluations."""
    error = (1 - mpf(confidence)) / 2
    pairs = ((n1, n0) for n1 in range(1, trials + 1) for n0 in range(1, trials + 1))
    return max((katz_log(n1, trials, n0, trials, error)[0], n1, n0) for n1, n0 in pairs)


@recorded
def katz_ceiling_at_all_hits(trials: int, *, confidence: float, most_alarms: int = 50) -> tuple[mpf, int]:
    """The largest one-direction Katz limit with n1 = trials and few n0, for many trials."""
    error = (1 - mpf(confidence)) / 2
    alarms = range(1, min(trials, most_alarms) + 1)
    return max((katz_log(trials, trials, n0, trials, error)[0], n0) for n0 in alarms)
