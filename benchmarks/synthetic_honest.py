"""False alarms of `dpaudit synthetic`: synthetic rows are fresh draws of the true law, so nothing is given away.

    python -m benchmarks.synthetic_honest RUNS.jsonl [--only LAW ...] [--seeds 200] [--write]

Random splits: the share of games whose bound exceeds 0 must be at most 5 %, and no claim may be rejected. Splits that
are not random: the synthetic rows have the law of the training rows, so guesses are often right without any leak. Such
a split must never end in VIOLATION. Files that differ by themselves: an honest generator of epsilon = 1 copies what
tells them apart (a site, digits), and must never be convicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.campaign import campaign
from dpaudit import synthetic
from dpaudit.claims import Claim, Relation

PAIRS = 150
"""Pairs of a game with a random split."""
ROWS = 1_000
"""Rows of both files together with a split that is not random; about half of them are training rows."""
CLAIMED = Claim(0.1, relation=Relation.REPLACE)
Rng = np.random.Generator
Bits = NDArray[np.bool_]


def numbers(count: int, rng: Rng) -> pd.DataFrame:
    """Return rows of six correlated normal columns."""
    shared = rng.normal(size=(count, 1))
    return pd.DataFrame(rng.normal(size=(count, 6)) + shared * np.arange(6) / 6, columns=list("abcdef"))


def mixed(count: int, rng: Rng) -> pd.DataFrame:
    """Return rows of numbers, of words with a long tail, of missing values and of many zeros."""
    level = rng.normal(size=count)
    return pd.DataFrame(
        {
            "age": np.clip(np.rint(40 + 12 * level + 6 * rng.normal(size=count)), 17, 90),
            "income": np.where(rng.random(count) < 0.1, np.nan, np.rint(np.exp(10 + level + rng.normal(size=count)))),
            "gain": np.where(rng.random(count) < 0.9, 0, np.rint(rng.exponential(5_000, count))),
            "hours": np.where(rng.random(count) < 0.5, 40, np.rint(np.clip(rng.normal(40, 12, count), 1, 99))),
            "country": _words("c", np.minimum(rng.geometric(0.3, count), 40)),
            "work": _words("w", np.minimum(rng.geometric(0.5, count), 8)),
            "education": _words("e", np.clip(np.rint(8 + 3 * level), 1, 16)),
            "married": _words("m", (level + rng.normal(size=count) > 0).astype(int)),
        }
    )


def ties(count: int, rng: Rng) -> pd.DataFrame:
    """Return rows of four columns of few words, so that most rows occur many times."""
    return pd.DataFrame({name: _words(name, np.minimum(rng.geometric(0.6, count), 4)) for name in "abcd"})


def heavy_tails(count: int, rng: Rng) -> pd.DataFrame:
    """Return rows of columns with extreme outliers."""
    cauchy, rounded = rng.standard_t(1, (count, 2)), np.round(np.exp(2 * rng.normal(size=(count, 2))), 1)
    return pd.DataFrame(np.concatenate([cauchy, rounded], axis=1), columns=list("abcd"))


def persons(count: int, rng: Rng) -> pd.DataFrame:
    """Return rows of persons of one to four similar rows each."""
    rows = rng.integers(1, 5, count)
    person = np.repeat(np.arange(count), rows)
    values = rng.normal(size=(count, 3))[person] + 0.1 * rng.normal(size=(person.size, 3))
    frame = pd.DataFrame(values, columns=list("abc"))
    frame["ward"] = _words("w", np.minimum(rng.geometric(0.4, count), 9))[person]
    frame["person"] = person
    return frame


LAWS: dict[str, Callable[[int, Rng], pd.DataFrame]] = {
    "numbers": numbers,
    "mixed columns": mixed,
    "few words": ties,
    "heavy tails": heavy_tails,
    "persons": persons,
}


def _words(prefix: str, codes: NDArray[Any]) -> NDArray[np.object_]:
    return np.array([f"{prefix}{int(code)}" for code in codes], dtype=object)


def random_game(law: str, number: int) -> dict[str, Any]:
    """Return the bounds of a game with a random split and fresh draws of the true law as synthetic rows."""
    rng = np.random.default_rng([number, list(LAWS).index(law)])
    groups = "person" if law == "persons" else None
    pool = LAWS[law](2 * PAIRS, rng)
    of_training = rng.permutation(2 * PAIRS) < PAIRS
    inside = of_training[pool["person"]] if groups else of_training
    fresh = LAWS[law](PAIRS, rng).drop(columns="person", errors="ignore")
    audit = synthetic(pool[inside], pool[~inside], fresh, claim=CLAIMED, groups=groups, seed=number)
    return {"law": law, **_result(audit)}


def _result(audit: Any) -> dict[str, Any]:
    return {
        "bound": audit.epsilon,
        "strict": max(guessed.strict.lower for guessed in audit.guessed),
        "verdict": str(audit.verdict),
        "control": audit.control.p_value,
        "not random": bool(audit.control.doubt),
    }


Split = Callable[[pd.DataFrame, Rng, float], tuple[Bits, Bits]]
"""Function from a pool of rows and a strength in [0, 1] to masks of training and of holdout rows."""


def _halves(score: NDArray[np.float64]) -> tuple[Bits, Bits]:
    below = np.argsort(np.argsort(score, kind="stable"), kind="stable") < score.size // 2
    return below, ~below


def sorted_by_a_column(pool: pd.DataFrame, rng: Rng, strength: float) -> tuple[Bits, Bits]:
    """Split at the median of age with noise; strength 1 has none."""
    age = pool["age"].rank().to_numpy() / len(pool)
    return _halves(strength * age + (1 - strength) * rng.random(len(pool)))


def partly_sorted(pool: pd.DataFrame, rng: Rng, strength: float) -> tuple[Bits, Bits]:
    """Sort a share of the rows by income, and split the others at random."""
    key, chosen = pool["income"].rank(na_option="top").to_numpy() / len(pool), rng.random(len(pool)) < strength
    return _halves(np.where(chosen, key, rng.random(len(pool))))


def by_site(pool: pd.DataFrame, rng: Rng, strength: float) -> tuple[Bits, Bits]:
    """Send a share of the countries to one file; the rows of the others are split at random."""
    codes = pd.factorize(pool["country"], sort=True)[0]
    file = np.random.default_rng(0).permutation(100) % 2  # the same sites in each pool of a game
    return _halves(np.where(rng.random(len(pool)) < strength, file[codes], 0) + rng.random(len(pool)))


def drift_in_time(pool: pd.DataFrame, rng: Rng, strength: float) -> tuple[Bits, Bits]:
    """Split by a hidden date on which all columns depend a little."""
    columns = ("age", "income", "hours", "gain")
    level = sum(pool[name].rank(na_option="top").to_numpy() / len(pool) - 0.5 for name in columns)
    return _halves(strength * level + rng.normal(size=len(pool)))


def copies_removed(pool: pd.DataFrame, rng: Rng, strength: float) -> tuple[Bits, Bits]:
    """Remove a share of the holdout rows that are equal to a training row in its words."""
    inside = rng.permutation(len(pool)) < len(pool) // 2
    names = ["work", "education", "married"]
    training_rows = set(map(tuple, pool.loc[inside, names].to_numpy()))
    equal = np.array([row in training_rows for row in map(tuple, pool[names].to_numpy())])
    return inside, ~inside & ~(equal & (rng.random(len(pool)) < 0.6 * strength))


def filtered_by_quality(pool: pd.DataFrame, rng: Rng, strength: float) -> tuple[Bits, Bits]:
    """Leave rows with missing or extreme values out of the training file alone."""
    inside = rng.permutation(len(pool)) < len(pool) // 2
    income = pool["income"]
    bad = (income.isna() | (income > income.quantile(0.9)) | (pool["gain"] > 0)).to_numpy()
    return inside & ~(bad & (rng.random(len(pool)) < strength)), ~inside


def stratified(pool: pd.DataFrame, rng: Rng, strength: float) -> tuple[Bits, Bits]:
    """Split at random within each kind of work, in equal halves: valid with `strata`, and harmless without."""
    inside = np.zeros(len(pool), bool)
    for work in pool["work"].unique():
        rows = rng.permutation(np.flatnonzero(pool["work"] == work))
        inside[rows[: rows.size // 2]] = True
    return inside, ~inside


SPLITS: dict[str, Split] = {
    "sorted by a column": sorted_by_a_column,
    "partly sorted": partly_sorted,
    "by site": by_site,
    "drift in time": drift_in_time,
    "copies removed from the holdout": copies_removed,
    "training filtered by quality": filtered_by_quality,
    "stratified": stratified,
}
STRENGTHS = {"weak": 0.1, "medium": 0.3, "strong": 1.0}


def split_game(split: str, strength: str, number: int) -> dict[str, Any]:
    """Return the bounds of a game with a split that is not random, and many synthetic rows of the training law."""
    rng = np.random.default_rng([number, list(SPLITS).index(split), list(STRENGTHS).index(strength), 1])
    pool, large = mixed(ROWS, rng), mixed(4 * ROWS, rng)
    inside, outside = SPLITS[split](pool, rng, STRENGTHS[strength])
    released, _ = SPLITS[split](large, rng, STRENGTHS[strength])
    audit = synthetic(pool[inside], pool[outside], large[released], claim=CLAIMED, seed=number)
    return {"split": split, "strength": strength, **_result(audit)}


GROUPED = {"site of 8 rows": 8, "site of 4 rows": 4, "household of 3 rows": 3, "upload of 20 rows": 20, "month": 0}
FILES = (*GROUPED, "rounded in one file", "random")
"""Ways in which files differ by themselves, and a random split."""
FILE_ROWS = 300
"""Rows of both files together."""


def differing_columns(files: str, count: int, rng: Rng) -> tuple[pd.DataFrame, Bits]:
    """Return the columns that tell the files apart, and the training rows: all rows of a group are in one file."""
    half = rng.permutation(count) < count // 2
    if files == "rounded in one file":
        values = np.exp(6 + rng.normal(size=count))
        return pd.DataFrame({"cost": np.where(half, values.round(), values.round(2))}), half
    size = GROUPED.get(files, 8)
    group = np.repeat(np.arange(count), size)[:count] if size else rng.integers(0, 24, count)
    names = group.max() + 1
    inside = half if files == "random" else (rng.permutation(names) < names // 2)[group]
    if files.startswith("household"):  # without its name
        return pd.DataFrame(
            {name: rng.integers(0, top, names)[group] for name, top in zip("abc", (12, 7, 9), strict=True)}
        ), inside
    if files == "month":
        return pd.DataFrame({"month": _words("m", group)}), inside
    if files.startswith("upload"):
        times = rng.integers(0, 10**8, names)[group] + rng.integers(0, 3_600, count)
        return pd.DataFrame({"second": times // 60 * 60}), inside
    return pd.DataFrame({"site": _words("S", rng.permutation(99_999)[group])}), inside


def noisy_copy(table: pd.DataFrame, inside: Bits, rng: Rng) -> pd.DataFrame:
    """Return rows from noisy counts of the training rows with each content: epsilon = 1 for an added or removed row.

    The contents of both files are public. Of costs, the number that are whole is released.
    """
    whole = "cost" in table
    contents = table["cost"] % 1 == 0 if whole else table.apply(tuple, axis=1)
    domain = list(dict.fromkeys(contents))
    counts = contents[inside].value_counts().reindex(domain).fillna(0).to_numpy()
    noisy = np.maximum(counts + rng.laplace(size=counts.size), 1e-9)
    places = rng.choice(len(domain), int(inside.sum()), p=noisy / noisy.sum())
    if whole:
        values, is_whole = np.exp(6 + rng.normal(size=places.size)), np.array(domain)[places]
        return pd.DataFrame({"cost": np.where(is_whole, values.round(), values.round(2))})
    return pd.DataFrame([domain[place] for place in places], columns=table.columns)


def files_game(files: str, number: int) -> dict[str, Any]:
    """Return the bounds of a game with an honest generator of epsilon = 1 whose files differ by themselves."""
    rng = np.random.default_rng([number, FILES.index(files), 2])
    columns, inside = differing_columns(files, FILE_ROWS, rng)
    pool = mixed(FILE_ROWS, rng)[["age", "gain", "work", "married"]].join(columns)
    fresh = mixed(int(inside.sum()), rng)[["age", "gain", "work", "married"]]
    released = fresh.join(noisy_copy(columns, inside, rng))
    audit = synthetic(pool[inside], pool[~inside], released, claim=1, target="married", seed=number)
    return {"files": files, **_result(audit)}


def cases(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield law, split or kind of files with its seed; a tenth as many games of each split and kind of files."""
    for seed in range(seeds):
        yield from ({"law": law, "seed": seed} for law in LAWS)
        if seed * 10 < seeds:
            yield from (
                {"split": split, "strength": strength, "seed": seed} for split in SPLITS for strength in STRENGTHS
            )
            yield from ({"files": files, "seed": seed} for files in FILES)


