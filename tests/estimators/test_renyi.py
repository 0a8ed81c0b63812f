"""Renyi divergences: closed forms, the audit's checked values, its coverage, and defects that must show."""

from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, minimize
from scipy.special import log_ndtr
from scipy.stats import binom

from dpaudit.errors import InputError
from dpaudit.estimators.finding import Validity
from dpaudit.estimators.private_prediction.divergence import rdp_to_epsilon, renyi_divergence, renyi_divergence_of_logs
from dpaudit.estimators.private_prediction.k_cut import bootstrap_bound, k_cut_bound
from dpaudit.estimators.private_prediction.noisy_argmax import (
    gnmax_log_flips,
    gnmax_rdp_data_dependent,
    noisy_argmax_probabilities,
)
from dpaudit.estimators.private_prediction.rdp_bound import (
    VALIDITY,
    RenyiBound,
    compose_bounds,
    k_cut_audit,
    query_confidence,
    two_cut_audit,
    worst_query,
)
from dpaudit.estimators.private_prediction.two_cut import two_cut_bound, two_cut_set
from dpaudit.estimators.proportions.binomial import clopper_pearson
from tests.nightly import by_day, nightly_games
from tests.twins import renyi_twin

FIRST, SECOND = [14, 12, 10, 8, 6], [13, 13, 10, 8, 6]  # the example of Chadha et al. (2024), sigma = 2
ORDERS = [1.5, 2.0, 4.0, 16.0]


def toy() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return noisy_argmax_probabilities(FIRST, 2.0), noisy_argmax_probabilities(SECOND, 2.0)


# --- Divergence ---


@pytest.mark.parametrize("order", [0.5, 1 + 1e-9, 1.5, 2.0, 8.0, 300.0])
def test_divergence_of_two_coins_is_its_formula(order: float) -> None:
    with mpmath.workdps(40):
        p, q, a = mpmath.mpf("0.7"), mpmath.mpf("0.45"), mpmath.mpf(order)
        exact = float(mpmath.log(p**a * q ** (1 - a) + (1 - p) ** a * (1 - q) ** (1 - a)) / (a - 1))
    # p and q are floats next to 0.7 and 0.45: off by 1e-16, times the derivative, below 10.
    assert renyi_divergence([0.7, 0.3], [0.45, 0.55], order) == pytest.approx(exact, abs=2e-15)


def test_divergence_at_the_limits_of_the_order() -> None:
    p, q = [0.7, 0.2, 0.1], [0.5, 0.1, 0.4]
    values = renyi_divergence(p, q, [1.0, math.inf])
    kullback = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    assert values == pytest.approx([kullback, math.log(2)], abs=1e-15)
    grid = np.asarray(renyi_divergence(p, q, [0.1, 0.9, 1.0, 1.1, 2, 10, 1e3, math.inf]))
    assert np.all(np.diff(grid) > 0)  # it grows with the order


def test_divergence_if_one_law_has_no_mass() -> None:
    assert renyi_divergence([1, 0], [0.5, 0.5], 2.0) == pytest.approx(math.log(2), abs=1e-15)
    assert renyi_divergence([0.5, 0.5], [1, 0], [1.0, 2.0, math.inf]) == pytest.approx([math.inf] * 3)
    assert renyi_divergence([0.5, 0.5], [1, 0], 0.5) == pytest.approx(math.log(2), abs=1e-15)
    assert renyi_divergence([0, 0.5, 0.5], [0, 0.5, 0.5], ORDERS) == pytest.approx([0.0] * 4)


def test_divergence_of_nearly_equal_laws_keeps_its_digits() -> None:
    """D_a is a eps^2 / (2 p (1 - p)) + O(eps^3) here: relative error about eps, plus 1e-16 / D of rounding p."""
    eps = 1e-6
    assert renyi_divergence([0.5 + eps, 0.5 - eps], [0.5, 0.5], 3.0) == pytest.approx(6 * eps**2, rel=1e-4)


def test_divergence_broadcasts_over_rows_and_orders() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 5))
    q = np.full(4, 0.25)
    values = np.asarray(renyi_divergence(p, q, ORDERS))
    assert values.shape == (3, 5, 4)
    assert values[2, 1, 3] == renyi_divergence(p[2, 1], q, ORDERS[3])


