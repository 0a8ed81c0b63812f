"""Epsilon from hits on neighbouring data sets: formulas, group privacy, exact coverage and a planted defect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpaudit.errors import InputError
from dpaudit.estimators.proportions.binomial import clopper_pearson, katz_log
from dpaudit.estimators.two_world.confusion import epsilon_interval
from dpaudit.estimators.two_world.ratio import detectable_ceiling, ratio_epsilon
from tests.nightly import by_day


def test_one_direction_is_the_ratio_of_two_limits() -> None:
    low = clopper_pearson(80, 100, confidence=0.975, side="lower").lower
    high = clopper_pearson(20, 120, confidence=0.975, side="upper").upper
    bound = ratio_epsilon(80, 20, 100, 120, delta=0.05, confidence=0.95, directions="one")
    assert bound == pytest.approx(math.log((low - 0.05) / high), abs=1e-11)


def test_best_of_both_directions_and_the_complement_spends_a_quarter_on_each_limit() -> None:
    sample = {"delta": 0.01, "confidence": 0.95}
    low = clopper_pearson(95, 100, confidence=1 - 0.05 / 4, side="lower").lower
    high = clopper_pearson(50, 100, confidence=1 - 0.05 / 4, side="upper").upper
    complement = math.log((1 - high - 0.01) / (1 - low))
    assert complement > math.log((low - 0.01) / high)
    for n1, n0 in ((95, 50), (50, 95), (5, 50), (50, 5)):
        assert ratio_epsilon(n1, n0, 100, 100, **sample) == pytest.approx(complement, abs=1e-11)


@pytest.mark.parametrize(("epsilon", "n", "cp", "katz"), [(1, 5_000, 0.9369, 0.9510), (4, 500_000, 3.9792, 3.9795)])
def test_tightness_at_the_median_outcome(epsilon: float, n: int, cp: float, katz: float) -> None:
    k = int(stats.binom.median(n, 1 / (1 + math.exp(epsilon))))
    sample = {"delta": 0.0, "confidence": 0.95, "directions": "one"}
    assert ratio_epsilon(n - k, k, n, n, **sample) == pytest.approx(cp, abs=6e-5)  # type: ignore[arg-type]
    assert ratio_epsilon(n - k, k, n, n, method="katz-log", **sample) == pytest.approx(katz, abs=6e-5)  # type: ignore[arg-type]


def test_equals_the_confusion_tables_corner_for_a_symmetric_attack() -> None:
    """Hits in world 1 are true positives, hits in world 0 false positives. At equal rates Eq. 1's terms coincide."""
    table = epsilon_interval(900, 100, 900, 100, delta=1e-3, confidence=0.95, method="clopper-pearson", side="lower")
    one_direction = ratio_epsilon(900, 100, 1000, 1000, delta=1e-3, confidence=0.95, directions="one")
    assert one_direction == pytest.approx(table.lower, abs=1e-11)


@pytest.mark.parametrize("method", ["clopper-pearson", "katz-log"])
@pytest.mark.parametrize("group", [2, 5])
def test_pure_group_privacy_divides(method: str, group: int) -> None:
    single = ratio_epsilon(900, 50, 1000, 1000, delta=0, confidence=0.95, method=method)
    many = ratio_epsilon(900, 50, 1000, 1000, delta=0, confidence=0.95, method=method, group=group)
    assert many == pytest.approx(np.asarray(single) / group, rel=1e-12)


@pytest.mark.parametrize(("group", "delta"), [(2, 1e-3), (3, 0.05), (16, 1e-5)])
def test_group_privacy_with_delta_solves_its_equation(group: int, delta: float) -> None:
    bound = float(ratio_epsilon(900, 50, 1000, 1000, delta=delta, confidence=0.95, group=group, directions="one"))
    p1 = clopper_pearson(900, 1000, confidence=0.975, side="lower").lower
    p0 = clopper_pearson(50, 1000, confidence=0.975, side="upper").upper
    grown = math.exp(group * bound)
    right = grown * p0 + delta * (grown - 1) / math.expm1(bound)
    assert right == pytest.approx(p1, rel=1e-11)
    assert bound < ratio_epsilon(900, 50, 1000, 1000, delta=0, confidence=0.95, group=group, directions="one")


def test_katz_one_direction_is_the_published_interval() -> None:
    lower = katz_log(80, 100, 20, 120, confidence=0.95).lower
    one_direction = ratio_epsilon(80, 20, 100, 120, delta=0, confidence=0.95, method="katz-log", directions="one")
    assert one_direction == pytest.approx(lower, rel=1e-12)
    best = ratio_epsilon(80, 20, 100, 120, delta=0, confidence=0.95, method="katz-log")
    assert best == pytest.approx(katz_log(80, 100, 20, 120, confidence=0.975).lower, rel=1e-12)


def test_katz_with_delta_moves_by_the_linearised_error() -> None:
    """At group 1 it has a closed form: ln((p1 - delta) / p0) - z sqrt(v1 / (p1 - delta)^2 + v0 / p0^2)."""
    p1, p0, n, delta = 0.8, 0.2, 500, 0.03
    spread = math.sqrt(p1 * (1 - p1) / n / (p1 - delta) ** 2 + (1 - p0) / p0 / n)
    expected = math.log((p1 - delta) / p0) - stats.norm.isf(0.025) * spread
    bound = ratio_epsilon(400, 100, n, n, delta=delta, confidence=0.95, method="katz-log", directions="one")
    assert bound == pytest.approx(expected, rel=1e-11)


