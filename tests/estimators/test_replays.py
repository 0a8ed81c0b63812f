"""Rules for dependent replays: by hand, against a scan, and in games whose replays share everything but the bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.errors import InputError
from dpaudit.estimators.one_run.guess_tables import mean_e_value, twice_mean_p
from dpaudit.estimators.one_run.guesses import one_run_epsilon, one_run_p_value
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


def test_twice_the_mean_p_turns_at_its_bound() -> None:
    correct = np.array([740, 760, 730, 755])

    def p_values(epsilon: float) -> np.ndarray:
        return one_run_p_value(1000, correct, epsilon=epsilon, canaries=1000, delta=0.0)

    bound = twice_mean_p(p_values, confidence=0.95)
    assert 2 * p_values(bound).mean() < 0.05 <= 2 * p_values(bound + 1e-8).mean()
    assert twice_mean_p(lambda epsilon: [0.5, 0.4], confidence=0.95) == 0.0
    # One replay: the bound at half the error.
    single = twice_mean_p(lambda e: [one_run_p_value(100, 90, epsilon=e, canaries=100, delta=0.0)], confidence=0.95)
    assert single == pytest.approx(one_run_epsilon(100, 90, canaries=100, delta=0.0, confidence=0.975), abs=1e-8)


def mean_ratio(guesses: int, correct: np.ndarray, q: np.ndarray, weights: np.ndarray, epsilon: float) -> float:
    """The mean e-value from its definition."""
    beta = 1 / (1 + math.exp(-epsilon))
    null = binom.pmf(correct, guesses, beta)
    ratios = [binom.pmf(correct, guesses, p) / null if p > beta else np.ones(len(correct)) for p in q]
    return float(np.mean(weights @ np.array(ratios)))


@pytest.mark.parametrize("seed", range(12))
def test_the_mean_e_value_is_at_its_limit_up_to_its_bound_and_not_beyond(seed: int) -> None:
    rng = np.random.default_rng(seed)
    correct = rng.binomial(60, rng.uniform(0.55, 0.95), int(rng.integers(1, 6)))
    q = np.sort(rng.uniform(0.55, 0.97, int(rng.integers(1, 4))))
    weights = np.full(len(q), 1 / len(q))
    bound = mean_e_value(60, correct, confidence=0.95, alternative=q[::-1])
    if bound > 0:
        scanned = [mean_ratio(60, correct, q, weights, epsilon) for epsilon in np.linspace(0, bound, 200)]
        assert min(scanned) >= 20 * (1 - 1e-9)
    assert mean_ratio(60, correct, q, weights, bound + 1e-6) < 20


def test_a_bound_stops_at_the_first_crossing() -> None:
    """One good replay and two bad ones, whose ratios rise with epsilon, though never over 1."""
    bound = mean_e_value(60, [57, 20, 20], confidence=0.9, alternative=[0.7, 0.9])
    values = [mean_ratio(60, np.array([57, 20, 20]), np.array([0.7, 0.9]), np.array([0.5, 0.5]), e) for e in (0, bound)]
    assert bound > 0
    assert values[0] > values[1] >= 10 * (1 - 1e-9)


def games(rng: np.random.Generator, runs: int, replays: int, canaries: int) -> np.ndarray:
    """Right guesses, shape (runs, replays), about released labels of RR(epsilon = 1), shared by the replays of a run.

    In a replay a fair bit shows the true or the opposite label; the adversary says "true" if it is the released one.
    It is right if RR kept the label, whatever the bit: replays agree entirely, the worst dependence there is.
    """
    kept = rng.random((runs, 1, canaries)) < 1 / (1 + math.exp(-1.0))
    bits = rng.random((runs, replays, canaries)) < 0.5
    shown_as_released = bits == kept
    return np.sum(shown_as_released == bits, axis=2)


def test_every_rule_holds_with_its_stated_probability() -> None:
    """False failure < 1e-6 each: the limit is the 1 - 1e-6 quantile of Binomial(1500, 0.05)."""
    counts = games(np.random.default_rng(1), 1500, 5, 200)
    limit = binom.ppf(1 - 1e-6, 1500, 0.05)
    each = one_run_epsilon(200, counts, canaries=200, delta=0.0, confidence=per_replay_confidence(0.95))
    assert np.sum(median_rule(each) > 1.0) <= limit
    at_truth = one_run_p_value(200, counts, epsilon=1.0, canaries=200, delta=0.0)
    assert np.sum(2 * at_truth.mean(axis=1) < 0.05) <= limit  # twice_mean_p exceeds 1 exactly then
    runs, times = np.unique(counts, axis=0, return_counts=True)
    e_values = [mean_e_value(200, run, confidence=0.95, alternative=[0.75, 0.8, 0.85]) for run in runs]
    assert times[np.array(e_values) > 1.0].sum() <= limit


def test_planted_defects_are_seen() -> None:
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
        (lambda: twice_mean_p(lambda e: [1.5], confidence=0.95), "p-values must be in [0, 1]"),
        (lambda: twice_mean_p(lambda e: [0.5], confidence=0.0), "confidence must be in (0, 1), got 0.0"),
        (lambda: mean_e_value(10, 11, confidence=0.95, alternative=0.8), "correct must be <= guesses"),
        (lambda: mean_e_value(10, 9, confidence=0.95, alternative=0.5), "alternative must be accuracies in (1/2, 1)"),
    ],
)
def test_bad_input_is_one_sentence(call: object, message: str) -> None:
    with pytest.raises(InputError) as raised:
        call()  # type: ignore[operator]
    assert message in str(raised.value)
