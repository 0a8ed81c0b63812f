"""Proportion, ratio and simultaneous intervals against definitions, closed forms and slow sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from dpaudit.errors import InputError
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.proportions.binomial import clopper_pearson, jeffreys, katz_log
from dpaudit.estimators.proportions.multinomial import goodman, sison_glaz


@pytest.mark.parametrize(
    ("k", "n"), [(1, 1), (3, 10), (50, 100), (1345, 5000), (7, 10_000_000), (4_999_990, 5_000_000)]
)
def test_clopper_pearson_ends_leave_their_tail(k: int, n: int) -> None:
    """By definition Pr[Bin(n, lower) >= k] = Pr[Bin(n, upper) <= k] = alpha / 2, never more."""
    lower, upper = clopper_pearson(k, n, confidence=0.95)
    # Moving an end by 1e-13 of itself moves the tail by up to 1e-13 n of itself, plus SciPy's rounding.
    assert stats.binom.sf(k - 1, n, lower) == pytest.approx(0.025, rel=1e-12 * n + 1e-10)
    assert stats.binom.sf(k - 1, n, lower) <= 0.025 * (1 + 1e-13)
    if k < n:
        assert stats.binom.cdf(k, n, upper) == pytest.approx(0.025, rel=1e-12 * n + 1e-10)


def test_clopper_pearson_closed_forms() -> None:
    assert clopper_pearson(0, 1000, confidence=0.95).upper == pytest.approx(
        -math.expm1(math.log(0.025) / 1000), rel=1e-12
    )
    assert clopper_pearson(0, 1000, confidence=0.95).lower == 0.0
    assert clopper_pearson(7, 7, confidence=0.9, side="lower").lower == pytest.approx(0.1 ** (1 / 7), rel=1e-12)
    assert clopper_pearson(7, 7, confidence=0.9).upper == 1.0


def test_one_sided_intervals_spend_all_error_on_one_end() -> None:
    two = clopper_pearson(30, 100, confidence=0.95)
    assert clopper_pearson(30, 100, confidence=0.975, side="lower") == (pytest.approx(two.lower, rel=1e-12), math.inf)
    assert clopper_pearson(30, 100, confidence=0.975, side="upper") == (0.0, pytest.approx(two.upper, rel=1e-12))


def test_clopper_pearson_covers_exactly() -> None:
    """Exact sum over all outcomes: the miss probability is <= alpha at every proportion."""
    n, k = 40, np.arange(41)
    lower, upper = clopper_pearson(k, n, confidence=0.9)
    for p in np.linspace(0.01, 0.99, 99):
        assert stats.binom.pmf(k, n, p)[(lower > p) | (upper < p)].sum() <= 0.1


def test_planted_defect_misses_too_often() -> None:
    """Without the correction to its tail a limit (here at confidence 1 / 2) misses far more often than 0.05."""
    n, k = 40, np.arange(41)
    lower = clopper_pearson(k, n, confidence=0.5, side="lower").lower
    assert stats.binom.pmf(k, n, 0.3)[lower > 0.3].sum() > 0.3


def test_jeffreys_quantiles_and_ends() -> None:
    lower, upper = jeffreys(np.array([0, 3, 10]), 10, confidence=0.95)
    assert isinstance(lower, np.ndarray)
    assert isinstance(upper, np.ndarray)
    assert lower[0] == 0
    assert upper[2] == 1
    assert special.betainc(3.5, 7.5, lower[1]) == pytest.approx(0.025, rel=1e-11)
    assert special.betaincc(3.5, 7.5, upper[1]) == pytest.approx(0.025, rel=1e-11)
    assert upper[0] == pytest.approx(special.betaincinv(0.5, 10.5, 0.975), rel=1e-12)


def test_katz_log_formula_and_symmetry() -> None:
    lower, upper = katz_log(60, 100, 20, 80, confidence=0.95)
    spread = stats.norm.isf(0.025) * math.sqrt(1 / 60 - 1 / 100 + 1 / 20 - 1 / 80)
    assert (lower, upper) == (pytest.approx(math.log(2.4) - spread), pytest.approx(math.log(2.4) + spread))
    exchanged = katz_log(20, 80, 60, 100, confidence=0.95)
    assert exchanged == (pytest.approx(-upper), pytest.approx(-lower))


def test_katz_log_claims_nothing_where_it_is_undefined() -> None:
    lower, upper = katz_log([0, 5, 0], 10, [3, 0, 0], 10, confidence=0.95)
    assert np.all(np.isneginf(lower))
    assert np.all(np.isposinf(upper))


def test_katz_log_may_be_negative_for_few_trials() -> None:
    """The published ceiling (n0 = 1, n1 = N) is below 0 for tiny N."""
    assert katz_log(4, 4, 1, 4, confidence=0.95).lower < 0


def test_goodman_solves_its_quadratic() -> None:
    counts = np.array([56, 72, 73, 59, 62, 87, 58, 0])
    lower, upper = goodman(counts, confidence=0.95)
    n, p, quantile = counts.sum(), counts / counts.sum(), stats.chi2.isf(0.05 / 8, 1)
    for end in (lower, upper):
        assert np.allclose((p - end) ** 2 * n, quantile * end * (1 - end), atol=1e-12)
    assert isinstance(lower, np.ndarray)
    assert lower[-1] == 0.0
    assert np.all((lower <= p) & (p <= upper))


def _slow_nu(c: int, counts: list[int]) -> float:
    """Sison and Glaz's approximation by plain sums over the truncated Poisson laws."""
    moments, inside = np.zeros(4), 1.0
    for count in counts:
        values = np.arange(max(count - c, 0), count + c + 1)
        weights = stats.poisson.pmf(values, count)
        inside *= weights.sum()
        weights = weights / weights.sum()
        mean = (weights * values).sum()
        central = [(weights * (values - mean) ** r).sum() for r in (2, 3, 4)]
        moments += [mean, central[0], central[1], central[2] - 3 * central[0] ** 2]
    n = sum(counts)
    z = (n - moments[0]) / math.sqrt(moments[1])
    g1, g2 = moments[2] / moments[1] ** 1.5, moments[3] / moments[1] ** 2
    series = 1 + g1 * (z**3 - 3 * z) / 6 + g2 * (z**4 - 6 * z**2 + 3) / 24
    series += g1**2 * (z**6 - 15 * z**4 + 45 * z**2 - 15) / 72
    density = series * stats.norm.pdf(z) / math.sqrt(moments[1])
    return float(inside * density / stats.poisson.pmf(n, n))


