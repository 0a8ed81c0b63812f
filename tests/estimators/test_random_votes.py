"""The exact law of a noisy argmax over random votes, and data-dependent accounting against its twin."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multinomial

from dpaudit.engine.games.predictions.answer_laws import (
    laplace_argmax_probabilities,
    many_argmax_probabilities,
    multinomial_argmax_probabilities,
)
from dpaudit.errors import InputError
from dpaudit.estimators.private_prediction.noisy_argmax import gnmax_rdp_data_dependent, noisy_argmax_probabilities
from tests.twins import gnmax_twin

Floats = NDArray[np.float64]


def enumerated(voters: int, shares: list[float], others: list[list[float]], sigma: float) -> Floats:
    """Return the mean of the exact laws over every outcome of every vote."""
    classes = len(shares)
    total = np.zeros(classes)
    for counts in itertools.product(range(voters + 1), repeat=classes):
        if sum(counts) != voters:
            continue
        for places in itertools.product(range(classes), repeat=len(others)):
            weight = multinomial.pmf(counts, voters, shares) if voters else 1.0
            weight *= np.prod([other[place] for other, place in zip(others, places, strict=True)])
            histogram = np.array(counts) + np.bincount(np.array(places, int), minlength=classes)
            total += weight * noisy_argmax_probabilities(histogram, sigma)
    return total


@pytest.mark.parametrize(
    ("voters", "shares", "others", "sigma"),
    [
        (6, [0.5, 0.3, 0.2], [[0.1, 0.9, 0.0]], 1.5),
        (7, [0.7, 0.3, 0.0], [[0.0, 0.5, 0.5]], 0.7),
        (5, [1.0, 0.0, 0.0, 0.0], [[0.0, 1.0, 0.0, 0.0], [0.2, 0.2, 0.3, 0.3]], 2.0),
        (4, [0.6, 0.4, 0.0], [[0.0, 1.0, 0.0], [0.1, 0.2, 0.7], [0.6, 0.4, 0.0]], 3.0),
        (6, [0.4, 0.6], [], 3.0),
        (0, [0.4, 0.6], [[0.1, 0.9]], 3.0),
    ],
)
def test_random_votes_against_every_outcome(
    voters: int, shares: list[float], others: list[list[float]], sigma: float
) -> None:
    probabilities = multinomial_argmax_probabilities(
        voters, shares, np.array(others).reshape(len(others), len(shares)), sigma
    )
    np.testing.assert_allclose(probabilities, enumerated(voters, shares, others, sigma), rtol=1e-11, atol=1e-13)


def test_voter_with_a_different_law_changes_the_result() -> None:
    """Planted defect: the moved vote has the law of the other votes."""
    shares, other = [0.5, 0.3, 0.2], [[0.0, 1.0, 0.0]]
    probabilities = multinomial_argmax_probabilities(7, shares, np.empty((0, 3)), 1.5)
    assert np.abs(probabilities - enumerated(6, shares, other, 1.5)).max() > 1e-3


def test_probabilities_of_many_voters_agree_with_simulated_histograms() -> None:
    """The mean over 4,000 drawn histograms is within six standard errors, at two noise scales.

    Answers rarer than 1e-4 come from too few histograms to estimate a standard error.
    """
    shares = np.array([0.3, 0.25, 0.2, 0.1, 0.05, 0.04, 0.03, 0.01, 0.01, 0.01])
    histograms = np.random.default_rng(0).multinomial(250, shares, size=4000)
    for sigma in (40.0, 5.0):
        each = many_argmax_probabilities(histograms, sigma)
        probabilities = multinomial_argmax_probabilities(250, shares, np.empty((0, 10)), sigma)
        error = each.std(axis=0) / np.sqrt(len(each))
        often = probabilities > 1e-4
        assert often.sum() >= 3
        assert (np.abs(probabilities - each.mean(axis=0)) <= 6 * error)[often].all()


def test_many_histograms_at_once_are_each_as_exact() -> None:
    histograms = np.array([[14, 12, 10, 8, 6], [250, 0, 0, 0, 0], [3, 3, 3, 3, 3], [0, 0, 0, 0, 7]])
    for sigma in (2.0, 40.0):
        each = noisy_argmax_probabilities(histograms, sigma)
        np.testing.assert_allclose(many_argmax_probabilities(histograms, sigma), each, rtol=1e-9, atol=1e-13)


def test_laplace_noise_against_high_precision() -> None:
    counts, scale = [5, 4, 1], 2.0
    with mpmath.workdps(20):

        def below(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(x) / 2 if x < 0 else 1 - mpmath.exp(-x) / 2

        def density(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(-abs(x)) / 2

        u = [mpmath.mpf(count) / scale for count in counts]
        ends = [min(u) - 60, *sorted(u), max(u) + 60]

        def integrand(x: mpmath.mpf, answer: int) -> mpmath.mpf:
            return density(x - u[answer]) * mpmath.fprod(below(x - v) for other, v in enumerate(u) if other != answer)

        exact = [float(mpmath.quad(lambda x, answer=answer: integrand(x, answer), ends)) for answer in range(3)]
    np.testing.assert_allclose(laplace_argmax_probabilities([counts], scale)[0], exact, rtol=1e-11)


VOTES = ([120, 0, 0], [100, 15, 10], [130, 120, 0], [14, 12, 10, 8, 6], [100, 100], [60, 1, 1, 1, 1, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("votes", VOTES, ids=str)
@pytest.mark.parametrize("sigma", [2.0, 10.0, 40.0])
def test_data_dependent_accounting_against_its_twin(votes: list[int], sigma: float) -> None:
    orders = [1.5, 2.0, 4.0, 8.0, 32.0]
    with mpmath.workdps(500):  # flips may be as rare as e^-900
        twin = [float(gnmax_twin.rdp(votes, mpmath.mpf(sigma), mpmath.mpf(order))) for order in orders]
    np.testing.assert_allclose(gnmax_rdp_data_dependent(votes, sigma, orders), twin, rtol=1e-9, atol=1e-15)


def test_bad_input_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="at most 8 voters"):
        multinomial_argmax_probabilities(3, [0.5, 0.5], np.tile([0.1, 0.9], (9, 1)), 1.0)
    with pytest.raises(InputError, match="sigma must be finite and > 0"):
        many_argmax_probabilities([[1, 2]], 0.0)
