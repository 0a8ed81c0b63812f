"""Members by rare coins, and a random subset of fixed size: exact laws, coverage at the truth, planted defects."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import comb, expit, logit
from scipy.stats import binom, fisher_exact, nchypergeom_fisher
from scipy.stats.contingency import odds_ratio

from dpaudit.errors import InputError
from dpaudit.estimators.extraction import rare_canaries
from dpaudit.estimators.extraction.exposure import SecretRanks, SecretRelation, rank_epsilon
from dpaudit.estimators.extraction.random_subset import RandomSubset, random_subset_epsilon, random_subset_p_value
from dpaudit.estimators.extraction.rare_canaries import RareCanaries
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from tests.nightly import nightly_games

ERROR = 0.05


def limit(games: int) -> int:
    """A correct bound exceeds the truth in more games than this with probability < 1e-6."""
    return int(binom.ppf(1 - 1e-6, games, ERROR))


def by_coins(rng: np.random.Generator, canaries: int, rate: float, epsilon: float, delta: float = 0.0) -> Scores:
    """Each coin by randomised response, shown as it is with probability delta: exactly (epsilon, delta)-DP."""
    truth = rng.random(canaries) < rate
    is_shown = rng.random(canaries) < delta
    answer = truth ^ (rng.random(canaries) >= expit(epsilon))
    return Scores(np.where(is_shown & truth, 2.0, answer) + 0.5 * rng.random(canaries), truth)


def best_for_members(rng: np.random.Generator, canaries: int, rate: float, epsilon: float) -> Scores:
    """Members have the only score above 0 with probability 1 / 2, others with e^-epsilon / 2: exactly epsilon-DP."""
    truth = rng.random(canaries) < rate
    high = rng.random(canaries) < np.where(truth, 0.5, 0.5 * math.exp(-epsilon))
    return Scores(high + 0.5 * rng.random(canaries), truth)


def subset(rng: np.random.Generator, members: int, others: int, epsilon: float) -> Scores:
    """A uniform subset, each bit by randomised response at epsilon / 2: epsilon-DP for replacing a member."""
    truth = rng.permutation(np.arange(members + others) < members)
    answer = truth ^ (rng.random(truth.size) >= expit(epsilon / 2))
    return Scores(answer + 0.5 * rng.random(truth.size), truth)


@pytest.mark.parametrize("rate", [0.5, 0.05, 0.002])
def test_rare_coins_hold_at_the_truth_and_a_wrong_prior_is_detected(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About 100 members. False failure < 1e-6. Defect: the log-odds of the coins are 0.9 too small."""
    games, epsilon, canaries = nightly_games(400), 2.0, int(100 / rate)
    estimator, rng = RareCanaries(rate), np.random.default_rng(int(1 / rate))
    tallies = [estimator.tally(best_for_members(rng, canaries, rate, epsilon)) for _ in range(games)]
    assert sum(estimator.bound([tally]).lower > epsilon for tally in tallies) <= limit(games)
    monkeypatch.setattr(rare_canaries, "logit", lambda chance: logit(chance) - 0.9)
    assert sum(estimator.bound([tally]).lower > epsilon for tally in tallies) > limit(games)


def test_rare_coins_hold_with_delta_and_fail_if_it_is_ignored() -> None:
    """2 % of 200 members in 20,000 are shown. False failure < 1e-6."""
    games, rng, delta = nightly_games(300), np.random.default_rng(1), 0.02
    right, wrong = RareCanaries(0.01, delta), RareCanaries(0.01)
    tallies = [right.tally(by_coins(rng, 20_000, 0.01, 0.5, delta)) for _ in range(games)]
    assert sum(right.bound([tally]).lower > 0.5 for tally in tallies) <= limit(games)
    assert sum(wrong.bound([tally]).lower > 0.5 for tally in tallies) > limit(games)


