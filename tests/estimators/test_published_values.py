"""Published values against exact sums and simulation, where no test of a single module covers them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from dpaudit.errors import InputError
from dpaudit.estimators.one_run.f_dp import f_dp_epsilon, f_dp_parameter
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.private_prediction.noisy_argmax import noisy_argmax_probabilities
from dpaudit.estimators.private_prediction.two_cut import two_cut_bound
from dpaudit.estimators.proportions.binomial import clopper_pearson, jeffreys, katz_log
from dpaudit.estimators.two_world.confusion import epsilon_interval, epsilon_posterior_cdf
from dpaudit.estimators.two_world.two_sample import roc_corners
from tests.nightly import by_day
from tests.twins import one_run_twin


@pytest.mark.parametrize(
    ("limits", "method", "rectangle", "enclosing"),
    [(clopper_pearson, "clopper-pearson", 0.9630, 0.9979), (jeffreys, "jeffreys", 0.9506, 0.9967)],
)
def test_posterior_mass_of_the_rectangles(limits: object, method: str, rectangle: float, enclosing: float) -> None:
    """Zanella-Beguelin et al., section 3.3: 96.3 % and 99.8 %, printed for Jeffreys, are Clopper and Pearson's."""
    sides = [limits(errors, 100, confidence=0.975) for errors in (35, 25)]  # type: ignore[operator]
    posteriors = [beta(errors + 0.5, 100.5 - errors) for errors in (35, 25)]
    mass = math.prod(p.cdf(end.upper) - p.cdf(end.lower) for p, end in zip(posteriors, sides, strict=True))
    assert mass == pytest.approx(rectangle, abs=5.1e-5)
    ends = epsilon_interval(65, 25, 75, 35, delta=0.05, confidence=0.95, method=method)
    low, high = epsilon_posterior_cdf(np.array(ends), 65, 25, 75, 35, delta=0.05)  # type: ignore[misc]
    assert high - low == pytest.approx(enclosing, abs=5.1e-5)


def test_footnote_1_prints_the_weaker_of_two_terms() -> None:
    """1.736 is log((1 - delta) / FNR) at FPR = 0, where the other term, the larger, is infinite and was dropped."""
    miss = float(clopper_pearson(10, 100, confidence=0.95).upper)
    alarm = float(clopper_pearson(0, 100, confidence=0.95).upper)
    assert math.log((1 - 1e-5) / miss) == pytest.approx(1.73600, abs=5e-6)
    assert math.log((1 - 1e-5 - miss) / alarm) == pytest.approx(3.12437, abs=5e-6)


def test_p_value_with_as_many_trials_as_canaries_is_1() -> None:
    """Theorem 17 prints a sum over all 10,000 canaries: a p-value of 1 for 94 right of 100 guesses, at epsilon = 0."""
    assert binom.sf(93, 10_000, 0.5) == 1.0
    assert one_run_epsilon(100, 94, canaries=10_000, delta=0.0, confidence=1 - 1e-15) > 0


def test_theorem_16_is_false_below_the_mean_even_with_twice_the_delta_term() -> None:
    """Two canaries, one right, epsilon 2, delta 0.02; the factor 2 is the formula at twice the delta."""
    exact = one_run_twin.largest_tail(2, 1, 2, 2.0, 0.02)
    stated = float(one_run_twin.theorem_16_p_value(2, 1, 2, 0.04, 2.0))
    assert exact == pytest.approx(0.98846, abs=5.1e-6)
    assert stated == pytest.approx(0.98693, abs=5.1e-6)
    with pytest.raises(InputError, match=r"holds for confidence > 0\.5 only"):
        one_run_epsilon(2, 1, canaries=2, delta=0.02, confidence=0.02, method="theorem-16")


