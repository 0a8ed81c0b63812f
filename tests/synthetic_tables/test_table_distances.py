"""Nearest neighbours of mixed rows are exact and leave out whole pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpaudit.synthetic_tables.games.distances import Scaled, nearest, nearest_real, scaled
from dpaudit.synthetic_tables.games.view import MISSING, SECRET, MixedTable, TableView


def mixed(rows: int, seed: int) -> MixedTable:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, 3)).round(1)
    numbers[rng.random(numbers.shape) < 0.05] = np.nan
    words = rng.integers(MISSING, 4, size=(rows, 2))
    return MixedTable(numbers, words, np.array([4, 4]), ("a", "b", "c"), ("d", "e"))


@pytest.fixture(scope="module")
def view() -> TableView:
    pair = np.concatenate([np.tile(np.arange(40), 2), [0, -1, -1]])
    return TableView(mixed(60, 0), mixed(83, 1), pair, np.where(pair < 0, 0, SECRET).astype(np.int8))


def distances(query: Scaled, searched: Scaled) -> np.ndarray:
    numbers = np.abs(query.numbers[:, None].astype(float) - searched.numbers[None]).sum(2)
    return np.asarray(numbers + (query.words[:, None] != searched.words[None]).sum(2))


def test_scales_do_not_depend_on_units(view: TableView) -> None:
    changed = [replace(table, numbers=1_000 * table.numbers - 5) for table in (view.synthetic, view.real)]
    for rows, others in zip(scaled(view), scaled(replace(view, synthetic=changed[0], real=changed[1])), strict=True):
        assert others.numbers == pytest.approx(rows.numbers, abs=1e-6)


def test_outliers_do_not_set_the_scale(view: TableView) -> None:
    numbers = np.random.default_rng(3).normal(size=(2_000, 1))
    numbers[0] = 1e9
    words = np.empty((2_000, 0), np.int64)
    table = MixedTable(numbers, words, np.empty(0, np.int64), ("a",), ())
    synthetic, _ = scaled(TableView(table, table, np.full(2_000, -1), np.zeros(2_000, np.int8)))
    assert 0.15 < synthetic.numbers.std() < 0.6
    assert 5 < synthetic.numbers[0, 0] < 30


def test_columns_without_spread_do_not_count(view: TableView) -> None:
    flat = replace(view.real, numbers=np.full_like(view.real.numbers, 7.0))
    rare = flat.numbers.copy()
    rare[0, 0] = 9.0
    _, real = scaled(replace(view, real=replace(flat, numbers=rare), synthetic=flat))
    assert real.numbers[0, 0] == 1
    assert (real.numbers[1:] == 0).all()


def test_neighbours_are_those_of_all_distances(view: TableView) -> None:
    synthetic, real = scaled(view)
    neighbours = nearest(real, synthetic, 5)
    table = distances(real, synthetic)
    assert neighbours.distances == pytest.approx(np.sort(table, axis=1)[:, :5], abs=1e-6)
    assert np.take_along_axis(table, neighbours.rows, axis=1) == pytest.approx(neighbours.distances, abs=1e-6)


def test_real_neighbours_are_of_other_pairs(view: TableView) -> None:
    _, real = scaled(view)
    table = distances(real, real)
    table[(view.pair[:, None] == view.pair) & (view.pair >= 0)] = np.inf
    np.fill_diagonal(table, np.inf)
    neighbours = nearest_real(real, view.pair, 4)
    assert neighbours.distances == pytest.approx(np.sort(table, axis=1)[:, :4], abs=1e-6)


def test_words_can_cost_more_for_some_rows(view: TableView) -> None:
    synthetic, real = scaled(view)
    costs = np.random.default_rng(2).random(real.words.shape)
    table = np.abs(real.numbers[:, None].astype(float) - synthetic.numbers[None]).sum(2)
    table += ((real.words[:, None] != synthetic.words[None]) * costs[:, None]).sum(2)
    neighbours = nearest(real, synthetic, 3, weights=costs)
    assert neighbours.distances == pytest.approx(np.sort(table, axis=1)[:, :3], abs=1e-6)


def test_too_few_rows_leave_infinite_distances(view: TableView) -> None:
    _, real = scaled(view)
    few = Scaled(real.numbers[:2], real.words[:2])
    neighbours = nearest(real, few, 3)
    assert np.isinf(neighbours.distances[:, 2]).all()
    assert (neighbours.rows[:, 2] == -1).all()
    assert np.isfinite(neighbours.distances[:, :2]).all()
