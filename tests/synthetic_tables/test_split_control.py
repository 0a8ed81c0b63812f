"""The control of the split: valid p-values for random splits, and small ones for splits that are not random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpaudit.synthetic_tables.games.pairs import Canaries, paired
from dpaudit.synthetic_tables.games.split_control import NOT_RANDOM, SplitControl, SplitTest, split_control
from dpaudit.synthetic_tables.games.view import MISSING, MixedTable

Bits = NDArray[np.bool_]


def pool(count: int, rng: np.random.Generator, repeated: float = 0.0) -> MixedTable:
    """Return rows of three columns of numbers and two of words; a share of them repeats one of a few rows."""
    numbers = np.stack([rng.normal(size=count), rng.integers(0, 20, count), np.exp(rng.normal(size=count))], 1)
    numbers[rng.random(count) < 0.1, 2] = np.nan
    words = np.stack([np.minimum(rng.geometric(0.3, count), 30), rng.integers(MISSING, 2, count)], 1)
    copied = np.flatnonzero(rng.random(count) < repeated)
    sources = rng.integers(0, max(1, count // 10), copied.size)
    numbers[copied], words[copied] = numbers[sources], words[sources]
    return MixedTable(numbers, words, np.array([31, 2]), ("age", "visits", "cost"), ("ward", "sex"))


def control(table: MixedTable, inside: Bits, outside: Bits, seed: int = 0) -> SplitControl:
    train, holdout = table.take(inside), table.take(outside)
    return split_control(paired(train, holdout, train.take(np.arange(1)), seed=seed), seed=seed)


def random_half(count: int, rng: np.random.Generator) -> Bits:
    return np.asarray(rng.permutation(count) < count // 2)


def test_random_splits_pass() -> None:
    """False failure < 1e-6 for each kind of test: the limit is a quantile of Binomial(30, 0.05)."""
    p_values: dict[str, list[float]] = {}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        inside = random_half(160, rng)
        result = control(pool(160, rng, repeated=0.3), inside, ~inside, seed)
        assert not result.doubt
        for test in result.tests:
            p_values.setdefault(test.name, []).append(test.p_value)
    for name, values in p_values.items():
        assert np.count_nonzero(np.array(values) <= 0.05) <= binom.ppf(1 - 1e-6, 30, 0.05), name
        assert 0.2 < np.mean(values) <= 1, name


def by_age(table: MixedTable, rng: np.random.Generator) -> tuple[Bits, Bits]:
    inside = table.numbers[:, 0] + rng.normal(size=len(table)) < 0
    return inside, ~inside


def by_missing_cost(table: MixedTable, rng: np.random.Generator) -> tuple[Bits, Bits]:
    inside = rng.random(len(table)) < np.where(np.isnan(table.numbers[:, 2]), 0.9, 0.45)
    return inside, ~inside


def by_ward(table: MixedTable, rng: np.random.Generator) -> tuple[Bits, Bits]:
    inside = rng.random(len(table)) < np.where(table.words[:, 0] == 2, 0.2, 0.6)
    return inside, ~inside


def by_two_columns_together(table: MixedTable, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """No single column differs: the training rows are those in which two columns agree."""
    agree = (table.numbers[:, 0] > 0) == (table.words[:, 1] == 1)
    inside = rng.random(len(table)) < np.where(agree, 0.8, 0.2)
    return inside, ~inside


def copies_removed(table: MixedTable, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """The holdout has no row that is equal to a training row."""
    inside = random_half(len(table), rng)
    training = set(map(bytes, table.numbers[inside]))
    return inside, ~inside & np.array([bytes(row) not in training for row in table.numbers])


def training_made_distinct(table: MixedTable, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Each row occurs once in the training file, and as often as it did in the holdout."""
    inside = random_half(len(table), rng)
    places = np.flatnonzero(inside)
    first = np.unique([bytes(row) for row in table.numbers[places]], return_index=True)[1]
    return np.isin(np.arange(len(table)), places[first]), ~inside


@pytest.mark.parametrize(
    ("split", "noticed_by"),
    [
        (by_age, "column age"),
        (by_missing_cost, "column cost"),
        (by_ward, "column ward"),
        (by_two_columns_together, "a classifier"),
        (copies_removed, "the number of equal rows across the files"),
        (training_made_distinct, "the number of equal rows within the training file"),
    ],
)
def test_other_splits_are_noticed(
    split: Callable[[MixedTable, np.random.Generator], tuple[Bits, Bits]], noticed_by: str
) -> None:
    rng = np.random.default_rng(1)
    table = pool(1_000, rng, repeated=0.3)
    result = control(table, *split(table, rng))
    p_values = {test.name: test.p_value for test in result.tests}
    assert p_values[noticed_by] * len(result.tests) < NOT_RANDOM
    assert "not random" in result.doubt
    assert result.line == result.doubt


def test_near_copies_across_files_are_noticed() -> None:
    """The holdout has a near copy of each training row and nothing else; no column differs."""
    rng = np.random.default_rng(2)
    train = pool(300, rng)
    near = train.numbers + np.array([1e-6, 0, 1e-6])
    twin = MixedTable(near, train.words, train.levels, train.number_names, train.word_names)
    result = split_control(paired(train, twin, train.take(np.arange(1)), seed=0), seed=0)
    assert result.strongest.name == "the number of nearest rows in one file"
    assert result.doubt


def test_rows_of_persons_are_not_counted_as_independent() -> None:
    """Thirty persons of many equal rows, split at random: rows taken for canaries look like another law."""
    rng = np.random.default_rng(3)
    person = np.repeat(np.arange(60), 20)
    of_person = pool(60, rng)
    rows = of_person.take(person)
    inside = random_half(60, rng)[person]
    train, holdout = rows.take(inside), rows.take(~inside)
    strata = np.zeros(person.size, np.int64)
    canaries = Canaries(person[inside], strata[inside]), Canaries(person[~inside], strata[~inside])
    few = train.take(np.arange(1))
    assert split_control(paired(train, holdout, few, seed=0), seed=0).doubt
    result = split_control(paired(train, holdout, few, seed=0, canaries=canaries), seed=0)
    assert not result.doubt
    assert result.rows == result.persons == 60


def test_persons_in_both_files_were_not_split() -> None:
    control_of = {count: SplitControl((SplitTest("column age", 0.5),), 100, count, 100) for count in (1, 2)}
    assert not control_of[1].doubt
    assert "2 of 100 persons have rows in both files" in control_of[2].doubt
