"""Crafted queries against five kinds of defects of private predictors, each with variations and honest twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit import Relation
from dpaudit.engine.data.generated import GaussianMixture
from dpaudit.engine.games.predictions.crafted_pairs import crafted_pairs, stated_sizes
from dpaudit.engine.games.predictions.crafted_queries import CraftedQueries
from dpaudit.estimators.two_world.fair_coins import FairCoins
from tests import nightly
from tests.bank.leaky_predictors import (
    HONEST,
    LEAKY,
    DealtByPosition,
    Neighbours,
    SortedBlocks,
    SortedByLabel,
    SortedTeachers,
    SortedWithinLabels,
    Teachers,
    mechanism,
)
from tests.engine.pair_source_kit import played_scores
from tests.nightly import too

DATA = GaussianMixture(classes=2, rows=800).load(seed=0)
TARGET, TEST = DATA.take(np.arange(700)), DATA.take(np.arange(700, 800))


def rejects(audited: Any, seed: int = 0, *, search: int, trials: int, confidence: float) -> bool:
    """Return True if fresh runs reject the claim of one answer."""
    claim = audited.claim()
    game = CraftedQueries(trials, trials, search, relation=claim.relation)
    scores = played_scores(game, audited, TARGET, test=TEST, seed=seed)
    estimator = FairCoins(guess="signed", confidence=confidence)
    return estimator.bound([estimator.tally(scores)]).violation_point(claim.curve) is not None


RUNS = (2_500, 1_000)
"""Search and fresh runs, a fifth of those of a standard check."""
SMALL_LEAKS = {
    "FiveVotesOfFifty": (7_000, 20_000),
    "WeighedByPlainAccuracy": (5_000, 4_000),
    "ScreenedBySmallestLead": (7_000, 4_000),
    "TeachersScreenedByLeads": (7_000, 5_000),
}
"""Runs against small leaks, at most those of a standard check and its confirmatory run."""


FIRST = [next(iter(of_kind)) for of_kind in LEAKY.values()]
ADDED = [DealtByPosition]
OTHERS = [leaky for of_kind in LEAKY.values() for leaky in of_kind if leaky not in (*FIRST, *ADDED)]


@pytest.mark.parametrize("predictor", [*FIRST, *ADDED, *too(*OTHERS)])
def test_one_record_more_is_found_in_the_answers(predictor: Any) -> None:
    search, trials = SMALL_LEAKS.get(predictor.__name__, RUNS)
    assert rejects(mechanism(predictor), search=search, trials=trials, confidence=0.999)


@pytest.mark.parametrize("predictor", FIRST)
def test_one_record_in_the_place_of_another_is_found_too(predictor: Any) -> None:
    search, trials = RUNS
    assert rejects(mechanism(predictor, Relation.REPLACE), search=search, trials=trials, confidence=0.999)


def test_honest_twins_are_rejected_as_seldom_as_stated() -> None:
    """More than the permitted rejections have probability 1e-6. A defect is rejected in every game."""
    games = nightly.by_day(2, by_night=30)
    outcomes = [
        rejects(mechanism(honest), seed, search=1_200, trials=400, confidence=0.95)
        for honest in HONEST
        for seed in range(games)
    ]
    limit = binom.ppf(1 - 1e-6, len(outcomes), 0.05)
    assert sum(outcomes) <= limit < len(outcomes)


@pytest.mark.parametrize("predictor", [SortedTeachers, SortedBlocks, SortedByLabel, SortedWithinLabels])
def test_a_record_at_the_front_of_a_sort_order_moves_others_to_other_teachers(predictor: Any) -> None:
    """With a teacher by content, one teacher changes; with a teacher by place, many do, in a pair made for it."""
    moved = {code: _largest_change(code) for code in (predictor, Teachers)}
    assert moved[Teachers] <= 1 < 4 <= moved[predictor]


def _largest_change(code: Any) -> float:
    """Return the largest change of a count at a query, over the pairs for records dealt in order."""
    predictor, changes = code(), []
    for pair in crafted_pairs(mechanism(code), TARGET, TEST, 1, replaced=False):
        if "dealt" in pair.name:
            query = np.asarray(pair.asked.features[0])
            counts = [predictor.count(query, rows.features, rows.labels) for rows in (pair.without, pair.added)]
            changes.append(np.abs(counts[1] - counts[0]).max())
    return float(max(changes))


def test_a_pair_makes_a_quantile_of_the_leads_jump() -> None:
    """Leads are 0 or 1 at some records, and 15 at the others; one more record moves each quantile by 4 or more."""
    for quantile in (0.25, 0.5, 0.75):
        jumps = []
        for pair in crafted_pairs(mechanism(Neighbours), TARGET, TEST, 1, replaced=False):
            if "balanced classes" in pair.name:
                leads = [_leads(rows.features, rows.labels) for rows in (pair.without, pair.added)]
                jumps.append(abs(np.quantile(leads[1], quantile) - np.quantile(leads[0], quantile)))
        assert max(jumps) >= 4


def _leads(X: Any, y: Any) -> Any:
    near = np.argsort(((X[:, None].astype(float) - X) ** 2).sum(axis=2), axis=1, kind="stable")[:, :15]
    return np.abs(15 - 2 * y[near].sum(axis=1))


class Parameters:
    """Sizes in a default argument, in an attribute of a base class and in the code."""

    def __init__(self, votes: int = 31) -> None:
        self.votes = votes

    def answer(self, query: Any, data: Any, rng: np.random.Generator) -> int:
        return int(np.sum(data[1][:27]) > 13)


class Inherits(Parameters):
    """The sizes are those of its base."""

    groups = 12


def test_sizes_are_read_from_attributes_defaults_and_code() -> None:
    assert stated_sizes(Inherits) == [12, 31, 27, 13]
    assert stated_sizes(mechanism(Neighbours))[0] == 15


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3, 5])
def test_pairs_are_made_for_few_features_too(dimensions: int, replaced: bool) -> None:
    """Data sets stay in the range of the features."""
    rows = DATA.with_(features=np.ascontiguousarray(DATA.features[:, :dimensions]))
    target, test = rows.take(np.arange(700)), rows.take(np.arange(700, 800))
    crafted = list(crafted_pairs(mechanism(Teachers), target, test, 1, replaced=replaced))
    assert len({pair.name for pair in crafted}) > 50
    low, high = rows.features.min(axis=0), rows.features.max(axis=0)
    for pair in crafted:
        assert len(pair.added) - len(pair.without) == (not replaced)
        assert (pair.added.features >= low).all()
        assert (pair.added.features <= high).all()