def test_divergence_of_logs_reaches_below_the_smallest_float() -> None:
    logs = np.array([-2000.0, 0.0]), np.array([-1000.0, 0.0])
    # log(e^(-4 * 1000 + 3 * 2000) + 1) / 3
    assert renyi_divergence_of_logs(logs[1], logs[0], 4.0) == pytest.approx(2000 / 3, rel=1e-15)
    assert renyi_divergence_of_logs(logs[0], logs[1], 4.0) == 0
    p, q = noisy_argmax_probabilities([200, 0], 1.0, log=True), noisy_argmax_probabilities([199, 1], 1.0, log=True)
    # At so high an order the unlikely class decides: a log p - (a - 1) log q, over a - 1.
    order = 1e4
    expected = (order * q[1] - (order - 1) * p[1]) / (order - 1)
    assert renyi_divergence_of_logs(q, p, order) == pytest.approx(expected, rel=1e-9)


# --- Noisy argmax ---


def test_example_of_the_paper() -> None:
    p, q = toy()
    assert renyi_divergence(p, q, 2.0) == pytest.approx(0.23956, abs=5e-6)
    assert renyi_divergence(q, p, 2.0) == pytest.approx(0.31235, abs=5e-6)
    chosen = two_cut_set(p, q, 2.0)
    cut = renyi_divergence([p[chosen].sum(), p[~chosen].sum()], [q[chosen].sum(), q[~chosen].sum()], 2.0)
    assert cut == pytest.approx(0.23312, abs=5e-6)


def test_two_classes_have_a_closed_form_however_small() -> None:
    """Relative error of the smaller probability, gaps to 200 sigma: rounding of exponents of 1e4 is 2e-12."""
    gaps = np.array([0.0, 0.1, 1.0, 5.0, 30.0, 200.0])
    logs = noisy_argmax_probabilities(np.stack([gaps, np.zeros(6)], axis=-1), 1.0, log=True)
    assert np.max(np.abs(logs[:, 1] - log_ndtr(-gaps / math.sqrt(2)))) < 4e-12
    assert np.max(np.abs(logs[:4, 1] - log_ndtr(-gaps[:4] / math.sqrt(2)))) < 1e-14


@pytest.mark.parametrize(
    ("histogram", "sigma"),
    [
        ([14, 12, 10, 8, 6], 2.0),
        ([200, 20, 20, 5, 5, 0, 0, 0, 0, 0], 3.0),
        ([50] * 30 + [0], 2.0),
        ([3.5, -1, 3.5], 0.7),
    ],
)
def test_probabilities_against_high_precision_integrals(histogram: list[float], sigma: float) -> None:
    logs = noisy_argmax_probabilities(histogram, sigma, log=True)
    for c in {0, 1, len(histogram) - 1}:
        assert logs[c] == pytest.approx(renyi_twin.log_noisy_argmax(histogram, sigma, c), abs=1e-12)
    assert np.exp(logs).sum() == pytest.approx(1, abs=1e-13)
    assert np.allclose(np.exp(logs), noisy_argmax_probabilities(histogram, sigma), rtol=0, atol=0)


def test_equal_counts_share_equally_and_batches_are_rows() -> None:
    assert noisy_argmax_probabilities(np.full(1000, 7.0), 3.0) == pytest.approx(np.full(1000, 1e-3), rel=1e-12)
    assert noisy_argmax_probabilities([5.0], 1.0) == pytest.approx([1.0], abs=1e-15)
    batch = np.random.default_rng(1).integers(0, 250, size=(3, 2, 6))
    sigmas = np.array([[20.0, 30.0]] * 3)
    values = noisy_argmax_probabilities(batch, sigmas)
    assert values.shape == batch.shape
    assert np.array_equal(values[2, 1], noisy_argmax_probabilities(batch[2, 1], 30.0))
    assert noisy_argmax_probabilities(batch + 1000, sigmas) == pytest.approx(values, abs=1e-13)


# --- 2-cut ---


