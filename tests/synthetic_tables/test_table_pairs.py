"""Pairs of canaries are drawn without looking at the data, and the view does not tell the coins."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit.errors import InputError
from dpaudit.synthetic_tables.games.pairs import Canaries, PairedTables, paired, row_codes, slices
from dpaudit.synthetic_tables.games.view import KNOWN_HOLDOUT, KNOWN_TRAINING, MISSING, SECRET, MixedTable


def table(numbers: object, words: object = None) -> MixedTable:
    """Return a table of columns of numbers and of words of three levels."""
    values = np.asarray(numbers, np.float64)
    codes = np.zeros((len(values), 0), np.int64) if words is None else np.asarray(words, np.int64)
    names = tuple(f"n{place}" for place in range(values.shape[1]))
    word_names = tuple(f"w{place}" for place in range(codes.shape[1]))
    return MixedTable(values, codes, np.full(codes.shape[1], 3), names, word_names)


def rows(count: int, seed: int = 0) -> MixedTable:
    rng = np.random.default_rng(seed)
    return table(rng.normal(size=(count, 2)), rng.integers(MISSING, 3, (count, 1)))


def contents(pairs: PairedTables) -> list[tuple[int, int, float]]:
    """Return pair, file as shown and first number of all rows, in no order."""
    view = pairs.view
    return sorted(zip(view.pair.tolist(), view.file.tolist(), view.real.numbers[:, 0].tolist(), strict=True))


def test_each_pair_has_a_training_and_a_holdout_row() -> None:
    pairs = paired(rows(30), rows(20, 1), rows(5, 2), seed=3)
    assert pairs.pairs == 20
    assert (pairs.training_canaries, pairs.holdout_canaries) == (30, 20)
    for pair in range(20):
        inside = pairs.view.pair == pair
        assert sorted(pairs.trained[inside]) == [False, True]
        assert sorted(pairs.side[inside]) == [0, 1]
        first = inside & (pairs.side == 0)
        assert pairs.trained[first] == pairs.first_trained[pair]
    assert np.array_equal(pairs.view.file == SECRET, pairs.view.pair >= 0)
    assert (pairs.view.file == KNOWN_TRAINING).sum() == 10
    assert not (pairs.view.file == KNOWN_HOLDOUT).any()


def test_pairs_do_not_depend_on_the_data() -> None:
    """Sorting rows before they are paired, or matching similar rows, would fail here."""
    first, second = (paired(rows(30, seed), rows(30, seed + 1), rows(5), seed=3) for seed in (4, 6))
    assert np.array_equal(first.view.pair, second.view.pair)
    assert np.array_equal(first.first_trained, second.first_trained)
    assert np.array_equal(first.trained, second.trained)
    other = paired(rows(30, 4), rows(30, 5), rows(5), seed=9)
    assert not np.array_equal(first.view.pair, other.view.pair)


def test_exchanging_the_rows_of_a_pair_leaves_what_is_shown() -> None:
    """The proof rests on this: both splits show the same unordered pairs, so the coin cannot be read from the view."""
    train, holdout = rows(30), rows(40, 1)
    before = paired(train, holdout, rows(5, 2), seed=3)
    inside = before.view.pair == 7
    numbers = before.view.real.numbers[:, 0]
    trained_on, held_out = (
        np.flatnonzero(file.numbers[:, 0] == numbers[inside & (before.trained == is_trained)])
        for file, is_trained in ((train, True), (holdout, False))
    )
    exchanged = [file.numbers.copy() for file in (train, holdout)]
    exchanged[0][trained_on], exchanged[1][held_out] = holdout.numbers[held_out], train.numbers[trained_on]
    words = [file.words.copy() for file in (train, holdout)]
    words[0][trained_on], words[1][held_out] = holdout.words[held_out], train.words[trained_on]
    after = paired(table(exchanged[0], words[0]), table(exchanged[1], words[1]), rows(5, 2), seed=3)
    assert contents(after) == contents(before)


def test_the_order_of_the_rows_does_not_tell_the_file() -> None:
    """False failure < 1e-6: the mean place of 2,000 training rows is normal with 5 standard errors on each side."""
    pairs = paired(rows(2_000), rows(2_000, 1), rows(5, 2), seed=5)
    places = np.flatnonzero(pairs.trained)
    assert abs(places.mean() - 1_999.5) < 5 * 4_000 / np.sqrt(12 * 4_000)
    assert abs(pairs.first_trained.mean() - 0.5) < 5 * 0.5 / np.sqrt(2_000)
    shown_first = places[pairs.view.pair[places] >= 0]
    assert 0.4 < pairs.first_trained[pairs.view.pair[shown_first]].mean() < 0.6


def test_rows_of_a_person_are_one_canary() -> None:
    persons = np.repeat(np.arange(12), 3), np.repeat(np.arange(10, 24), 2)
    train, holdout = (table(np.stack([person, np.arange(person.size)], 1)) for person in persons)
    canaries = tuple(Canaries(person, np.zeros(person.size, np.int64)) for person in persons)
    pairs = paired(train, holdout, rows(5), seed=0, canaries=(canaries[0], canaries[1]))
    assert pairs.persons_in_both == 2  # 10 and 11
    assert pairs.pairs == 10
    person = pairs.view.real.numbers[:, 0]
    for pair in range(10):
        for is_trained in (True, False):
            inside = (pairs.view.pair == pair) & (pairs.trained == is_trained)
            assert np.unique(person[inside]).size == 1
            assert inside.sum() == (3 if is_trained else 2)
            assert np.unique(pairs.canary[inside]).size == 1
    both = np.isin(person, [10, 11])
    assert (pairs.view.pair[both] == -1).all()
    assert np.array_equal(pairs.view.file[both] == KNOWN_TRAINING, pairs.trained[both])
    largest, mean = pairs.of_canaries(pairs.view.real.numbers)
    last, count = pairs.view.real.numbers[:, 1], pairs.view.pair == 0
    for place in (0, 1):
        inside = count & (pairs.side == place)
        assert largest[place, 0, 1] == last[inside].max()
        assert mean[place, 0, 1] == last[inside].mean()


def test_pairs_are_drawn_within_strata() -> None:
    strata = np.array([0] * 10 + [1] * 5), np.array([0] * 4 + [1] * 20 + [2] * 3)
    train, holdout = (table(stratum[:, None]) for stratum in strata)
    canaries = [Canaries(np.arange(each.size) + 100 * place, each) for place, each in enumerate(strata)]
    pairs = paired(train, holdout, rows(5), seed=0, canaries=(canaries[0], canaries[1]))
    assert pairs.pairs == 4 + 5
    for pair in range(9):
        assert np.unique(pairs.view.real.numbers[pairs.view.pair == pair]).size == 1


def test_tables_without_a_pair_are_refused() -> None:
    same = Canaries(np.zeros(5, np.int64), np.zeros(5, np.int64))
    with pytest.raises(InputError, match="rows of its own"):
        paired(rows(5), rows(5), rows(5), seed=0, canaries=(same, same))


def test_equal_rows_have_equal_codes() -> None:
    repeated = table([[1, np.nan], [0.0, 1], [1, np.nan], [-0.0, 1]], [[0], [1], [0], [1]])
    codes = row_codes(repeated)
    assert codes[0] == codes[2] != codes[1] == codes[3]
    assert row_codes(table([[1], [1]], [[0], [MISSING]]))[0] != row_codes(table([[1], [1]], [[0], [MISSING]]))[1]


def test_slices_hold_outliers_and_rare_words() -> None:
    rng = np.random.default_rng(0)
    numbers, words = rng.normal(size=(400, 2)), np.zeros((400, 1), np.int64)
    numbers[:8] += 50
    words[10] = words[15] = 2
    pairs = paired(table(numbers[:200], words[:200]), table(numbers[200:], words[200:]), rows(5), seed=0)
    parts = slices(pairs)
    far = np.unique(pairs.view.pair[pairs.view.real.numbers[:, 0] > 20])
    assert parts["outliers"].sum() == 20
    assert parts["outliers"][far].all()
    assert "rare words" not in parts  # two pairs are too few to be looked at alone
    words[10:40] = 2 - words[10:40] // 2
    words[10:40:3], words[11:40:3] = 1, 2
    many = MixedTable(
        numbers, np.arange(400)[:, None] % 150, np.array([150]), ("n0", "n1"), ("w0",)
    )  # each word is carried by two or three rows
    pairs = paired(many.take(np.arange(200)), many.take(np.arange(200, 400)), rows(5), seed=0)
    assert slices(pairs)["rare words"].sum() == 20
