"""Exposure and epsilon from ranks: exact laws, coverage at the truth, power against coins, planted defects."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import betaincinv, logit
from scipy.stats import binom

from dpaudit.errors import InputError
from dpaudit.estimators.extraction import exposure
from dpaudit.estimators.extraction.exposure import (
    Exposure,
    SecretRanks,
    SecretRelation,
    exposure_bits,
    exposure_interval,
    median_exposure_interval,
    nothing_learned_p_value,
    rank_epsilon,
    rank_slates,
)
from dpaudit.estimators.extraction.sampling import Sampling
from dpaudit.estimators.one_run.guess_band import SMALLEST_STEP, guess_band_epsilon, guess_looks
from tests.estimators.extraction.enumerated_model import TEXTS, EnumeratedModel
from tests.nightly import nightly_games
from tests.twins import guess_band_twin

ERROR = 0.05


def limit(games: int) -> int:
    """A correct bound exceeds the truth in more games than this with probability < 1e-6."""
    return int(binom.ppf(1 - 1e-6, games, ERROR))


def ranks(rank: object, candidates: int, *, margins: bool = False) -> SecretRanks:
    place = np.asarray(rank, np.int64)
    return SecretRanks(place, np.full(place.size, candidates), np.arange(place.size) * 1.0 if margins else np.empty(0))


def randomised_response(
    rng: np.random.Generator, secrets: int, candidates: int, epsilon: float, delta: float = 0.0
) -> SecretRanks:
    """Each secret's candidate by randomised response over its slate; with probability delta it is shown as such.

    Exactly (epsilon, delta)-DP for replacing a secret. Those shown have the largest margins.
    """
    is_shown = rng.random(secrets) < delta
    chance = math.exp(epsilon) / (math.exp(epsilon) + candidates - 1)
    right = is_shown | (rng.random(secrets) < chance)
    return SecretRanks(np.where(right, 1, 2), np.full(secrets, candidates), is_shown + rng.random(secrets))


def test_exposure_of_an_enumerated_model_equals_its_rank_among_all_texts() -> None:
    """The slate is every text of four tokens out of five, as in the definition of exposure."""
    model = EnumeratedModel(3)
    probabilities = model.probabilities(1.0, None, 1.0)
    logs = np.asarray(Sampling().text_log_probability(model.teacher_forced(TEXTS), np.array(TEXTS)))
    secrets = [0, 77, 624, int(np.argmax(logs))]
    result = rank_slates(np.tile(logs, (4, 1)), secrets)
    by_hand = [sum(probabilities[text] >= probabilities[TEXTS[secret]] for text in TEXTS) for secret in secrets]
    assert result.rank.tolist() == by_hand
    assert exposure_bits(result.rank, result.candidates)[3] == pytest.approx(math.log2(625))  # type: ignore[index]
    first, second = sorted(logs)[-1], sorted(logs)[-2]
    assert result.margin.tolist() == pytest.approx([first - second] * 4)


def test_the_interval_covers_the_exposure_among_all_texts() -> None:
    """400 slates of 200 texts, drawn from an enumerated model's texts. False failure < 1e-6."""
    model, rng = EnumeratedModel(4), np.random.default_rng(0)
    logs = np.asarray(Sampling().text_log_probability(model.teacher_forced(TEXTS), np.array(TEXTS)))
    secret = int(np.argsort(logs)[-20])  # exposure log2(625 / 20): rank 20 of all
    truth = math.log2(625 / 20)
    others = rng.integers(0, 625, (400, 199))
    rank = 1 + (logs[others] >= logs[secret]).sum(axis=1)
    lower, upper = exposure_interval(rank, np.full(400, 200), confidence=0.9)
    missed = int(((np.asarray(lower) > truth) | (np.asarray(upper) < truth)).sum())
    assert missed <= binom.ppf(1 - 1e-6, 400, 0.1)
    assert exposure_interval(1, 200, confidence=0.9).upper == math.inf