def test_no_hits_give_a_bound_of_0() -> None:
    assert ratio_epsilon(50, 0, 100, 100, delta=0, confidence=0.95, method="katz-log", directions="one") == 0.0
    assert ratio_epsilon(50, 50, 100, 100, delta=0, confidence=0.95) == 0.0
    assert ratio_epsilon(5, 1, 100, 100, delta=0.2, confidence=0.95, group=3) == 0.0
    assert math.isfinite(ratio_epsilon(10**6, 0, 10**6, 10**6, delta=0, confidence=0.95))


@pytest.mark.parametrize("directions", ["one", "best"])
@pytest.mark.parametrize(("epsilon", "delta", "group"), [(0.0, 0.0, 1), (1.0, 0.0, 1), (1.0, 0.05, 1), (0.5, 0.02, 3)])
def test_clopper_pearson_claims_falsely_no_more_than_stated(
    directions: str, epsilon: float, delta: float, group: int
) -> None:
    """Exact sums over 60 runs a world, by day 40, for worlds on the boundary of the claim."""
    n = by_day(40, by_night=60)
    k = np.arange(n + 1)
    bounds = ratio_epsilon(k[:, None], k, n, n, delta=delta, confidence=0.9, group=group, directions=directions)
    grown = math.exp(group * epsilon)
    leak = delta * sum(math.exp(j * epsilon) for j in range(group))
    for p0 in (0.01, 0.05, 0.1, 0.2, (1 - leak) / (1 + grown)):
        p1 = grown * p0 + leak
        if p1 + p0 <= 1 + 1e-12:  # else the complement would refute a larger epsilon
            outcomes = np.outer(stats.binom.pmf(k, n, p1), stats.binom.pmf(k, n, p0))
            assert outcomes[np.asarray(bounds) > epsilon].sum() <= 0.1


def test_katz_errs_with_half_of_alpha_on_randomized_response() -> None:
    """Exact sum at epsilon 1, 1,000 runs a world: 0.0226 against 0.025."""
    n, truth = 1000, 1.0
    k1 = np.arange(620, 840)
    k0 = n - k1
    rate = 1 / (1 + math.e)
    bounds = ratio_epsilon(k1[:, None], k0, n, n, delta=0, confidence=0.95, method="katz-log", directions="one")
    outcomes = np.outer(stats.binom.pmf(k1, n, 1 - rate), stats.binom.pmf(k0, n, rate))
    assert outcomes[np.asarray(bounds) > truth].sum() == pytest.approx(0.0226, abs=6e-5)


def test_planted_defect_claims_falsely_too_often() -> None:
    """The better direction of the plug-in ratio, without limits, mostly claims epsilon > 0 between equal worlds."""
    n, k = 60, np.arange(61)
    with np.errstate(divide="ignore"):
        plug_in = np.maximum(np.log(k[:, None] / np.maximum(k, 1)), np.log(np.maximum(k, 1) / k[:, None]))
    outcomes = np.outer(stats.binom.pmf(k, n, 0.5), stats.binom.pmf(k, n, 0.5))
    assert outcomes[plug_in > 0].sum() > 0.5


def test_detectable_ceiling() -> None:
    """n0 = 1 is the largest at 95 %; at 99 % and 10^4 runs n0 = 2 gives 6.6960 where the paper prints 6.6346."""
    z = stats.norm.isf(0.025)
    assert detectable_ceiling(10_000, confidence=0.95) == pytest.approx(
        math.log(1e4) - z * math.sqrt(1 - 1e-4), rel=1e-12
    )
    assert detectable_ceiling(10_000, confidence=0.99) == pytest.approx(6.6960, abs=5e-5)
    assert detectable_ceiling([1, 2], confidence=0.99) == pytest.approx([0, 0])


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99, 1 - 1e-6])
@pytest.mark.parametrize("trials", [10, 500, 10_000])
def test_detectable_ceiling_is_the_largest_over_all_counts(trials: int, confidence: float) -> None:
    lower = katz_log(trials, trials, np.arange(1, trials + 1), trials, confidence=confidence).lower
    assert detectable_ceiling(trials, confidence=confidence) == pytest.approx(np.max(lower), rel=1e-12)


def test_scalars_give_floats_and_arrays_broadcast() -> None:
    for method in ("clopper-pearson", "katz-log"):
        assert type(ratio_epsilon(8, 2, 10, 10, delta=0, confidence=0.9, method=method)) is float
        many = ratio_epsilon([[8], [9]], 2, 10, 10, delta=0.01, confidence=0.9, group=[1, 2, 3], method=method)
        assert np.shape(many) == (2, 3)
    assert type(detectable_ceiling(100, confidence=0.95)) is float


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n1": 11}, "n1 must be <= trials1"),
        ({"n0": -1}, "n0 must be >= 0, got -1"),
        ({"trials0": 0, "n0": 0}, "trials0 must be >= 1, got 0"),
        ({"group": 0}, "group must be >= 1, got 0"),
        ({"delta": -0.1}, r"delta must be in \[0, 1\), got -0.1"),
        ({"method": "wald"}, "method must be one of clopper-pearson, katz-log, got 'wald'"),
        ({"directions": "both"}, "directions must be one of one, best, got 'both'"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(changed: dict[str, object], message: str) -> None:
    settings = {"n1": 8, "n0": 2, "trials1": 10, "trials0": 10, "delta": 0.0, "confidence": 0.95}
    with pytest.raises(InputError, match=message):
        ratio_epsilon(**{**settings, **changed})  # type: ignore[arg-type]
