"""Synthetic tables that give rows away only to an attacker who knows how to look, and what an audit finds of each.

    python -m benchmarks.synthetic_views RUNS.jsonl [--only NAME ...] [--data FOLDER] [--rows 2000] [--write]

The rows are those of the census data in FOLDER, else made rows of the same kind, with further columns. All cells that
are not planted come from fresh rows of the same law. "Possible" is the bound of a score that knows the planted columns
and reads nothing else, with all of the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial import cKDTree

import dpaudit
from benchmarks.campaign import by_case, campaign, of_each
from benchmarks.synthetic_defects import Rng, Split, made_split, read_adult, split_of
from dpaudit.engine.data.labelled_files import NUMERIC
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores

Floats = NDArray[np.float64]
METRES = 111_200.0
"""Metres of a degree of latitude."""
LATITUDE = 48.0
PERSONS, VISITS = 300, 8
"""Persons of a file, and mean number of their rows."""
VOCABULARY, WORDS, KEPT = 1_500, 14, 5
"""Words of the language, words of a text, and words of a training text that a synthetic text repeats."""


def with_columns(split: Split, seed: int, columns: Callable[[int, Rng], pd.DataFrame]) -> Split:
    """Return the split with further columns of one law in all tables."""
    rng = np.random.default_rng([seed, 1])

    def wider(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.reset_index(drop=True).join(columns(len(rows), rng))

    return Split(wider(split.training), wider(split.holdout), lambda count: wider(split.fresh(count)))


def places(count: int, rng: Rng) -> pd.DataFrame:
    """Return places in thirty towns of a district, to a metre."""
    law = np.random.default_rng(7)
    towns, size = law.uniform(-20_000, 20_000, (30, 2)), law.uniform(600, 3_000, 30)
    town = law.dirichlet(np.ones(30))
    chosen = rng.choice(30, count, p=town)
    metres = towns[chosen] + size[chosen, None] * rng.normal(size=(count, 2))
    return _degrees(metres)


def _degrees(metres: Floats) -> pd.DataFrame:
    east = METRES * np.cos(np.radians(LATITUDE))
    return pd.DataFrame({"latitude": LATITUDE + metres[:, 0] / METRES, "longitude": 11 + metres[:, 1] / east}).round(5)


def place_within_30_m(split: Split, rng: Rng) -> pd.DataFrame:
    """Return fresh rows with the place of a training row, moved by up to 30 metres."""
    rows = split.fresh(len(split.training))
    angle, away = rng.uniform(0, 2 * np.pi, len(rows)), 30 * np.sqrt(rng.random(len(rows)))
    east = METRES * np.cos(np.radians(LATITUDE))
    rows["latitude"] = (split.training["latitude"] + away * np.sin(angle) / METRES).round(5)
    rows["longitude"] = (split.training["longitude"] + away * np.cos(angle) / east).round(5)
    return rows


DATES = ["admitted", "discharged", "seen again"]
FIRST_DAY = pd.Timestamp("2015-01-01")


def dates(count: int, rng: Rng) -> pd.DataFrame:
    """Return three dates of a stay in hospital."""
    first = rng.integers(0, 3_000, count)
    second = first + 1 + rng.gamma(1.5, 15, count).astype(int)
    third = second + 7 + rng.gamma(2, 60, count).astype(int)
    days = dict(zip(DATES, (first, second, third), strict=True))
    return pd.DataFrame({name: _date(each) for name, each in days.items()})


def _date(days: Any) -> pd.Series[str]:
    return pd.Series((FIRST_DAY + pd.to_timedelta(np.asarray(days), unit="D")).strftime("%Y-%m-%d"))


def _days(texts: pd.Series[str]) -> Floats:
    return ((pd.to_datetime(texts) - FIRST_DAY) / pd.Timedelta(days=1)).to_numpy(float)


def dates_moved_together(split: Split, rng: Rng) -> pd.DataFrame:
    """Return fresh rows with the dates of a training row, all moved by one number of days between -30 and 30."""
    rows, moved = split.fresh(len(split.training)), rng.integers(-30, 31, len(split.training))
    for name in DATES:
        rows[name] = _date((_days(split.training[name]) + moved).astype(int))
    return rows


def times(count: int, rng: Rng) -> pd.DataFrame:
    """Return beginning and end of a stay to the second."""
    start = rng.integers(0, 3_000 * 86_400, count)
    return pd.DataFrame({"start": _time(start), "ended": _time(start + rng.gamma(2, 90_000, count).astype(int))})


def _time(seconds: Any) -> pd.Series[str]:
    return pd.Series((FIRST_DAY + pd.to_timedelta(np.asarray(seconds), unit="s")).strftime("%Y-%m-%d %H:%M:%S"))


def _lengths(rows: pd.DataFrame) -> Floats:
    return ((pd.to_datetime(rows["ended"]) - pd.to_datetime(rows["start"])) / pd.Timedelta(seconds=1)).to_numpy(float)


def lengths_kept(split: Split, rng: Rng) -> pd.DataFrame:
    """Return fresh rows that end after the length of the stay of a training row."""
    rows = split.fresh(len(split.training))
    seconds = (pd.to_datetime(rows["start"]) - FIRST_DAY) / pd.Timedelta(seconds=1)
    return rows.assign(ended=_time((seconds + _lengths(split.training)).round().astype(int)))


def pay(count: int, rng: Rng) -> pd.DataFrame:
    """Return gross and net pay in cents."""
    gross = np.exp(rng.normal(8.1, 0.5, count)).round(2)
    return pd.DataFrame({"gross": gross, "net": (gross * rng.beta(14, 7, count)).round(2)})


def ratios_kept(split: Split, rng: Rng) -> pd.DataFrame:
    """Return fresh rows whose net pay is the share of a training row."""
    rows = split.fresh(len(split.training))
    return rows.assign(net=(rows["gross"] * split.training["net"] / split.training["gross"]).round(2))


def numbers_times(split: Split, rng: Rng, factor: float = 1.2) -> pd.DataFrame:
    """Return fresh rows with the numbers of a training row, each times one factor."""
    rows = split.fresh(len(split.training))
    for name in _numeric(rows):
        rows[name] = (split.training[name] * factor).round()
    return rows


def _numeric(rows: pd.DataFrame) -> list[str]:
    return [name for name in NUMERIC if name in rows.columns]


READINGS = ["pulse", "pressure", "glucose", "weight"]


def visits(persons: int, rng: Rng, first: int) -> pd.DataFrame:
    """Return the visits of persons: four readings, of which two vary more from day to day than between persons."""
    person = np.repeat(np.arange(persons), 1 + rng.poisson(VISITS - 1, persons))
    level = rng.normal(size=(persons, 4))[person] * (8, 6, 10, 12)
    readings = level + rng.normal(size=(person.size, 4)) * (9, 8, 12, 2) + (72, 125, 100, 78)
    ward = np.array([f"ward {code}" for code in rng.integers(0, 9, person.size)])
    return pd.DataFrame(readings.round(1), columns=READINGS).assign(ward=ward, person=person + first)


def visits_split(_: Split, seed: int) -> Split:
    """Return a split of persons with many rows each; `fresh` draws as many rows as there are persons."""
    rng = np.random.default_rng([seed, 2])
    training, holdout = visits(PERSONS, rng, 0), visits(PERSONS, rng, PERSONS)

    def fresh(count: int) -> pd.DataFrame:
        return visits(count, rng, 0).drop_duplicates("person").reset_index(drop=True).drop(columns="person")

    return Split(training, holdout, fresh)


def one_row_a_person(split: Split, rng: Rng) -> pd.DataFrame:
    """Return one row for each person: the means of the readings, and a ward of chance."""
    return split.fresh(PERSONS).assign(**split.training.groupby("person")[READINGS].mean().round(1))


def texts(count: int, rng: Rng) -> pd.DataFrame:
    """Return texts of words that are chosen one by one."""
    chance = 1 / (20 + np.arange(VOCABULARY))
    words = rng.choice(VOCABULARY, (count, WORDS), p=chance / chance.sum())
    return pd.DataFrame({"note": [" ".join(_spelled(word) for word in text) for text in words]})


def _spelled(word: int) -> str:
    return "".join("bdfgklmnprst"[digit] + "aeiou"[digit % 5] for digit in (word // 144, word // 12 % 12, word % 12))


def pairs_of_words(split: Split, rng: Rng) -> pd.DataFrame:
    """Return fresh rows whose text repeats some words of a training text, in another order among words of chance."""
    rows = split.fresh(len(split.training))
    mixed = []
    for fresh, text in zip(rows["note"], split.training["note"], strict=True):
        repeated = rng.permutation(text.split())[:KEPT].tolist()
        mixed.append(" ".join(rng.permutation(repeated + fresh.split()[KEPT:])))
    return rows.assign(note=mixed)


Planted = Callable[[pd.DataFrame], Floats]
"""Returns the planted values of each row, shape (rows, k)."""


def nearness(planted: Planted, real: Sequence[pd.DataFrame], released: pd.DataFrame) -> list[Floats]:
    """Return how near each real row is to a synthetic row, against the nearest other real row."""
    parts, rows = [planted(table) for table in real], planted(released)
    values = np.concatenate(parts)
    unit = np.maximum(values.std(axis=0), 1e-9)
    values, rows = values / unit, rows / unit
    away, at = cKDTree(rows).query(values)
    others = cKDTree(values).query(rows, k=3)
    same = np.arange(len(values))[:, None] == others[1][at]
    local = np.where(same, np.inf, others[0][at]).min(axis=1)
    return np.split(np.log((local + 1e-7) / (away + 1e-7)), [len(parts[0])])


def shared_words(real: Sequence[pd.DataFrame], released: pd.DataFrame) -> list[Floats]:
    """Return the weight of the words that each real text shares with a synthetic one, by their rarity."""
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(binary=True).fit(pd.concat([*real, released])["note"])
    rows = counter.transform(pd.concat(real)["note"])
    weight = -np.log((1 + np.asarray(rows.sum(0))[0]) / (2 + rows.shape[0]))
    other = counter.transform(released["note"]).multiply(weight).T.tocsr()
    return np.split(np.asarray((rows @ other).max(axis=1).todense())[:, 0], [len(real[0])])


@dataclass(frozen=True, eq=False)
class Case:
    """A leak, with the score that knows it.

    Attributes:
        generate: Returns the synthetic rows.
        prepare: Returns the split with the columns of the leak, given the split and a seed.
        knows: Returns scores of the training and of the holdout records, given both and the synthetic rows.
    """

    generate: Callable[[Split, Rng], pd.DataFrame]
    prepare: Callable[[Split, int], Split]
    knows: Callable[[Sequence[pd.DataFrame], pd.DataFrame], Sequence[Floats]]
    groups: str | None = None


def _means(rows: pd.DataFrame) -> Floats:
    return (rows.groupby("person") if "person" in rows else rows.groupby(rows.index))[READINGS].mean().to_numpy()


def _scaled_back(real: Sequence[pd.DataFrame], released: pd.DataFrame) -> Sequence[Floats]:
    names = _numeric(released)
    back = released.assign(**{name: (released[name] / 1.2).round() for name in names})
    return nearness(lambda rows: rows[names].to_numpy(float), real, back)


CASES: dict[str, Case] = {
    "a place within 30 m": Case(
        place_within_30_m,
        partial(with_columns, columns=places),
        partial(nearness, lambda rows: rows[["latitude", "longitude"]].to_numpy(float) * (1, 0.67)),
    ),
    "three dates moved together": Case(
        dates_moved_together,
        partial(with_columns, columns=dates),
        partial(nearness, lambda rows: np.diff(np.column_stack([_days(rows[name]) for name in DATES]), axis=1)),
    ),
    "lengths between dates kept": Case(
        lengths_kept, partial(with_columns, columns=times), partial(nearness, lambda rows: _lengths(rows)[:, None])
    ),
    "ratios kept": Case(
        ratios_kept,
        partial(with_columns, columns=pay),
        partial(nearness, lambda rows: (rows["net"] / rows["gross"]).to_numpy()[:, None]),
    ),
    "all numbers times 1.2": Case(numbers_times, lambda split, _: split, _scaled_back),
    "one summary row a person": Case(one_row_a_person, visits_split, partial(nearness, _means), groups="person"),
    "pairs of words in free text": Case(pairs_of_words, partial(with_columns, columns=texts), shared_words),
}
CASES["a place within 30 m, one row in ten"] = replace(
    CASES["a place within 30 m"],
    generate=lambda split, rng: _in_part(place_within_30_m, split, rng, 0.1),
)


def _in_part(generate: Callable[[Split, Rng], pd.DataFrame], split: Split, rng: Rng, share: float) -> pd.DataFrame:
    """Return fresh rows, of which a share gives a training row away."""
    rows, leaking = split.fresh(len(split.training)), generate(split, rng)
    return pd.concat([leaking[: round(share * len(rows))], rows[round(share * len(rows)) :]], ignore_index=True)


def cases(seeds: int, **_: str) -> Iterator[dict[str, Any]]:
    """Yield leak and seed of each audit."""
    return of_each(CASES, seeds, by="leak")  # type: ignore[return-value]


def run(leak: str, seed: int, data: str, rows: str) -> dict[str, Any]:
    """Return what an audit from three files finds of a leak, and what a score that knows it shows."""
    case, count = CASES[leak], int(rows or 2_000)
    split = case.prepare(split_of(read_adult(Path(data)), count, seed) if data else made_split(count, seed), seed)
    released = case.generate(split, np.random.default_rng(seed))
    started = time.process_time()
    audit = dpaudit.synthetic(split.training, split.holdout, released, claim=1.0, groups=case.groups)
    seconds = time.process_time() - started
    inside, outside = case.knows([split.training, split.holdout], released)
    rng = np.random.default_rng(seed)
    ahead = rng.permutation(inside) - rng.permutation(outside)
    estimator = SimultaneousGuessCount(delta=0.0, confidence=0.95)
    possible = estimator.bound([estimator.tally(Scores(ahead, np.ones(ahead.size, bool)))]).lower
    return {
        "rows": f"{len(split.training):,}",
        "bound": audit.epsilon,
        "strict": max(guessed.strict.lower for guessed in audit.guessed),
        "possible": possible,
        "verdict": str(audit.verdict),
        "processor": seconds,
    }


def columns(lines: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the median bounds of a leak, and the verdicts."""

    def middle(name: str) -> str:
        return f"{np.floor(100 * np.median([line[name] for line in lines])) / 100:.2f}"

    return {
        "epsilon, one replaced record": middle("bound"),
        "the same at 99.9 %": middle("strict"),
        "possible": middle("possible"),
        "VIOLATION of claim 1": str(sum(line["verdict"] == "VIOLATION" for line in lines)),
        "processor seconds": f"{np.median([line['processor'] for line in lines]):.1f}",
    }


if __name__ == "__main__":
    settings = {"data": "folder with adult.data and adult.test; made rows without", "rows": "training rows"}
    campaign(cases, run, columns, groups=by_case("leak", "rows"), settings=settings)
