"""Epsilon from confusion tables: checked values, exact coverage, accuracy against slow integrals, planted defects."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dpaudit.errors import InputError
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.proportions.binomial import katz_log
from dpaudit.estimators.two_world.confusion import (
    epsilon_interval,
    epsilon_posterior_cdf,
    epsilon_posterior_pdf,
)
from tests.nightly import by_day, too
from tests.twins import confusion_twin

PAPER = {"tp": 65, "fp": 25, "tn": 75, "fn": 35}


def test_papers_example() -> None:
    """The paper prints [0.522, 1.268], whose upper end is off by 1.4e-3. The rectangles agree with the paper."""
    assert epsilon_interval(**PAPER, delta=0.05, confidence=0.95) == pytest.approx((0.52179, 1.26665), abs=5e-6)
    rectangle = epsilon_interval(**PAPER, delta=0.05, confidence=0.95, method="clopper-pearson")
    assert rectangle == pytest.approx((0.29515, 1.48873), abs=5e-6)
    rectangle = epsilon_interval(**PAPER, delta=0.05, confidence=0.95, method="jeffreys")
    assert rectangle == pytest.approx((0.32095, 1.45637), abs=5e-6)
    assert epsilon_posterior_cdf(1.268, **PAPER, delta=0.05) == pytest.approx(0.97536, abs=5e-6)


@pytest.mark.parametrize(
    ("method", "side", "expected"),
    [("clopper-pearson", "two-sided", 5.60058), ("clopper-pearson", "lower", 5.80906), ("jeffreys", "lower", 6.25433)],
)
def test_perfect_attack_over_2000_trials(method: str, side: str, expected: float) -> None:
    interval = epsilon_interval(1000, 0, 1000, 0, delta=1e-5, confidence=0.9, method=method, side=side)
    assert interval.lower == pytest.approx(expected, abs=5e-6)
    assert interval.upper == math.inf


@pytest.mark.parametrize("method", ["bayesian", "clopper-pearson", "jeffreys"])
@pytest.mark.parametrize("table", [(0, 100, 0, 100), (3, 180, 20, 97), (50, 40, 50, 60), (5, 5, 5, 5)])
def test_attack_and_its_inversion_give_the_same_bound(method: str, table: tuple[int, int, int, int]) -> None:
    """The region has four edges: inverted guesses are equal evidence, so 100 of 100 wrong guesses give epsilon > 0."""
    tp, fp, tn, fn = table
    straight, inverted = (
        epsilon_interval(*counts, delta=1e-5, confidence=0.95, method=method)
        for counts in ((tp, fp, tn, fn), (fn, tn, fp, tp))
    )
    assert straight == pytest.approx(inverted, abs=1e-9)
    if table == (0, 100, 0, 100):
        assert straight.lower > 3


def test_false_claims_of_an_inverted_attack_are_no_more_frequent_than_stated() -> None:
    """Exact sums over wrong answers under randomised response; the four limits share the error."""
    for epsilon in (0.0, 0.05, 1.0):
        rate = math.exp(epsilon) / (1 + math.exp(epsilon))
        wrong = _false_claims(
            400,
            rate,
            rate,
            lambda tp, fp, tn, fn, epsilon=epsilon: np.asarray(
                epsilon_interval(tp, fp, tn, fn, delta=0.0, confidence=0.95, method="clopper-pearson").lower > epsilon
            ),
        )
        assert 0 < wrong <= 0.05


def test_footnote_1_is_the_corner_of_the_rectangle() -> None:
    """The paper's "minimum" 1.736 appears only when an undefined term is dropped; the corner is the minimum."""
    interval = epsilon_interval(90, 0, 100, 10, delta=1e-5, confidence=0.9, method="clopper-pearson")
    assert interval.lower == pytest.approx(3.12437, abs=5e-6)