def test_the_median_exposure_is_covered() -> None:
    """300 trainings of 40 secrets at known exposures; a median without allowance for missed limits is detected."""
    rng, games, secrets = np.random.default_rng(1), nightly_games(300), 40
    shares = np.geomspace(1e-3, 0.5, secrets)
    truth = float(np.median(-np.log2(shares)))
    missed, missed_alone = 0, 0
    for _ in range(games):
        rank = 1 + rng.binomial(999, shares)
        low, high = median_exposure_interval(rank, np.full(secrets, 1000), confidence=0.95)
        missed += not low <= truth <= high
        alone = exposure_interval(rank, np.full(secrets, 1000), confidence=0.05)  # planted defect: hardly an interval
        missed_alone += not float(np.median(alone.lower)) <= truth <= float(np.median(alone.upper))
    assert missed <= limit(games) < missed_alone


@pytest.mark.parametrize("scores", [[4.0, 3.0, 2.0, 1.0], [2.0, 2.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
def test_the_rank_p_value_is_exact_and_safe_with_ties(scores: list[float]) -> None:
    """Each candidate of one slate is planted with probability 1/4, and the scores know nothing."""
    result = rank_slates(np.tile(scores, (4, 1)), np.arange(4))
    p_values = result.rank / result.candidates
    for level in (0.25, 0.5, 0.75, 1.0):
        assert np.mean(p_values <= level) <= level
    if len(set(scores)) == 4:
        assert sorted(p_values) == [0.25, 0.5, 0.75, 1.0]


def test_ties_count_against_the_secret_and_leave_no_lead() -> None:
    result = rank_slates([[1.0, 1.0, 0.0], [np.inf, np.inf, 0.0]], [0, 2])
    assert result.rank.tolist() == [2, 3]
    assert result.margin.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_the_p_value_is_that_of_every_walk(epsilon: float, top: int) -> None:
    """Guesses among five candidates: the exact p-value of the enumerated walk at k e^eps / (k e^eps + N - k)."""
    result = SecretRanks(np.array([1, 2, 1, 3, 1]), np.full(5, 5), np.array([5.0, 4.0, 3.0, 2.0, 1.0]))
    chance = Fraction(top * math.exp(epsilon) / (top * math.exp(epsilon) + 5 - top))
    right, guess_counts = result.right_guesses(top)
    assert right.tolist() == ([1, 1, 2, 2, 3] if top == 1 else [1, 2, 3, 3, 4])
    exact = 0.0
    observed = guess_band_twin.statistic(right.tolist(), guess_counts.tolist(), chance)
    for walk in itertools.product((0, 1), repeat=5):
        if guess_band_twin.statistic(np.cumsum(walk).tolist(), guess_counts.tolist(), chance) <= observed * (1 + 1e-12):
            exact += float(chance ** sum(walk) * (1 - chance) ** (5 - sum(walk)))
    prior = exposure.prior_log_odds(result.candidates, top)
    assert exposure.guess_band_p_value(epsilon + prior, right, guess_counts) == pytest.approx(exact, rel=1e-6)
    if epsilon == 0:
        assert nothing_learned_p_value(result, top=top) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("first", "secrets", "candidates"), [(30, 40, 1000), (100, 100, 10), (3, 500, 10**6)])
def test_ranks_alone_give_the_exact_binomial_bound(first: int, secrets: int, candidates: int) -> None:
    """Without margins there is one look: the quantile of a Beta law, moved by the prior log-odds."""
    rank = np.where(np.arange(secrets) < first, 1, 7)
    bound = rank_epsilon(ranks(rank, candidates), delta=0.0, confidence=0.95, relation="replace")
    exact = float(logit(betaincinv(first, secrets - first + 1, ERROR))) + math.log(candidates - 1)
    assert exact - 2 * SMALLEST_STEP * (1 + exact) <= bound <= exact


def test_a_slate_of_two_is_a_fair_coin() -> None:
    result = SecretRanks(np.where(np.arange(60) % 4 == 0, 2, 1), np.full(60, 2), np.arange(60) * 1.0)
    right = np.cumsum((result.rank == 1)[::-1])[guess_looks(60) - 1]
    assert rank_epsilon(result, delta=0.0, confidence=0.95, relation="replace") == guess_band_epsilon(
        right, guess_looks(60), significance=ERROR
    )


@pytest.mark.parametrize(("epsilon", "candidates"), [(0.0, 20), (2.0, 20), (4.0, 1000)])
def test_bounds_hold_at_the_truth_and_a_wrong_prior_is_detected(epsilon: float, candidates: int) -> None:
    """Randomised response over the slate, 200 secrets. False failure < 1e-6. Defect: a prior of 1 / (2 N)."""
    games, rng = nightly_games(500), np.random.default_rng(candidates)
    misses = defects = 0
    for _ in range(games):
        result = randomised_response(rng, 200, candidates, epsilon)
        bound = rank_epsilon(result, delta=0.0, confidence=0.95, relation="replace")
        misses += bound > epsilon
        twice = SecretRanks(result.rank, 2 * result.candidates, result.margin)
        defects += rank_epsilon(twice, delta=0.0, confidence=0.95, relation="replace") > epsilon
    assert misses <= limit(games) < defects


@pytest.mark.parametrize("relation", ["replace", "add-remove"])
def test_bounds_hold_with_delta_and_fail_if_it_is_ignored(relation: SecretRelation) -> None:
    """One secret in 200 of 1,000 is shown outright; epsilon = 1 for replacing otherwise. False failure < 1e-6.

    If a release without a secret draws its answer uniformly, adding one is at most (1, delta)-DP too; 1/2 is tested.
    """
    games, rng, delta = nightly_games(300), np.random.default_rng(5), 5e-3
    tested = 1.0 / exposure.STEPS[relation]
    misses = ignored = 0
    for _ in range(games):
        result = randomised_response(rng, 1_000, 1_000, 1.0, delta)
        misses += rank_epsilon(result, delta=delta, confidence=0.95, relation=relation) > tested
        ignored += rank_epsilon(result, delta=0.0, confidence=0.95, relation=relation) > tested
    assert misses <= limit(games) < ignored


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("top", [1, 2])
def test_the_charge_for_delta_covers_random_mechanisms(steps: int, top: int) -> None:
    """300 random laws of six outputs for one slate of four: the excess of the posterior is at most what is charged.

    For each law the smallest delta at epsilon = 0.7 is computed exactly. Some come within a factor of three.
    """
    rng, epsilon, candidates = np.random.default_rng(9), 0.7, 4
    odds = top / (candidates - top) * math.exp(steps * epsilon)
    nearest = 0.0
    for _ in range(300):
        laws = rng.dirichlet(np.full(6, rng.uniform(0.05, 2)), candidates)
        none = laws.mean(axis=0)  # the law of the output if no candidate is planted
        pairs = list(itertools.permutations(laws, 2)) if steps == 1 else [(law, none) for law in laws]
        pairs += [pair[::-1] for pair in pairs]
        delta = max(np.maximum(law - math.exp(epsilon) * other, 0).sum() for law, other in pairs)
        best = np.sort(laws / laws.sum(axis=0), axis=0)[-top:].sum(axis=0)  # posterior of the best guess
        excess = float((none * np.maximum(best - odds / (1 + odds), 0)).sum())
        charged = exposure.SlateAllowance(1, candidates, top, delta, steps).expected(steps * epsilon)
        assert excess <= charged + 1e-12
        nearest = max(nearest, excess / charged) if charged else nearest
    assert nearest > 0.3


def posterior(epsilon: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a random posterior of two dependent secrets, three candidates each; replacing one changes it by e^epsilon.

    The logarithm is the largest function below random values that moves by at most epsilon a replacement.
    """
    pairs = list(itertools.product(range(3), repeat=2))
    near = np.array([(pair[0] == 0) + (pair[1] == 0) for pair in pairs])
    values = epsilon * near + rng.uniform(0, 2 * epsilon * rng.random(), len(pairs))
    steps = np.array([[(a[0] != b[0]) + (a[1] != b[1]) for b in pairs] for a in pairs])
    weights = np.exp((values + epsilon * steps).min(axis=1))
    return np.asarray(weights / weights.sum()).reshape(3, 3)


def test_right_guesses_of_any_coupled_posterior_are_dominated() -> None:
    """Every guess pair of 200 random posteriors over two slates of three, against the walk; exact.

    The two secrets are dependent given the model. Both right is at most p squared, one or more at most 1 - (1 - p)^2.
    """
    epsilon, rng = 1.2, np.random.default_rng(6)
    p = math.exp(epsilon) / (math.exp(epsilon) + 2)
    largest = 0.0
    for _ in range(200):
        joint = posterior(epsilon, rng)
        for first, second in itertools.product(range(3), repeat=2):
            both = joint[first, second]
            either = joint[first].sum() + joint[:, second].sum() - both
            assert both <= p**2 + 1e-12
            assert either <= 1 - (1 - p) ** 2 + 1e-12
            largest = max(largest, both / p**2)
    assert largest > 0.9  # some of them come near the limit


def test_many_candidates_show_more_than_coins_for_as_many_secrets() -> None:
    """Randomised response at epsilon = 4, 500 secrets, 20 games each: between two candidates, and among 200."""
    rng = np.random.default_rng(7)

    def mean_bound(candidates: int) -> float:
        games = [randomised_response(rng, 500, candidates, 4.0) for _ in range(20)]
        return float(np.mean([rank_epsilon(game, delta=0.0, confidence=0.95, relation="replace") for game in games]))

    assert mean_bound(2) < mean_bound(200) < 4.0
    two, many = (
        rank_epsilon(ranks(np.ones(500), candidates), delta=0.0, confidence=0.95, relation="replace")
        for candidates in (2, 200)
    )
    assert many - two == pytest.approx(math.log(199), abs=0.01)


def test_equal_margins_are_ordered_against_the_secret() -> None:
    """Planted defect: a table sorted by rank, with equal margins, would guess the right ones first."""
    result = SecretRanks(np.array([1] * 5 + [2] * 95), np.full(100, 10), np.zeros(100))
    assert result.right_guesses(1)[0][0] == 0
    assert rank_epsilon(result, delta=0.0, confidence=0.95, relation="replace") == 0.0


def test_the_estimator_reads_a_table_and_says_what_ranks_show() -> None:
    table = {"rank": [1] * 30 + [40] * 20, "candidates": [1000] * 49 + [2000], "margin": list(range(50, 0, -1))}
    (bound,) = Exposure().read(table)
    assert bound.lower == rank_epsilon(
        SecretRanks(np.array(table["rank"]), np.array(table["candidates"]), np.array(table["margin"], float)),
        delta=0.0,
        confidence=0.95,
    )
    assert bound.maximum is not None
    assert bound.maximum.lower > bound.lower > 3
    assert dict(bound.counts) == {"secrets": 50, "candidates": 1000, "secrets of rank at most 1": 30}
    assert bound.measures[0].value == pytest.approx(math.log2(1000))
    assert bound.measures[0].lower < bound.measures[0].value
    assert any("differ in size" in note for note in bound.notes)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rank": [0], "candidates": [5]}, "rank must be >= 1"),
        ({"rank": [6], "candidates": [5]}, "rank must be <= candidates"),
        ({"rank": [1], "candidates": [1]}, "candidates must be >= 2"),
        ({"rank": [1.5], "candidates": [5]}, "whole numbers"),
        ({"rank": [1]}, "must have the columns rank, candidates"),
        ({"rank": [1, 1], "candidates": [5, 5], "margin": [1.0, np.nan]}, "finite"),
    ],
)
def test_bad_tables_are_refused(table: dict[str, list[float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Exposure().read(table)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="index of one candidate"):
        rank_slates([[1.0, 2.0]], [2])
    with pytest.raises(InputError, match="must not be NaN"):
        rank_slates([[1.0, np.nan]], [0])
    with pytest.raises(InputError, match="top must be in"):
        rank_epsilon(ranks([1, 2], 2), delta=0.0, confidence=0.95, relation="replace", top=2)
