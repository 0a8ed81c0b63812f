"""Views of few columns, of computed columns, of persons and of free text: found without a coin, and attacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from dpaudit.synthetic_tables.attacks.texts import most_shared, shared_words
from dpaudit.synthetic_tables.front_door.auditing import view_features
from dpaudit.synthetic_tables.games.columns import encoded
from dpaudit.synthetic_tables.games.derived import (
    SURPLUS,
    derived_views,
    nearness_evidence,
    nearness_surplus,
    on_the_real_scale,
)
from dpaudit.synthetic_tables.games.pairs import Canaries, PairedTables, paired
from dpaudit.synthetic_tables.games.split_control import split_control

Rng = np.random.Generator
Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]
ROWS = 150
NUMBERS = ("north", "east", "start", "ended", "gross", "net")


def rows(rng: Rng, count: int = ROWS) -> pd.DataFrame:
    """Return places, stays and pay, of which no column depends on another one."""
    start = rng.integers(0, 10**8, count)
    gross = np.exp(rng.normal(8, 0.5, count)).round(2)
    return pd.DataFrame(
        {
            "north": rng.uniform(0, 20_000, count).round(),
            "east": rng.uniform(0, 20_000, count).round(),
            "start": start,
            "ended": start + rng.gamma(2, 90_000, count).astype(int),
            "gross": gross,
            "net": (gross * rng.beta(14, 7, count)).round(2),
            "ward": rng.choice(list("abc"), count),
        }
    )


def place(training: pd.DataFrame, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    moved = training[["north", "east"]] + rng.normal(0, 20, (len(training), 2))
    return fresh.assign(**moved.round())


def length(training: pd.DataFrame, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    return fresh.assign(ended=fresh["start"] + training["ended"] - training["start"])


def ratio(training: pd.DataFrame, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    return fresh.assign(net=(fresh["gross"] * training["net"] / training["gross"]).round(4))


def multiplied(training: pd.DataFrame, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    return fresh.assign(**{name: (1.2 * training[name]).round() for name in NUMBERS})


Leak = Callable[[pd.DataFrame, pd.DataFrame, Rng], pd.DataFrame]
LEAKS: dict[str, Leak] = {
    "north, east": place,
    "ended - start": length,
    "net / gross": ratio,
    "numbers on the scale of the real rows": multiplied,
}


def tables(leak: Leak | None, seed: int) -> Tables:
    rng = np.random.default_rng(seed)
    training, holdout, fresh = rows(rng), rows(rng), rows(rng)
    return training, holdout, fresh if leak is None else leak(training, fresh, rng)


def pairs_of(training: pd.DataFrame, holdout: pd.DataFrame, released: pd.DataFrame) -> PairedTables:
    return paired(*encoded(training, holdout, released), seed=0)


ATTACKS = ("nearest-neighbour", "copies", "rare-values")


def right(pairs: PairedTables, name: str) -> float:
    """Return the share of pairs in which the own score of a view is larger for the row trained on."""
    features, failures = view_features(pairs, derived_views(pairs), ATTACKS)
    assert failures == []
    return float(np.mean(pairs.ahead(features[name][:, 0]) > 0))


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_in_few_columns_is_found_and_told(name: str) -> None:
    pairs = pairs_of(*tables(LEAKS[name], 0))
    assert right(pairs, name) > 0.9


def test_fresh_rows_have_hardly_a_view() -> None:
    """A view of fresh rows costs nothing but guesses. On average there is less than one."""
    assert sum(len(derived_views(pairs_of(*tables(None, seed)))) for seed in range(3)) < 3


def test_means_of_persons_are_recognised() -> None:
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(200), rng.integers(2, 6, 200))
    visits = pd.DataFrame(rng.normal(size=(200, 3))[person] + rng.normal(0, 3, (person.size, 3)), columns=list("abc"))
    inside = person < 100
    released = visits[inside].groupby(person[inside]).mean().round(6)
    canaries = tuple(Canaries(person[mask], np.zeros(mask.sum(), np.int64)) for mask in (inside, ~inside))
    files = encoded(visits[inside], visits[~inside], released)
    pairs = paired(*files, seed=0, canaries=(canaries[0], canaries[1]))
    assert right(pairs, "means of persons") > 0.95


def texts(rng: Rng, count: int = ROWS) -> pd.DataFrame:
    return pd.DataFrame({"note": [" ".join(f"w{word}" for word in rng.integers(0, 400, 8)) for _ in range(count)]})


def mixed_texts(rng: Rng) -> Tables:
    """Half of the words of each training text stand in a synthetic text, in another order."""
    training, holdout, fresh = texts(rng), texts(rng), texts(rng)
    note = [
        " ".join(rng.permutation(mine.split())[:4].tolist() + other.split()[4:])
        for mine, other in zip(training["note"], fresh["note"], strict=True)
    ]
    return training, holdout, fresh.assign(note=note)


def test_words_of_a_text_are_recognised_in_another_order() -> None:
    pairs = pairs_of(*mixed_texts(np.random.default_rng(0)))
    features = dict(shared_words(pairs.view))
    assert np.mean(pairs.ahead(features["note"][:, 0]) > 0) > 0.95
    assert not list(shared_words(pairs_of(*tables(None, 0)).view))  # no free text


def exchanged(files: Tables, seed: int) -> tuple[PairedTables, PairedTables, np.ndarray]:
    """Return the pairs, the same with the rows of random pairs exchanged, and where each real row went."""
    pairs = pairs_of(*files)
    # The canaries of a pair, by their rows in the files: `paired` numbers them by place, training first.
    rng = np.random.default_rng(seed)
    trained_on, held_out = (np.empty(pairs.pairs, np.int64) for _ in range(2))
    for mask, places in ((pairs.trained, trained_on), (~pairs.trained, held_out)):
        places[pairs.view.pair[mask]] = pairs.canary[mask]
    chosen = np.flatnonzero(rng.random(pairs.pairs) < 0.5)
    training, holdout = files[0].copy(), files[1].copy()
    inside, outside = trained_on[chosen], held_out[chosen] - len(training)
    training.iloc[inside], holdout.iloc[outside] = files[1].iloc[outside].to_numpy(), files[0].iloc[inside].to_numpy()
    row = np.empty(pairs.canary.size, np.int64)
    row[pairs.canary] = np.arange(row.size)
    went = np.arange(row.size)
    went[row[trained_on[chosen]]], went[row[held_out[chosen]]] = row[held_out[chosen]], row[trained_on[chosen]]
    return pairs, pairs_of(training, holdout, files[2]), went


@pytest.mark.parametrize("name", [*LEAKS, "words of note"])
def test_an_exchange_of_the_rows_of_a_pair_changes_no_view(name: str) -> None:
    files = mixed_texts(np.random.default_rng(1)) if name not in LEAKS else tables(LEAKS[name], 1)
    before, after, went = exchanged(files, 0)
    features = [view_features(pairs, derived_views(pairs), ATTACKS)[0] for pairs in (before, after)]
    assert list(features[0]) == list(features[1])
    assert name in features[0]
    for view, values in features[0].items():
        np.testing.assert_allclose(values, features[1][view][went], rtol=1e-7, atol=1e-7)


def test_a_view_that_knows_the_training_file_is_noticed() -> None:
    """A comparison fails for a choice that peeks: the nearness to training rows alone."""
    before, after, _ = exchanged(tables(None, 2), 0)

    def peeked(pairs: PairedTables) -> float:
        real = pairs.view.real.numbers[pairs.trained]
        return nearness_surplus(pairs.view.synthetic.numbers, real, pairs.view.pair[pairs.trained], 100)

    def fair(pairs: PairedTables) -> float:
        return nearness_surplus(pairs.view.synthetic.numbers, pairs.view.real.numbers, pairs.view.pair, 100)

    assert fair(before) == pytest.approx(fair(after), rel=1e-9)
    assert peeked(before) != pytest.approx(peeked(after), rel=1e-3)


def test_numbers_of_one_factor_return_to_the_real_scale_exactly() -> None:
    training, holdout, released = tables(multiplied, 3)
    view = pairs_of(training, holdout, released).view
    back = on_the_real_scale(view)
    columns = [view.real.number_names.index(name) for name in ("north", "east")]
    assert np.mean(np.isin(back.synthetic.numbers[:, columns], view.real.numbers[:, columns])) > 0.9
    fresh = pairs_of(*tables(None, 3)).view
    assert on_the_real_scale(fresh) is fresh


def test_evidence_of_nearness_agrees_with_a_slow_twin() -> None:
    rng = np.random.default_rng(4)
    synthetic, real, pair = rng.random((30, 2)), rng.random((40, 2)), rng.permutation(np.repeat(np.arange(20), 2))
    fast = nearness_evidence(synthetic, real, pair, 12)
    rows_of_first = [row for row in range(40) if pair[row] < 12]

    def away(first: np.ndarray, second: np.ndarray) -> float:
        return float(np.abs(first - second).sum())

    def to_another(point: np.ndarray, row: int) -> float:
        return min(away(point, real[other]) for other in range(40) if pair[other] != pair[row])

    local = [to_another(real[row], row) for row in rows_of_first]
    least = 0.03 * float(np.median(local)) + 1e-9
    for value, row, alone in zip(fast, rows_of_first, local, strict=True):
        nearest = min(range(30), key=lambda place: away(real[row], synthetic[place]))
        distance = away(real[row], synthetic[nearest])
        other = min(to_another(synthetic[nearest], row), distance + alone)
        assert value == pytest.approx(np.log1p(min((other + least) / (distance + least), 1_000) ** 2 / 10))


def test_shared_words_agree_with_a_slow_twin() -> None:
    rng = np.random.default_rng(5)
    query, searched = (csr_array((rng.random((rows, 9)) < 0.3) * rng.random(9)) for rows in (7, 12))
    groups, of_query = np.repeat(np.arange(4), 3), np.array([0, 1, 2, 3, -1, -1, 0])
    largest, rows, second = most_shared(query, searched, of_query, groups)
    shared = np.where(of_query[:, None] == groups, 0.0, query.toarray() @ searched.toarray().T)
    np.testing.assert_allclose(largest, shared.max(axis=1))
    for place in np.flatnonzero(largest):
        assert shared[place, rows[place]] == pytest.approx(largest[place])
        assert second[place] == pytest.approx(shared[place, groups != groups[rows[place]]].max())


def test_files_that_differ_in_a_computed_column_are_called_not_random() -> None:
    """Training rows have whole hours from start to end. Each column alone has one law in both files."""
    rng = np.random.default_rng(6)
    training, holdout, released = (rows(rng, 300) for _ in range(3))
    training["ended"] = training["start"] + ((training["ended"] - training["start"]) // 3_600 + 1) * 3_600
    for files, is_random in (((training, holdout, released), False), (tables(length, 6), True)):
        pairs = pairs_of(*files)
        names = pairs.view.real.number_names
        first, second = (pairs.view.real.numbers[:, [names.index(name)]] for name in ("start", "ended"))
        lengths = replace(pairs.view.real, numbers=second - first, number_names=("ended - start",))
        assert split_control(pairs, seed=0).doubt == ""
        doubt = split_control(pairs, seed=0, views=[replace(pairs.view, real=lengths)]).doubt
        assert doubt == "" if is_random else "ended - start" in doubt


def test_a_leak_of_few_rows_is_found_by_those_with_much_evidence() -> None:
    """One row in eight is copied, which hardly moves the mean of all rows."""
    rng = np.random.default_rng(7)
    real, fresh, pair = rng.gamma(2, 90_000, (2_000, 1)), rng.gamma(2, 90_000, (1_000, 1)), np.tile(np.arange(1_000), 2)
    leaking = fresh.copy()
    leaking[:125] = real[:125]
    assert nearness_surplus(leaking / 1e5, real / 1e5, pair, 1_000) > SURPLUS
    assert nearness_surplus(fresh / 1e5, real / 1e5, pair, 1_000) < SURPLUS