@pytest.mark.parametrize(
    ("table", "expected"),
    [((50, 50, 50, 50), 0.009), ((0, 0, 100, 100), 0.157)],
)
def test_bayesian_bound_is_positive_for_every_table_at_delta_0(table: tuple[int, ...], expected: float) -> None:
    tp, fp, tn, fn = table
    assert epsilon_interval(tp, fp, tn, fn, delta=0, confidence=0.95, side="lower").lower == pytest.approx(
        expected, abs=5e-4
    )
    assert epsilon_posterior_cdf(0, tp, fp, tn, fn, delta=0) == 0


MEDIAN_BOUNDS = [  # epsilon, trials a side, Clopper-Pearson lower / two-sided, Bayes(alpha), Katz
    (1, 5_000, 0.9369, 0.9280, 0.9694, 0.9510),
    (1, 500_000, 0.9937, 0.9928, 0.9970, 0.9951),
    (2, 5_000, 1.9142, 1.9022, 1.9634, 1.9240),
    (2, 500_000, 1.9915, 1.9902, 1.9964, 1.9924),
    (4, 5_000, 3.7908, 3.7630, 3.9165, 3.7945),
    (4, 500_000, 3.9792, 3.9762, 3.9918, 3.9795),
]


@pytest.mark.parametrize(("epsilon", "n", "cp_one", "cp_two", "bayes", "katz"), MEDIAN_BOUNDS)
def test_tightness_at_the_median_outcome(
    epsilon: float, n: int, cp_one: float, cp_two: float, bayes: float, katz: float
) -> None:
    k = int(stats.binom.median(n, 1 / (1 + math.exp(epsilon))))

    def lower(method: str, side: str) -> object:
        return epsilon_interval(n - k, k, n - k, k, delta=0, confidence=0.95, method=method, side=side).lower

    assert lower("clopper-pearson", "lower") == pytest.approx(cp_one, abs=6e-5)
    assert lower("clopper-pearson", "two-sided") == pytest.approx(cp_two, abs=6e-5)
    assert lower("bayesian", "lower") == pytest.approx(bayes, abs=6e-5)
    assert katz_log(n - k, n, k, n, confidence=0.95).lower == pytest.approx(katz, abs=6e-5)


def _outcomes(n: int, rate: float) -> tuple[NDArray[np.int64], Floats]:
    """Return error counts and their probabilities, which sum to at least 1 - 1e-9."""
    counts = np.arange(int(stats.binom.ppf(5e-10, n, rate)), int(stats.binom.isf(5e-10, n, rate)) + 1)
    return counts, stats.binom.pmf(counts, n, rate)


def _false_claims(n: int, fnr: float, fpr: float, wrong: Callable[..., NDArray[np.bool_]]) -> float:
    """Return the exact Pr[wrong(tp, fp, tn, fn)] over both binomials."""
    fn, weight_fn = _outcomes(n, fnr)
    fp, weight_fp = _outcomes(n, fpr)
    rows, columns = fn[:, None], fp[None, :]
    return float(weight_fn @ wrong(n - rows, columns, n - columns, rows) @ weight_fp)


def _gaussian_corner(mu: float, delta: float) -> tuple[float, float, float]:
    """(epsilon, FNR, FPR) where the Gaussian mechanism's trade-off curve touches R(epsilon, delta)."""
    low, high = 0.0, 20.0
    for _ in range(100):
        eps = (low + high) / 2
        spent = stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)
        low, high = (eps, high) if spent > delta else (low, eps)
    return eps, float(stats.norm.sf(mu / 2 - eps / mu)), float(stats.norm.cdf(-mu / 2 - eps / mu))


def _rr(epsilon: float) -> tuple[float, float, float]:
    return epsilon, 1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))


