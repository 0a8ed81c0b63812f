"""Posteriors of more than two labels, against all labellings of a bag, and against the two-label functions."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.errors import InputError
from dpaudit.estimators.label_reconstruction._class_counts import log_likelihoods
from dpaudit.estimators.label_reconstruction.advantage import (
    bag_log_ratio,
    label_privacy_ceiling,
    llp_additive_advantage,
    llp_posterior,
    multiplicative_advantage,
    rr_additive_advantage,
    rr_posterior,
)
from dpaudit.estimators.label_reconstruction.classes import (
    class_gain_ceiling,
    class_multiplicative_advantage,
    class_posterior,
    class_release_gain,
    class_shift,
    llp_class_additive_advantage,
    llp_class_log_likelihood,
    llp_class_posterior,
    right_guesses,
    rr_class_additive_advantage,
    rr_class_posterior,
)
from tests.nightly import by_day

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


def by_enumeration(eta: Floats) -> tuple[Floats, dict[tuple[int, ...], Floats]]:
    """Of a bag, from all its labellings: additive advantages, and P[counts, label i = a] for each counts (twin)."""
    k, classes = eta.shape
    joint: dict[tuple[int, ...], Floats] = {}
    for labels in product(range(classes), repeat=k):
        counts = tuple(labels.count(a) for a in range(classes))
        table = joint.setdefault(counts, np.zeros((k, classes)))
        table[np.arange(k), labels] += math.prod(eta[i, a] for i, a in enumerate(labels))
    best = np.sum([table.max(axis=1) for table in joint.values()], axis=0)
    return best - eta.max(axis=1), joint


@pytest.mark.parametrize(("size", "classes"), [(1, 3), (2, 3), (5, 3), (4, 4)])
def test_counts_gain_and_move_beliefs_as_all_labellings_say(size: int, classes: int) -> None:
    eta = rows(size, classes, seed=size)
    expected, joint = by_enumeration(eta)
    assert llp_class_additive_advantage(eta) == pytest.approx(expected, abs=1e-13)
    with np.errstate(divide="ignore"):
        for counts, table in joint.items():
            law = np.log(table / eta)
            moved = law.max(axis=1) - law.min(axis=1)
            assert class_shift(eta, llp_class_log_likelihood(eta, counts)) == pytest.approx(moved, rel=1e-9)


def test_tiny_priors_do_not_underflow() -> None:
    """In logarithms as compiled; of 1e-200 against 3e-200 in bags that cannot be without them, by hand."""
    for size, classes in ((1, 3), (6, 3), (4, 5)):
        eta = rows(size, classes, seed=7)
        counts = np.bincount(np.random.default_rng(8).integers(0, classes, size), minlength=classes)
        with np.errstate(divide="ignore"):
            found, slow = llp_class_log_likelihood(eta, counts), log_likelihoods(eta, counts)
        possible = np.isfinite(slow)
        assert (np.isfinite(found) == possible).all()
        both = [np.where(possible, law - law.max(axis=1, keepdims=True), 0.0) for law in (found, slow)]
        assert both[0] == pytest.approx(both[1], abs=1e-11)
    # Of counts (1, 2) the one label 0 is that of example 0, 1 or 2 with weights 1/1e-200, 1/1e-200, 1/3e-200.
    posterior = llp_class_posterior([[1 - tiny, tiny] for tiny in (1e-200, 1e-200, 3e-200)], [1, 2])
    assert posterior[:, 0] == pytest.approx([3 / 7, 3 / 7, 1 / 7])


def test_two_labels_gain_as_in_the_other_functions() -> None:
    eta = np.random.default_rng(1).random(6)
    assert llp_class_additive_advantage(two(eta)) == pytest.approx(llp_additive_advantage(eta), abs=1e-14)
    law = llp_class_log_likelihood(two(eta), [4, 2])
    with np.errstate(divide="ignore"):
        known = np.log((np.arange(7) == 2).astype(float))[None]
    assert law[:, 1] - law[:, 0] == pytest.approx(bag_log_ratio(eta[None], known)[0])


def test_labels_that_cannot_be_stay_so_and_certain_ones_are_not_moved() -> None:
    eta = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    law = llp_class_log_likelihood(eta, [2, 0, 1])
    assert class_posterior(eta, law).tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    assert class_shift(eta, law).tolist() == [0.0, math.inf, math.inf]


def test_no_private_release_gains_more_than_the_ceiling_and_response_reaches_it() -> None:
    rng = np.random.default_rng(3)
    for epsilon in (0.1, 1.0, 4.0):
        for classes in (3, 5, 20):
            eta = rng.dirichlet(np.full(classes, rng.choice([0.1, 1.0, 10.0])), 500)
            law = rng.choice([0.0, epsilon], (500, classes)) * rng.choice([1.0, rng.random()], (500, 1))
            gain = class_release_gain(eta, class_posterior(eta, law))
            assert gain.max() <= class_gain_ceiling(epsilon) + 1e-12
            assert np.all(class_shift(eta, law) <= epsilon)
    # 1 + e^(epsilon/2) = 3 labels, equally likely: that of two labels, (e^eps - 1)/(e^eps + 1)/2, would not hold.
    epsilon = 2 * math.log(2)
    (gained,) = np.atleast_1d(rr_class_additive_advantage([[1 / 3] * 3], epsilon=epsilon))
    assert gained == pytest.approx(class_gain_ceiling(epsilon), abs=1e-15) == pytest.approx(1 / 3)
    assert gained > label_privacy_ceiling(epsilon) / 2 + 0.03


@pytest.mark.parametrize("wrong", [False, True])
def test_an_attacker_who_plays_wins_as_often_as_computed_unless_its_priors_are_wrong(wrong: bool) -> None:
    """Labels drawn from known priors, 3,000 bags of 3 (by day 600), 3 classes: false failure < 1e-6 by the normal law.

    Planted defect: the attacker takes each prior for that of the next label.
    """
    bags, rng = by_day(600, by_night=3_000), np.random.default_rng(4)
    eta = rows(3 * bags, 3, seed=5)
    labels = (rng.random((3 * bags, 1)) > eta.cumsum(axis=1)).sum(axis=1)
    believed = np.roll(eta, 1, axis=1) if wrong else eta
    won, computed = np.empty((bags, 3)), np.empty((bags, 3))
    for bag in range(bags):
        own = slice(3 * bag, 3 * bag + 3)
        posterior = llp_class_posterior(believed[own], np.bincount(labels[own], minlength=3))
        won[bag] = right_guesses(posterior, labels[own]) - right_guesses(believed[own], labels[own])
        computed[bag] = llp_class_additive_advantage(believed[own])
    apart = (won - computed).mean(axis=1)
    assert bool(abs(apart.mean()) > 5 * apart.std(ddof=1) / math.sqrt(bags)) is wrong


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: llp_class_posterior(rows(4, 3), [2, 1, 0]), "there must be one count for each label, of sum 4"),
        (lambda: llp_class_posterior(rows(200, 4), [50] * 4), "k + 1 times the product of the counts + 1 must be at"),
        (lambda: llp_class_posterior([[1.0, 0.0]], [0, 1]), "what was released must be possible under the priors"),
        (
            lambda: llp_class_posterior([[1 - 1e-200, 1e-200, 0.0]] * 3, [1, 1, 1]),
            "what was released must be possible under the priors",
        ),
        (lambda: rr_class_posterior([[0.5, 0.4]], [1], epsilon=1.0), "each row must hold probabilities of sum 1"),
        (lambda: rr_class_posterior([[0.5, 0.5]], [2], epsilon=1.0), "one released label in 0..1 for each example"),
    ],
)
def test_what_is_no_bag_is_refused(broken: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        broken()  # type: ignore[operator]
    assert message in str(caught.value)
