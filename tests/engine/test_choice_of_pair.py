"""The choice among pairs of tables rests on all calls on a pair, and on evidence before distance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpaudit.actors.values import decode, encode
from dpaudit.claims import Claim
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.games.functions.game import (
    Strength,
    Tables,
    TriedTables,
    calls_on_chosen,
    pair_strength,
    pooled,
    preference,
    shortlist,
    tried_tables,
)
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.search import MIN_RUNS_PER_PAIR, runs_in_rounds

CURVE = Claim(1.0).curve
ATTACK = OutputSet(("linear", "trees"))


def samples(on_d: Any, on_d_prime: Any) -> Outcomes:
    """Return calls on D and D' by turns, from one number of each."""
    numbers = np.column_stack([on_d, on_d_prime]).reshape(-1, 1)
    return Outcomes.of_numbers(numbers, np.arange(len(numbers)) % 2 == 1)


def pair(place: int, calls: Outcomes, *, proposed: bool = False) -> TriedTables:
    return tried_tables(CURVE, place, Tables(f"pair {place}", None, None, 0), calls, proposed=proposed)  # type: ignore[arg-type]


def largest(moved: float, count: int, rng: np.random.Generator) -> Outcomes:
    """Return the largest of eight noisy zeros, of which all or none get `moved` on D'."""
    return samples(*(side + rng.laplace(0, 2, (count, 8)).max(1) for side in (0.0, moved)))


def honest(count: int, rng: np.random.Generator) -> Outcomes:
    """Return a number with Laplace noise of epsilon 0.9, which D' moves by more of its spread than `largest`."""
    return samples(rng.laplace(0, 1, count), 0.9 + rng.laplace(0, 1, count))


@pytest.mark.parametrize("seed", range(3))
def test_evidence_against_the_claim_precedes_a_larger_distance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    wrong, right = (
        replace(pair(0, largest(1.0, 600, rng)), distance=0.2),
        replace(pair(1, honest(600, rng)), distance=9.0),
    )
    strengths = {each.place: pair_strength(CURVE, ATTACK, each) for each in (wrong, right)}
    assert preference(wrong, strengths[0]) > preference(right, strengths[1])
    assert shortlist(1, [right, wrong], strengths) == [0]


def test_without_evidence_the_distance_chooses() -> None:
    rng = np.random.default_rng(0)
    near, far = replace(pair(0, honest(8, rng)), distance=0.2), replace(pair(1, honest(8, rng)), distance=9.0)
    none = Strength(0.0, 0.0, 0.5)
    assert preference(far, none) > preference(near, none)
    assert preference(replace(near, expected=4.0), none) > preference(far, none), "rare forms that were weighed"


def test_all_rounds_of_the_pairs_of_the_last_round_count() -> None:
    rng = np.random.default_rng(1)
    tried = [pair(0, honest(4, rng)), pair(1, honest(4, rng)), pair(1, honest(8, rng)), pair(2, honest(4, rng))]
    (last,) = pooled(CURVE, tried)
    assert (last.place, len(last.samples.truth)) == (1, 24)
    assert len(np.unique(last.samples.number)) == 24
    alone = pooled(CURVE, tried[:2])
    assert [each.place for each in alone] == [0, 1]
    chosen = replace(Tables("", None, None, 0), place=1)  # type: ignore[arg-type]
    assert len(calls_on_chosen(chosen, (tried[:1], tried[1], [*tried[2:]])).truth) == 24


def test_proposals_and_weighed_forms_have_places_when_calls_are_few() -> None:
    rng = np.random.default_rng(2)
    tried = [replace(pair(place, honest(8, rng), proposed=place > 19), distance=30.0 - place) for place in range(28)]
    tried[27] = replace(tried[27], expected=3.0)
    assert set(range(20, 28)) <= set(shortlist(16, tried, {}))
    assert shortlist(3, tried, {})[0] == 27


@pytest.mark.parametrize(("calls", "sizes"), [(5_720, [37, 16, 6, 3]), (220, [13, 6, 3]), (20, [1]), (40, [2])])
def test_the_rounds_spend_no_more_than_their_calls(calls: int, sizes: list[int]) -> None:
    in_rounds = runs_in_rounds(calls, sizes)
    assert sum(size * each for size, each in zip(sizes, in_rounds, strict=True)) <= calls
    assert in_rounds == sorted(in_rounds)
    assert in_rounds[0] >= MIN_RUNS_PER_PAIR
    assert not any(each % 2 for each in in_rounds)


def test_stored_calls_keep_the_longest_ending() -> None:
    short = samples(np.zeros(2), np.ones(2))
    long = replace(short, ending=np.full(4, "float in another order"))
    stored = decode(encode([pair(0, short), pair(1, long)], TriedTables), TriedTables)
    assert [each.samples.ending[0] for each in stored] == ["1 numbers", "float in another order"]
