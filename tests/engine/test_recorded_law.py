"""Recorded draws: the law of additive noise, and the true weight of rare events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpaudit.engine.data.partition import loaded_rows
from dpaudit.engine.games.functions.recorded_law import RecordedCall, rarest_excess, recorded_calls, recorded_law
from dpaudit.engine.request.function_request import function_on_rows
from dpaudit.mechanisms.queries.row_function import CallLimits
from tests.bank import hidden_pairs as hidden

RNG = np.random.default_rng


def calls_of(
    function: Callable[..., Any], schema: Any, *, claim: Any = 1.0, widen: bool = False
) -> tuple[Callable[[pa.Table, Sequence[int]], Sequence[RecordedCall]], pa.Table, Any]:
    """Return a function that records calls on a table, ordinary rows and the claim."""
    mechanism, source = function_on_rows(function, schema, claim=claim)
    rows = loaded_rows(source, 0)

    def calls(table: pa.Table, seeds: Sequence[int]) -> Sequence[RecordedCall]:
        return recorded_calls(mechanism, table, seeds, {}, CallLimits(), widen=widen)

    return calls, rows.cells, mechanism.claim()


def laws(function: Callable[..., Any]) -> Any:
    calls, rows, _ = calls_of(function, {"x": (0.0, 1.0)})
    d, d_prime = rows, pa.concat_tables([rows, pa.table({"x": [1.0]})])
    return recorded_law(calls(d, range(40)), calls(d_prime, range(40)))


def test_a_sum_with_laplace_noise_has_its_law() -> None:
    law = laws(lambda rows, rng: (float(rows["x"].sum() + rng.laplace(0, 2)), len(rows) + rng.normal(0, 3)))
    assert law.laws.tolist() == ["laplace", "normal"]
    assert law.scales == pytest.approx(np.array([[2, 3], [2, 3]]))
    assert law.queries[1] - law.queries[0] == pytest.approx(np.ones(2))
    between, on_d = law.queries.mean(axis=0), law.queries[0]
    assert law.log_odds(np.array([between, on_d])) == pytest.approx([0.0, -1 / 2 - 1 / 18])
    assert law.log_odds(np.zeros((2, 3))).tolist() == [0, 0]  # results of another width


@pytest.mark.parametrize("size", [1, 60])
def test_counts_with_geometric_noise_have_its_law(size: int) -> None:
    law = laws(lambda rows, rng: [int(count) for count in len(rows) + hidden.noise(rng, size, 2.0)])
    assert set(law.laws.tolist()) == {"geometric"}
    assert law.columns.tolist() == list(range(size))
    far = law.queries[1] + 9
    assert law.log_odds(far[None]) == pytest.approx([size / 2])


def test_a_rounded_sum_has_nearly_the_law_of_its_noise() -> None:
    law = laws(lambda rows, rng: round(10 * rows["x"].sum() + rng.laplace(0, 20)))
    assert law.laws.tolist() == ["laplace"]
    assert law.scales == pytest.approx(np.full((2, 1), 20.0), rel=0.05)
    assert float(np.diff(law.queries, axis=0)[0, 0]) == pytest.approx(10, abs=1)


UNKNOWN: list[Callable[..., Any]] = [
    lambda rows, rng: float(rng.laplace() * rng.laplace()),
    lambda rows, rng: float(max(rng.laplace(size=3))),
    lambda rows, rng: float(rng.random()),
    lambda rows, rng: "nothing",
]


@pytest.mark.parametrize("function", UNKNOWN)
def test_other_results_have_no_law(function: Callable[..., Any]) -> None:
    assert laws(function) is None


def test_a_number_that_repeats_the_noise_of_another_is_left_out() -> None:
    def twice(rows: Any, rng: np.random.Generator) -> list[float]:
        noisy = len(rows) + rng.laplace()
        return [noisy, 2 * noisy, len(rows) + rng.laplace()]

    assert laws(twice).columns.tolist() == [0, 2]


@pytest.mark.parametrize("method", ["laplace", "normal", "exponential", "gumbel", "logistic"])
def test_wider_draws_weigh_rare_events_right(method: str) -> None:
    """False failure < 1e-4: four standard errors, for an event whose probability is known."""

    def rare(rows: Any, rng: np.random.Generator) -> str:
        first, _ = getattr(rng, method)(size=2)
        return "rare" if first > 4 else "usual"

    calls, rows, _ = calls_of(rare, hidden.WORDS, widen=True)
    weights = np.array([call.noises.weight * ("rare" in call.ending) for call in calls(rows, range(4_000))])
    draws = getattr(RNG(0), method)(size=2_000_000)
    assert abs(weights.mean() - (draws > 4).mean()) < 4 * weights.std() / math.sqrt(4_000) + 2e-5
    assert np.count_nonzero(weights) > 4_000 * (draws > 4).mean()


def test_wider_geometric_draws_weigh_rare_events_right() -> None:
    calls, rows, _ = calls_of(lambda rows, rng: bool(hidden.noise(rng) >= 4), hidden.WORDS, widen=True)
    recorded = calls(rows, range(4_000))
    weights = np.array([call.noises.weight * call.numbers[0] for call in recorded])
    assert abs(weights.mean() - hidden.ALPHA**4 / (1 + hidden.ALPHA)) < 4 * weights.std() / math.sqrt(4_000)
    assert np.mean([call.noises.weight for call in recorded]) == pytest.approx(1, abs=0.1)


def expected_excess(function: Callable[..., Any], schema: Any) -> float:
    """Return the excess of a first row with its word over the claim of `hidden.SHOWN`."""
    calls, rows, claim = calls_of(function, schema, claim=hidden.SHOWN, widen=True)
    pair = (rows.slice(0, 0), rows.slice(0, 1))
    return rarest_excess(calls, [pair, (rows, rows)], claim, 14_000, calls=4_000, rng=RNG(3))[1]


REACHED: list[tuple[Callable[..., Any], Any]] = [
    (hidden.reached, hidden.WORDS),
    (hidden.shown_names, hidden.WORDS),
    (hidden.shown_ages, hidden.AGES),
    (hidden.shown_two_columns, hidden.TWO_WORDS),
]


@pytest.mark.parametrize(("function", "schema"), REACHED)
def test_a_threshold_that_is_reached_exceeds_a_delta_for_one_that_is_exceeded(
    function: Callable[..., Any], schema: Any
) -> None:
    assert expected_excess(function, schema) > 2
    assert expected_excess(hidden.exceeding, hidden.WORDS) < 2