@pytest.mark.parametrize(
    ("n", "termwise", "corner"), [(10**6, 0.0, 0.0027), (10**7, 0.0011, 0.0030), (10**8, 0.0025, 0.0031)]
)
def test_two_cut_of_nearly_equal_histograms(n: int, termwise: float, corner: float) -> None:
    """H = [101, 99] against [100, 100], sigma 20, order 2: the truth is .00317 to the neighbour with one vote moved."""
    p, q = noisy_argmax_probabilities([101, 99], 20.0)[0], noisy_argmax_probabilities([100, 100], 20.0)[0]
    truth = renyi_divergence([p, 1 - p], [q, 1 - q], 2.0)
    k1, k2 = round(n * p), round(n * q)
    assert truth == pytest.approx(0.00317, abs=5e-6)
    assert two_cut_bound(k1, n, k2, n, 2.0, confidence=0.95, method="termwise") == pytest.approx(termwise, abs=1e-4)
    assert two_cut_bound(k1, n, k2, n, 2.0, confidence=0.95) == pytest.approx(corner, abs=1e-4)


def test_corner_is_the_minimum_over_the_rectangle_and_above_the_termwise_sum() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        n1, n2 = (int(n) for n in rng.integers(1, 400, 2))
        k1, k2 = int(rng.integers(0, n1 + 1)), int(rng.integers(0, n2 + 1))
        corner = np.asarray(two_cut_bound(k1, n1, k2, n2, ORDERS, confidence=0.9))
        termwise = np.asarray(two_cut_bound(k1, n1, k2, n2, ORDERS, confidence=0.9, method="termwise"))
        assert np.all(termwise <= corner + 1e-12)
        first, second = (clopper_pearson(k, n, confidence=0.95) for k, n in ((k1, n1), (k2, n2)))
        p, q = (np.linspace(float(end.lower), float(end.upper), 41)[1:-1] for end in (first, second))
        p, q = (grid.ravel() for grid in np.meshgrid(p, q))
        inside = np.asarray(renyi_divergence(np.stack([p, 1 - p], -1), np.stack([q, 1 - q], -1), ORDERS))
        assert np.all(corner <= inside.min(axis=0) + 1e-12)
        if k1 not in (0, n1) and k2 not in (0, n2):
            ends = [(a, b) for a in map(float, first) for b in map(float, second)]
            corners = np.array([renyi_divergence([a, 1 - a], [b, 1 - b], ORDERS) for a, b in ends])
            disjoint = first.lower > second.upper or first.upper < second.lower
            assert corner == pytest.approx(corners.min(axis=0) if disjoint else np.zeros(4), abs=2e-12)


def test_all_and_none_answered_in_the_set() -> None:
    got = two_cut_bound(1000, 1000, 0, 1000, math.inf, confidence=0.95)
    limit = 0.0125 ** (1 / 1000)  # the exact Clopper-Pearson limit when all succeed
    assert got == pytest.approx(math.log(limit / (1 - limit)), abs=1e-9)
    assert two_cut_bound(50, 100, 50, 100, ORDERS, confidence=0.95) == pytest.approx([0.0] * 4)


def test_two_cut_broadcasts() -> None:
    k1 = np.array([[10], [60]])
    values = np.asarray(two_cut_bound(k1, 100, np.array([5, 50, 90]), 100, ORDERS, confidence=0.95))
    assert values.shape == (2, 3, 4)
    assert values[1, 2, 0] == two_cut_bound(60, 100, 90, 100, ORDERS[0], confidence=0.95)


@pytest.mark.parametrize("method", ["corner", "termwise"])
@pytest.mark.parametrize(("n", "p", "q"), [(10**4, None, None), (200, 0.5, 0.5), (300, 0.02, 0.01), (300, 0.97, 0.2)])
def test_false_claims_of_both_directions_summed_exactly(n: int, p: float | None, q: float | None, method: str) -> None:
    """Exact sums over all outcomes within 6 deviations, which omit less than 1e-8. The stated error is 0.05.

    The four limits err with probability at most 0.0125 each, and a false claim needs an error of one of two limits.
    """
    if p is None or q is None:
        p, q = toy()[0][0], toy()[1][0]
    wrong = _false_claims(n, p, q, lambda k1, k2: two_cut_bound(k1, n, k2, n, 2.0, confidence=0.95, method=method))
    assert wrong <= (0.0025 if n == 10**4 else 0.05)


def test_planted_defect_estimates_instead_of_limits_is_detected() -> None:
    n, (p, q) = 10**4, (toy()[0][0], toy()[1][0])

    def uncorrected(k1: NDArray[np.int64], k2: NDArray[np.int64]) -> NDArray[np.float64]:
        p, q = np.broadcast_arrays(k1 / n, k2 / n)
        return np.asarray(renyi_divergence(np.stack([p, 1 - p], -1), np.stack([q, 1 - q], -1), 2.0))

    assert _false_claims(n, p, q, uncorrected) > 0.4


