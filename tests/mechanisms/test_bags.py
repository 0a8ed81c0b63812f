"""Releases about bags: assignment to bags, released counts, and the stated law of each mechanism."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import SeedSequence

from dpaudit.claims import Claim
from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.proportions import (
    LEFT_OUT,
    Bags,
    GeometricProportions,
    LabelProportions,
    LaplaceProportions,
)
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.recalled_labels import AggregatedLabels
from dpaudit.mechanisms.protocols import BagMechanism
from tests.loops import Cases

RNG = np.random.default_rng


def labelled(count: int, classes: int = 2) -> Examples:
    return Examples(np.arange(count, dtype=np.float32)[:, None], np.arange(count) % classes, classes)


def test_random_bags_are_whole_and_leave_the_rest_out() -> None:
    bags = Bags.random(103, 8, RNG(0))
    assert bags.sizes.tolist() == [8] * 12
    assert (bags.assignment == LEFT_OUT).sum() == 7
    with_rest = Bags.random(103, 8, RNG(0), keep_rest=True)
    assert sorted(with_rest.sizes.tolist()) == [7] + [8] * 12
    assert (Bags.random(103, 8, RNG(1)).assignment != bags.assignment).any()


def test_keys_make_bags_of_tables_and_arrays() -> None:
    table = pa.table({"campaign": ["b", "a", "b", None, "a", None]})
    assert Bags.keyed(table, "campaign").assignment.tolist() == [0, 1, 0, 2, 1, 2]
    assert Bags.keyed(np.array([[1, 5], [2, 5], [3, 7]], np.float32), 1).sizes.tolist() == [2, 1]
    mechanism = LabelProportions(key="campaign")
    assert mechanism.bags(Examples(table, np.zeros(6, np.int64), 2), rng=RNG(0)).sizes.tolist() == [2, 2, 2]


@pytest.mark.parametrize("classes", [2, 3])
def test_counts_are_those_of_the_labels_in_each_bag(classes: int) -> None:
    train = labelled(50, classes)
    for mechanism in (LabelProportions(size=7, rest="smaller-bag"), RandomizedResponse(math.inf)):
        bags = mechanism.bags(train, rng=RNG(3))
        released = mechanism.release_counts(bags.counts(train.labels, classes), rng=RNG(4))
        slow = [np.bincount(train.labels[bags.assignment == bag], minlength=classes) for bag in range(bags.sizes.size)]
        assert (released == np.array(slow)).all()
        assert mechanism.targets(released).sum(axis=1) == pytest.approx(1.0)


def test_all_four_mechanisms_share_an_interface() -> None:
    for mechanism in (RandomizedResponse(1.0), LabelProportions(), LaplaceProportions(), GeometricProportions()):
        assert isinstance(mechanism, BagMechanism)
    assert LabelProportions().claim() == Claim(math.inf)
    assert LaplaceProportions(epsilon=2.0).claim() == GeometricProportions(epsilon=2.0).claim() == Claim(2.0)


def test_geometric_in_bags_of_one_is_randomised_response() -> None:
    released = np.array([0.0, 1.0])
    laws = [mechanism.log_likelihood(released, 1) for mechanism in (GeometricProportions(1), RandomizedResponse(1.0))]
    assert (laws[0] == laws[1]).all()
    assert laws[0].tolist() == [[0.0, -1.0], [-1.0, 0.0]]


def test_unbiased_counts_have_the_true_mean() -> None:
    """Mean over the exact law of the clipped count, for every true count."""
    size, epsilon = 5, 0.7
    mechanism = GeometricProportions(size=size, epsilon=epsilon, unbiased=True)
    beyond = math.exp(-epsilon) / (1 - math.exp(-epsilon))
    values = np.array([-beyond, 1, 2, 3, 4, size + beyond])
    a = math.exp(-epsilon)
    for truth in range(size + 1):
        law = (1 - a) / (1 + a) * a ** np.abs(np.arange(size + 1) - truth)
        law[0], law[-1] = a**truth / (1 + a), a ** (size - truth) / (1 + a)
        assert law.sum() == pytest.approx(1.0)
        assert law @ values == pytest.approx(truth)
    counts = np.repeat([[3, 2]], 400, axis=0)
    released = mechanism.release_counts(counts, rng=RNG(0))[:, 1]
    assert np.isin(np.round(released, 9), np.round(values, 9)).all()
    cut = GeometricProportions(size=size, epsilon=epsilon)
    same = cut.log_likelihood(np.arange(size + 1.0), size)
    assert mechanism.log_likelihood(values, size) == pytest.approx(same)


def test_debiased_targets_invert_the_law_of_randomised_response() -> None:
    for classes in (2, 5):
        mechanism = RandomizedResponse(0.8)
        rows = mechanism.targets(np.eye(classes))
        assert mechanism.transition(classes) @ rows == pytest.approx(np.eye(classes))


def test_aggregated_labels_recall_the_expected_share_of_their_bag() -> None:
    train = labelled(64)
    exact = AggregatedLabels(LabelProportions(size=8), positives=0.3)
    answers = exact.fit(train, seed=SeedSequence(0), compute=Compute()).probabilities(train.features)[:, 1]
    assert np.unique(np.round(8 * answers)) == pytest.approx(np.unique(8 * answers))
    assert answers.sum() == pytest.approx(32)
    noisy = AggregatedLabels(GeometricProportions(size=8, epsilon=1e-6), positives=0.3)
    answers = noisy.fit(train, seed=SeedSequence(0), compute=Compute()).probabilities(train.features)[:, 1]
    assert answers == pytest.approx(0.3, abs=1e-4)


def test_invalid_bags_and_releases_are_rejected() -> None:
    with Cases() as cases:
        for broken, message in [
            (lambda: Bags.random(5, 6, RNG(0)), "the size of a bag must be in 1..5, the number of examples, got 6"),
            (lambda: LabelProportions(size=0), "the size of a bag must be >= 1, got 0"),
            (lambda: LaplaceProportions(epsilon=0.0), "epsilon must be > 0 and finite, got 0"),
            (lambda: GeometricProportions(epsilon=-1.0), "epsilon must be > 0 and finite, got -1"),
            (lambda: GeometricProportions(rest="dropped"), "rest must be one of left-out, smaller-bag"),  # type: ignore[arg-type]
            (lambda: Bags(np.array([0, 2])), "no bag may be empty"),
            (lambda: Bags(np.array([-1, -1])), "at least one bag must hold an example"),
            (lambda: Bags(np.array([0, 0])).counts(np.array([0, 2]), 2), "labels must be in 0..1, got [0, 2]"),
            (
                lambda: LaplaceProportions().release_counts(np.ones((2, 3), np.int64), rng=RNG(0)),
                "LaplaceProportions is for two classes, got 3; merge classes",
            ),
            (lambda: Bags.keyed(pa.table({"a": [1]}), "b"), "key must be one of the columns a, got 'b'"),
            (lambda: AggregatedLabels(positives=1.0), "positives must be in (0, 1), got 1"),
        ]:
            with cases.case(broken, message):
                with pytest.raises(InputError) as caught:
                    broken()  # type: ignore[operator]
                assert message in str(caught.value)
