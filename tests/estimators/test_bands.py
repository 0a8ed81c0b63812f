"""Simultaneous bands: crossing probability against exact arithmetic, coverage by simulation, and a planted defect."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import special, stats

from dpaudit.errors import InputError
from dpaudit.estimators.scores import Scores
from dpaudit.estimators.two_world import bands
from dpaudit.estimators.two_world.bands import (
    WEIGHTS,
    crossing_probability,
    local_level,
    upper_rates,
    upper_rates_at,
)
from dpaudit.estimators.two_world.two_sample import Band, RateRegions, epsilon_of_limits
from tests import nightly
from tests.nightly import by_day, too


def staying_probability_twin(limits: list[Fraction]) -> Fraction:
    """Pr[U_(k) <= limits[k - 1] for all k], by integrating the polynomials of the order statistics' density.

    After integrating x_n, ..., x_k (each from its predecessor to its limit) a polynomial in x_{k-1} is left.
    """
    polynomial = [Fraction(1)]
    for limit in reversed(limits):
        integral = [Fraction(0)] + [c / (power + 1) for power, c in enumerate(polynomial)]
        at_limit = sum((c * limit**power for power, c in enumerate(integral)), Fraction(0))
        polynomial = [at_limit, *(-c for c in integral[1:])]
    return polynomial[0] * math.factorial(len(limits))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 25])
@pytest.mark.parametrize("weight", list(WEIGHTS))
@pytest.mark.parametrize("level", [1e-4, 0.01, 0.2])
def test_crossing_probability_is_exact(n: int, weight: str, level: float) -> None:
    """Tolerances: 1e-9 of the staying probability is dropped on purpose, and 1e-7 lies beyond six deviations."""
    limits = bands._limits(n, np.arange(1, n + 1), level, weight)
    exact = float(1 - staying_probability_twin([Fraction(limit) for limit in limits]))
    computed = crossing_probability(n, level, weight)
    assert exact <= computed <= exact + 2e-7


def test_limit_of_a_single_score() -> None:
    """n = 1: the band is Pr[U > u] = error, except that 2 % of the error may stay unused."""
    upper = upper_rates(1, error=0.05)
    assert upper[1] == 1.0
    assert 0.95 <= upper[0] <= 0.95 + 0.05 * 0.021


@pytest.mark.parametrize("weight", list(WEIGHTS))
@pytest.mark.parametrize(("n", "error"), [(2, 0.05), (30, 0.4), (100, 0.0125), (1_000, 0.025), (4_000, 0.005)])
def test_level_spends_all_of_the_error_and_no_more(weight: str, n: int, error: float) -> None:
    level = local_level(n, error=error, weight=weight)
    assert 0.98 * error <= crossing_probability(n, level, weight) <= error


@pytest.mark.parametrize(
    ("n", "error"), [(10_000, 0.025), (13_931, 0.28), (30_011, 1e-4), *too((10_007, 1.1e-5), (70_001, 0.0084))]
)
def test_fitted_level_spends_nearly_all_of_the_error_and_no_more(n: int, error: float) -> None:
    """The recursion checks sizes and errors outside the fit. A level 2 % higher would overspend the error."""
    level = bands.fitted_level(n, error, "low")
    assert level == local_level(n, error=error, weight="low")
    assert 0.95 * error <= crossing_probability(n, level, "low") <= error
    assert crossing_probability(n, 1.03 * level, "low") > error


def test_wrong_beta_quantile_of_scipy_does_no_harm() -> None:
    """scipy 1.17.1 returns 1 for rank 1,000 of 87,270. Limits out of order would stop the recursion early."""
    level = 7.225211180896089e-08
    neighbour = crossing_probability(87_271, level, "low") if nightly.on() else 1.594799e-4
    assert crossing_probability(87_270, level, "low") == pytest.approx(neighbour, rel=1e-4)


def test_levels_are_fitted_only_for_many_scores_and_the_default_weight() -> None:
    for n, error, weight in ((9_999, 0.02, "low"), (10**7, 0.02, "low"), (10**4, 1e-6, "low"), (10**4, 0.02, "flat")):
        assert bands.fitted_level(n, error, weight) is None


def test_blocks_of_ranks_err_little_and_on_the_safe_side(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = crossing_probability(2_500, 0.0004, "low")
    monkeypatch.setattr(bands, "_EXACT_UP_TO", 10)
    blocks = crossing_probability(2_500, 0.0004, "low")
    assert exact < blocks < 1.15 * exact


@pytest.mark.parametrize(("n", "weight"), [(300, "low"), (300, "flat"), (30_000, "low"), *too((30_000, "flat"))])
def test_sum_of_crossings_is_an_upper_bound_and_costs_little(n: int, weight: str) -> None:
    """The approximation for very many scores overstates the crossing probability, which lowers the level."""
    for level in (1e-5, 1e-3):
        assert bands.union_crossing_probability(n, level, weight) >= bands.crossing_probability(n, level, weight)
    followed = bands.local_level(n, error=0.02, weight=weight)
    added_up = bands._solve(lambda trial: bands.union_crossing_probability(n, trial, weight), followed, n, 0.02)
    assert bands.union_crossing_probability(n, added_up, weight) <= 0.02
    widths = [special.ndtri(level) for level in (added_up, followed)]
    assert 1 < widths[0] / widths[1] < 1.4


def test_ten_million_scores_have_a_level_at_once() -> None:
    """The level is below that of two million, which takes the recursion 100 times the work; by day 2.5 million."""
    n = by_day(2_500_000, by_night=10_000_000)
    level = bands.local_level(n, error=0.0125, weight="low")
    assert 1e-9 < level < 2e-5
    assert bands.union_crossing_probability(n, level, "low") <= 0.0125


def test_limits_contain_the_counts_and_increase() -> None:
    for weight in WEIGHTS:
        upper = upper_rates(200, error=0.05, weight=weight)
        assert upper.shape == (201,)
        assert (np.diff(upper) >= 0).all()
        assert (upper[1:] >= np.arange(1, 201) / 200).all()
        counts = np.array([0, 7, 200])
        assert np.array_equal(upper_rates_at(counts, 200, error=0.05, weight=weight), upper[counts])


@pytest.mark.parametrize("ties", [False, True])
def test_bands_hold_at_all_thresholds_together(ties: bool) -> None:
    """20,000 samples of 60 scores, continuous or with seven values: false failure < 1e-6 (binomial quantile)."""
    n, error, samples = 60, 0.05, 20_000
    rng = np.random.default_rng(5)
    uniform = rng.random((samples, n))
    level_of = np.ceil(uniform * 7) / 7 if ties else uniform
    above = _worst_excess(level_of, upper_rates(n, error=error, weight="low"), ties)
    assert (above > 0).sum() <= stats.binom.ppf(1 - 1e-6, samples, error)
    pointwise = special.betainccinv(np.arange(1, n + 1), n - np.arange(n), error)
    wrong = _worst_excess(level_of, np.append(pointwise, 1.0), ties)
    assert (wrong > 0).sum() > stats.binom.ppf(1 - 1e-6, samples, error), "limits of single ranks must be caught"


def _worst_excess(level: np.ndarray, upper: np.ndarray, ties: bool) -> np.ndarray:
    """Return the largest Pr[score < t] - limit over thresholds t; `level` holds each score's distribution function."""
    n = level.shape[1]
    thresholds = np.arange(1, 8) / 7 if ties else None
    if thresholds is not None:
        below = (level[:, :, None] < thresholds - 1e-9).sum(axis=1)
        return (thresholds - 1 / 7 - upper[below]).max(axis=1)
    # Just below the k-th smallest score k - 1 scores are below, and the rate there is the score's own level.
    return (np.sort(level, axis=1) - upper[np.arange(n)]).max(axis=1)