# The Bayesian columns are sums too: a simulation of a thousand games, as one would do with a slow integral, scatters
# around them by 0.01. The sum at 100 trials agrees with an independent integral to all digits.
COVERAGE = [  # mechanism, delta, trials a side; CP two, CP one, Jeffreys one, Katz, Bayes(alpha), Bayes(alpha / 2)
    (_rr(4.0), 0.0, 100, (0.0, 0.0, 0.0, 0.0, 0.2644, 0.1237)),
    (_rr(4.0), 0.0, 1000, (0.0134, 0.0294, 0.056, 0.0148, 0.1975, 0.1147)),
    (_gaussian_corner(1.0, 1e-2), 1e-2, 1000, (0.0, 0.0, 0.0014, None, 0.0676, 0.0265)),
    *too(
        (_rr(0.5), 0.0, 1000, (0.0014, 0.0047, 0.0054, 0.0236, 0.0820, 0.0436)),
        (_rr(1.0), 0.0, 1000, (0.0032, 0.0093, 0.0106, 0.0226, 0.1149, 0.0637)),
        (_rr(2.0), 0.0, 1000, (0.0096, 0.0226, 0.0265, 0.0214, 0.1627, 0.0932)),
    ),
]


@pytest.mark.parametrize(("mechanism", "delta", "n", "expected"), COVERAGE)
def test_exact_rate_of_false_claims(
    mechanism: tuple[float, float, float], delta: float, n: int, expected: tuple[float | None, ...]
) -> None:
    """Pr[lower bound > truth] at alpha = 0.05, by summation; Clopper-Pearson must hold, the others show their rate."""
    epsilon, fnr, fpr = mechanism

    def rectangle(method: str, side: str) -> float:
        return _false_claims(
            n,
            fnr,
            fpr,
            lambda tp, fp, tn, fn: np.asarray(
                epsilon_interval(tp, fp, tn, fn, delta=delta, confidence=0.95, method=method, side=side).lower > epsilon
            ),
        )

    cp_two, cp_one = rectangle("clopper-pearson", "two-sided"), rectangle("clopper-pearson", "lower")
    assert cp_two <= 0.05
    assert cp_one <= 0.05
    assert cp_two == pytest.approx(expected[0], abs=6e-5)
    assert cp_one == pytest.approx(expected[1], abs=6e-5)
    assert rectangle("jeffreys", "lower") == pytest.approx(expected[2], abs=6e-4 if expected[2] == 0.056 else 6e-5)
    if expected[3] is not None:
        katz = _false_claims(
            n, fnr, fpr, lambda tp, fp, tn, fn: np.asarray(katz_log(tp, n, fp, n, confidence=0.95).lower > epsilon)
        )
        assert katz == pytest.approx(expected[3], abs=6e-5)
    fn, weight_fn = _outcomes(n, fnr)
    fp, weight_fp = _outcomes(n, fpr)
    mass = epsilon_posterior_cdf(epsilon, n - fn[:, None], fp, n - fp, fn[:, None], delta=delta)
    for alpha, rate in (
        (0.05, expected[4]),
        (0.025, expected[5]),
    ):  # F^-1(alpha) > epsilon just where F(epsilon) < alpha
        assert weight_fn @ (np.asarray(mass) < alpha) @ weight_fp == pytest.approx(rate, abs=6e-5)


def test_planted_defect_claims_falsely_too_often() -> None:
    """Planted defect: with limits at confidence ~0, the plug-in estimate, the bound claims too much in most games."""
    rate = _false_claims(
        1000,
        *_rr(1.0)[1:],
        lambda tp, fp, tn, fn: np.asarray(
            epsilon_interval(tp, fp, tn, fn, delta=0, confidence=1e-9, method="clopper-pearson", side="lower").lower
            > 1.0
        ),
    )
    assert rate > 0.05


