"""Calls are made in the order of the coins, and code whose results change from call to call is neither convicted nor
cleared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dpaudit import RunOptions, Verdict, check
from dpaudit.claims import Claim, Relation
from dpaudit.engine.games.functions.game import Tables, calls_in_order, run_calls
from dpaudit.engine.games.search import paired_coins
from dpaudit.mechanisms.adapters.code_on_rows import OwnFunction
from dpaudit.mechanisms.compute import Compute
from tests.small import calls_cost

Rng = np.random.Generator
COINS = np.random.default_rng(5).random(40) < 0.5
D, D_PRIME = (pa.table({"x": np.arange(float(count))}) for count in (3, 4))
calls: list[int] = []


def counted(rows: NDArray[np.float64], rng: Rng) -> int:
    """Return the number of the call, and record on which table it was."""
    calls.append(len(rows))
    return len(calls)


def exact_at_first(rows: NDArray[np.float64], rng: Rng) -> int:
    """Return an exact count in the first calls of a process, later one with the noise of the claim."""
    calls.append(len(rows))
    return len(rows) + (0 if len(calls) <= EXACT_CALLS else int(rng.geometric(0.7) - rng.geometric(0.7)))


EXACT_CALLS = 700
"""More than the calls of the first pass, and fewer than those of both passes."""


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def test_calls_follow_the_coins() -> None:
    mechanism = OwnFunction(counted, Claim(1.0, relation=Relation.ADD_REMOVE), form="array")
    seeds = np.arange(40)
    samples = run_calls(mechanism, Tables("", D, D_PRIME, 0), COINS, seeds, Compute()).value
    assert [count == 4 for count in calls] == COINS.tolist()
    assert samples.matrix()[:, 0].tolist() == list(range(1, 41))


def test_coins_of_pairs_take_turns() -> None:
    """No place in the order belongs to one world, and each pair has both."""
    coins = paired_coins(8)
    assert coins.tolist() == [False, True, True, False, False, True, True, False]
    assert (coins[::2] != coins[1::2]).all()


@pytest.mark.parametrize("processes", [1, 2])
def test_another_python_changes_the_table_after_few_calls(processes: int) -> None:
    class OtherPython:
        python = "/usr/bin/python3"

    coins = np.random.default_rng(1).random(1_000) < 0.5
    parts = list(calls_in_order(OtherPython(), coins, processes))
    assert sorted(place for _, places in parts for place in places) == list(range(1_000))
    assert all((coins[places] == world).all() and np.ptp(places) < 16 * processes for world, places in parts)
    assert len({world for world, places in parts if 0 in places or (places < 16).any()}) == 2


def test_exact_results_of_the_first_pass_alone_are_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls_cost(monkeypatch, 0.05)
    options: dict[str, Any] = {"run": RunOptions(runner="in-process", figures=False), "effort": "quick"}
    report = check(
        exact_at_first,
        claim=2.0,
        schema={"x": {"range": (0, 1), "any": True}},
        form="array",
        quiet=True,
        output=tmp_path / "run",
        **options,
    )
    answer = report.joint.answer
    assert (answer.verdict, answer.rule) == (Verdict.UNDECIDED, "results-change"), (len(calls), answer.text())
    assert answer.line("p-value").startswith("at most 1e-6")
    assert "results change from call to call" in answer.line("reason")