def test_a_band_for_a_hundred_thousand_scores_is_near_the_known_rate() -> None:
    """The local level falls like 1 / (log n log log n), far slower than the union bound's 1 / n."""
    assert 0.005 < local_level(100_000, error=0.025) / 0.025 < 0.012


@pytest.mark.parametrize("n", [8192, *too(16384)])
def test_a_band_for_a_power_of_two_is_like_its_neighbours(n: int) -> None:
    """For these n the fifth power is a multiple of 2 ** 64, so integers would overflow to 0."""
    assert local_level(n, error=0.025) == pytest.approx(local_level(n + 1, error=0.025), rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0, "error": 0.05}, "at least one score"),
        ({"n": 5, "error": 0.0}, "error of a band must be in (0, 1)"),
        ({"n": 5, "error": 0.05, "weight": "heavy"}, "weight must be one of flat"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as refused:
        upper_rates(**arguments)  # type: ignore[arg-type]
    assert message in str(refused.value)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_best_threshold_is_found_among_few_candidates(shift: float) -> None:
    """40,000 scores: at every delta within 1e-3 of the best of all thresholds, and never above it."""
    rng = np.random.default_rng(3)
    truth = rng.random(40_000) < 0.5
    band = Band(1e-5)
    tally = band.tally(Scores(rng.normal(size=40_000) + shift * truth, truth))
    everywhere = band.rates(tally, 0.05, np.arange(tally.threshold.size))
    bound = band.bound([tally])
    (region,) = [evidence for evidence in bound.evidence if isinstance(evidence, RateRegions)]
    assert region.rates[0][0].size < tally.threshold.size / 10
    for delta in (0.0, 1e-5, 1e-3, 0.1, 0.4):
        best = float(epsilon_of_limits(*everywhere, delta).max())
        assert (
            best - 1e-3 <= region.epsilon(delta) <= best * (1 + 1e-15)
        )  # the last digit depends on the vector's length
    assert bound.lower == region.epsilon(1e-5)


def test_epsilon_of_two_rates_is_rounded_down_slightly() -> None:
    for alarm, miss, delta in ((0.01, 0.3, 0.0), (0.3, 0.01, 1e-5), (1e-9, 0.5, 0.1), (0.2, 0.2, 0.05)):
        with mp.workdps(30):
            exact = max(mp.log((1 - mpf(delta) - b) / a) for a, b in ((alarm, miss), (miss, alarm)))
        (epsilon,) = epsilon_of_limits(np.array([alarm]), np.array([miss]), delta)
        assert exact - 1e-9 < epsilon < exact


def test_few_thresholds_are_all_evaluated() -> None:
    rng = np.random.default_rng(4)
    truth = rng.random(3_000) < 0.5
    band = Band()
    tally = band.tally(Scores(rng.normal(size=3_000) + truth, truth))
    assert 100 < tally.threshold.size <= 2_048
    (best,), (threshold_index,) = band.best([tally], 1)
    bounds = band.lower(tally, 0.05)
    assert best == bounds[threshold_index] == bounds.max()
