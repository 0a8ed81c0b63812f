"""Label mechanisms: exact laws, compared with independent implementations of the papers' formulas."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy.stats import binom, chi2

from dpaudit.claims import Claim, Relation
from dpaudit.errors import InputError
from dpaudit.mechanisms.labels.randomized_response import (
    OneHotLaplace,
    RandomizedResponse,
    RRWithPrior,
    best_k,
    rr_with_prior,
)
from dpaudit.mechanisms.planted.learners import LeakyRandomizedResponse, redraw_labels
from dpaudit.mechanisms.protocols import LabelMechanism
from dpaudit.testing import check_mechanism
from tests.bank.planted_learners import OneHotLaplaceSigmaForB

FALSE_FAILURE = 1e-9  # of each chi-square or binomial check below, by its asymptotic or exact law

PRIORS = [
    [0.25, 0.25, 0.25, 0.25],
    [0.4, 0.35, 0.15, 0.1],
    [0.1, 0.4, 0.4, 0.1],
    [0.97, 0.01, 0.01, 0.01],
    [0.5, 0.5, 0.0, 0.0],
]


def keep_rate(epsilon: float, classes: int) -> float:
    return math.exp(epsilon) / (math.exp(epsilon) + classes - 1)


def candidates(prior: list[float], epsilon: float) -> list[int]:
    """Return the candidate labels of RRWithPrior by the paper's definition, row by row."""
    order = sorted(range(len(prior)), key=lambda c: (-prior[c], c))
    right = [keep_rate(epsilon, k) * sum(prior[c] for c in order[:k]) for k in range(1, len(prior) + 1)]
    return order[: right.index(max(right)) + 1]


def law_with_prior(prior: list[float], epsilon: float) -> NDArray[np.float64]:
    """Probability of each released label (columns) given each true label (rows)."""
    among = candidates(prior, epsilon)
    law = np.zeros((len(prior), len(prior)))
    for true, answer in itertools.product(range(len(prior)), among):
        if true not in among:
            law[true, answer] = 1 / len(among)
        else:
            keep = keep_rate(epsilon, len(among))
            law[true, answer] = keep if true == answer else (1 - keep) / (len(among) - 1)
    return law


def agrees(released: NDArray[np.int64], law: NDArray[np.float64]) -> bool:
    """True if the released labels are consistent with `law`: no impossible label, chi-square not in its upper tail."""
    counts = np.bincount(released, minlength=len(law))
    possible = law > 0
    if counts[~possible].any():
        return False
    expected = len(released) * law[possible]
    statistic = float(((counts[possible] - expected) ** 2 / expected).sum())
    return bool(possible.sum() == 1 or statistic < chi2.isf(FALSE_FAILURE, possible.sum() - 1))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_randomized_response_costs_exactly_its_claim(classes: int, epsilon: float) -> None:
    mechanism = RandomizedResponse(epsilon)
    transition = mechanism.transition(classes)
    ratios = [transition[y] / transition[other] for y, other in itertools.permutations(range(classes), 2)]
    assert mechanism.claim() == Claim(epsilon, 0.0, Relation.LABEL)
    assert math.isclose(math.log(np.max(ratios)), epsilon, rel_tol=1e-12)
    np.testing.assert_allclose(transition.sum(axis=1), 1, rtol=1e-14)
    assert math.isclose(mechanism.keep(classes), keep_rate(epsilon, classes), rel_tol=1e-14)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_randomized_response_releases_by_its_law(classes: int) -> None:
    mechanism = RandomizedResponse(1.5)
    for true in range(classes):
        rng = np.random.default_rng(true)
        released = mechanism.release(np.full(100_000, true), classes=classes, rng=rng)
        assert agrees(released, mechanism.transition(classes)[true])


def test_leaky_response_keeps_labels_as_for_three_epsilon() -> None:
    """The second assertion shows that `agrees` can return False."""
    liar = LeakyRandomizedResponse(1.0)
    released = liar.release(np.zeros(100_000, np.int64), classes=3, rng=np.random.default_rng(0))
    assert agrees(released, RandomizedResponse(3.0).transition(3)[0])
    assert not agrees(released, RandomizedResponse(liar.claim().epsilon).transition(3)[0])


def test_infinite_epsilon_releases_the_true_labels() -> None:
    labels = np.arange(1000) % 7
    rng = np.random.default_rng(0)
    assert (RandomizedResponse(math.inf).release(labels, classes=7, rng=rng) == labels).all()
    assert (rr_with_prior(labels, np.ones((1000, 7)), math.inf, rng) == labels).all()


@pytest.mark.parametrize("mechanism", [RandomizedResponse, LeakyRandomizedResponse, OneHotLaplace])
def test_epsilon_must_be_positive(mechanism: type) -> None:
    with pytest.raises(InputError, match="epsilon must be > 0, got 0"):
        mechanism(0.0)


@pytest.mark.parametrize("mechanism", [RandomizedResponse(1.0), OneHotLaplace(1.0), RRWithPrior(1.0, (0.5, 0.5))])
def test_label_mechanisms_follow_their_protocol(mechanism: LabelMechanism) -> None:
    assert isinstance(mechanism, LabelMechanism)
    check_mechanism(mechanism)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("prior", PRIORS)