def _false_claims(n: int, p: float, q: float, bound: object) -> float:
    truths = [float(renyi_divergence([a, 1 - a], [b, 1 - b], 2.0)) for a, b in ((p, q), (q, p))]
    counts = []
    for rate in (p, q):
        mean, spread = n * rate, 6 * math.sqrt(n * rate * (1 - rate)) + 6
        counts.append(np.arange(max(0, int(mean - spread)), min(n, int(mean + spread)) + 1))
    k1, k2 = counts[0][:, None], counts[1][None, :]
    wrong = np.asarray(bound(k1, k2)) > truths[0]
    wrong |= np.asarray(bound(k2, k1)) > truths[1]
    return float(binom.pmf(counts[0], n, p) @ wrong @ binom.pmf(counts[1], n, q))


def test_two_cut_set_is_the_best_of_all_sets() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
        p, q = (p, q) if rng.random() < 0.5 else (np.r_[p, 0], np.r_[q[:4], 0, q[4]])
        values = []
        for inside in list(product([False, True], repeat=len(p)))[1:-1]:
            mask = np.array(inside)
            values.append(renyi_divergence([p[mask].sum(), p[~mask].sum()], [q[mask].sum(), q[~mask].sum()], 2.0))
        best = two_cut_set(p, q, 2.0)
        got = renyi_divergence([p[best].sum(), p[~best].sum()], [q[best].sum(), q[~best].sum()], 2.0)
        assert got == pytest.approx(max(values), rel=1e-12)


# --- k-cut ---


def test_k_cut_is_the_minimum_over_all_laws_inside_the_intervals() -> None:
    """Compared with a general convex solver for 40 random pairs of samples: near its minimum and never above."""
    rng = np.random.default_rng(7)
    gaps = []
    for _ in range(40):
        k = int(rng.integers(2, 7))
        laws = rng.dirichlet(np.full(k, 0.8), size=2)
        n1, n2 = rng.integers(20, 2000, 2)
        counts = rng.multinomial(n1, laws[0]), rng.multinomial(n2, laws[1])
        order = float(rng.choice([1.3, 2.0, 5.0]))
        bound = float(k_cut_bound(*counts, order, confidence=0.9))
        solved = _solved_minimum(counts[0], counts[1], order, 0.9)
        assert bound <= solved + 1e-9
        gaps.append(solved - bound)
    assert np.median(gaps) < 1e-7
    assert max(gaps) < 1e-3  # the solver stops early at times; it never goes below


def _solved_minimum(first: NDArray[np.int64], second: NDArray[np.int64], order: float, confidence: float) -> float:
    k = len(first)
    error = (1 - confidence) / (2 * k)
    boxes = [clopper_pearson(c, np.full(k, c.sum()), confidence=1 - error) for c in (first, second)]
    lower, upper = (np.concatenate([np.asarray(box[end]) for box in boxes]) for end in (0, 1))
    sums = LinearConstraint(np.kron(np.eye(2), np.ones(k)), 1, 1)
    floor = np.maximum(lower, 1e-12)

    def objective(x: NDArray[np.float64]) -> float:
        return float(np.log(np.sum(np.exp(order * np.log(x[:k]) + (1 - order) * np.log(x[k:])))) / (order - 1))

    start = np.concatenate([first / first.sum(), second / second.sum()])
    best = math.inf
    for x0 in (start, (lower + upper) / 2):
        minimum = minimize(
            objective, np.clip(x0, floor, upper), method="SLSQP", bounds=list(zip(floor, upper, strict=True)),
            constraints=[sums], options={"maxiter": 500, "ftol": 1e-14},
        )  # fmt: skip
        if np.max(np.abs(sums.A @ minimum.x - 1)) < 1e-9:
            best = min(best, max(0.0, float(minimum.fun)))
    return best


def test_k_cut_is_below_the_divergence_of_any_law_inside() -> None:
    rng = np.random.default_rng(8)
    for _ in range(100):
        laws = rng.dirichlet(np.ones(6), size=2)
        counts = [rng.multinomial(n, law) for n, law in zip((500, 300), laws, strict=True)]
        boxes = [clopper_pearson(c, np.full(6, c.sum()), confidence=1 - 0.1 / 12) for c in counts]
        if all(np.all((box.lower <= law) & (law <= box.upper)) for box, law in zip(boxes, laws, strict=True)):
            bound = np.asarray(k_cut_bound(*counts, ORDERS, confidence=0.9))
            assert np.all(bound <= np.asarray(renyi_divergence(*laws, ORDERS)))