def _slow_sison_glaz(counts: list[int], confidence: float) -> tuple[Floats, Floats]:
    n, c = sum(counts), 1
    while not _slow_nu(c, counts) <= confidence < _slow_nu(c + 1, counts):
        c += 1
    gamma = (confidence - _slow_nu(c, counts)) / (_slow_nu(c + 1, counts) - _slow_nu(c, counts))
    p = np.array(counts) / n
    return np.maximum(p - c / n, 0), np.minimum(p + (c + 2 * gamma) / n, 1)


@pytest.mark.parametrize("counts", [[56, 72, 73, 59, 62, 87, 58], [5, 0, 12, 40], [500, 1500], [1, 1, 200]])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_sison_glaz_against_slow_sums(counts: list[int], confidence: float) -> None:
    """Both sides are sums of doubles over at most 400 terms; 1e-9 leaves a hundredfold margin."""
    assert np.allclose(sison_glaz(counts, confidence=confidence), _slow_sison_glaz(counts, confidence), atol=1e-9)


def test_sison_glaz_keeps_its_digits_at_7e8_trials() -> None:
    """Half-widths grow with sqrt n, up to the continuity correction of half a count."""
    upper = np.asarray(sison_glaz([10**8] * 7, confidence=0.95).upper)
    slow_upper = _slow_sison_glaz([10**4] * 7, 0.95)[1]
    assert (upper[0] - 1 / 7) * 1e2 == pytest.approx(slow_upper[0] - 1 / 7, rel=1 / 250)


def test_scalars_give_floats_and_arrays_broadcast() -> None:
    assert all(type(end) is float for end in clopper_pearson(3, 10, confidence=0.95))
    assert all(type(end) is float for end in katz_log(3, 10, 2, 10, confidence=0.95))
    assert np.shape(jeffreys(np.zeros((3, 1)), np.full(4, 9), confidence=0.95).lower) == (3, 4)
    assert np.shape(goodman(np.ones((2, 5), int), confidence=[0.9, 0.95]).upper) == (2, 5)
    assert np.shape(sison_glaz(np.full((2, 5), 9), confidence=0.9).upper) == (2, 5)


@pytest.mark.parametrize(
    ("k", "n", "confidence", "message"),
    [
        (-1, 10, 0.95, "k must be >= 0, got -1"),
        (1.5, 10, 0.95, "k must be an integer count, got 1.5"),
        (math.nan, 10, 0.95, "k must be >= 0, got nan"),
        (11, 10, 0.95, "k must be <= n"),
        (0, 0, 0.95, "n must be >= 1, got 0"),
        (1, 10, 1.0, r"confidence must be in \(0, 1\), got 1.0"),
        ([], 10, 0.95, "k must not be empty"),
        ([1, 2], [3, 4, 5], 0.95, "shapes that broadcast"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(k: object, n: object, confidence: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        clopper_pearson(k, n, confidence=confidence)  # type: ignore[arg-type]


def test_side_must_be_known() -> None:
    with pytest.raises(InputError, match="side must be one of two-sided, lower, upper"):
        clopper_pearson(1, 2, confidence=0.9, side="left")