def test_rr_with_prior_follows_the_paper(prior: list[float], epsilon: float) -> None:
    """False failure < 4e-9 a case: one chi-square for each of four true labels."""
    among = candidates(prior, epsilon)
    law = law_with_prior(prior, epsilon)
    assert best_k(np.array([prior]), epsilon)[0] == len(among)
    for true in range(4):
        rows = np.tile(prior, (50_000, 1))
        released = rr_with_prior(np.full(50_000, true), rows, epsilon, np.random.default_rng(true))
        assert agrees(released, law[true])
    # The law checked above is epsilon-label-DP: for every output, the odds under two true labels are at most e^eps.
    for first, other in itertools.permutations(law, 2):
        assert (first <= math.exp(epsilon) * other * (1 + 1e-12)).all()


def test_best_k_differs_from_the_published_code_where_that_is_wrong() -> None:
    """e^2/(e^2+2) .9 = .7083 for three labels, e^2/(e^2+3) = .7112 for four; a zero-based k in the code gives three."""
    assert best_k(np.array([[0.4, 0.35, 0.15, 0.1]]), 2.0)[0] == 4


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_a_uniform_prior_is_randomized_response(classes: int) -> None:
    uniform = np.full((20_000, classes), 1 / classes)
    assert (best_k(uniform, 0.01) == classes).all()
    released = rr_with_prior(np.zeros(20_000, np.int64), uniform, 1.0, np.random.default_rng(0))
    assert agrees(released, RandomizedResponse(1.0).transition(classes)[0])


def test_three_percent_clicks_are_all_answered_no_up_to_epsilon_3_476() -> None:
    """k* = 1 iff the largest weight is at least e^eps / (1 + e^eps): here up to log(.97 / .03) = 3.47610."""
    clicks = np.tile([0.97, 0.03], (1000, 1))
    assert [best_k(clicks[:1], epsilon)[0] for epsilon in (0.1, 1, 2, 3.476, 3.4762, 4, 8)] == [1, 1, 1, 1, 2, 2, 2]
    labels = np.arange(1000) % 2
    assert (rr_with_prior(labels, clicks, 2.0, np.random.default_rng(0)) == 0).all()


def test_binary_k_follows_the_threshold_on_the_larger_weight() -> None:
    for epsilon in (0.5, 1.0, 3.0):
        likely = np.linspace(0.5, 1, 1001)
        expected = np.where(likely > keep_rate(epsilon, 2), 1, 2)
        clear = np.abs(likely - keep_rate(epsilon, 2)) > 1e-9
        candidates = best_k(np.stack([1 - likely, likely], axis=1), epsilon)
        assert (candidates[clear] == expected[clear]).all()


def test_equal_weights_are_answered_together_or_not_at_all() -> None:
    """If one of two equal labels is a candidate, so is the other: the law does not depend on the order of ties."""
    rng = np.random.default_rng(0)
    for prior in rng.integers(0, 4, size=(300, 6)):
        if prior.any():
            among = candidates(list(prior), 0.7)
            assert best_k(prior[None].astype(np.float64), 0.7)[0] == len(among)
            assert all(
                (other in among) == (label in among)
                for label in range(6)
                for other in np.flatnonzero(prior == prior[label])
                if prior[label]
            )


def test_the_prior_s_scale_is_ignored_and_bad_priors_are_refused() -> None:
    prior = np.random.default_rng(0).random((100, 5))
    assert (best_k(prior, 1.0) == best_k(7 * prior, 1.0)).all()
    for bad in ([[0.5, math.nan]], [[-0.1, 1.1]]):
        with pytest.raises(InputError, match="finite and >= 0"):
            best_k(np.array(bad), 1.0)
    with pytest.raises(InputError, match="shape"):
        best_k(np.ones(3), 1.0)
    with pytest.raises(InputError, match="as many rows"):
        rr_with_prior(np.zeros(3, np.int64), np.ones((2, 2)), 1.0, np.random.default_rng(0))
    with pytest.raises(InputError, match="3 weights"):
        RRWithPrior(1.0, (0.5, 0.5)).release(np.zeros(3, np.int64), classes=3, rng=np.random.default_rng(0))


def test_a_mechanism_with_one_prior_for_all_is_the_array_function() -> None:
    labels = np.arange(500) % 4
    mechanism = RRWithPrior(1.0, tuple(PRIORS[1]))
    released = mechanism.release(labels, classes=4, rng=np.random.default_rng(3))
    rows = np.tile(PRIORS[1], (500, 1))
    assert (released == rr_with_prior(labels, rows, 1.0, np.random.default_rng(3))).all()