def test_k_cut_with_an_unobserved_class_is_finite_and_useful() -> None:
    bound = np.asarray(k_cut_bound([900, 100, 0], [100, 0, 900], [2.0, math.inf], confidence=0.95))
    assert np.all(np.isfinite(bound))
    assert np.all(bound > 1.5)  # log(0.9/0.1) = 2.2 and more, minus the width of the intervals
    assert k_cut_bound([5, 5], [5, 5], 2.0, confidence=0.95) == 0


def test_k_cut_at_many_draws_nears_the_divergence_and_beats_the_cut_in_two() -> None:
    p, q = toy()
    n = 10**8
    first, second = (np.round(n * law).astype(int) for law in (p, q))
    truth = float(renyi_divergence(p, q, 2.0))
    for method in ("clopper-pearson", "goodman", "sison-glaz"):
        bound = float(k_cut_bound(first, second, 2.0, confidence=0.95, method=method))
        assert 0.2356 < bound < truth
    assert k_cut_bound(first, second, 2.0, confidence=0.95) > two_cut_bound(
        first[0], n, second[0], n, 2.0, confidence=0.95
    )


@pytest.mark.parametrize("method", ["clopper-pearson", "goodman", "sison-glaz"])
def test_false_claims_of_the_k_cut(method: str) -> None:
    """False failure < 1e-6. With many draws the asymptotic intervals must hold too."""
    rng = np.random.default_rng(11)
    p, q = toy()
    trials = {
        "clopper-pearson": nightly_games(300),
        "goodman": nightly_games(300),
        "sison-glaz": by_day(30, by_night=60),
    }[method]
    truths = np.asarray(renyi_divergence(p, q, ORDERS)), np.asarray(renyi_divergence(q, p, ORDERS))
    first, second = rng.multinomial(3000, p, size=trials), rng.multinomial(3000, q, size=trials)
    forward = np.asarray(k_cut_bound(first, second, ORDERS, confidence=0.95, method=method))
    backward = np.asarray(k_cut_bound(second, first, ORDERS, confidence=0.95, method=method))
    wrong = np.any((forward > truths[0]) | (backward > truths[1]), axis=1)
    assert wrong.sum() <= binom.ppf(1 - 1e-6, trials, 0.05)


# --- Bootstrap ---


def test_bootstrap_claims_leakage_without_a_leak() -> None:
    """Equal laws, stated error 0.05: the measured error exceeds 0.9, so the method must not be declared valid."""
    rng = np.random.default_rng(13)
    law = np.full(5, 0.2)
    wrong = 0
    for _ in range(100):
        first, second = rng.multinomial(2000, law, size=2)
        wrong += float(bootstrap_bound(first, second, 2.0, confidence=0.95, rng=rng, resamples=200)) > 0
        assert k_cut_bound(first, second, 2.0, confidence=1 - 1e-6) == 0
    assert wrong > 90
    assert VALIDITY["bootstrap"] not in (Validity.FINITE_SAMPLE, Validity.ASYMPTOTIC)


def test_bootstrap_is_near_the_truth_if_leakage_is_large() -> None:
    p, q = toy()
    rng = np.random.default_rng(17)
    first, second = (np.round(10**6 * law).astype(int) for law in (p, q))
    value = bootstrap_bound(first, second, [2.0, 3.0], confidence=0.95, rng=rng)
    assert np.asarray(value) == pytest.approx(np.asarray(renyi_divergence(p, q, [2.0, 3.0])), abs=0.01)
    assert bootstrap_bound([10, 0], [0, 10], 2.0, confidence=0.9, rng=rng) == math.inf


# --- Conversion and composition ---