@pytest.mark.parametrize(
    ("epsilon", "table", "delta"),
    [
        (0.52179, (65, 25, 75, 35), 0.05),
        (0.7, (3, 0, 17, 18), 0.1),
        (3.0, (20, 0, 20, 0), 1e-3),
        (1.2, (1, 0, 1, 0), 0.0),
        (0.05, (2, 11, 3, 9), 0.01),
    ],
)
def test_cdf_against_30_digits(epsilon: float, table: tuple[int, int, int, int], delta: float) -> None:
    """The documented accuracy is 1e-11. The slow twin's last panels at the square roots leave 2^-30."""
    assert epsilon_posterior_cdf(epsilon, *table, delta=delta) == pytest.approx(
        confusion_twin.cdf_by_panels(epsilon, *table, delta), abs=1e-11
    )


def _dense_outside(epsilon: float, tp: int, fp: int, tn: int, fn: int, delta: float) -> float:
    """Return the mass outside the region by 40,000 points in FPR's angle; both rates are far from 0, 1 and delta."""
    mode, width = math.atan2(math.sqrt(fp), math.sqrt(tn)), 0.5 / math.sqrt(fp + tn)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    cuts = np.linspace(mode - 9 * width, mode + 9 * width, 2001)
    kink = math.asin(math.sqrt((1 - delta) / (1 + math.exp(epsilon))))
    cuts = np.unique(np.append(cuts, np.clip(kink, cuts[0], cuts[-1])))
    t = (cuts[1:, None] + cuts[:-1, None]) / 2 + (cuts[1:, None] - cuts[:-1, None]) / 2 * nodes
    logs = 2 * fp * np.log(np.sin(t) / math.sin(mode)) + 2 * tn * np.log(np.cos(t) / math.cos(mode))
    density = np.exp(logs) * weights * np.diff(cuts)[:, None]
    y = np.sin(t) ** 2
    edge = np.maximum(1 - delta - math.exp(epsilon) * y, (1 - delta - y) * math.exp(-epsilon))
    return float((density * special.betainc(fn + 0.5, tp + 0.5, np.clip(edge, 0, 1))).sum() / density.sum())


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("n", [1_000, 1_000_000, 10_000_000])
def test_cdf_at_many_trials_against_dense_sums(n: int, delta: float) -> None:
    """The sums' log-densities lose 1e-16 n of themselves in rounding: 1e-9 at n = 1e7."""
    fn, fp = n // 5, n // 4
    centre = math.log((1 - delta - 0.2) / 0.25)
    for shift in (-3, 0, 3):
        epsilon = centre + shift * 1.8 / math.sqrt(n)
        table = (n - fn, fp, n - fp, fn)
        outside = 1 - np.asarray(epsilon_posterior_cdf(epsilon, *table, delta=delta))
        assert outside == pytest.approx(_dense_outside(epsilon, *table, delta), abs=2e-9)


