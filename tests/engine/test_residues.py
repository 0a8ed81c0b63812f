"""Numbers that lie between the steps of the noise break the claim; continuous or rounded noise leaves no residue."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.claims import Claim, Relation
from dpaudit.engine.attacks.output_set import OutputSet
from dpaudit.engine.games.digits import between_steps, lattice_step, separating_residues
from dpaudit.engine.games.functions.game import RowFunctionGame, Tables, call_seeds, run_calls
from dpaudit.engine.games.outcomes import Outcomes
from dpaudit.engine.games.run_scores import score_trials
from dpaudit.engine.games.search import Tried, paired_coins
from dpaudit.estimators.two_world.fair_coins import FairCoins
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.compute import Compute
from tests.engine.test_where_it_leaks import where_it_leaks
from tests.loops import Cases

Rng = np.random.Generator
Floats = NDArray[np.float64]
D, D_PRIME = (pa.table({"x": rows}) for rows in ([10.0, 20.0], [10.0, 20.0, 636.37]))
WHOLE = pa.table({"x": [10.0, 20.0, 1000.0]})
CALLS = 300


def steps(rng: Rng, scale: float = 1_000.0, count: int | None = None) -> Any:
    """Return noise in whole steps with the law of the claim for a sensitivity of 1,000."""
    chance = -np.expm1(-1 / scale)
    return rng.geometric(chance, count) - rng.geometric(chance, count)


def cents(rows: Floats, rng: Rng) -> float:
    return round(float(rows.sum() + steps(rng)), 2)


LEAKS: dict[str, Callable[[Floats, Rng], Any]] = {
    "cents": cents,
    "negative cents": lambda rows, rng: -cents(rows, rng),
    "half steps": lambda rows, rng: float(rows.sum() + 0.5 * steps(rng, 2_000)),
    "steps of 0.1": lambda rows, rng: float(rows.sum() + 0.1 * steps(rng, 10_000)),
    "steps of 0.25, data in tenths": lambda rows, rng: round(rows.sum(), 1) + 0.25 * steps(rng, 4_000),
    "multiples of 7": lambda rows, rng: int(rows.sum()) + 7 * int(steps(rng, 150)),
    "cents times 1,000": lambda rows, rng: 1_000 * cents(rows, rng),
    "a share of 37": lambda rows, rng: cents(rows, rng) / 37,
    "cents of a hundred million": lambda rows, rng: 1e8 + cents(rows, rng),
    "a decimal": lambda rows, rng: Decimal(str(cents(rows, rng))),
    "one of three": lambda rows, rng: [rng.laplace(), np.float64(cents(rows, rng)), int(rng.integers(9))],
    "a text": lambda rows, rng: f"total {cents(rows, rng):.2f}",
}
HONEST: dict[str, Callable[[Floats, Rng], Any]] = {
    "whole": lambda rows, rng: round(rows.sum()) + int(steps(rng)),
    "cents": lambda rows, rng: round(rows.sum() + 0.01 * steps(rng, 100_000), 2),
    "continuous": lambda rows, rng: float(rows.sum() + rng.laplace(0, 1_000)),
    "rounded": lambda rows, rng: round(float(rows.sum() + rng.laplace(0, 1_000)), 2),
    "snapped": lambda rows, rng: 0.25 * round((rows.sum() + rng.laplace(0, 1_000)) / 0.25),
    "32 bits": lambda rows, rng: np.float32(rows.sum()) + np.float32(rng.laplace(0, 1_000)),
    "16 bits": lambda rows, rng: float(rows.sum() / 1_000 + np.float16(rng.laplace())),
    "large": lambda rows, rng: float(1e15 * rows.sum() + rng.laplace(0, 1e18)),
}


def samples_of(
    function: Callable[..., Any], part: str, *, pairs: bool = False, d_prime: pa.Table = D_PRIME
) -> Outcomes:
    """Return calls on D and D', by fair coins or in pairs of one seed."""
    mechanism = OwnFunction(function, Claim(1.0, relation=Relation.ADD_REMOVE), form="array")
    seed = Seed(3).child(part)
    coins = paired_coins(4) if pairs else seed.rng().random(CALLS) < 0.5
    seeds = np.repeat(call_seeds(seed, 2), 2) if pairs else call_seeds(seed, CALLS)
    return run_calls(mechanism, Tables("", D, d_prime, 0), coins, seeds, Compute()).value


def lower_bound(function: Callable[..., Any]) -> float:
    estimator = FairCoins(confidence=0.999)
    attack = OutputSet(classifiers=("laplace",))
    scores = score_trials(attack, samples_of(function, "search"), samples_of(function, "fresh"))
    return estimator.bound([estimator.tally(scores)]).lower


def test_numbers_between_the_steps_of_the_noise_are_found() -> None:
    with Cases() as cases:
        for name, function in LEAKS.items():
            with cases.case(name):
                assert lower_bound(function) > 3.0


def test_honest_noise_has_no_separating_residue() -> None:
    """The results are post-processed or continuous, so no rule applies to any of them."""
    with Cases() as cases:
        for name, function in HONEST.items():
            with cases.case(name):
                samples = samples_of(function, "search").without_low_bits()
                assert samples.exact().shape == (CALLS, 1)
                assert separating_residues(samples.exact(), samples.truth) is None


def test_steps_of_numbers() -> None:
    rng = np.random.default_rng(0)
    noise = steps(rng, 100, 400)
    expected = {
        1.0: 30_123.37 + noise,
        0.1: 0.1 * noise,
        0.01: 0.37 * noise + 0.38 * steps(rng, 100, 400),
        np.pi: np.pi * noise,
        1_000.0: 1_000 * (noise + 0.37),
    }
    with Cases() as cases:
        for step, numbers in expected.items():
            with cases.case(step):
                assert lattice_step(numbers, float(np.ptp(numbers))) == pytest.approx(step, rel=1e-9)
    assert lattice_step(rng.laplace(size=400)) == 0.0
    assert lattice_step(1e10 + rng.normal(size=400)) == 0.0
    assert lattice_step(np.zeros(400)) == 0.0


def test_a_pair_with_a_row_between_the_steps_stays_in_the_search() -> None:
    """Four calls on each of 20 pairs show it; its row moves the sum less than the others do."""
    mechanism = OwnFunction(cents, Claim(1.0, relation=Relation.ADD_REMOVE), form="array")

    def tried(place: int, d_prime: pa.Table) -> Tried:
        samples = samples_of(cents, f"pair {place}", pairs=True, d_prime=d_prime).without_low_bits()
        return Tried(place, Tables(f"{place}", D, d_prime, 0), samples)

    several = [tried(place, WHOLE) for place in range(19)]
    several.append(tried(19, D_PRIME))
    assert between_steps([pair.outcomes for pair in several]) == [0.0] * 19 + [1.0]
    game, curve = RowFunctionGame(), mechanism.claim().curve
    strengths = [game.strength(curve, None, mechanism, each.pair, each.outcomes, Compute()) for each in several]
    assert game.ranking(1, several, strengths, by_scores=False) == [19]


def test_the_place_of_the_leak_names_the_steps() -> None:
    leak = where_it_leaks(cents, D, D_PRIME, Claim(1.0, relation=Relation.ADD_REMOVE), form="array")
    assert leak.lines == ("`result` moves by 636.37 from D to D', between the steps of its noise, which are 1.",)