def density(observed: NDArray[np.float64], label: int, scale: float) -> NDArray[np.float64]:
    """Density of one noisy one-hot row, the product of its coordinates' Laplace densities."""
    one_hot = np.eye(observed.shape[1])[label]
    return np.asarray(np.prod(np.exp(-np.abs(observed - one_hot) / scale) / (2 * scale), axis=1))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_noisy_one_hot_rows_cost_exactly_their_claim(epsilon: float) -> None:
    mechanism = OneHotLaplace(epsilon)
    scale = mechanism.scale()
    corner = np.array([[1.5, -0.5, 0.3]])  # as far towards label 0 and away from label 1 as there is
    rows = np.concatenate([corner, np.random.default_rng(0).laplace(scale=2, size=(10_000, 3))])
    losses = np.log(density(rows, 0, scale) / density(rows, 1, scale))
    assert mechanism.claim() == Claim(epsilon)
    assert losses.max() == pytest.approx(epsilon, rel=1e-12)
    assert losses[0] == pytest.approx(epsilon, rel=1e-12)


def test_standard_deviation_used_as_scale_costs_sqrt_two_times_the_claim() -> None:
    defect = OneHotLaplaceSigmaForB(1.0)
    corner = np.array([[1.5, -0.5]])
    loss = math.log(density(corner, 0, defect.scale())[0] / density(corner, 1, defect.scale())[0])
    assert loss == pytest.approx(math.sqrt(2) * defect.claim().epsilon, rel=1e-12)


def test_laplace_noise_has_the_stated_scale() -> None:
    """False failure < 1e-9: |noise| / b is exponential; the mean of n of them is within 6.2 / sqrt(n) of 1."""
    rng = np.random.default_rng(0)
    noise = OneHotLaplace(2 / 3).observe(np.zeros(100_000, np.int64), classes=2, rng=rng) - [1.0, 0.0]
    assert abs(np.abs(noise).mean() / 3.0 - 1) < 6.2 / math.sqrt(noise.size)
    assert (OneHotLaplace(math.inf).observe(np.array([2, 0]), classes=3, rng=rng) == [[0, 0, 1], [1, 0, 0]]).all()


@pytest.mark.parametrize("scale", [0.05, 0.5, 2.0])
def test_posterior_is_bayes_rule(scale: float) -> None:
    rng = np.random.default_rng(1)
    prior = rng.dirichlet(np.ones(4), size=200)
    observed = np.eye(4)[rng.integers(4, size=200)] + rng.laplace(scale=0.7, size=(200, 4))
    joint = prior * np.stack([density(observed, label, scale) for label in range(4)], axis=1)
    expected = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        OneHotLaplace(2 / scale).posterior(observed, np.log(prior)), expected, rtol=1e-8, atol=1e-300
    )


def test_posterior_survives_tiny_noise_and_impossible_labels() -> None:
    observed = np.array([[1.0, 0.0, 0.0]])
    certain = OneHotLaplace(2e6).posterior(observed, np.zeros(3))
    np.testing.assert_array_equal(certain, [[1, 0, 0]])
    excluded = OneHotLaplace(2.0).posterior(observed, np.array([-np.inf, 0.0, 0.0]))
    np.testing.assert_allclose(excluded, [[0, 0.5, 0.5]], rtol=1e-12)
    assert (np.abs(OneHotLaplace(4.0).evidence(10 * observed)) <= 2).all()


def test_posterior_is_calibrated() -> None:
    """Its mean over data drawn from the prior is the prior. False failure < 1e-9 (Hoeffding, 3 coordinates)."""
    rng = np.random.default_rng(2)
    prior, count = np.array([0.6, 0.3, 0.1]), 40_000
    observed = OneHotLaplace(2.0).observe(rng.choice(3, size=count, p=prior), classes=3, rng=rng)
    mean = OneHotLaplace(2.0).posterior(observed, np.log(prior)).mean(axis=0)
    assert np.abs(mean - prior).max() < math.sqrt(math.log(2 * 3 / 1e-9) / (2 * count))


def test_the_most_likely_label_is_right_as_often_as_it_should_be() -> None:
    """Two classes: wrong iff a difference of two Laplace draws exceeds 1, probability e^(-1/b) (1 + 1/(2b)) / 2."""
    mechanism, count = OneHotLaplace(2.0), 100_000
    b = mechanism.scale()
    wrong = math.exp(-1 / b) * (1 + 1 / (2 * b)) / 2
    released = mechanism.release(np.ones(count, np.int64), classes=2, rng=np.random.default_rng(5))
    low, high = binom.ppf(np.array([FALSE_FAILURE, 1 - FALSE_FAILURE]), count, wrong)
    assert low <= (released == 0).sum() <= high


def test_redrawn_labels_are_fixed_for_an_epoch_and_fresh_in_the_next() -> None:
    """False failure < 1e-9: both draws keep a label with probability keep^2 if they are independent."""
    labels, mechanism = np.zeros(50_000, np.int64), RandomizedResponse(1.0)
    draw = partial(redraw_labels, mechanism, labels, classes=2, seed=SeedSequence(4))
    assert (draw(0) == draw(0)).all()
    both = ((draw(0) == 0) & (draw(1) == 0)).sum()
    low, high = binom.ppf(np.array([FALSE_FAILURE, 1 - FALSE_FAILURE]), len(labels), mechanism.keep(2) ** 2)
    assert low <= both <= high
