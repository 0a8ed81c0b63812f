"""The median rule for dependent replays: by hand, and in games whose replays share everything but the bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.errors import InputError
from dpaudit.estimators.one_run.guesses import one_run_epsilon
from dpaudit.estimators.replays import mean_and_deviation, median_rule, per_replay_confidence


def test_half_the_error_for_each_replay() -> None:
    assert per_replay_confidence(0.95) == pytest.approx(0.975, abs=1e-15)
    with pytest.raises(InputError, match=r"confidence must be in \(0, 1\), got 1"):
        per_replay_confidence(1.0)


def test_the_median_of_bounds() -> None:
    assert median_rule([3.0, 1.0, 2.0]) == 2.0
    assert median_rule([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert median_rule([1.0, math.inf]) == 1.0
    assert median_rule([math.inf, math.inf, 0.0]) == math.inf
    table = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(median_rule(table, axis=0), [4.0, 5.0, 6.0, 7.0])
    assert np.array_equal(median_rule(table), [1.5, 5.5, 9.5])


def test_mean_and_deviation_describe() -> None:
    assert mean_and_deviation([1.0, 2.0, 6.0]) == (3.0, pytest.approx(math.sqrt(7)))
    assert mean_and_deviation([3.0]) == (3.0, 0.0)
    table = np.random.default_rng(0).random((5, 7))
    mean, deviation = mean_and_deviation(table, axis=0)
    assert mean == pytest.approx(table.mean(axis=0))
    assert deviation == pytest.approx(table.std(axis=0, ddof=1))


def games(rng: np.random.Generator, runs: int, replays: int, canaries: int) -> np.ndarray:
    """Right guesses, shape (runs, replays), about released labels of RR(epsilon = 1), shared by the replays of a run.

    In a replay a fair bit shows the true or the opposite label; the adversary says "true" if it is the released one.
    It is right if RR kept the label, for either bit. Replays agree entirely, which is the worst dependence.
    """
    label_kept = rng.random((runs, 1, canaries)) < 1 / (1 + math.exp(-1.0))
    bits = rng.random((runs, replays, canaries)) < 0.5
    shown_as_released = bits == label_kept
    return np.sum(shown_as_released == bits, axis=2)


def test_the_median_holds_with_its_stated_probability() -> None:
    """False failure < 1e-6: the limit is the 1 - 1e-6 quantile of Binomial(1500, 0.05)."""
    counts = games(np.random.default_rng(1), 1500, 5, 200)
    limit = binom.ppf(1 - 1e-6, 1500, 0.05)
    each = one_run_epsilon(200, counts, canaries=200, delta=0.0, confidence=per_replay_confidence(0.95))
    assert np.sum(median_rule(each) > 1.0) <= limit


def test_planted_defects_are_detected() -> None:
    """Dependent replays pooled as independent ones, and the best of 20 replays.

    False failure < 1e-6: the true rates are above 0.15, the limit is at 0.08 of 1500 games.
    """
    rng = np.random.default_rng(2)
    counts = games(rng, 1500, 5, 200)
    limit = binom.ppf(1 - 1e-6, 1500, 0.05)
    pooled = one_run_epsilon(1000, counts.sum(axis=1), canaries=1000, delta=0.0, confidence=0.95)
    assert np.sum(pooled > 1.0) > limit
    independent = rng.binomial(200, 1 / (1 + math.exp(-1.0)), (1500, 20))
    each = one_run_epsilon(200, independent, canaries=200, delta=0.0, confidence=0.95)
    assert np.sum(each.max(axis=1) > 1.0) > limit


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: median_rule([]), "there must be at least one replay"),
        (lambda: median_rule([1.0, math.nan]), "a replay must have a number, not NaN; leave failed replays out"),
        (lambda: mean_and_deviation(np.zeros((3, 0))), "there must be at least one replay"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call: object, message: str) -> None:
    with pytest.raises(InputError) as raised:
        call()  # type: ignore[operator]
    assert message in str(raised.value)
