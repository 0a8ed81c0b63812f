"""Posteriors and advantages: small bags are enumerated, integrals are recomputed in high precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpaudit.errors import InputError
from dpaudit.estimators.label_reconstruction.advantage import (
    advantage_cdf,
    advantage_quantile,
    label_privacy_ceiling,
    llp_additive_advantage,
    llp_geometric_additive_advantage,
    llp_laplace_additive_advantage,
    multiplicative_advantage,
    rr_additive_advantage,
)
from tests.estimators.releases import llp_posterior, noisy_posterior, rr_posterior
from tests.twins import advantage_twin

Floats = NDArray[np.float64]
EPSILONS = [1e-3, 0.5, 2.0, 12.0]


def clipped_geometric(release: int, total: NDArray[np.int64], k: int, epsilon: float) -> Floats:
    """P[release | sum], with the end masses of FINDINGS: a^s/(1+a) and a^(k-s)/(1+a)."""
    a = math.exp(-epsilon)
    if release == 0:
        return np.asarray(a**total / (1 + a))
    if release == k:
        return np.asarray(a ** (k - total) / (1 + a))
    return np.asarray((1 - a) / (1 + a) * a ** np.abs(release - total))


def enumerated(eta: Floats, likelihood: Callable[[NDArray[np.int64]], Floats]) -> tuple[float, Floats]:
    """Return the probability (or density) of a release and the posteriors given it, over all 2^k labellings."""
    labels = np.array(list(product([0, 1], repeat=len(eta))))
    weights = np.prod(np.where(labels == 1, eta, 1 - eta), axis=1) * likelihood(labels.sum(axis=1))
    return float(weights.sum()), weights @ labels / weights.sum()


def law_of_sum(eta: Floats) -> Floats:
    law = np.array([1.0])
    for p in eta:
        law = np.convolve(law, [1 - p, p])
    return law


def bags(seed: int, k: int, number: int = 4) -> Floats:
    """Return priors of four kinds: uniform, rare positives, balanced, and with some certain labels."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.random(k),
        rng.beta(2, 30, k),
        rng.beta(5, 5, k),
        np.where(rng.random(k) < 0.3, rng.integers(0, 2, k), 0.5),
    ]
    return np.array(rows[:number])


# --- Randomized response ---


def test_rr_advantage_is_the_expected_gain_of_the_posterior() -> None:
    eta = np.linspace(0, 1, 101)
    for epsilon in EPSILONS:
        flip = 1 / (1 + math.exp(epsilon))
        gain = -np.maximum(eta, 1 - eta)
        for z in (0, 1):
            p_z = (1 - flip) * eta + flip * (1 - eta) if z else flip * eta + (1 - flip) * (1 - eta)
            post = np.asarray(rr_posterior(eta, z, epsilon=epsilon))
            gain = gain + p_z * np.maximum(post, 1 - post)
        assert rr_additive_advantage(eta, epsilon=epsilon) == pytest.approx(np.maximum(gain, 0), abs=1e-15)


def test_ceiling_of_the_paper() -> None:
    assert label_privacy_ceiling(1.0) == pytest.approx(0.46212, abs=5e-6)
    assert label_privacy_ceiling(1.0) == pytest.approx(1 - 2 / (1 + math.e), abs=1e-15)
    eta = np.linspace(0, 1, 1001)
    for epsilon in EPSILONS:
        assert np.max(rr_additive_advantage(eta, epsilon=epsilon)) <= label_privacy_ceiling(epsilon) / 2 + 1e-15


# --- Posteriors of bags ---


@pytest.mark.parametrize("k", [1, 2, 7])
def test_posteriors_are_bayes_over_all_labellings(k: int) -> None:
    prior = bags(1, k)
    for row in prior:
        for s in range(k + 1):
            if _possible(row, s):
                _, expected = enumerated(row, lambda total, s=s: (total == s).astype(float))
                assert llp_posterior(row, s) == pytest.approx(expected, abs=1e-14)
            for epsilon in EPSILONS:
                _, expected = enumerated(row, lambda total, s=s, e=epsilon: clipped_geometric(s, total, k, e))
                assert noisy_posterior(row, s, epsilon=epsilon) == pytest.approx(expected, abs=1e-14)
        for z in (-3.7, 0.25, k / 2, k + 5.0):
            _, expected = enumerated(row, lambda total, z=z: np.exp(-0.9 * np.abs(z - total)))
            assert noisy_posterior(row, z, epsilon=0.9) == pytest.approx(expected, abs=1e-14)


