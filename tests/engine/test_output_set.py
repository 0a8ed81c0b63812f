"""The learned output set: classification of vectors by world, learned from search samples."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit.engine.attacks.classifiers import additive
from dpaudit.engine.attacks.output_set import OutputSet, SummaryView


@pytest.mark.parametrize("seed", range(8))
def test_leak_in_dependent_columns_is_detected(seed: int) -> None:
    """Ten answers as columns of 0 and 1, as a forest gives them: in world 1 the fourth is 1 in 5 % of the trainings."""
    rng, n = np.random.default_rng(seed), 4_000
    truth = rng.random(n) < 0.5
    ones = rng.random((n, 10)) < np.linspace(0.01, 0.05, 10)
    ones[:, 3] = truth & (rng.random(n) < 0.05)
    summaries = np.stack([~ones, ones], axis=2).reshape(n, 20).astype(float)
    half = n // 2
    scores = OutputSet(("linear",)).score(SummaryView(summaries[:half], truth[:half], summaries[half:]))
    event = ones[half:, 3]
    assert scores[event].min() > scores[~event].max()


def test_constant_sum_in_a_world_is_detected() -> None:
    rng, n = np.random.default_rng(1), 600
    truth = rng.random(n) < 0.5
    noise = 1e4 * rng.normal(size=(n, 5))
    summaries = np.hstack([noise, (100 + truth - noise.sum(1))[:, None]])
    scores = OutputSet(("linear",)).score(SummaryView(summaries[:300], truth[:300], summaries[300:]))
    assert scores[truth[300:]].min() > scores[~truth[300:]].max()


def test_constant_numbers_are_uninformative() -> None:
    truth = np.arange(40) % 2 == 0
    scores = OutputSet(("linear",)).score(SummaryView(np.ones((40, 3)), truth, np.ones((4, 3))))
    assert np.allclose(scores, 0, atol=0.2)


@pytest.mark.parametrize(("leaking", "shift"), [(5, 1.0), (20_000, 0.1)])
def test_leak_in_few_or_all_of_many_numbers_is_detected(leaking: int, shift: float) -> None:
    """200 + 200 summaries of 20,000 numbers. The best guess is right in 87 % of the trials, or always.

    If numbers were selected on the classifier's training samples, it would overfit and be right in half.
    """
    rng, n = np.random.default_rng(2), 400
    truth = rng.random(n) < 0.5
    summaries = rng.standard_normal((n, 20_000))
    summaries[:, :leaking] += shift * truth[:, None]
    attack = OutputSet(("linear", "additive", "trees"))
    scores = attack.score(SummaryView(summaries[:200], truth[:200], summaries[200:]))
    assert ((scores > 0) == truth[200:]).mean() > 0.7


def test_columns_of_a_tiny_range_are_binned() -> None:
    rng = np.random.default_rng(5)
    truth = rng.random(400) < 0.5
    rows = np.stack([1 + 1e-10 * (rng.normal(size=400) + 3 * truth), rng.normal(size=400), np.zeros(400)], axis=1)
    odds = additive(rows[:200], truth[:200], 0)(rows[200:])
    assert np.mean((odds > 0) == truth[200:]) > 0.85
