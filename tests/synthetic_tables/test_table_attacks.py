"""Attacks on synthetic tables see pairs unordered, and each finds the leak that it is made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from dpaudit.registry import catalogue, load
from dpaudit.synthetic_tables.attacks.frequencies import extreme_evidence
from dpaudit.synthetic_tables.games.columns import encoded
from dpaudit.synthetic_tables.games.view import (
    KNOWN_HOLDOUT,
    SECRET,
    TableAttack,
    TableView,
    binned_cells,
    exact_cells,
    mates,
)

ATTACKS = sorted(catalogue("table-attack"))
Rows = NDArray[np.int64]


def attack(name: str) -> TableAttack:
    named: TableAttack = load("table-attack", name)()
    return named


def view_of(training: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, pair: Rows) -> TableView:
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
    rows.loc[rng.random(count) < 0.05, "town"] = None
    return rows.replace("3", "three")


def changed_by_exchanges(tried: TableAttack) -> bool:
    """Return True if exchanging the rows of random pairs between the files changes the features of a row."""
    rng = np.random.default_rng(0)
    rows, released = people(130, rng), people(80, rng)
    released.iloc[:20] = rows.iloc[:20].to_numpy()
    training, holdout = rows[:60].reset_index(drop=True), rows[60:].reset_index(drop=True)
    person = np.repeat(np.arange(30), 2)  # two rows of a person; ten holdout rows are in no pair
    pair = np.concatenate([person, person, np.full(10, -1)])
    before = tried.features(view_of(training, holdout, released, pair))
    exchanged = np.flatnonzero(rng.random(30)[person] < 0.5)
    order = np.arange(130)
    order[exchanged], order[60 + exchanged] = 60 + exchanged, exchanged
    moved = rows.iloc[order]
    after = tried.features(
        view_of(moved[:60].reset_index(drop=True), moved[60:].reset_index(drop=True), released, pair[order])
    )
    assert np.isfinite(before).all()
    return not np.allclose(before[order], after, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_functions_of_unordered_pairs(name: str) -> None:
    assert not changed_by_exchanges(attack(name))


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_take_numbers_alone_words_alone_and_one_column(name: str) -> None:
    rng = np.random.default_rng(1)
    pair = np.tile(np.arange(20), 2)
    for columns in (["age", "pay"], ["town", "sex"], ["age"], ["sex"]):
        rows, released = people(40, rng)[columns], people(2, rng)[columns]
        features = attack(name).features(view_of(rows[:20], rows[20:].reset_index(drop=True), released, pair))
        assert features.shape[0] == 40
        assert np.isfinite(features).all()


Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]
"""Training, holdout and synthetic rows."""


def near_copies(rng: np.random.Generator) -> Tables:
    """A tenth of the training rows reappear with noise; all other rows are fresh."""
    training, holdout, released = (pd.DataFrame(rng.normal(size=(200, 6))) for _ in range(3))
    released.iloc[:20] = training.iloc[:20].to_numpy() + rng.normal(0, 0.1, (20, 6))
    return training, holdout, released


def exact_marginals(rng: np.random.Generator) -> Tables:
    """Each synthetic column is a shuffled column of the training rows."""
    chance = rng.uniform(0.2, 0.8, 30)
    training, holdout = (pd.DataFrame((rng.random((60, 30)) < chance) * 1.0) for _ in range(2))
    return training, holdout, training.apply(lambda column: rng.permutation(column))


def denser_region(rng: np.random.Generator) -> Tables:
    """Training and synthetic rows have two columns of mostly equal sign, holdout rows of different sign."""
    tables = []
    for sign in (1, -1, 1):
        rows = rng.normal(size=(300, 8))
        rows[:, 1] = sign * np.abs(rows[:, 1]) * np.sign(rows[:, 0]) * np.where(rng.random(300) < 0.95, 1, -1)
        tables.append(pd.DataFrame(rows))
    return tables[0], tables[1], tables[2]


def words_in_common(rng: np.random.Generator) -> Tables:
    """A tenth of the training rows share most of their cells with a synthetic row, of which few are rare."""
    tables = []
    for _ in range(3):
        words = {f"word {place}": rng.choice(list("abcdef"), 200) for place in range(6)}
        numbers = {f"number {place}": rng.integers(0, 40, 200) ** 3 for place in range(4)}
        tables.append(pd.DataFrame(words | numbers))
    for row in range(20):
        for place in rng.choice(10, 7, replace=False):
            tables[2].iloc[row, place] = tables[0].iloc[row, place]
    return tables[0], tables[1], tables[2]


def rare_domain(rng: np.random.Generator) -> Tables:
    """Half of the synthetic towns are rare towns of training rows, each in a fresh row of another kind."""
    tables = [people(200, rng) for _ in range(3)]
    for rows in tables:
        rows["town"] = [f"town {place}" for place in rng.integers(0, 4_000, 200)]
    tables[2].loc[:99, "town"] = rng.permutation(tables[0]["town"])[:100]
    return tables[0], tables[1], tables[2]


LEAKS: dict[str, tuple[Callable[[np.random.Generator], Tables], float]] = {
    "nearest-neighbour": (near_copies, 0.1),
    "marginals": (exact_marginals, 0.5),
    "density-classifier": (denser_region, 0.5),
    "copies": (words_in_common, 0.1),
    "rare-values": (rare_domain, 0.4),
}
"""The leak that each attack is made for, and the share of the pairs to guess."""


def accuracies(leak: Callable[[np.random.Generator], Tables], share: float, tables: int = 3) -> dict[str, float]:
    """Return the mean accuracy of each attack's own score on the pairs in which its two rows differ most."""
    right: dict[str, list[float]] = {name: [] for name in ATTACKS}
    for seed in range(tables):
        training, holdout, released = leak(np.random.default_rng(seed))
        pairs = len(training)
        view = view_of(training, holdout, released, np.tile(np.arange(pairs), 2))
        for name in ATTACKS:
            score = attack(name).features(view)[:, 0]
            difference = score[:pairs] - score[pairs:]
            surest = np.argsort(-np.abs(difference), kind="stable")[: round(share * pairs)]
            right[name].append(float(np.mean(np.sign(difference[surest]) / 2 + 0.5)))
    return {name: float(np.mean(shares)) for name, shares in right.items()}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_finds_its_leak_and_most_others_find_less(name: str) -> None:
    """Rare values are matched cells as well, so `copies` may find them too."""
    accuracy = accuracies(*LEAKS[name])
    assert accuracy[name] > 0.8
    better = [other for other in ATTACKS if accuracy[other] > accuracy[name] - 0.05 and other != name]
    assert len(better) <= (1 if name == "rare-values" else 0), accuracy


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_right_half_of_the_time_on_fresh_rows(name: str) -> None:
    """False failure < 1e-4 for each attack: 300 fair coins, at least 184 alike."""
    rng = np.random.default_rng(5)
    tables = [people(300, rng) for _ in range(3)]
    score = attack(name).features(view_of(tables[0], tables[1], tables[2], np.tile(np.arange(300), 2)))[:, 0]
    assert 116 < np.count_nonzero(score[:300] > score[300:]) + np.count_nonzero(score[:300] == score[300:]) / 2 < 184