def test_posteriors_average_to_the_prior() -> None:
    """The mean over the released value is the prior: for LLP over s, for the clipped geometric over 0..k."""
    eta, k = bags(2, 40)[0], 40
    law = law_of_sum(eta)
    plain = llp_posterior(np.tile(eta, (k + 1, 1)), np.arange(k + 1))
    assert law @ plain == pytest.approx(eta, abs=1e-14)
    for epsilon in EPSILONS:
        release = np.array([law @ clipped_geometric(o, np.arange(k + 1), k, epsilon) for o in range(k + 1)])
        assert release.sum() == pytest.approx(1, abs=1e-13)
        noisy = noisy_posterior(np.tile(eta, (k + 1, 1)), np.arange(k + 1), epsilon=epsilon)
        assert release @ noisy == pytest.approx(eta, abs=1e-13)


def test_laplace_posteriors_average_to_the_prior() -> None:
    """Gauss-Legendre between whole numbers, where the densities are smooth: exact to rounding; e^(-40) is cut off."""
    eta, k, epsilon = bags(2, 6)[0], 6, 1.0
    nodes, weights = np.polynomial.legendre.leggauss(20)
    z = (np.arange(-40, k + 40)[:, None] + (nodes + 1) / 2).ravel()
    law = law_of_sum(eta)
    noise = epsilon / 2 * np.exp(-epsilon * np.abs(z[:, None] - np.arange(k + 1)))
    density = (noise @ law) * np.tile(weights / 2, k + 80)
    assert density.sum() == pytest.approx(1, abs=1e-13)
    posterior = noisy_posterior(np.tile(eta, (len(z), 1)), z, epsilon=epsilon)
    assert density @ posterior == pytest.approx(eta, abs=1e-13)


