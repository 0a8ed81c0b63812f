"""Pairs of tables that calls with one seed propose: for each kind of defect a case and three neighbours of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpaudit.claims import PureDP, Relation
from dpaudit.engine.data.partition import loaded_rows
from dpaudit.engine.games.functions.coupled_search import (
    CoupledSearch,
    ProposedPair,
    Result,
    _uneven,
    pattern_distance,
)
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.search import paired_coins, strength
from dpaudit.engine.request.function_request import function_on_rows
from dpaudit.mechanisms.queries.row_function import CallLimits, CallOutcome
from tests.bank import hidden_pairs as hidden
from tests.bank import rarer_pairs as rarer

CALLS = 1_300
"""Calls of a search in `dpaudit check` with the effort "standard"."""


def search(
    function: Callable[..., Any], schema: Any, relation: Relation = Relation.ADD_REMOVE, calls: int = CALLS
) -> CoupledSearch:
    mechanism, source = function_on_rows(function, schema, claim=1.0, relation=relation)
    rows = loaded_rows(source, 0)
    ordinary = rows.cells.cast(rows.schema.arrow()).combine_chunks()
    return CoupledSearch(
        mechanism, rows.schema, ordinary, relation, 1, {}, CallLimits(), calls, np.random.default_rng(0)
    )


def added(pair: ProposedPair) -> dict[str, Any]:
    """Return the row that D' has in addition, at its end."""
    assert pair.d_prime.slice(0, len(pair.d)).equals(pair.d)
    (row,) = pair.d_prime.slice(len(pair.d)).to_pylist()
    return dict(row)


IN_TWO_BRACKETS: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
    ("brackets", lambda row: 60 <= row["age"] <= 70),
    ("brackets_by_a_year", lambda row: row["age"] == 70),
    ("incomes", lambda row: 49_000 <= row["pay"] < 50_000),
    ("discounts", lambda row: row["age"] < 20 and row["word"] == "oak"),
]


@pytest.mark.parametrize(("name", "overlaps"), IN_TWO_BRACKETS)
def test_a_row_in_two_brackets_is_proposed_first(name: str, overlaps: Callable[[dict[str, Any]], bool]) -> None:
    case = hidden.CASES[name]
    assert overlaps(added(search(case.defect, case.schema).pairs(8)[0]))


def test_under_replace_a_row_moves_from_one_bracket_to_two_others() -> None:
    case = hidden.CASES["brackets_by_a_year"]
    d, d_prime = (set(), set())
    for pair in search(case.defect, case.schema, Relation.REPLACE).pairs(2):
        assert len(pair.d) == len(pair.d_prime)
        d.add(pair.d["age"].to_pylist()[-1])
        d_prime.add(pair.d_prime["age"].to_pylist()[-1])
    assert 70 in d | d_prime


def _leads(table: Any) -> bool:
    first, second = hidden.exact(table).nlargest(2)
    return bool(first - second > 5)


def _ahead(table: Any) -> bool:
    both = hidden.exact(table)
    return bool(both["elm"] - both["fir"] >= 12)


EXACT_TESTS: list[tuple[str, Callable[[Any], bool]]] = [
    ("lead", _leads),
    ("majority", lambda table: len(table) >= 20 and 2 * hidden.exact(table).max() > len(table)),
    ("enough_rows", lambda table: len(table) >= 37),
    ("two_words_apart", _ahead),
]


@pytest.mark.parametrize(("name", "passes"), EXACT_TESTS)
def test_a_walk_ends_where_one_row_passes_an_exact_test(name: str, passes: Callable[[Any], bool]) -> None:
    case = hidden.CASES[name]
    first = search(case.defect, case.schema).pairs(8)[0]
    assert passes(first.d.to_pandas()) != passes(first.d_prime.to_pandas())


@pytest.mark.parametrize("name", ["enough-ages", "enough-pairs", "enough-of-each-word", "enough-in-each-cell"])
def test_a_walk_of_random_rows_ends_where_one_row_passes_a_test_of_many_different_rows(name: str) -> None:
    """Copies of one row do not change the result of such a test."""
    case = rarer.BANK[name]
    first = search(case.defect(), case.schema).pairs(12)[0]
    results = [case.defect()(table.to_pandas(), np.random.default_rng(0)) for table in (first.d, first.d_prime)]
    assert (results[0] is None) != (results[1] is None)


ORDERS = ["keys_in_order", "columns_in_order", "records_in_order", "keys_of_records_in_order"]


@pytest.mark.parametrize("name", ORDERS)
def test_a_row_that_changes_the_order_is_proposed(name: str) -> None:
    case = hidden.CASES[name]

    def order(table: pd.DataFrame) -> list[str]:
        true = hidden.exact(table)
        return sorted(hidden.TREES, key=lambda word: (-true[word], word))

    proposed = search(case.defect, case.schema).pairs(8)
    assert any(order(pair.d.to_pandas()) != order(pair.d_prime.to_pandas()) for pair in proposed)


PLACES = ["rows-10-to-50", "changes-of-word", "longest-streak", "distances-from-first-row"]


@pytest.mark.parametrize("name", PLACES)
def test_a_row_stands_first_or_amid_the_others_where_the_order_matters(name: str) -> None:
    case = rarer.BANK[name]
    best = search(case.defect(), case.schema).pairs(12)[:3]
    assert any(not pair.d_prime.slice(0, len(pair.d)).equals(pair.d) for pair in best)