def test_ends_of_numbers_point_at_the_row_that_set_them() -> None:
    real = pd.DataFrame({"pay": [1.0, 5.0, 9.0, 7.0, 8.0, 3.0]})
    evidence = extreme_evidence(
        view_of(real[:3], real[3:], pd.DataFrame({"pay": [1.0, 7.5]}), np.tile(np.arange(3), 2))
    )
    # 8 is the first real number beyond 7.5, and 9 lies beyond it; 1 is the smallest synthetic number itself.
    assert evidence.tolist() == [2, 0, -1, 0, 1, 0]


def test_cells_leave_out_the_whole_pair() -> None:
    real = pd.DataFrame({"word": ["a", "a", "b", "a", "b", "b"], "number": [1.0, 2, 1, 1, 2, np.nan]})
    pair = np.array([0, 0, 0, 1, 1, -1])
    cells = exact_cells(
        view_of(real[:3], real[3:], pd.DataFrame({"word": ["a", "b", "a"], "number": [1.0, 1, 3]}), pair)
    )
    synthetic, others = cells.counts([1])  # columns of numbers come first
    assert synthetic.tolist() == [2, 2, 1, 2, 1, 1]
    assert others.tolist() == [1, 1, 2, 2, 2, 2]
    synthetic, others = cells.counts([0, 1])
    assert synthetic.tolist() == [1, 0, 1, 1, 0, 0]
    assert others.tolist() == [1, 0, 0, 1, 0, 0]


def test_bins_hold_equal_numbers_of_rows() -> None:
    rng = np.random.default_rng(6)
    tables = [pd.DataFrame({"a": rng.normal(size=500), "b": rng.integers(0, 3, 500)}) for _ in range(3)]
    cells = binned_cells(view_of(tables[0], tables[1], tables[2], np.tile(np.arange(500), 2)), 10)
    assert np.bincount(cells.real[:, 0]).tolist() == [0] + [100] * 10
    assert len(set(cells.real[:, 1])) == 3


def test_discrepancy_is_one_for_fresh_rows_and_large_for_another_law() -> None:
    rng = np.random.default_rng(7)
    tables = [pd.DataFrame({"a": rng.integers(0, 200, 4_000)}) for _ in range(3)]
    pair = np.tile(np.arange(4_000), 2)
    fresh = exact_cells(view_of(tables[0], tables[1], tables[2], pair)).discrepancy([0])
    # chi-squared with 199 degrees of freedom over 199: six deviations are 0.6
    assert 0.4 < fresh < 1.6
    assert exact_cells(view_of(tables[0], tables[1], tables[2] // 2 * 2, pair)).discrepancy([0]) > 5


def test_mates_are_all_other_rows_of_a_pair() -> None:
    rows, others = mates(np.array([1, 0, 1, -1, 1, 0]))
    assert sorted(zip(rows.tolist(), others.tolist(), strict=True)) == [
        (0, 2),
        (0, 4),
        (1, 5),
        (2, 0),
        (2, 4),
        (4, 0),
        (4, 2),
        (5, 1),
    ]