def test_posteriors_sum_to_the_number_of_positives() -> None:
    """The expected number of positive labels in a bag with s positive labels is s."""
    for k in (5, 60, 400):
        prior = bags(3, k, number=3)
        positives = [k // 3, k // 10, k // 2]
        assert llp_posterior(prior, positives).sum(axis=1) == pytest.approx(positives, rel=1e-12, abs=1e-12)


def test_bags_too_improbable_for_floats_are_exact() -> None:
    """Equal priors: by symmetry the posterior is s/k, though the bag's probability is about 1e-2400."""
    assert llp_posterior(np.full(1000, 1e-3), 900) == pytest.approx(np.full(1000, 0.9), rel=1e-11)
    assert llp_posterior(np.r_[np.full(999, 1e-3), 0.0], 999)[[0, -1]] == pytest.approx([1.0, 0.0], abs=1e-12)
    near = noisy_posterior(np.full(1000, 1e-3), 900.0, epsilon=50.0)
    assert near == pytest.approx(np.full(1000, 0.9), rel=1e-9)  # the next sum is less likely by e^(-50) odds^-1 = 1e-18
    half = np.r_[np.full(500, 1e-9), np.full(500, 1e-6)]
    assert llp_posterior(half, 40).sum() == pytest.approx(40, rel=1e-11)


def test_little_noise_equals_no_noise_and_much_noise_reveals_nothing() -> None:
    prior = bags(4, 9, number=3)
    counts = np.array([2, 1, 5])
    assert noisy_posterior(prior, counts, epsilon=60.0) == pytest.approx(llp_posterior(prior, counts), abs=1e-12)
    assert noisy_posterior(prior, counts, epsilon=1e-9) == pytest.approx(prior, abs=1e-8)
    for advantage in (llp_geometric_additive_advantage, llp_laplace_additive_advantage):
        assert advantage(prior, epsilon=60.0) == pytest.approx(llp_additive_advantage(prior), abs=1e-12)
        assert advantage(prior, epsilon=1e-9) == pytest.approx(np.zeros_like(prior), abs=1e-8)


def test_a_bag_of_one_with_geometric_noise_is_randomized_response() -> None:
    eta = np.linspace(0.01, 0.99, 50)
    for epsilon in EPSILONS:
        for z in (0, 1):
            bag = noisy_posterior(eta[:, None], np.full(50, z), epsilon=epsilon)[:, 0]
            assert bag == pytest.approx(np.asarray(rr_posterior(eta, z, epsilon=epsilon)), abs=1e-15)
        got = llp_geometric_additive_advantage(eta[:, None], epsilon=epsilon)[:, 0]
        assert got == pytest.approx(np.asarray(rr_additive_advantage(eta, epsilon=epsilon)), abs=1e-15)
    assert llp_additive_advantage([[0.3]]) == pytest.approx(np.array([[0.3]]), abs=1e-15)


def test_noisy_releases_move_log_odds_by_at_most_epsilon() -> None:
    prior = bags(5, 12, number=3)
    counts = np.array([0, 12, 6])
    for epsilon in (0.1, 1.0, 3.0):
        moved = multiplicative_advantage(prior, noisy_posterior(prior, counts, epsilon=epsilon))
        assert np.max(np.abs(moved)) <= epsilon + 1e-12


def test_planted_defect_noise_calibrated_to_the_proportion_is_detected() -> None:
    """Noise of scale 1/epsilon on the *count* is epsilon-private; noise of scale 1/(k epsilon) is not."""
    prior, epsilon, k = np.full((1, 10), 0.5), 1.0, 10
    moved = multiplicative_advantage(prior, noisy_posterior(prior, 0.0, epsilon=epsilon * k))
    assert np.max(np.abs(moved)) > epsilon + 1


# --- Additive advantages ---


@pytest.mark.parametrize("k", [1, 2, 6, 7])
def test_additive_advantages_are_the_expected_gain_over_all_labellings(k: int) -> None:
    prior = bags(6, k)
    for row in prior:
        gain = -np.maximum(row, 1 - row)
        for s in range(k + 1):
            if _possible(row, s):
                p, post = enumerated(row, lambda total, s=s: (total == s).astype(float))
                gain = gain + p * np.maximum(post, 1 - post)
        assert llp_additive_advantage(row) == pytest.approx(gain, abs=1e-14)
        for epsilon in EPSILONS:
            gain = -np.maximum(row, 1 - row)
            for o in range(k + 1):
                p, post = enumerated(row, lambda total, o=o, e=epsilon: clipped_geometric(o, total, k, e))
                gain = gain + p * np.maximum(post, 1 - post)
            assert llp_geometric_additive_advantage(row, epsilon=epsilon) == pytest.approx(gain, abs=1e-14)


def _possible(eta: Floats, s: int) -> bool:
    return bool(np.sum(eta == 1) <= s <= np.sum(eta > 0))


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.7, 3.0, 40.0])
def test_laplace_advantage_is_the_integral_of_the_best_guess_gain(epsilon: float) -> None:
    eta = bags(7, 5)[0]
    got = llp_laplace_additive_advantage(eta, epsilon=epsilon)
    for i in range(5):
        exact = advantage_twin.llp_laplace_advantage_by_difference(eta.tolist(), i, epsilon)
        assert got[i] == pytest.approx(exact, abs=1e-12)


def test_advantages_of_larger_bags_agree_with_posteriors() -> None:
    """k = 60, over the 61 sums (and 61 clipped releases). 1e-12 leaves a wide margin over rounding."""
    k = 60
    for eta in bags(8, k):
        law = law_of_sum(eta)
        sums = np.flatnonzero(law > 0)
        posterior = llp_posterior(np.tile(eta, (len(sums), 1)), sums)
        gain = law[sums] @ np.maximum(posterior, 1 - posterior) - np.maximum(eta, 1 - eta)
        assert llp_additive_advantage(eta) == pytest.approx(gain, abs=1e-12)
        release = np.array([law @ clipped_geometric(o, np.arange(k + 1), k, 0.4) for o in range(k + 1)])
        posterior = noisy_posterior(np.tile(eta, (k + 1, 1)), np.arange(k + 1), epsilon=0.4)
        gain = release @ np.maximum(posterior, 1 - posterior) - np.maximum(eta, 1 - eta)
        assert llp_geometric_additive_advantage(eta, epsilon=0.4) == pytest.approx(gain, abs=1e-12)