def test_conversion_by_hand() -> None:
    orders, rdp = [2.0, 8.0, 32.0], [0.1, 0.4, 1.6]
    improved = min(
        r + math.log((a - 1) / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a, r in zip(orders, rdp, strict=True)
    )
    classical = min(r - math.log(1e-5) / (a - 1) for a, r in zip(orders, rdp, strict=True))
    assert rdp_to_epsilon(orders, rdp, delta=1e-5) == pytest.approx(improved, abs=1e-14)
    assert rdp_to_epsilon(orders, rdp, delta=1e-5, conversion="classical") == pytest.approx(classical, abs=1e-14)
    both = rdp_to_epsilon([*orders, math.inf], [[*rdp, 0.3], [*rdp, 9.0]], delta=1e-5)
    assert both == pytest.approx([0.3, improved], abs=1e-14)
    assert rdp_to_epsilon([2.0], [0.0], delta=0.9) == 0


def test_conversion_of_the_gaussian_mechanism_is_above_its_exact_epsilon() -> None:
    """Classical optimum over all orders: 1/(2 s^2) + sqrt(2 log(1/delta))/s; exact epsilon at s = 1 is 4.377."""
    orders = 1 + np.linspace(0.01, 30, 20_000)
    rdp = orders / 2
    classical = 0.5 + math.sqrt(2 * math.log(1e5))
    assert rdp_to_epsilon(orders, rdp, delta=1e-5, conversion="classical") == pytest.approx(classical, abs=1e-6)
    assert 4.377 < rdp_to_epsilon(orders, rdp, delta=1e-5) < classical


def test_composition_adds_divergences_and_errors() -> None:
    each = query_confidence(0.95, 3)
    queries = [two_cut_audit(700 + 20 * i, 1000, 400, 1000, ORDERS, confidence=each) for i in range(3)]
    total, worst = compose_bounds(queries), worst_query(queries)
    assert total.confidence == pytest.approx(0.95, abs=1e-15)
    assert total.forward == pytest.approx(np.sum([q.forward for q in queries], axis=0))
    assert worst.backward == queries[2].backward
    assert worst.confidence == pytest.approx(0.95, abs=1e-15)
    assert total.validity is Validity.FINITE_SAMPLE


def test_composition_is_as_valid_as_its_weakest_part() -> None:
    strong = k_cut_audit([70, 30], [40, 60], [2.0], confidence=0.99)
    weak = k_cut_audit([70, 30], [40, 60], [2.0], confidence=0.99, method="goodman")
    assert strong.validity is Validity.FINITE_SAMPLE
    assert compose_bounds([strong, weak]).validity is Validity.ASYMPTOTIC
    assert strong.lower == tuple(max(pair) for pair in zip(strong.forward, strong.backward, strict=True))


def test_planted_defect_composition_without_the_error_split_is_detected() -> None:
    """50 queries at confidence 0.5 each instead of 1 - 0.5/50: the worst query is a false claim far too often."""
    rng = np.random.default_rng(19)
    n, p, q = 2000, 0.6, 0.5
    truth = float(renyi_divergence([p, 1 - p], [q, 1 - q], 2.0))
    k1, k2 = rng.binomial(n, p, size=(200, 50)), rng.binomial(n, q, size=(200, 50))
    rates = [
        np.mean(np.any(np.asarray(two_cut_bound(k1, n, k2, n, 2.0, confidence=c)) > truth, axis=1))
        for c in (0.5, query_confidence(0.5, 50))
    ]
    assert rates[0] > 0.5 + 0.2 > rates[1]


# --- Data-dependent accounting ---


def test_exact_divergence_is_below_the_data_dependent_bound_and_that_below_the_worst_case() -> None:
    """For every neighbour of 40 histograms.

    The bound is for D(histogram || neighbour). The exact divergence in the other direction sometimes exceeds it, but
    never the data-independent bound.
    """
    rng = np.random.default_rng(23)
    orders = np.array([1.5, 2.0, 4.0, 8.0, 20.0])
    gained = exceeded = 0
    for _ in range(40):
        votes = rng.multinomial(100, rng.dirichlet(np.full(4, 0.5)))
        sigma = float(rng.uniform(2, 15))
        charged, worst = np.asarray(gnmax_rdp_data_dependent(votes, sigma, orders)), orders / sigma**2
        assert np.all(charged <= worst)
        gained += int(np.any(charged < 0.99 * worst))
        log_p = noisy_argmax_probabilities(votes, sigma, log=True)
        assert 1 - math.exp(log_p[np.argmax(votes)]) <= math.exp(gnmax_log_flips([votes], sigma)[0]) + 1e-15
        for donor, taker in product(np.flatnonzero(votes), range(4)):
            moved = votes.copy()
            moved[donor] -= 1
            moved[taker] += 1
            log_q = noisy_argmax_probabilities(moved, sigma, log=True)
            assert np.all(np.asarray(renyi_divergence_of_logs(log_p, log_q, orders)) <= charged + 1e-14)
            backward = np.asarray(renyi_divergence_of_logs(log_q, log_p, orders))
            assert np.all(backward <= worst)
            exceeded += int(np.any(backward > charged * (1 + 1e-6)))
    assert gained > 5
    assert exceeded > 0


def test_data_dependent_bound_gains_nothing_on_the_example_and_much_on_consensus() -> None:
    assert gnmax_rdp_data_dependent(FIRST, 2.0, ORDERS) == pytest.approx(np.array(ORDERS) / 4)
    assert gnmax_rdp_data_dependent([250, 0, 0], 20.0, 4.0) < 1e-6
    log_q = float(gnmax_log_flips([[250, 0, 0]], 20.0)[0])
    assert log_q == pytest.approx(math.log(2) + float(log_ndtr(-250 / (20 * math.sqrt(2)))), abs=1e-12)


# --- Bad input ---


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: renyi_divergence([0.5, 0.6], [0.5, 0.5], 2.0), "p must sum to 1"),
        (lambda: renyi_divergence([1.5, -0.5], [0.5, 0.5], 2.0), "p must be probabilities in"),
        (lambda: renyi_divergence([math.nan, 0.5], [0.5, 0.5], 2.0), "p must be probabilities in"),
        (lambda: renyi_divergence([0.5, 0.5], [0.2, 0.3, 0.5], 2.0), "same answers"),
        (lambda: renyi_divergence([0.5, 0.5], [0.5, 0.5], 0.0), "orders must be > 0, got 0.0"),
        (lambda: two_cut_bound(1, 2, 1, 2, 1.0, confidence=0.9), "orders must be > 1, got 1.0"),
        (lambda: two_cut_bound(1, 2, 1, 2, 2.0, confidence=1.0), r"confidence must be in \(0, 1\), got 1.0"),
        (lambda: two_cut_bound(3, 2, 1, 2, 2.0, confidence=0.9), "got"),
        (
            lambda: two_cut_bound(1, 2, 1, 2, 2.0, confidence=0.9, method="middle"),
            "'corner' or 'termwise', got 'middle'",
        ),
        (lambda: k_cut_bound([1, 2], [1, 2, 3], 2.0, confidence=0.9), "same answers"),
        (lambda: k_cut_bound([1, -2], [1, 2], 2.0, confidence=0.9), "counts1 must be >= 0, got -2"),
        (lambda: k_cut_bound([1, 2], [1, 2.5], 2.0, confidence=0.9), "counts2 must be an integer count, got 2.5"),
        (lambda: k_cut_bound([1, 2], [0, 0], 2.0, confidence=0.9), "counts2 must hold at least one answer"),
        (lambda: k_cut_bound([1], [1], 2.0, confidence=0.9), "at least two answers"),
        (lambda: k_cut_bound([1, 2], [1, 2], 2.0, confidence=0.9, method="wald"), "method must be one of"),
        (lambda: noisy_argmax_probabilities([1, math.nan], 1.0), "a histogram must be finite"),
        (lambda: noisy_argmax_probabilities([1, 2], 0.0), "sigma must be finite and > 0, got 0.0"),
        (lambda: rdp_to_epsilon([2.0], [0.1], delta=0.0), r"delta must be in \(0, 1\), got 0.0"),
        (lambda: rdp_to_epsilon([2.0, 3.0], [0.1], delta=0.1), "one value for each order"),
        (lambda: rdp_to_epsilon([2.0], [-0.1], delta=0.1), "rdp must be >= 0"),
        (lambda: compose_bounds([]), "at least one query"),
        (lambda: compose_bounds([_bound(0.9), _bound(0.9, (2.0, 3.0))]), "all queries must have the same orders"),
        (lambda: compose_bounds([_bound(0.5), _bound(0.5)]), "add up to less than 1"),
        (lambda: gnmax_rdp_data_dependent([3], 1.0, 2.0), "at least two classes"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


def _bound(confidence: float, orders: tuple[float, ...] = (2.0,)) -> RenyiBound:
    return RenyiBound(orders, orders, orders, confidence, "corner", Validity.FINITE_SAMPLE)
