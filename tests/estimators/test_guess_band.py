"""The guess band: exact against every walk, coverage at the truth, delta, and a planted defect."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpaudit.errors import InputError
from dpaudit.estimators.one_run import guess_band, right_guesses
from dpaudit.estimators.one_run._guess_band_kernel import crossing_compared, crossing_probability
from dpaudit.estimators.one_run.delta_allowances import (
    IndependentTrials,
    OneTraining,
    SeveralTrainings,
    covering_allowances,
)
from dpaudit.estimators.one_run.guess_band import (
    SimultaneousGuessCount,
    guess_band_epsilon,
    guess_band_p_value,
    guess_bounds,
    guess_looks,
)
from dpaudit.estimators.one_run.right_guesses import right_in_fullest
from dpaudit.estimators.scores import Scores
from tests.nightly import nightly_games, too
from tests.twins import guess_band_twin as twin


def odds(epsilon: float) -> Fraction:
    return Fraction(math.exp(epsilon) / (1 + math.exp(epsilon)))


@pytest.mark.parametrize("guesses", [1, 2, 5, 9])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_p_value_is_exact(guesses: int, epsilon: float) -> None:
    guess_counts = np.arange(1, guesses + 1)
    rng = np.random.default_rng(guesses)
    for chance in (0.5, 0.9, 1.0):
        right = np.cumsum(rng.random(guesses) < chance)
        exact = float(twin.p_value(right.tolist(), guess_counts.tolist(), odds(epsilon)))
        p_value = guess_band_p_value(epsilon, right, guess_counts)
        assert exact - 1e-12 <= p_value <= exact + 1e-9


def test_crossing_probability_skips_guesses_between_looks() -> None:
    """Twelve guesses counted after 3, 7 and 12, against every walk."""
    guess_counts, limits, p = np.array([3, 7, 12]), np.array([3, 6, 9]), 0.6
    total = 0.0
    for walk in range(2**12):
        steps = [(walk >> place) & 1 for place in range(12)]
        reached = any(
            sum(steps[:guess_count]) >= limit for guess_count, limit in zip(guess_counts, limits, strict=True)
        )
        total += reached * p ** sum(steps) * (1 - p) ** (12 - sum(steps))
    assert crossing_probability(guess_counts, limits, p) == pytest.approx(total, abs=1e-11)


def test_bound_is_the_first_epsilon_that_is_not_rejected() -> None:
    right, guess_counts = np.arange(1, 8), np.arange(1, 8)
    slow = twin.epsilon(right.tolist(), guess_counts.tolist(), 0.1, steps=50, largest=1.0)
    assert 0 < slow <= guess_band_epsilon(right, guess_counts, significance=0.1) + 1e-3
    assert guess_band_epsilon(right, guess_counts, significance=0.1) <= slow + 1 / 50


@pytest.mark.parametrize(("delta", "allowed"), [(0.05, 0), (0.1, 1), (0.15, 2)])
def test_bound_at_delta_agrees_with_a_slow_search(delta: float, allowed: int) -> None:
    """Every walk of eight guesses, in exact arithmetic, on a grid of epsilons; B and its price by hand."""
    right = guess_counts = np.arange(1, 9)
    for epsilon in np.arange(0, 2, 0.1).tolist():
        expected = 8 * delta / (1 + math.exp(epsilon))
        count = next(count for count in range(9) if expected / (count + 1) <= 0.8 * 0.3)
        assert epsilon or count == allowed
        p_value = twin.p_value(np.maximum(right - count, 0).tolist(), guess_counts.tolist(), odds(epsilon))
        if p_value > 0.3 - expected / (count + 1):
            break
    bound = guess_band_epsilon(right, guess_counts, significance=0.3, delta_allowance=OneTraining(8, delta))
    assert epsilon - 0.1 - 1e-3 <= bound <= epsilon


@pytest.mark.parametrize("significance", [0.05, 1e-4])
@pytest.mark.parametrize("share", [0.6, 0.9, 0.99])
def test_bound_is_where_the_exact_p_value_reaches_the_error(share: float, significance: float) -> None:
    """At 300 guesses the crossing probability is neither that of a single look nor the sum over looks."""
    guess_counts = guess_looks(300)
    right = np.cumsum(np.random.default_rng(1).random(300) < share)[guess_counts - 1]
    bound = guess_band_epsilon(right, guess_counts, significance=significance)
    below, above = (guess_band_p_value(epsilon, right, guess_counts) for epsilon in (bound, bound + 0.02))
    assert bound == 0 or below <= significance * (1 + 1e-6)
    assert above > 0.97 * significance


def walks(rng: np.random.Generator, games: int, chance: float, guess_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the right guesses at each number of guesses, shape (games, guess_counts)."""
    between = np.diff(guess_counts, prepend=0)
    return np.cumsum(rng.binomial(between, chance, (games, guess_counts.size)), axis=1)