def test_fair_coins_are_the_guesses_of_members_alone() -> None:
    scores = best_for_members(np.random.default_rng(2), 300, 0.5, 3.0)
    rare, usual = RareCanaries(0.5), SimultaneousGuessCount(guess="member-only")
    assert rare.bound([rare.tally(scores)]).lower == usual.bound([usual.tally(scores)]).lower


def test_rare_coins_reach_as_far_as_slates_of_their_own() -> None:
    """100 members of 100,000, all of them highest: about log(999 * 100 / 3), as 100 slates of 1,000 candidates."""
    truth = np.random.default_rng(3).permutation(np.arange(100_000) < 100)
    estimator = RareCanaries(0.001)
    scores = Scores(truth + 0.5 * np.random.default_rng(4).random(truth.size), truth)
    bound = estimator.bound([estimator.tally(scores)])
    slates = SecretRanks(np.ones(100, np.int64), np.full(100, 1000), np.arange(100.0))
    assert bound.lower == pytest.approx(rank_epsilon(slates, delta=0.0, confidence=0.95, relation="replace"), abs=0.2)
    assert bound.lower > 10
    assert dict(bound.counts)["members among as many highest scores"] == 100


def test_members_that_the_stated_coins_would_not_make_are_refused() -> None:
    scores = best_for_members(np.random.default_rng(5), 1_000, 0.3, 1.0)
    with pytest.raises(InputError, match=r"members must be about 0\.1 of the canaries"):
        RareCanaries(0.1).tally(scores)
    with pytest.raises(InputError, match="rate must be in"):
        RareCanaries(1.0)


def replaced_tail(hits: int, guesses: int, members: int, others: int, *, epsilon: float) -> float:
    return random_subset_p_value(hits, guesses, members=members, others=others, epsilon=epsilon, relation="replace")


@pytest.mark.parametrize("epsilon", [0.0, 0.8, 3.0])
@pytest.mark.parametrize(("guesses", "members", "others"), [(3, 4, 5), (6, 4, 3), (20, 30, 400)])
def test_the_tail_is_that_of_fishers_noncentral_law(epsilon: float, guesses: int, members: int, others: int) -> None:
    law = nchypergeom_fisher(members + others, members, guesses, math.exp(epsilon))
    for hits in range(min(guesses, members) + 1):
        tail = replaced_tail(hits, guesses, members, others, epsilon=epsilon)
        assert tail == pytest.approx(law.sf(hits - 1), rel=1e-6, abs=1e-10)
    hits = max(0, guesses - others) + 1
    table = [[hits, guesses - hits], [members - hits, others - guesses + hits]]
    plain = replaced_tail(hits, guesses, members, others, epsilon=0.0)
    assert plain == pytest.approx(fisher_exact(table, "greater").pvalue)


def test_the_bound_is_the_exact_limit_of_an_odds_ratio() -> None:
    bound = random_subset_epsilon(12, 15, members=15, others=85, confidence=0.95, relation="replace")
    limits = odds_ratio([[12, 3], [3, 82]], kind="conditional").confidence_interval(0.95, "greater")
    assert bound == pytest.approx(math.log(limits.low), abs=1e-4)
    assert bound <= math.log(limits.low) + 1e-9


def test_no_posterior_exceeds_the_law_and_one_attains_it() -> None:
    """Every number of hits of 200 random posteriors over the 20 subsets of 3 of 6; exact."""
    rng, epsilon, subsets = np.random.default_rng(6), 1.3, list(itertools.combinations(range(6), 3))
    steps = np.array([[3 - len(set(a) & set(b)) for b in subsets] for a in subsets])
    for guessed in ({0}, {0, 1, 2}, {0, 1, 2, 3}):
        hits = np.array([len(guessed & set(chosen)) for chosen in subsets])
        possible = range(min(3, len(guessed)) + 1)
        tails = [replaced_tail(h, len(guessed), 3, 3, epsilon=epsilon) for h in possible]
        for spread in rng.uniform(0, 2, 200):
            values = epsilon * hits + rng.uniform(0, spread, len(subsets))
            weights = np.exp((values + epsilon * steps).min(axis=1))  # moves by at most epsilon a replacement
            exact = [weights[hits >= h].sum() / weights.sum() for h in possible]
            assert np.all(np.array(exact) <= np.array(tails) + 1e-12)
        tilted = np.exp(epsilon * hits)
        assert [tilted[hits >= h].sum() / tilted.sum() for h in possible] == pytest.approx(tails)