@pytest.mark.parametrize("name", ["brackets", "marginals_of_old"])
def test_rows_are_last_where_their_order_does_not_matter(name: str) -> None:
    case = hidden.CASES[name]
    assert all(added(pair) for pair in search(case.defect, case.schema).pairs(12))


def test_rows_of_which_a_part_shares_the_noise_come_first() -> None:
    """Ages 31 to 33 are in one or two of three nested counts, whose differences are exact."""
    case = rarer.BANK["three-nested-counts"]
    assert 31 <= added(search(case.defect(), case.schema).pairs(12)[0])["age"] <= 33


def test_walks_end_with_rows_high_in_a_part_of_the_columns() -> None:
    walks = search(rarer.above_without_stop, rarer.ITEMS)
    low, high = (dict.fromkeys(rarer.ITEMS, cell) for cell in (0, 1))
    mixed = walks._mixed_rows([low, high])
    assert len(mixed) == 8
    assert {sum(row.values()) for row in mixed} == {8, 1}
    assert search(hidden.brackets, hidden.AGES)._mixed_rows([{"age": 0}, {"age": 100}]) == []


@pytest.mark.parametrize("name", ["brackets", "marginals_of_old", "sparse_vector_6", "reached"])
@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE])
def test_proposals_are_neighbours_within_the_schema_and_the_calls_are_kept(name: str, relation: Relation) -> None:
    case = hidden.CASES[name]
    walks = search(case.defect, case.schema, relation, calls=400)
    proposed = walks.pairs(8)
    assert 0 < len(proposed) <= 8
    assert walks.calls >= 0
    for pair in [*proposed, *walks.bare_pairs()]:
        assert not walks.schema.outside(pair.d)
        assert not walks.schema.outside(pair.d_prime)
        assert len(pair.d_prime) - len(pair.d) == (1 if relation is Relation.ADD_REMOVE else 0)
        assert sum(a != b for a, b in zip(pair.d.to_pylist(), pair.d_prime.to_pylist(), strict=False)) <= 1


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE])
def test_code_that_does_not_follow_its_seed_gets_rows_at_other_places_alone(relation: Relation) -> None:
    fresh = np.random.default_rng()
    walks = search(lambda rows, rng: len(rows) + fresh.laplace(), hidden.WORDS, relation)
    proposed = walks.pairs(8)
    assert [pair.base for pair in proposed] == ["ordinary rows, first"] * 2 + ["equal rows, amid"]
    for pair in proposed:
        rows = [list(map(str, table.to_pylist())) for table in (pair.d, pair.d_prime)]
        assert rows[0] != rows[1]
        assert len(rows[1]) - len(rows[0]) == (1 if relation is Relation.ADD_REMOVE else 0)


def test_half_of_a_walk_with_the_jump_has_the_larger_share() -> None:
    steady, jump = np.array([1.0, 0.0]), np.array([1.0, 0.5])
    assert _uneven(steady, jump) == (0.5, 1.0)
    assert _uneven(jump, steady) == (1.0, 0.5)
    assert _uneven(None, steady) == (2.0, 0.0)


def test_results_of_another_form_differ() -> None:
    assert Result("int", np.ones(1)).equals(Result("int", np.ones(1)))
    assert not Result("int", np.ones(1)).equals(Result("float", np.ones(1)))


def test_answers_of_which_a_part_moves_are_farther_apart_than_answers_that_all_move() -> None:
    """A shared threshold hides a move of all answers, but not one of half of them."""
    rng = np.random.default_rng(1)
    threshold, noise = rng.laplace(0, 2, (200, 1)), rng.laplace(0, 2, (200, 20))

    def answers(moved: int) -> Any:
        return (np.arange(20) < moved) + noise >= threshold

    none, half, all_of_them = (answers(moved).astype(float) for moved in (0, 10, 20))
    by_half, by_all = pattern_distance(none, half), pattern_distance(none, all_of_them)
    assert by_half is not None
    assert by_all is not None
    assert by_half > 1.3 * by_all > 0
    assert pattern_distance(none, none) == 0
    assert pattern_distance(noise, noise + 1) is None


def test_lists_that_end_early_are_compared_by_the_answers_that_all_of_them_have() -> None:
    """A list ends at its eighth answer above a threshold; a row that moves a half of the answers shows most."""
    rng = np.random.default_rng(2)
    truth = paired_coins(600)
    threshold = np.repeat(rng.laplace(0, 4, (300, 1)), 2, axis=0)
    noise = np.repeat(rng.laplace(0, 4 / 3, (300, 20)), 2, axis=0)

    def distance(moved: int) -> float:
        above = (truth[:, None] & (np.arange(20) < moved)) + noise >= threshold
        last = np.where(above.sum(1) >= 8, (above.cumsum(1) >= 8).argmax(1) + 1, 20)
        answers = np.where(np.arange(20) < last[:, None], above, False).astype(float)
        short = [(16, "short") if length <= 16 else (20, "long") for length in last]
        results = [CallOutcome(form, row[:width]) for row, (width, form) in zip(answers, short, strict=True)]
        return strength(PureDP(1.0), None, Outcomes.of(results, truth)).distance

    assert distance(10) > 1.2 * distance(20) > 0


def test_a_form_that_one_table_never_gives_is_not_compared_by_answers() -> None:
    truth = paired_coins(40)
    rng = np.random.default_rng(3)
    results = [
        CallOutcome("other" if coin and turn % 4 < 2 else "usual", rng.integers(0, 2, 5).astype(float))
        for turn, coin in enumerate(truth.tolist())
    ]
    assert strength(PureDP(1.0), None, Outcomes.of(results, truth)).distance > 5