def _random_tables(count: int, most: int, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Return tables with up to `most` trials a class. Many have no errors, only errors, or few of either."""
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        n = np.exp(rng.uniform(0, np.log(most), count)).astype(np.int64)
        few = np.minimum((np.exp(rng.uniform(0, np.log(n + 1))) - 1).astype(np.int64), n)
        kind = rng.integers(0, 5, count)
        errors = np.choose(kind, [np.zeros_like(n), n, few, n - few, (rng.random(count) * n).astype(np.int64)])
        sides.append((n - errors, errors))
    (tp, fn), (tn, fp) = sides
    return tp, fp, tn, fn


def test_interval_ends_are_the_posteriors_quantiles() -> None:
    """Each end is on the safe side, within the relative 1e-8 by which it is rounded."""
    count = by_day(400, by_night=2_000)
    tables = _random_tables(count, 10**7, seed=1)
    delta = np.random.default_rng(2).choice([0, 1e-10, 1e-5, 1e-3, 0.05, 0.1], count)
    lower, upper = epsilon_interval(*tables, delta=delta, confidence=0.9)
    at_lower, at_upper = (np.asarray(epsilon_posterior_cdf(end, *tables, delta=delta)) for end in (lower, upper))
    positive = np.asarray(lower) > 0
    # Newton's last step leaves the square of 1e-5 in log-odds.
    assert np.all(at_lower[positive] <= 0.05 * (1 - 5e-9))
    assert at_lower[positive] == pytest.approx(0.05, abs=1e-9)
    assert np.all(at_lower[~positive] >= 0.05 * (1 - 2e-8))
    reached = np.asarray(upper) > 0
    assert np.all(at_upper >= 0.95)
    assert at_upper[reached] == pytest.approx(0.95, abs=1e-9)


def test_upper_ends_reach_far_beyond_20_nats() -> None:
    """No errors in 10^7 a class: the smaller rate's posterior puts the upper end near -ln of its quantile."""
    interval = epsilon_interval(10**7, 0, 10**7, 0, delta=1e-9, confidence=1 - 1e-4)
    assert 30 < interval.upper < 40
    assert epsilon_posterior_cdf(interval.upper, 10**7, 0, 10**7, 0, delta=1e-9) == pytest.approx(1 - 5e-5, abs=1e-10)


def test_pdf_is_the_cdfs_derivative() -> None:
    """Central differences of step h err by h^2/6 times the third derivative (~30 at most), plus rounding, 1e-12 / h."""
    epsilon, step = np.linspace(0.1, 2.5, 25), 1e-4
    ahead, behind = (np.asarray(epsilon_posterior_cdf(epsilon + s, **PAPER, delta=0.05)) for s in (step, -step))
    slope = (ahead - behind) / (2 * step)
    assert epsilon_posterior_pdf(epsilon, **PAPER, delta=0.05) == pytest.approx(slope, abs=1e-6)


def test_posterior_is_symmetric() -> None:
    """Exchanging the worlds or inverting every guess does not change the privacy region, nor the posterior."""
    tp, fp, tn, fn = _random_tables(200, 10_000, seed=3)
    values = epsilon_posterior_cdf(0.8, tp, fp, tn, fn, delta=0.01)
    assert epsilon_posterior_cdf(0.8, tn, fn, tp, fp, delta=0.01) == pytest.approx(values, abs=1e-11)
    assert epsilon_posterior_cdf(0.8, fn, tn, fp, tp, delta=0.01) == pytest.approx(values, abs=1e-11)


def test_scalars_give_floats_and_arrays_broadcast() -> None:
    interval = epsilon_interval(**PAPER, delta=0.05, confidence=0.95)
    assert all(type(end) is float for end in interval)
    assert type(epsilon_posterior_pdf(1.0, **PAPER, delta=0.05)) is float
    wide = epsilon_interval([[65], [70]], 25, 75, [[35], [30]], delta=[0.0, 0.05, 0.1], confidence=0.95)
    assert np.shape(wide.lower) == (2, 3)
    assert np.asarray(wide.lower)[0, 1] == interval.lower
    assert np.shape(epsilon_posterior_cdf(np.zeros((4, 1, 1)), **PAPER, delta=[[0.0], [0.1]])) == (4, 2, 1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tp": -1}, "tp must be >= 0, got -1"),
        ({"fn": 0.5}, "fn must be an integer count, got 0.5"),
        ({"tp": 0, "fn": 0}, r"tp \+ fn must be >= 1, a trial in each world, got 0"),
        ({"delta": 1.5}, r"delta must be in \[0, 1\), got 1.5"),
        ({"delta": math.nan}, r"delta must be in \[0, 1\), got nan"),
        ({"confidence": 0.0}, r"confidence must be in \(0, 1\), got 0.0"),
        ({"method": "wald"}, "method must be one of bayesian, jeffreys, clopper-pearson, got 'wald'"),
        ({"side": "upper"}, "side must be one of two-sided, lower, got 'upper'"),
        ({"tp": [1, 2], "fp": [1, 2, 3]}, "must have shapes that broadcast"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(changed: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        epsilon_interval(**{**PAPER, "delta": 0.05, "confidence": 0.95, **changed})  # type: ignore[arg-type]
