"""The choice among pairs of tables rests on all calls on a pair, and on evidence before distance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpaudit.claims import Claim
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.search import MIN_RUNS_PER_PAIR, Strength, Tried, promising, runs_in_rounds, strength

CURVE = Claim(1.0).curve
ATTACK = OutputSet(("linear", "trees"))


def samples(on_d: Any, on_d_prime: Any) -> Outcomes:
    """Return calls on D and D' by turns, from one number of each."""
    numbers = np.column_stack([on_d, on_d_prime]).reshape(-1, 1)
    return Outcomes.of_numbers(numbers, np.arange(len(numbers)) % 2 == 1)


def pair(place: int, calls: Outcomes, *, proposed: bool = False) -> Tried:
    return Tried(place, f"pair {place}", calls, proposed)


def largest(moved: float, count: int, rng: np.random.Generator) -> Outcomes:
    """Return the largest of eight noisy zeros, of which all or none get `moved` on D'."""
    return samples(*(side + rng.laplace(0, 2, (count, 8)).max(1) for side in (0.0, moved)))


def honest(count: int, rng: np.random.Generator) -> Outcomes:
    """Return a number with Laplace noise of epsilon 0.9, which D' moves by more of its spread than `largest`."""
    return samples(rng.laplace(0, 1, count), 0.9 + rng.laplace(0, 1, count))


@pytest.mark.parametrize("seed", range(3))
def test_evidence_against_the_claim_precedes_a_larger_distance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    wrong, right = pair(0, largest(1.0, 600, rng)), pair(1, honest(600, rng))
    strengths = [
        replace(strength(CURVE, ATTACK, each.outcomes), distance=distance)
        for each, distance in ((right, 9.0), (wrong, 0.2))
    ]
    assert strengths[1].preference > strengths[0].preference
    assert promising(1, [right, wrong], strengths, by_scores=True) == [1]


def test_without_evidence_the_distance_chooses() -> None:
    near, far = Strength(0.2, 0.5, 0.0), Strength(9.0, 0.5, 0.0)
    assert far.preference > near.preference
    assert replace(near, expected=4.0).preference > far.preference, "rare forms that were weighed"


def test_proposals_and_weighed_forms_have_places_when_calls_are_few() -> None:
    rng = np.random.default_rng(2)
    tried = [pair(place, honest(8, rng), proposed=place > 19) for place in range(28)]
    strengths = [replace(strength(CURVE, None, each.outcomes), distance=30.0 - each.place) for each in tried]
    strengths[27] = replace(strengths[27], expected=3.0)
    assert set(range(20, 28)) <= set(promising(16, tried, strengths, by_scores=False))
    assert promising(3, tried, strengths, by_scores=False)[0] == 27


@pytest.mark.parametrize(("calls", "sizes"), [(5_720, [37, 16, 6, 3]), (220, [13, 6, 3]), (20, [1]), (40, [2])])
def test_the_rounds_spend_no_more_than_their_calls(calls: int, sizes: list[int]) -> None:
    in_rounds = runs_in_rounds(calls, sizes)
    assert sum(size * each for size, each in zip(sizes, in_rounds, strict=True)) <= calls
    assert in_rounds == sorted(in_rounds)
    assert in_rounds[0] >= MIN_RUNS_PER_PAIR
    assert not any(each % 2 for each in in_rounds)
