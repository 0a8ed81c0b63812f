"""Posteriors of more than two labels, against all labellings of a bag, and against the two-label functions."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.errors import InputError
from dpaudit.estimators.label_reconstruction.advantage import (
    llp_posterior,
    multiplicative_advantage,
    rr_additive_advantage,
    rr_posterior,
)
from dpaudit.estimators.label_reconstruction.classes import (
    class_multiplicative_advantage,
    llp_class_posterior,
    rr_class_additive_advantage,
    rr_class_posterior,
)

Floats = NDArray[np.float64]


def rows(count: int, classes: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).dirichlet(np.full(classes, 0.5), count)


def two(eta: Floats) -> Floats:
    return np.stack([1 - eta, eta], axis=1)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_counts_of_a_bag_give_bayes_over_all_labellings(classes: int) -> None:
    eta = rows(5, classes)
    labellings = np.array(list(product(range(classes), repeat=5)))
    chance = np.prod([eta[i][labellings[:, i]] for i in range(5)], axis=0)
    counts = np.array([(labellings == a).sum(axis=1) for a in range(classes)]).T
    mean = np.zeros_like(eta)
    for released in np.unique(counts, axis=0):
        those = (counts == released).all(axis=1)
        expected = np.array([[chance[those & (labellings[:, i] == a)].sum() for a in range(classes)] for i in range(5)])
        found = llp_class_posterior(eta, released)
        assert found == pytest.approx(expected / chance[those].sum(), abs=1e-12)
        mean += chance[those].sum() * found
    assert mean == pytest.approx(eta, abs=1e-12)


def test_two_labels_are_the_case_of_the_other_functions() -> None:
    eta = np.random.default_rng(1).random(9)
    positives = np.array([6])
    assert llp_class_posterior(two(eta), [3, 6])[:, 1] == pytest.approx(llp_posterior(eta[None], positives)[0])
    for label in (0, 1):
        found = rr_class_posterior(two(eta), np.full(9, label), epsilon=1.3)
        expected = np.asarray(rr_posterior(eta, label, epsilon=1.3))
        assert found[:, 1] == pytest.approx(expected)
        assert class_multiplicative_advantage(two(eta), found) == pytest.approx(
            np.abs(multiplicative_advantage(eta, expected))
        )
    assert rr_class_additive_advantage(two(eta), epsilon=1.3) == pytest.approx(
        np.asarray(rr_additive_advantage(eta, epsilon=1.3)), abs=1e-15
    )


def test_k_ary_response_gains_what_its_posteriors_say_and_moves_log_odds_by_epsilon() -> None:
    eta, epsilon = rows(30, 5, 2), 0.9
    keep = math.exp(epsilon) / (math.exp(epsilon) + 4)
    law = np.where(np.eye(5, dtype=bool), keep, (1 - keep) / 4)
    chances = eta @ law
    gain = -eta.max(axis=1)
    for z in range(5):
        posterior = rr_class_posterior(eta, np.full(30, z), epsilon=epsilon)
        gain = gain + chances[:, z] * posterior.max(axis=1)
        assert class_multiplicative_advantage(eta, posterior) == pytest.approx(epsilon)
    assert rr_class_additive_advantage(eta, epsilon=epsilon) == pytest.approx(gain, abs=1e-14)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: llp_class_posterior(rows(4, 3), [2, 1, 0]), "there must be one count for each label, of sum 4"),
        (lambda: llp_class_posterior(rows(200, 4), [50] * 4), "k + 1 times the product of the counts + 1 must be at"),
        (lambda: llp_class_posterior([[1.0, 0.0]], [0, 1]), "the bag must be able to have those counts"),
        (lambda: rr_class_posterior([[0.5, 0.4]], [1], epsilon=1.0), "each row must hold probabilities of sum 1"),
        (lambda: rr_class_posterior([[0.5, 0.5]], [2], epsilon=1.0), "one released label in 0..1 for each example"),
    ],
)
def test_what_is_no_bag_is_refused(broken: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        broken()  # type: ignore[operator]
    assert message in str(caught.value)