def test_an_epsilon_below_0_is_raised_to_0() -> None:
    """The accepted mu = 0 has epsilon(delta) = log(1 - delta) < 0."""
    assert f_dp_parameter(100, 50, canaries=100, confidence=0.95) == 0
    assert f_dp_epsilon(100, 50, canaries=100, delta=0.1, confidence=0.95) == 0


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "mu", "epsilon", "theorem_16"),
    [
        (10**6, 10**6, 691_462, 0.34149, 1.30545, 0.80326),
        (10**6, 10**5, 90_326, 0.68902, 2.85808, 2.21226),
        (10**6, 10**4, 9_584, 0.79595, 3.36735, 2.80918),
        (10**6, 10**3, 979, 0.82613, 3.51362, 1.43816),
        (10**4, 10**3, 903, 0.68688, 2.84801, 2.04956),
    ],
)
def test_gaussian_mechanism_at_the_expected_counts(
    canaries: int, guesses: int, correct: int, mu: float, epsilon: float, theorem_16: float
) -> None:
    """The printed rows (.342, 1.307, 2.860, 3.367, 3.433, 2.865) use drawn counts; this test uses mean counts."""
    counts = {"canaries": canaries, "confidence": 0.95}
    assert f_dp_parameter(guesses, correct, **counts) == pytest.approx(mu, abs=5.1e-6)
    assert f_dp_epsilon(guesses, correct, delta=1e-5, **counts) == pytest.approx(epsilon, abs=5.1e-6)
    published = one_run_epsilon(guesses, correct, delta=1e-5, method="theorem-16", **counts)
    assert published == pytest.approx(theorem_16, abs=5.1e-6)


@pytest.mark.parametrize(
    ("n", "termwise", "corner"), [(10**4, 0.17651, 0.19881), (10**6, 0.22750, 0.22963), (10**8, 0.23256, 0.23277)]
)
def test_two_cut_at_the_expected_counts(n: int, termwise: float, corner: float) -> None:
    """Chadha et al.'s example, order 2; .1766 and .1989 in print for 10,000 draws are simulated medians."""
    p, q = (noisy_argmax_probabilities(votes, 2.0)[0] for votes in ([14, 12, 10, 8, 6], [13, 13, 10, 8, 6]))
    for method, expected in (("termwise", termwise), ("corner", corner)):
        bound = two_cut_bound(round(n * p), n, round(n * q), n, 2.0, confidence=0.95, method=method)  # type: ignore[arg-type]
        assert bound == pytest.approx(expected, abs=5.1e-6)


@pytest.mark.parametrize(("epsilon", "worst"), [(0.5, 0.0247), (1.0, 0.0245), (2.0, 0.0243), (4.0, 0.0241)])
def test_katz_errs_less_often_than_half_of_alpha(epsilon: float, worst: float) -> None:
    """Exact sums over both binomials. The paper prints 0.0243, the largest rate, at epsilon 2."""
    rates = [
        _katz_false_claims(math.exp(epsilon) * hits / trials, hits / trials, trials)
        for trials in (10**4, 10**5, 10**6)
        for hits in (1, 3, 10, 30, 100, 300, 1000)
        if math.exp(epsilon) * hits < 0.9 * trials
    ]
    assert max(rates) <= 0.025
    assert max(rates) == pytest.approx(worst, abs=6e-5)


def _katz_false_claims(p1: float, p0: float, trials: int) -> float:
    (first, weight1), (second, weight0) = (_outcomes(trials, p) for p in (p1, p0))
    lower = katz_log(first[:, None], trials, second, trials, confidence=0.95).lower
    return float(weight1 @ (np.asarray(lower) > math.log(p1 / p0)) @ weight0)


def _outcomes(n: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and their probabilities, which sum to at least 1 - 1e-9."""
    counts = np.arange(int(binom.ppf(5e-10, n, rate)), int(binom.isf(5e-10, n, rate)) + 1)
    return counts, binom.pmf(counts, n, rate)


@pytest.mark.parametrize(("n", "exact", "katz"), [(100, 0.032, 0.287), (1000, 0.068, 0.449)])
def test_the_best_threshold_uncorrected_claims_falsely(n: int, exact: float, katz: float) -> None:
    """No leak, delta 0, the best of all thresholds on the reporting sample; 800 games, by day 200.

    The printed rates were simulated too, in at least 800 games. Two rates p from n and 800 games differ by more than
    5 sqrt(p (1 - p) (1 / n + 1 / 800)) about once in a million times.
    """
    rng, games = np.random.default_rng(7), by_day(200, by_night=800)
    member = np.repeat([True, False], n)
    false_claims = np.zeros(2)
    for _ in range(games):
        roc = roc_corners(rng.random(2 * n), member)
        tp, fp = roc.true_positives, roc.false_positives
        bounds = epsilon_interval(
            tp, fp, n - fp, n - tp, delta=0.0, confidence=0.95, method="clopper-pearson", side="lower"
        )
        false_claims += [
            np.max(bounds.lower) > 0,
            np.max(katz_log(tp, n, fp, n, confidence=0.95).lower) > 0,
        ]
    for rate, printed in zip(false_claims / games, (exact, katz), strict=True):
        assert abs(rate - printed) < 5 * math.sqrt(printed * (1 - printed) * (1 / games + 1 / 800))