def random_laws(rng: np.random.Generator, outputs: int) -> dict[frozenset[int], np.ndarray]:
    """Return a law of the output for every set of one or two of four canaries; some outputs show a set outright."""
    sets = [frozenset(chosen) for size in (1, 2) for chosen in itertools.combinations(range(4), size)]
    base = rng.dirichlet(np.ones(outputs))
    spread, share_shown = rng.uniform(0, 1.5), rng.choice([0.0, 0.02, 0.2])
    laws = {}
    for chosen in sets:
        law = base * np.exp(spread * rng.normal(size=outputs))
        laws[chosen] = (1 - share_shown) * law / law.sum() + share_shown * rng.dirichlet(np.full(outputs, 0.1))
    return laws


@pytest.mark.parametrize("relation", ["replace", "add-remove"])
def test_the_cost_of_delta_covers_random_mechanisms(relation: SecretRelation) -> None:
    """200 random laws of five outputs, two members of four, the best guesses at each output; exact.

    For each law the smallest delta at epsilon = 0.4 is computed exactly. Some tails come near the limit.
    """
    rng, epsilon, nearest = np.random.default_rng(10), 0.4, 0.0
    pairs = [frozenset(chosen) for chosen in itertools.combinations(range(4), 2)]
    for _ in range(200):
        laws = random_laws(rng, 5)
        neighbours = (
            [(a, b) for a in pairs for b in pairs if len(a & b) == 1]
            if relation == "replace"
            else [(a, a - {canary}) for a in pairs for canary in a]
        )
        steps = [*neighbours, *((b, a) for a, b in neighbours)]
        delta = max(np.maximum(laws[a] - math.exp(epsilon) * laws[b], 0).sum() for a, b in steps)
        for guesses, hits in ((1, 1), (2, 1), (2, 2), (3, 2)):
            # At each output, the guesses with the largest probability of so many hits.
            tail = sum(
                max(
                    sum(laws[a][output] for a in pairs if len(a & set(guess)) >= hits)
                    for guess in itertools.combinations(range(4), guesses)
                )
                for output in range(5)
            ) / len(pairs)
            limit = random_subset_p_value(
                hits, guesses, members=2, others=2, epsilon=epsilon, delta=delta, relation=relation
            )
            assert tail <= limit + 1e-12
            nearest = max(nearest, tail / limit) if limit < 1 else nearest
    assert nearest > 0.6


def test_a_random_subset_holds_with_delta_and_costs_little() -> None:
    """Members shown with probability delta, else randomised response at 4 for replacing. False failure < 1e-6.

    Defect: delta is ignored.
    """
    games, rng, delta = nightly_games(300), np.random.default_rng(11), 0.05
    right, wrong = RandomSubset(delta, relation="replace"), RandomSubset(relation="replace")
    tallies = []
    for _ in range(games):
        scores = subset(rng, 60, 600, 1.0)
        is_shown = scores.truth & (rng.random(660) < delta)
        tallies.append(right.tally(Scores(np.where(is_shown, 3.0, scores.score), scores.truth)))
    assert sum(right.bound([tally]).lower > 1.0 for tally in tallies) <= limit(games)
    assert sum(wrong.bound([tally]).lower > 1.0 for tally in tallies) > limit(games)
    perfect = Scores(np.arange(1000)[::-1] * 1.0, np.arange(1000) < 100)
    plain, charged = (
        estimator.bound([estimator.tally(perfect)]).lower for estimator in (RandomSubset(), RandomSubset(1e-5))
    )
    assert plain - 0.1 < charged <= plain