def misses_at_the_truth(epsilon: float, canaries: int, games: int, significance: float) -> int:
    guess_counts = guess_looks(canaries)
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    rights = walks(np.random.default_rng(canaries), games, chance, guess_counts)
    return sum(guess_band_p_value(epsilon, right, guess_counts) <= significance for right in rights)


@pytest.mark.parametrize(("epsilon", "canaries", "used"), [(0.0, 100, 0.04), (1.0, 1_000, 0.04), (3.0, 300, 0.006)])
def test_false_claims_are_no_more_frequent_than_stated_and_little_error_is_unused(
    epsilon: float, canaries: int, used: float
) -> None:
    """False failure < 1e-6 each way. A bound that exceeds epsilon rejects it, so this counts every false claim.

    Few canaries at a large epsilon are almost all right, so few p-values exist and much of the error cannot be used.
    """
    games = nightly_games(1_000)
    misses = misses_at_the_truth(epsilon, canaries, games, 0.05)
    assert misses <= binom.ppf(1 - 1e-6, games, 0.05)
    assert misses >= binom.ppf(1e-6, games, used)


def test_planted_defect_without_the_price_of_many_looks_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted defect: each look uses the level of a single test. 200 games."""
    games = nightly_games(200)
    monkeypatch.setattr(guess_band, "_step_levels", guess_band._step_levels.__wrapped__)  # without the cache
    monkeypatch.setattr(
        guess_band,
        "_largest_p_value",
        lambda low, high, level, guess_counts, weights, sufficient, few=False: level * float(weights.min()),
    )
    assert misses_at_the_truth(1.0, 1_000, games, 0.05) > binom.ppf(1 - 1e-6, games, 0.05)


def revealed_bits(
    rng: np.random.Generator, canaries: int, epsilon: float, delta: float, how: Literal["singly", "together"]
) -> NDArray[np.bool_]:
    """Return right guesses in the order of certainty: bits revealed with probability delta come first."""
    revealed = canaries * (rng.random() < delta) if how == "together" else rng.binomial(canaries, delta)
    answered = rng.random(canaries - revealed) < 1 / (1 + math.exp(-epsilon))
    return np.concatenate([np.ones(revealed, np.bool_), answered])


@pytest.mark.parametrize("how", ["singly", "together"])
@pytest.mark.parametrize("delta", [1e-2, *too(1e-4)])
def test_bound_holds_at_delta(how: Literal["singly", "together"], delta: float) -> None:
    """(1, delta)-DP mechanisms that reveal bits one by one or all at once; false failure < 1e-6."""
    rng, guess_counts, games = np.random.default_rng(7), guess_looks(500), 80
    kinds = [OneTraining(500, delta)] + ([IndependentTrials(500, delta)] if how == "singly" else [])
    for bad in kinds:
        misses = 0
        for _ in range(games):
            right = np.cumsum(revealed_bits(rng, 500, 1.0, delta, how))[guess_counts - 1]
            misses += guess_band_epsilon(right, guess_counts, significance=0.05, delta_allowance=bad) > 1.0
        assert misses <= binom.ppf(1 - 1e-6, games, 0.05)


@pytest.mark.parametrize(
    ("trainings", "sharing", "delta"), [(50, 10, 1e-2), (94, 32, 1e-5), (4, 5, 0.1), (1, 300, 1e-2)]
)
def test_allowance_covers_trainings_that_reveal_all_their_canaries(trainings: int, sharing: int, delta: float) -> None:
    """(epsilon, delta)-DP allows a training to reveal all canaries with probability exactly delta / (1 + e^epsilon)."""
    bad = SeveralTrainings(trainings * sharing, sharing, delta)
    for epsilon in (0.0, 1.0, 4.0):
        for significance in (0.05, 3e-4):
            allowed, cost = bad.allowance(epsilon, significance)
            chance = delta / (1 + math.exp(epsilon))
            assert binom.sf(allowed // sharing, trainings, chance) <= cost + 1e-15 <= 0.8 * significance + 2e-15
            # Smaller leaks of the same mean: any number of a training's canaries, more often.
            rng = np.random.default_rng(trainings)
            leaks = rng.binomial(trainings, min(1.0, 4 * chance), 20_000) * -(-sharing // 4)
            assert (leaks > allowed).mean() <= cost + 6 * math.sqrt(cost / 20_000) + 1e-3


def test_few_canaries_in_each_training_cost_less_than_one_training_of_all() -> None:
    """The data set of tied votes has 3,000 canaries, 32 a release, tested at the confidence of a second game."""
    assert OneTraining(3_000, 1e-5).allowance(0.0, 3.3e-4)[0] == 56
    assert SeveralTrainings(3_000, 32, 1e-5).allowance(0.0, 3.3e-4)[0] == 32


@dataclass(frozen=True)
class OnlyCost:
    """Delta allowance without extra guesses, at a cost of this probability."""

    cost: float

    def allowance(self, epsilon: float, significance: float) -> tuple[int, float]:
        return 0, self.cost


def test_cost_of_delta_is_subtracted_from_the_error() -> None:
    guess_counts = guess_looks(100)
    right = np.floor(0.9 * guess_counts).astype(np.int64)
    strict, paid, lax = (
        guess_band_epsilon(right, guess_counts, significance=error, delta_allowance=OnlyCost(cost))
        for error, cost in ((0.02, 0.0), (0.05, 0.03), (0.05, 0.0))
    )
    assert strict == paid < lax - 0.05


def test_bound_holds_if_some_trainings_reveal_everything() -> None:
    """(1, 0.01)-DP releases of ten bits, each of which reveals all with probability delta; false failure < 1e-6."""
    rng, guess_counts, games, misses = np.random.default_rng(9), guess_looks(500), 80, 0
    for _ in range(games):
        revealed = 10 * rng.binomial(50, 0.01)
        answered = rng.random(500 - revealed) < 1 / (1 + math.exp(-1.0))
        right = np.cumsum(np.concatenate([np.ones(revealed, np.bool_), answered]))[guess_counts - 1]
        misses += (
            guess_band_epsilon(right, guess_counts, significance=0.05, delta_allowance=SeveralTrainings(500, 10, 0.01))
            > 1.0
        )
    assert misses <= binom.ppf(1 - 1e-6, games, 0.05)


@pytest.mark.parametrize(
    "bad",
    [
        OneTraining(1_000, 1e-3),
        OneTraining(10_000, 1e-5),
        IndependentTrials(1_000, 1e-3),
        SeveralTrainings(3_000, 32, 1e-4),
        SeveralTrainings(3_000, 32, 1e-4, ((0, 3, 32), (0, 5, 64), (0, 7, 90))),
    ],
)
def test_allowance_of_a_step_covers_every_epsilon_in_it(
    bad: OneTraining | IndependentTrials | SeveralTrainings,
) -> None:
    """The search rejects a step of epsilons by one count and one cost, at all sizes of steps."""
    for low in np.linspace(0, 12, 60).tolist():
        for step in (0.5, 0.01):
            covering = covering_allowances(bad, low, low + step, 0.05)
            assert all(cost <= 0.8 * 0.05 + 1e-15 for _, cost in covering)
            for epsilon in np.linspace(low, low + step, 9).tolist():
                count, spent = bad.allowance(epsilon, 0.05)
                assert any((np.asarray(count) <= allowed).all() and spent <= cost for allowed, cost in covering)


def false_claim_probability(
    epsilon: float, delta: float, canaries: int, block: int, error: float, paid: float
) -> float:
    """Return the exact probability that the true epsilon is rejected.

    Each block of canaries is revealed with probability delta, and all its coins are then guessed first. The others are
    answered by randomised response, so the mechanism is exactly (epsilon, delta)-DP. `paid` is the share of the price
    of delta that the test pays.
    """
    guess_counts, p = guess_looks(canaries), 1 / (1 + math.exp(-epsilon))
    weights = guess_band.look_weights(guess_counts)
    allowed, cost = OneTraining(canaries, delta).allowance(epsilon, error)
    low, high = 1e-9, error  # of the level: the p-value at `low` is within the error of the walk
    for _ in range(40):
        level = math.sqrt(low * high)
        within = guess_band._largest_p_value(epsilon, epsilon, level, guess_counts, weights, 0.0) <= error - paid * cost
        low, high = (level, high) if within else (low, level)
    limits = guess_band.walk_limits(guess_counts, p, low * weights) + allowed
    total = 0.0
    for blocks in range(canaries // block + 1):
        revealed, chance = blocks * block, float(binom.pmf(blocks, canaries // block, delta))
        later = guess_counts > revealed
        crossed = float((np.minimum(guess_counts, revealed) >= limits).any())
        if not crossed and later.any():
            crossed = crossing_probability(guess_counts[later] - revealed, limits[later] - revealed, p)
        total += chance * crossed
        if chance < 1e-12 and blocks > canaries / block * delta:
            break
    return total


@pytest.mark.parametrize(
    ("epsilon", "delta", "canaries", "error"),
    [(0.0, 1e-3, 80, 0.05), (0.0, 1e-3, 1_000, 0.05), (1.0, 1e-2, 1_000, 0.05), (2.0, 1e-3, 1_000, 1e-3)],
)
def test_mechanisms_that_reveal_blocks_are_convicted_no_more_often_than_stated(
    epsilon: float, delta: float, canaries: int, error: float
) -> None:
    for block in (1, 3, 10, 30, 100, 250, 1_000):
        assert false_claim_probability(epsilon, delta, canaries, block, error, paid=1.0) <= error


def test_planted_defect_of_an_allowance_without_its_price_is_detected() -> None:
    """Planted defect: the probability that delta adds more right guesses than allowed is not paid for."""
    assert false_claim_probability(0.0, 1e-3, 80, 10, 0.05, paid=0.0) > 0.05


@pytest.mark.parametrize(
    ("canaries", "share", "least"),
    [(400, 0.1, 0.9), (400, 0.3, 2.5), (1_000, 0.1, 1.9), (1_000, 0.3, 3.4), (4_000, 0.1, 3.3), (10_000, 0.1, 4.3)],
)
def test_a_small_delta_leaves_most_of_the_bound(canaries: int, share: float, least: float) -> None:
    """A share of the canaries is revealed and half of the others are guessed right: delta 1e-5, 99.9 %."""
    guess_counts = guess_looks(canaries)
    revealed = np.minimum(guess_counts, round(share * canaries))
    right = revealed + (guess_counts - revealed) // 2
    bounds = [
        guess_band_epsilon(
            right, guess_counts, significance=1e-3, delta_allowance=OneTraining(canaries, delta), in_numpy=True
        )
        for delta in (1e-5, 0.0)
    ]
    assert least < bounds[0] < bounds[1] < bounds[0] + 1


def answers(
    rng: np.random.Generator, trainings: int, sharing: int, delta: float, how: Literal["singly", "together"]
) -> Scores:
    """Return (1, delta)-DP scores: randomised response that reveals a bit, or a training, with probability delta."""
    truth = rng.random((trainings, sharing)) < 0.5
    revealed = rng.random((trainings, 1 if how == "together" else sharing)) < np.full((trainings, sharing), delta)
    right = revealed | (rng.random(truth.shape) < 1 / (1 + math.exp(-1.0)))
    score = np.where(right == truth, 1.0, -1.0) * (1 + revealed)
    return Scores(score.ravel(), truth.ravel())


@pytest.mark.parametrize(
    ("trainings", "sharing", "delta", "how"),
    [
        (200, 8, 5e-3, "together"),
        *too(
            (40, 20, 1e-2, "singly"),
            (200, 8, 5e-3, "singly"),
            (40, 20, 1e-2, "together"),
            (2_000, 2, 1e-3, "singly"),
            (2_000, 2, 1e-3, "together"),
        ),
    ],
)
def test_allowance_of_the_fullest_trainings_covers_revealed_trainings(
    trainings: int, sharing: int, delta: float, how: Literal["singly", "together"]
) -> None:
    """Valid at the truth (false failure < 1e-6). Planted defect: without the allowance it is not."""
    method, rng, games = SimultaneousGuessCount(delta, sharing=sharing), np.random.default_rng(11), nightly_games(120)
    tallies = [method.tally(answers(rng, trainings, sharing, delta, how)) for _ in range(games)]
    bounds, _ = replace(method, confidence=0.9).best(tallies, 1)
    assert np.count_nonzero(bounds > 1.0) <= binom.ppf(1 - 1e-6, games, 0.1)
    assert all(isinstance(method._delta_allowance(tally).allowance(1.0, 0.1)[0], np.ndarray) for tally in tallies)
    careless = np.array([guess_bounds(tally, IndependentTrials(int(tally.looks[-1])), 0.1).max() for tally in tallies])
    if how == "together" and sharing > 2:  # a few bits more do not show
        assert np.count_nonzero(careless > 1.0) > binom.ppf(1 - 1e-6, games, 0.1)


def test_number_of_allowed_trainings_follows_from_the_error() -> None:
    """The number is the smallest that is exceeded with probability at most a tenth of the error."""
    fullest = tuple((count,) for count in (3, 5, 7, 8, 9, 10, 11, 12))
    for canaries, delta, significance in ((16_000, 1e-5, 3.3e-4), (16_000, 1e-5, 1e-4), (2_000, 1e-5, 1e-6)):
        chance = delta / 2
        tails = binom.sf(np.arange(9), canaries, chance)
        bad = int(np.argmax(tails <= 0.1 * significance))
        allowed, cost = SeveralTrainings(canaries, 32, delta, fullest).allowance(0.0, significance)
        assert (np.asarray(allowed).tolist(), cost) == ([fullest[bad - 1][0]], 0.2 * significance)
        assert tails[bad - 1] > 0.1 * significance


def test_canary_numbers_give_the_training() -> None:
    """Three trainings of at most four canaries, with gaps, in any row order."""
    canary = np.array([9, 0, 4, 1, 8, 2])
    scores = Scores(np.array([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), np.ones(6, np.bool_), 0, canary)
    tally = SimultaneousGuessCount(1e-5, sharing=4).tally(scores)
    assert tally.looks.tolist() == [1, 2, 3, 4, 5, 6]
    assert tally.fullest.tolist() == [[1, 1, 1, 2, 2, 3], [1, 2, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]]


def test_fullest_trainings_agree_with_a_slow_count() -> None:
    """The slow twin counts the guesses one by one."""
    rng = np.random.default_rng(12)
    for _ in range(20):
        truth, score = rng.random(60) < 0.5, np.round(rng.normal(size=60), 1)
        canary = np.sort(rng.choice(300, 60, replace=False))
        scores, guess_counts = Scores(score, truth, 0, canary), guess_looks(60)
        computed = right_in_fullest(score, truth, scores.tie_ranks(), canary // 25, guess_counts, 4)
        order = sorted(range(60), key=lambda row: (-abs(score[row]), scores.tie_ranks()[row]))
        for place, guess_count in enumerate(guess_counts):
            right = Counter[int]()
            for row in order[:guess_count]:
                right[int(canary[row]) // 25] += bool((score[row] > 0) == truth[row])
            most = [count for _, count in right.most_common(4)]
            assert computed[:, place].tolist() == np.cumsum([*most, 0, 0, 0, 0][:4]).tolist()


def test_ties_across_many_trainings_are_not_charged_as_one_training() -> None:
    """Votes of few teachers: 188 certain guesses in 500 trainings of 32, at the confidence of a second game."""
    rng = np.random.default_rng(13)
    truth = rng.random(16_000) < 0.5
    score = np.zeros(16_000)
    sure = rng.choice(16_000, 188, replace=False)
    score[sure] = np.where(truth[sure], 5.0, -5.0)
    method = SimultaneousGuessCount(1e-5, 1 - 3.3e-4, sharing=32)
    tally = method.tally(Scores(score, truth))
    assert method.bound([tally]).lower > 2.0
    assert method.bound([replace(tally, fullest=np.zeros((0, 0), np.int64))]).lower < 1.0


def test_planted_defect_ignoring_delta_is_detected() -> None:
    """Planted defect: an analysis with delta = 0 claims too much in almost every game."""
    rng, guess_counts = np.random.default_rng(8), guess_looks(500)
    rights = [np.cumsum(revealed_bits(rng, 500, 1.0, 0.05, "singly"))[guess_counts - 1] for _ in range(30)]
    assert sum(guess_band_epsilon(right, guess_counts, significance=0.05) > 1.0 for right in rights) > 20


@pytest.mark.parametrize(("guesses", "epsilon"), [(100, 1.0), (1_000, 3.0), (5_000, 0.2)])
def test_a_leak_is_found_and_the_bound_grows_with_the_evidence(guesses: int, epsilon: float) -> None:
    guess_counts = guess_looks(guesses)
    expected = np.floor(guess_counts / (1 + math.exp(-epsilon))).astype(np.int64)
    bound = guess_band_epsilon(expected, guess_counts, significance=0.05)
    assert 0 <= bound < epsilon
    assert guess_band_epsilon(guess_counts, guess_counts, significance=0.05) > max(bound, math.log(guesses) - 2)


def test_the_largest_bound_of_all_right_guesses() -> None:
    """If all m are right, p^m is below the local level at m, so the bound is about log(m / log(1 / significance))."""
    guess_counts = guess_looks(10**6)
    assert (
        11.5 < guess_band_epsilon(guess_counts, guess_counts, significance=0.05) < math.log(10**6 / math.log(1 / 0.05))
    )


@pytest.mark.parametrize(
    ("right", "guess_counts", "message"),
    [
        ([1, 2], [1, 2, 3], "one count a look"),
        ([1, 1], [2, 2], "ascend"),
        ([2, 3], [1, 5], "at most the guesses made"),
        ([1, 0], [1, 2], "at most the guesses made"),
    ],
)
def test_impossible_counts_are_refused(right: list[int], guess_counts: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        guess_band_epsilon(np.array(right), np.array(guess_counts), significance=0.05)


def test_search_ends_if_one_limit_is_0() -> None:
    """A level of 1 allows every count. The search for the other limits must still end."""
    limits = guess_band.walk_limits(np.array([10, 8_192]), 0.5, np.array([1.0, 0.01]))
    assert limits.tolist() == [0, int(binom.isf(0.01, 8_192, 0.5)) + 1]


@pytest.mark.parametrize(("guesses", "p"), [(10, 0.6), (300, 0.73), (20_000, 0.9), (20_000, 1 - 1e-6)])
def test_array_code_bounds_the_exact_probability(guesses: int, p: float) -> None:
    """The array code gives the exact probability from above, apart from the mass that it drops."""
    guess_counts, rng = guess_looks(guesses), np.random.default_rng(guesses)
    for error in (0.3, 1e-3):
        levels = error / guess_counts.size * rng.uniform(0.5, 2, guess_counts.size)
        limits = guess_band.walk_limits(guess_counts, p, levels)
        exact = crossing_probability(guess_counts, limits, p)
        given_away = 1e-5 * error / guess_counts.size
        computed = guess_band.crossing_in_arrays(
            guess_counts, limits, p, given_away, np.zeros(guess_counts.size), 0.0, 2.0
        )
        assert exact * (1 - 1e-7) - 1e-15 <= computed <= exact + 3 * guess_counts.size * given_away + 1e-7 * exact


def test_long_walks_use_transforms() -> None:
    guess_counts, p = guess_looks(500_000), 0.6
    limits = guess_band.walk_limits(guess_counts, p, 0.05 / guess_counts.size / np.sqrt(guess_counts))
    exact = crossing_probability(guess_counts, limits, p, 1e-9)
    computed = guess_band.crossing_in_arrays(guess_counts, limits, p, 1e-9, np.zeros(guess_counts.size), 0.0, 2.0)
    assert computed == pytest.approx(exact, abs=2 * guess_counts.size * 1e-9)


@pytest.mark.parametrize("follow", [guess_band.crossing_in_arrays, crossing_compared])
def test_walk_stops_as_soon_as_it_is_decided(follow: Callable[..., float]) -> None:
    """The returned value is on the same side of the error as the probability, and bounds the probability."""
    guess_counts, p = guess_looks(3_000), 0.7
    limits = guess_band.walk_limits(guess_counts, p, 0.05 / np.sqrt(guess_counts))
    tails = guess_band.upper_tails(limits, guess_counts, p)
    later = np.append(np.cumsum(tails[:0:-1])[::-1], 0.0)
    exact = follow(guess_counts, limits, p, 1e-16, later, 0.0, 2.0)
    assert exact == pytest.approx(crossing_probability(guess_counts, limits, p), abs=1e-12)
    for error in (0.5 * exact, 0.99 * exact):
        assert error < follow(guess_counts, limits, p, 1e-16, later, 0.999 * error, error) <= exact
    for error in (1.01 * exact, 2 * exact, float(tails.sum())):
        assert exact <= follow(guess_counts, limits, p, 1e-16, later, 0.999 * error, error) <= error
    assert follow(guess_counts, limits, p, 1e-16, later, 0.0, 0.5 * exact) < exact, "it is not followed to its end"


def test_bound_equals_that_of_complete_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    guess_counts = guess_looks(20_000)
    rng = np.random.default_rng(3)
    rights = [np.minimum(guess_counts, 10) + (np.maximum(guess_counts - 10, 0) // 2)]
    rights += list(walks(rng, 3, 0.6, guess_counts))
    bounds = [guess_band_epsilon(right, guess_counts, significance=0.05, in_numpy=True) for right in rights]
    guess_band.cached_epsilon.cache_clear()
    guess_band._step_levels.cache_clear()
    follow = guess_band.crossing_in_arrays
    monkeypatch.setattr(guess_band, "crossing_in_arrays", lambda *walk: follow(*walk[:-2], 0.0, 2.0))
    assert [guess_band_epsilon(right, guess_counts, significance=0.05, in_numpy=True) for right in rights] == bounds
    guess_band.cached_epsilon.cache_clear()
    guess_band._step_levels.cache_clear()


def test_numpy_and_compiled_code_give_equal_bounds() -> None:
    guess_counts, rng = guess_looks(2_000), np.random.default_rng(5)
    for share in (0.6, 0.8, 0.99):
        right = np.concatenate([[0], np.cumsum(rng.random(2_000) < share)])[guess_counts]
        few, many = (guess_band_epsilon(right, guess_counts, significance=0.05, in_numpy=few) for few in (True, False))
        assert few == many > 0


@pytest.mark.parametrize("rows", [1, 2, 17, 1_000])
def test_numpy_and_compiled_counts_agree(rows: int) -> None:
    rng = np.random.default_rng(rows)
    keys = rng.integers(0, 2**32, max(1, rows // 3), dtype=np.uint32)[rng.integers(0, max(1, rows // 3), rows)]
    ranks, right, firsts = rng.permutation(rows), rng.random(rows) < 0.5, np.unique(rng.integers(0, rows + 1, 9))
    few, many = (
        count(keys, ranks, right, firsts) for count in (right_guesses._right_among_few, right_guesses._compiled())
    )
    assert few.tolist() == many.tolist()
