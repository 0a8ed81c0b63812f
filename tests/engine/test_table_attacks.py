"""Attacks on synthetic tables see pairs unordered, and each finds the leak that it is made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from dpaudit.engine.games.tables.attacks.rare_values import extreme_evidence
from dpaudit.engine.games.tables.cells import binned_cells, exact_cells, mates
from dpaudit.engine.games.tables.columns import encoded
from dpaudit.engine.games.tables.view import KNOWN_HOLDOUT, SECRET, TableAttack, TableView
from dpaudit.registry import catalogue, load

ATTACKS = sorted(catalogue("table-attack"))
Rows = NDArray[np.int64]


def attack(name: str) -> TableAttack:
    made: TableAttack = load("table-attack", name)()
    return made


def shown(training: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, pair: Rows) -> TableView:
    """Return the view of two files one after the other, so that the order of its rows gives the file away."""
    first, second, released = encoded(training, holdout, synthetic)
    real = replace(
        first,
        numbers=np.concatenate([first.numbers, second.numbers]),
        words=np.concatenate([first.words, second.words]),
    )
    return TableView(released, real, pair, np.where(pair < 0, KNOWN_HOLDOUT, SECRET).astype(np.int8))


def people(count: int, rng: np.random.Generator) -> pd.DataFrame:
    rows = pd.DataFrame(
        {
            "age": rng.normal(40, 10, count).round(),
            "pay": np.where(rng.random(count) < 0.5, 0, rng.lognormal(8, 1, count)).round(2),
            "town": rng.geometric(0.1, count).astype(str),
            "sex": rng.choice(["f", "m"], count),
        }
    )
    rows.loc[rng.random(count) < 0.05, "age"] = np.nan
    rows["town"] = rows["town"].where(rng.random(count) > 0.05)
    return rows.assign(town=[town if isinstance(town, str) else None for town in rows["town"]]).replace("3", "three")


@dataclass(frozen=True)
class Peeks:
    """Scores rows by their place in the view."""

    def features(self, view: TableView) -> NDArray[np.float64]:
        return np.arange(len(view.real), dtype=np.float64)[:, None]


@dataclass(frozen=True)
class CountsItsOwnHalf:
    """Compares with the first rows of all pairs only: a function of the files, not of the pairs."""

    def features(self, view: TableView) -> NDArray[np.float64]:
        first = view.real.numbers[: len(view.real) // 2, 0]
        return np.abs(view.real.numbers[:, :1] - np.nanmean(first))


def changed_by_exchanges(tried: TableAttack) -> bool:
    """Return True if exchanging the rows of random pairs between the files changes the features of a row."""
    rng = np.random.default_rng(0)
    rows, released = people(130, rng), people(80, rng)
    released.iloc[:20] = rows.iloc[:20].to_numpy()
    training, holdout = rows[:60].reset_index(drop=True), rows[60:].reset_index(drop=True)
    person = np.repeat(np.arange(30), 2)  # two rows of a person; ten holdout rows are in no pair
    pair = np.concatenate([person, person, np.full(10, -1)])
    before = tried.features(shown(training, holdout, released, pair))
    exchanged = np.flatnonzero(rng.random(30)[person] < 0.5)
    order = np.arange(130)
    order[exchanged], order[60 + exchanged] = 60 + exchanged, exchanged
    moved = rows.iloc[order]
    after = tried.features(
        shown(moved[:60].reset_index(drop=True), moved[60:].reset_index(drop=True), released, pair[order])
    )
    assert np.isfinite(before).all()
    return not np.allclose(before[order], after, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_functions_of_unordered_pairs(name: str) -> None:
    assert not changed_by_exchanges(attack(name))


@pytest.mark.parametrize("peeking", [Peeks(), CountsItsOwnHalf()])
def test_an_attack_that_reads_the_files_apart_is_found(peeking: TableAttack) -> None:
    assert changed_by_exchanges(peeking)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_take_numbers_alone_words_alone_and_one_column(name: str) -> None:
    rng = np.random.default_rng(1)
    pair = np.tile(np.arange(20), 2)
    for columns in (["age", "pay"], ["town", "sex"], ["age"], ["sex"]):
        rows, released = people(40, rng)[columns], people(2, rng)[columns]
        features = attack(name).features(shown(rows[:20], rows[20:].reset_index(drop=True), released, pair))
        assert features.shape[0] == 40
        assert np.isfinite(features).all()


def right_guesses(name: str, leak: Callable[[np.random.Generator], tuple[pd.DataFrame, ...]], share: float) -> float:
    """Return the share of right guesses among the surest ones, by the first feature, over three tables."""
    right = []
    for seed in range(3):
        training, holdout, released = leak(np.random.default_rng(seed))
        pairs = len(training)
        score = attack(name).features(shown(training, holdout, released, np.tile(np.arange(pairs), 2)))[:, 0]
        difference = score[:pairs] - score[pairs:]
        surest = np.argsort(-np.abs(difference), kind="stable")[: round(share * pairs)]
        right.append(np.mean(np.sign(difference[surest]) / 2 + 0.5))
    return float(np.mean(right))


def near_copies(rng: np.random.Generator) -> tuple[pd.DataFrame, ...]:
    """A tenth of the training rows reappear with noise; all other rows are fresh."""
    training, holdout, released = (pd.DataFrame(rng.normal(size=(300, 6))) for _ in range(3))
    released.iloc[:30] = training.iloc[:30].to_numpy() + rng.normal(0, 0.1, (30, 6))
    return training, holdout, released


def exact_marginals(rng: np.random.Generator) -> tuple[pd.DataFrame, ...]:
    """Each synthetic column is a shuffled column of the training rows."""
    chance = rng.uniform(0.2, 0.8, 80)
    training, holdout = (pd.DataFrame((rng.random((100, 80)) < chance) * 1.0) for _ in range(2))
    return training, holdout, training.apply(lambda column: rng.permutation(column))


def denser_region(rng: np.random.Generator) -> tuple[pd.DataFrame, ...]:
    """Training and synthetic rows have two columns of mostly equal sign, holdout rows of different sign."""
    training, holdout, released = (rng.normal(size=(200, 8)) for _ in range(3))
    for rows, sign in ((training, 1), (released, 1), (holdout, -1)):
        rows[:, 1] = np.abs(rows[:, 1]) * np.sign(rows[:, 0]) * np.where(rng.random(200) < 0.9, sign, -sign)
    return pd.DataFrame(training), pd.DataFrame(holdout), pd.DataFrame(released)


def words_in_common(rng: np.random.Generator) -> tuple[pd.DataFrame, ...]:
    """A tenth of the training rows share their many digits and most of their words with a synthetic row."""
    tables = []
    for _ in range(3):
        words = {f"word {place}": rng.choice(list("abc"), 300) for place in range(4)}
        numbers = {f"number {place}": (np.exp(3 * rng.normal(size=300))).round(1) for place in range(5)}
        tables.append(pd.DataFrame(words | numbers))
    training, _, released = tables
    for row in range(30):
        shared = rng.choice(9, 5, replace=False)
        for place in shared:
            released.iloc[row, place] = training.iloc[row, place]
    return tables[0], tables[1], tables[2]


def rare_domain(rng: np.random.Generator) -> tuple[pd.DataFrame, ...]:
    """The towns of the training rows are the towns of the synthetic rows; all else is fresh."""
    tables = [people(200, rng) for _ in range(3)]
    for rows in tables:
        rows["town"] = rng.integers(0, 4_000, 200).astype(str) + " town"
    tables[2]["town"] = rng.permutation(tables[0]["town"])
    return tables[0], tables[1], tables[2]


LEAKS: dict[str, tuple[Callable[[np.random.Generator], tuple[pd.DataFrame, ...]], float]] = {
    "nearest-neighbour": (near_copies, 0.1),
    "marginals": (exact_marginals, 0.5),
    "density-classifier": (denser_region, 0.5),
    "copies": (words_in_common, 0.1),
    "rare-values": (rare_domain, 0.5),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_is_best_at_its_leak(name: str) -> None:
    leak, share = LEAKS[name]
    accuracy = {other: right_guesses(other, leak, share) for other in ATTACKS}
    print(accuracy)
    assert accuracy[name] == max(accuracy.values())
    assert accuracy[name] > 0.85
    assert sorted(accuracy.values())[-2] < accuracy[name]