def test_the_cost_of_delta_needs_no_small_floats() -> None:
    """1,000 members that all score highest: Fisher's law is too small for a float at most numbers of hits."""
    scores = Scores(np.arange(20_000)[::-1] * 1.0, np.arange(20_000) < 1_000)
    plain, charged = (
        estimator.bound([estimator.tally(scores)]).lower for estimator in (RandomSubset(), RandomSubset(1e-6))
    )
    assert plain - 0.1 < charged <= plain


def test_a_random_subset_holds_at_the_truth() -> None:
    """60 members and 600 others. False failure < 1e-6. Defect: a hundred times the others."""
    games, rng, estimator = nightly_games(300), np.random.default_rng(7), RandomSubset(relation="replace")
    tallies = [estimator.tally(subset(rng, 60, 600, 4.0)) for _ in range(games)]
    assert sum(estimator.bound([tally]).lower > 4.0 for tally in tallies) <= limit(games)
    wrong = [replace(tally, others=100 * tally.others) for tally in tallies]
    assert sum(estimator.bound([tally]).lower > 4.0 for tally in wrong) > limit(games)


def test_ranks_among_shared_references_are_dependent_and_the_subset_test_is_not_misled() -> None:
    """400 secrets that were never learned, and 20 references that all share; no leak at all. False failure < 1e-6.

    Defect: their ranks as if each secret had references of its own. When the references happen to score low, many
    secrets come first together.
    """
    games, rng, estimator = nightly_games(400), np.random.default_rng(8), RandomSubset(relation="replace")
    misses = misled = 0
    for _ in range(games):
        secrets, references = rng.normal(size=400), rng.normal(size=20)
        scores = Scores(np.concatenate([secrets, references]), np.arange(420) < 400)
        misses += estimator.bound([estimator.tally(scores)]).lower > 0
        rank = 1 + (references >= secrets[:, None]).sum(axis=1)
        shared = SecretRanks(rank, np.full(400, 21), np.empty(0))
        misled += rank_epsilon(shared, delta=0.0, confidence=0.95, relation="replace") > 0
    assert misses <= limit(games) < misled


def test_the_most_that_a_subset_can_show() -> None:
    """All 100 members above 900 others: the odds ratio at which even that has probability of a fifth of the error."""
    scores = Scores(np.arange(1000)[::-1] * 1.0, np.arange(1000) < 100)
    estimator = RandomSubset(relation="replace")
    bound = estimator.bound([estimator.tally(scores)]).lower
    assert replaced_tail(100, 100, 100, 900, epsilon=bound) == pytest.approx(0.01, rel=1e-3)
    assert 9 < bound < math.log(comb(1000, 100))


def test_bad_members_and_delta_are_refused() -> None:
    with pytest.raises(InputError, match="delta must be in"):
        RandomSubset(delta=1.0)
    with pytest.raises(InputError, match="must be members and others"):
        RandomSubset(relation="replace").tally(Scores(np.arange(3.0), np.ones(3, bool)))
    with pytest.raises(InputError, match="hits must be"):
        random_subset_epsilon(4, 3, members=5, others=5, confidence=0.95)


@pytest.mark.parametrize("estimator", [RareCanaries(0.1), RandomSubset(relation="replace")])
def test_replays_are_combined_and_failed_ones_count_as_nothing(estimator: RareCanaries | RandomSubset) -> None:
    rng = np.random.default_rng(9)
    truth = rng.permutation(np.arange(500) < 50)
    tallies = [estimator.tally(Scores(truth + 0.3 * rng.normal(size=500), truth, replay)) for replay in range(3)]
    bound = estimator.find(tallies)
    series = bound.series["replays"]
    assert sorted(series["epsilon"])[1] == bound.lower
    assert bound.lower > estimator.find(tallies, failed_replays=4).lower == 0.0
    assert ("lost replays", 4) in estimator.find(tallies, failed_replays=4).counts
