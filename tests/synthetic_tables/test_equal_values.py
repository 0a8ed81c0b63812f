"""Tests of equal values in one file: p-values against all splits, and files that differ by themselves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import dpaudit
from dpaudit import Verdict
from dpaudit.synthetic_tables.games.columns import encoded
from dpaudit.synthetic_tables.games.pairs import paired
from dpaudit.synthetic_tables.games.split_control import (
    SplitControl,
    Statistic,
    across,
    in_one_file,
    in_training,
    p_of_too_many,
    split_control,
    two_sided,
)

Rng = np.random.Generator
Bits = NDArray[np.bool_]
Split = Callable[[pd.DataFrame, Rng], Bits]


@pytest.mark.parametrize("statistic", [in_one_file, across, in_training])
@pytest.mark.parametrize(
    ("values", "training"),
    [([0, 0, 0, 1, 1, 1, 2, 2, 2, 2], 5), ([0, 0, 0, 0, 1, 1, 1, 1], 4), ([0, 0, 1, 1, 2, 3, 4, 5, 6], 3)],
)
def test_the_bound_is_at_least_the_share_of_all_splits(statistic: Statistic, values: list[int], training: int) -> None:
    """The p-value by counting all splits is exact; large and small statistics."""
    codes = np.array(values)
    splits = [np.isin(np.arange(codes.size), chosen) for chosen in combinations(range(codes.size), training)]

    def score(split: Bits) -> float:
        rows, inside = np.bincount(codes), np.bincount(codes[split], minlength=codes.max() + 1)
        return float(statistic(rows[rows > 1], inside[rows > 1], training / codes.size).sum())

    scores = np.array([score(split) for split in splits])
    for split, value in zip(splits, scores, strict=True):
        bound = p_of_too_many(codes, split, statistic)
        assert np.mean(scores >= value - 1e-9) <= bound + 1e-9
        exact = min(1.0, 2 * min(np.mean(scores >= value - 1e-9), np.mean(scores <= value + 1e-9)))
        assert exact <= two_sided(codes, split, statistic) + 1e-9 or exact == 1


def test_the_bound_is_sharp_where_each_value_stands_in_one_file() -> None:
    """Ten pairs of equal rows, and 980 others: all ten in one file has probability 2 to the power -10, nearly."""
    codes = np.concatenate([np.repeat(np.arange(10), 2), np.arange(10, 990)])
    trained = np.concatenate([np.tile([True, True, False, False], 5), np.tile([True, False], 490)])
    assert 0.0009 < p_of_too_many(codes, trained) < 0.0012
    assert p_of_too_many(np.where(codes < 10, -1, codes), trained) == 1


def rows(count: int, rng: Rng) -> pd.DataFrame:
    level = rng.normal(size=count)
    return pd.DataFrame(
        {
            "age": np.clip(np.rint(45 + 15 * level), 18, 90),
            "cost": np.exp(6 + 0.5 * level + rng.normal(size=count)).round(2),
            "dose": rng.normal(size=count).round(3),
            "sex": rng.choice(["f", "m"], count),
            "code": [f"d{min(code, 9)}" for code in rng.geometric(0.3, count)],
        }
    )


def group(count: int, size: int, rng: Rng) -> tuple[NDArray[np.int64], Bits]:
    """Return the group of each row and a mask of the rows of a random half of the groups."""
    groups = -(-count // size)
    number = np.repeat(np.arange(groups), size)[:count]
    return number, (rng.permutation(groups) < groups // 2)[number]


def half(count: int, rng: Rng) -> Bits:
    return np.asarray(rng.permutation(count) < count // 2)


def by_site(size: int) -> Split:
    def split(table: pd.DataFrame, rng: Rng) -> Bits:
        site, inside = group(len(table), size, rng)
        table["site"] = [f"S{name:05d}" for name in rng.permutation(99_999)[site]]
        return inside

    return split


def by_household_without_its_name(table: pd.DataFrame, rng: Rng) -> Bits:
    household, inside = group(len(table), 3, rng)
    for name, values in {"region": 12, "rooms": 7, "floor": 9}.items():
        table[name] = rng.integers(0, values, len(table))[household]
    return inside


def by_upload(table: pd.DataFrame, rng: Rng) -> Bits:
    upload, inside = group(len(table), 20, rng)
    seconds = 1.6e9 + rng.integers(0, 10**8, len(table))[upload] + rng.integers(0, 3_600, len(table))
    table["uploaded"] = pd.to_datetime(seconds, unit="s").astype(str)
    return inside


def by_month(table: pd.DataFrame, rng: Rng) -> Bits:
    month = rng.integers(0, 24, len(table))
    table["date"] = [
        f"20{20 + each // 12}-{1 + each % 12:02d}-{day:02d}"
        for each, day in zip(month, rng.integers(1, 29, len(table)), strict=True)
    ]
    return np.asarray((rng.permutation(24) < 12)[month])


def rounded_in_training(table: pd.DataFrame, rng: Rng) -> Bits:
    inside = half(len(table), rng)
    for name, digits in {"cost": 1, "dose": 2}.items():
        table.loc[inside, name] = table.loc[inside, name].round(digits)
    return inside


def imputed_by_the_mean_of_each_file(table: pd.DataFrame, rng: Rng) -> Bits:
    """1 % of the numbers, some twenty cells of each column."""
    inside = half(len(table), rng)
    for name in ("age", "cost", "dose"):
        missing = rng.random(len(table)) < 0.01
        for file in (inside, ~inside):
            table.loc[file & missing, name] = table.loc[file & ~missing, name].mean()
    return inside


def with_codes_of_each_file(table: pd.DataFrame, rng: Rng) -> Bits:
    inside = half(len(table), rng)
    for file in (inside, ~inside):
        table.loc[file, "code"] = pd.factorize(table.loc[file, "code"])[0].astype(str)
    return inside


def with_small_letters_in_one_file(table: pd.DataFrame, rng: Rng) -> Bits:
    inside = half(len(table), rng)
    names = [f"Name {number}" for number in rng.integers(0, 3 * len(table), len(table))]
    table["name"] = [name.lower() if file else name for name, file in zip(names, inside, strict=True)]
    return inside


def by_site_of_a_constant_column(table: pd.DataFrame, rng: Rng) -> Bits:
    site, inside = group(len(table), 5, rng)
    table["beds"] = rng.integers(20, 60, len(table))[site]
    return inside


def by_cluster_of_correlated_columns(table: pd.DataFrame, rng: Rng) -> Bits:
    cluster, inside = group(len(table), 4, rng)
    for name in ("x", "y"):
        table[name] = rng.normal(size=len(table))[cluster] + 0.05 * rng.normal(size=len(table))
    return inside


def control(table: pd.DataFrame, inside: Bits) -> SplitControl:
    train, holdout, synth = encoded(table[inside], table[~inside], table[:1])
    return split_control(paired(train, holdout, synth, seed=0), seed=0)


@pytest.mark.parametrize(
    ("split", "count", "noticed_by"),
    [
        (by_site(8), 300, "equal values of column site"),
        (by_site(4), 300, "equal values of column site"),
        (by_household_without_its_name, 400, "equal or near values of two columns"),
        (by_upload, 300, "near values of column uploaded"),
        (by_month, 300, "column date"),
        (rounded_in_training, 300, "equal numbers of digits of column"),
        (imputed_by_the_mean_of_each_file, 2_000, "equal unusual values"),
        (with_codes_of_each_file, 2_000, "column"),
        (with_small_letters_in_one_file, 300, "column name"),
        (by_site_of_a_constant_column, 300, "equal values of column beds"),
        (by_cluster_of_correlated_columns, 400, "equal or near values of two columns"),
    ],
)
def test_files_that_differ_by_themselves_are_noticed(split: Split, count: int, noticed_by: str) -> None:
    rng = np.random.default_rng(0)
    table = rows(count, rng)
    result = control(table, split(table, rng))
    assert noticed_by in result.doubt


def test_random_splits_of_such_tables_pass() -> None:
    """False failure at most 0.5 %: five tables, each called not random with probability 0.001."""
    for number, size in enumerate((2, 4, 8, 20, 100)):
        rng = np.random.default_rng(number)
        table = rows(300, rng)
        by_site(size)(table, rng)
        by_household_without_its_name(table, rng)
        assert not control(table, half(300, rng)).doubt


def test_an_honest_generator_of_rows_of_whole_sites_is_not_convicted() -> None:
    """Noisy counts of the sites protect a row with epsilon 1; sites of eight rows went to one file."""
    rng = np.random.default_rng(0)
    table = rows(800, rng)[["cost", "sex"]]
    inside = by_site(8)(table, rng)
    sites, counts = np.unique(table["site"], return_counts=True)
    trained = table.loc[inside, "site"].value_counts().reindex(sites).fillna(0).to_numpy()
    noisy = np.maximum(trained + rng.laplace(size=counts.size), 0)
    synth = rows(400, rng)[["cost", "sex"]].assign(site=rng.choice(sites, 400, p=noisy / noisy.sum()))
    audit = dpaudit.synthetic(table[inside], table[~inside], synth, claim=1, target="sex")
    assert audit.epsilon > 2
    assert audit.verdict is Verdict.UNDECIDED
    assert "equal values of column site" in audit.answer.line("reason")