def run(seed: int, law: str = "", split: str = "", strength: str = "", files: str = "") -> dict[str, Any]:
    """Return the bounds of one game."""
    if law:
        return random_game(law, seed)
    return split_game(split, strength, seed) if split else files_game(files, seed)


def groups(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the rows of a game; those of random splits count together too."""
    if "files" in line:
        return [({"files": line["files"]}, line)]
    if "split" in line:
        return [({"split": line["split"], "rows": f"mixed columns, {line['strength']}"}, line)]
    return [({"split": "random", "rows": rows}, line) for rows in (line["law"], "all of these")]


def columns(games: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return how many games end with a bound that is too high, with a violation, or with doubts about the split."""
    bounds, doubts = [line["bound"] for line in games], sum(line["not random"] for line in games)
    if "files" in games[0]:  # an honest generator of epsilon = 1, which a replaced row has twice
        counts = {
            "bound above 2": sum(bound > 2 for bound in bounds),
            "VIOLATION": sum(line["verdict"] == "VIOLATION" for line in games),
        }
    else:
        strict = [line["strict"] for line in games if not line["not random"]]
        counts = {"bound above 0": sum(bound > 0 for bound in bounds)}
        counts |= {f"VIOLATION at {claim:g}": sum(bound > claim for bound in strict) for claim in (0.1, 1.0)}
    return {name: str(count) for name, count in {**counts, "called not random": doubts}.items()}


if __name__ == "__main__":
    campaign(cases, run, columns, groups=groups, seeds=200)