def test_additive_advantages_stay_in_their_range_and_grow_with_epsilon() -> None:
    prior = np.concatenate([bags(9, 25), [np.zeros(25), np.ones(25), np.full(25, 0.5)]])
    ceiling = np.minimum(prior, 1 - prior)
    plain = llp_additive_advantage(prior)
    assert np.all((plain >= 0) & (plain <= ceiling + 1e-15))
    for advantage in (llp_laplace_additive_advantage, llp_geometric_additive_advantage):
        before = np.zeros_like(prior)
        for epsilon in (1e-3, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 800.0):
            now = advantage(prior, epsilon=epsilon)
            assert np.all((now >= before - 1e-14) & (now <= plain + 1e-14))  # less noise tells more, none tells most
            assert np.max(now) <= label_privacy_ceiling(epsilon) + 1e-15
            before = now


def test_labels_independent_of_features_are_theorem_3_2() -> None:
    """min(p, 1 - p) - E min(A, 1 - A), A the proportion of positive labels."""
    for k, p in [(1, 0.3), (8, 0.5), (33, 0.47), (100, 0.05)]:
        share = np.arange(k + 1) / k
        expected = min(p, 1 - p) - binom.pmf(np.arange(k + 1), k, p) @ np.minimum(share, 1 - share)
        assert llp_additive_advantage(np.full(k, p)) == pytest.approx(np.full(k, expected), abs=1e-13)


def test_planted_defect_dividing_factors_out_is_inaccurate() -> None:
    """Dividing one label's factor out of the law of all labels is quick but fails at k = 200."""
    eta = np.r_[np.linspace(0.2, 0.8, 199), 0.5]
    law = law_of_sum(eta)
    sums = []
    for p in (eta[0], eta[198]):  # 0.2 and 0.8: dividing from below is benign for the first only
        quick = [law[0] / (1 - p)]
        for s in range(1, 200):
            quick.append((law[s] - p * quick[-1]) / (1 - p))
        sums.append(sum(quick))
    assert abs(sums[0] - 1) < 1e-9 < abs(sums[1] - 1)
    assert llp_posterior(eta, 100).sum() == pytest.approx(100, rel=1e-13)


# --- Multiplicative advantage, quantiles, distribution ---


def test_multiplicative_advantage_is_a_difference_of_log_odds() -> None:
    assert multiplicative_advantage(0.2, 0.5) == pytest.approx(math.log(4), abs=1e-15)
    assert multiplicative_advantage([0.0, 1.0, 0.0], [0.5, 0.2, 0.0]) == pytest.approx([0.0, 0.0, 0.0])
    assert multiplicative_advantage(0.3, [0.0, 1.0, 0.3]) == pytest.approx([-math.inf, math.inf, 0.0])
    with np.errstate(all="raise"):
        multiplicative_advantage([0.3, 1.0], [1.0, 0.0])


def test_quantiles_and_distribution_of_absolute_advantages() -> None:
    values = np.array([0.5, -1.0, 0.0, math.inf, -2.0])
    assert advantage_quantile(values, [0.0, 0.2, 0.21, 0.8, 0.81]) == pytest.approx([0.0, 0.0, 0.5, 2.0, math.inf])
    assert advantage_cdf(values, [0.0, 0.75, 2.0, 1e9, math.inf]) == pytest.approx([0.2, 0.4, 0.8, 0.8, 1.0])
    assert advantage_cdf(values, 1.0) == 0.6
    levels = np.linspace(0, 1, 41)
    assert np.all(np.asarray(advantage_cdf(values, np.asarray(advantage_quantile(values, levels)))) >= levels - 1e-15)


def test_distribution_of_randomized_response_is_one_step_at_epsilon() -> None:
    eta = np.random.default_rng(0).beta(2, 30, 500)
    moved = multiplicative_advantage(eta, rr_posterior(eta, np.arange(500) % 2, epsilon=1.0))
    assert advantage_cdf(moved, [1 - 1e-9, 1 + 1e-9]) == pytest.approx([0.0, 1.0])
    assert advantage_quantile(moved, 0.98) == pytest.approx(1.0, abs=1e-9)


# --- Bad input ---


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rr_additive_advantage(math.nan, epsilon=1.0), "a prior must be in"),
        (lambda: llp_geometric_additive_advantage([0.5], epsilon=math.inf), "epsilon must be in"),
        (lambda: multiplicative_advantage(0.5, 1.2), "a posterior must be in"),
        (lambda: advantage_quantile([], 0.5), "at least one advantage"),
        (lambda: advantage_quantile([1.0], 1.5), r"level must be in \[0, 1\], got 1.5"),
        (lambda: advantage_cdf([math.nan], 0.5), "must not be NaN"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()
