"""Functions on rows in the bank spend the privacy that the bank states, computed here without randomness.

Each private function calls four primitives only. Here the primitives record their exact input (the question) and return
answers that do not depend on it. On two neighbouring tables a function must therefore take the same steps. The distance
between the questions is the privacy that it spends.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.claims import Relation
from dpaudit.engine.games.functions.neighbouring_tables import TablePair, pairs
from dpaudit.mechanisms.queries.schema import Schema
from tests.bank import Case
from tests.bank import functions as bank

BANK = bank.BANK
RNG = np.random.default_rng
SEEDS = range(3)
"""Seeds of the answers; the answers decide which questions a function asks next."""


class RecordingPrimitives:
    """Replacement of the primitives that records each question and answers at random."""

    def __init__(self, seed: int) -> None:
        self.answers = RNG(seed)
        self.rng = SimpleNamespace(integers=lambda *_: 0)
        self.notes: list[tuple[str, float, Any]] = []  # the primitive, its noise and its question

    def laplace(self, exact: Any, rate: float, rng: Any) -> Any:
        return self._noisy("laplace", exact, rate, rng)

    def normal(self, exact: Any, deviation: float, rng: Any) -> Any:
        return self._noisy("normal", exact, deviation, rng)

    def _noisy(self, name: str, exact: Any, noise: float, rng: Any) -> Any:
        assert rng is self.rng, "noise of another generator"
        whole = np.asarray(exact, np.int64)
        self.notes.append((name, noise, whole))
        return self.answers.integers(-50, 5_000, whole.shape)

    def chosen(self, utilities: Any, rate: float, rng: Any) -> int:
        assert rng is self.rng, "a choice by another generator"
        logs = rate * (utilities - utilities.max())
        self.notes.append(("chosen", rate, logs - math.log(np.exp(logs).sum())))
        return int(self.answers.integers(len(utilities)))

    def answered(self, places: Any, kinds: int, keep: float, rng: Any) -> Any:
        assert rng is self.rng, "answers by another generator"
        self.notes.append(("answered", math.log(keep * (kinds - 1) / (1 - keep)), places))
        return self.answers.integers(kinds, size=len(places))


def spent(function: Callable[..., Any], pair: TablePair, seed: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return epsilon, or sensitivity over deviation for normal noise; infinite if the steps or the results differ."""

    def record(table: Any) -> tuple[str, list[tuple[str, float, Any]]]:
        primitives = RecordingPrimitives(seed)
        with monkeypatch.context() as patch:
            for name in ("laplace", "normal", "chosen", "answered"):
                patch.setattr(bank, name, getattr(primitives, name))
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    ending = repr(function(table.to_pandas(), primitives.rng))
                except (ArithmeticError, LookupError, ValueError) as err:
                    ending = repr(err)
        return ending + "".join(str(warning.message) for warning in warned), primitives.notes

    try:
        (ending, notes), (other_ending, other_notes) = record(pair.d), record(pair.d_prime)
    except AssertionError:  # the noise is not that of the given generator
        return math.inf
    alike = [(name, noise, np.shape(question)) for name, noise, question in notes]
    if ending != other_ending or alike != [(name, noise, np.shape(question)) for name, noise, question in other_notes]:
        return math.inf
    return sum(
        _distance(name, noise, question, other_question)
        for (name, noise, question), (_, _, other_question) in zip(notes, other_notes, strict=True)
    )


def _distance(name: str, noise: float, question: Any, other_question: Any) -> float:
    if name == "chosen":
        return float(np.abs(question - other_question).max())
    if name == "answered":
        return noise * np.count_nonzero(question != other_question)
    distance = float(np.abs(question - other_question).sum())
    return distance / noise if name == "normal" else distance * noise


TABLES = {
    relation: pairs(Schema.of(bank.PEOPLE), Schema.of(bank.PEOPLE).draw(50, RNG(0)), relation, RNG(0))
    for relation in (Relation.ADD_REMOVE, Relation.REPLACE)
}


def most(function: Callable[..., Any], case: Case, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the largest privacy loss of a function over the pairs of tables and the seeds."""
    assert case.claim is not None
    tables = TABLES[case.claim.relation]
    return max(spent(function, pair, seed, monkeypatch) for pair in tables for seed in SEEDS)


def twins() -> Iterator[str]:
    return (name for name, case in BANK.items() if case.twin is not None)


@pytest.mark.parametrize("name", [name for name in twins() if not name.startswith("groups")])
def test_a_twin_spends_no_more_than_it_says_whatever_a_row_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = BANK[name]
    assert case.twin is not None
    allowed = 1 / bank.CLASSIC if name.startswith("normal") else 1.0
    assert most(case.twin(), case, monkeypatch) <= allowed * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name in BANK if name != "total-float-noise"])
def test_a_defect_spends_more_on_a_pair_that_is_searched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests cover the low bits of floats, which are no question to a primitive."""
    case = BANK[name]
    cost = most(case.defect(), case, monkeypatch)
    if name.startswith("normal"):
        assert cost == 1
    elif case.true is None:
        assert cost > 1.5
    else:
        assert cost == pytest.approx(case.true)


def test_the_noise_is_what_the_primitives_say() -> None:
    """False failure < 1e-6 each: five deviations of a share of 200,000 draws."""
    draws = bank.laplace(np.zeros(200_000), 1.0, RNG(1))
    zero = (1 - math.exp(-1)) / (1 + math.exp(-1))
    for value, share in ((0, zero), (1, zero / math.e), (-1, zero / math.e), (3, zero * math.exp(-3))):
        assert abs((draws == value).mean() - share) < 5 * math.sqrt(share * (1 - share) / 200_000)
    answers = bank.answered(np.zeros(200_000, np.int64), 4, 0.4, RNG(2))
    for place, share in ((0, 0.4), (1, 0.2), (2, 0.2), (3, 0.2)):
        assert abs((answers == place).mean() - share) < 5 * math.sqrt(share * (1 - share) / 200_000)
    choices = np.array([bank.chosen(np.array([0, 1]), 1.0, RNG(seed)) for seed in range(2_000)])
    assert abs(choices.mean() - math.e / (1 + math.e)) < 5 * math.sqrt(0.2 / 2_000)
    assert abs(bank.normal(np.zeros(200_000), 20.0, RNG(3)).std() - 20) < 5 * 20 / math.sqrt(400_000)
