"""Generators of synthetic tables with a planted defect, and what an audit from three files says of each.

    python -m benchmarks.synthetic_defects [--data FOLDER] [--seeds 3] [NAME ...]

runs the named cases, or all of them, on rows of the census data in FOLDER, else on made rows of the same kind, and
writes bounds, p-values, verdicts and the usual distance test to `docs/data/synthetic-defects.csv`.

Each generator is given the training rows, and `fresh`, a sampler of new rows of the true law, so that nothing but the
defect gives the training rows away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dpaudit.engine.data.adult import COLUMNS, NUMERIC

Rng = np.random.Generator
Sampler = Callable[[int], pd.DataFrame]


@dataclass(frozen=True, eq=False)
class Split:
    """A random split of a population.

    Attributes:
        training, holdout: The rows of the files.
        fresh: Sampler of further rows of the same law, each at most once.
    """

    training: pd.DataFrame
    holdout: pd.DataFrame
    fresh: Sampler


def read_adult(folder: Path) -> pd.DataFrame:
    """Return all rows of both parts of the census data, with the column `income`."""
    parts = [
        pd.read_csv(
            next(folder.glob(f"{part}*")),
            names=[*COLUMNS, "income"],
            skipinitialspace=True,
            na_values="?",
            comment="|",
        )
        for part in ("adult.data", "adult.test")
    ]
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(income=rows["income"].str.rstrip("."))


def made_rows(count: int, rng: Rng) -> pd.DataFrame:
    """Return rows like the census data: a mixture of kinds of people with six numbers and eight words."""
    kinds = 12
    law = np.random.default_rng(20)  # the same law for every table
    kind = rng.choice(kinds, count, p=law.dirichlet(np.ones(kinds)))
    middle = law.uniform(25, 60, kinds)
    years = np.clip(rng.normal(law.uniform(7, 14, kinds)[kind], 1.5), 1, 16).round()
    gain = np.where(rng.random(count) < 0.08, np.exp(rng.normal(8, 1, count)).round(), 0)
    loss = np.where(rng.random(count) < 0.05, rng.normal(1_870, 350, count).round(), 0)
    columns: dict[str, object] = {
        "age": np.clip(rng.normal(middle[kind], 9), 17, 90).round(),
        "fnlwgt": np.exp(rng.normal(12, 0.5, count)).round(),
        "education-num": years,
        "capital-gain": gain,
        "capital-loss": loss,
        "hours-per-week": np.clip(rng.normal(law.uniform(30, 50, kinds)[kind], 7), 1, 99).round(),
    }
    for name, words in WORDS.items():
        chance = law.dirichlet(np.geomspace(3, 0.02, words), kinds)
        edges = np.cumsum(chance, axis=1)[kind]
        drawn = np.minimum((rng.random(count)[:, None] > edges).sum(1), words - 1)
        columns[name] = np.array([f"{name}-{place}" for place in range(words)])[drawn]
    return pd.DataFrame(columns)


WORDS = {
    "workclass": 8,
    "education": 16,
    "marital-status": 7,
    "occupation": 14,
    "relationship": 6,
    "race": 5,
    "native-country": 41,
    "income": 2,
}


def made_split(rows: int, seed: int) -> Split:
    """Return a split of made rows."""
    rng = np.random.default_rng(seed)
    return Split(made_rows(rows, rng), made_rows(rows, rng), lambda count: made_rows(count, rng))


def split_of(population: pd.DataFrame, rows: int, seed: int) -> Split:
    """Return a random split of real rows; `fresh` draws the rows that are left over."""
    shuffled = population.sample(frac=1, random_state=seed, ignore_index=True)
    left = shuffled[2 * rows :]

    def fresh(count: int) -> pd.DataFrame:
        return left.sample(count, random_state=seed).reset_index(drop=True)

    return Split(shuffled[:rows], shuffled[rows : 2 * rows].reset_index(drop=True), fresh)


# Copies


def copies(split: Split, rng: Rng, share: float = 0.01) -> pd.DataFrame:
    """Return fresh rows and verbatim copies of a share of the training rows."""
    count = max(1, round(share * len(split.training)))
    return _with(split, split.training.sample(count, random_state=_seed(rng)))


def jittered(split: Split, rng: Rng, share: float = 0.05, jitter: float = 0.05) -> pd.DataFrame:
    """Return fresh rows and copies whose numbers have noise of a share of the column's deviation, rounded."""
    rows = split.training.sample(round(share * len(split.training)), random_state=_seed(rng)).copy()
    for name in _numeric(rows):
        noise = rng.normal(0, jitter * split.training[name].std(), len(rows))
        rows[name] = (rows[name] + noise).round().clip(lower=split.training[name].min())
    return _with(split, rows)


def resampled_column(split: Split, rng: Rng, share: float = 0.01) -> pd.DataFrame:
    """Return fresh rows and copies in which one column of each row comes from another row."""
    rows = split.training.sample(round(share * len(split.training)), random_state=_seed(rng)).reset_index(drop=True)
    donors = split.training.sample(len(rows), random_state=_seed(rng)).reset_index(drop=True)
    columns = rng.integers(0, rows.shape[1], len(rows))
    mixed = {
        name: rows[name].where(pd.Series(columns != place), donors[name]) for place, name in enumerate(rows.columns)
    }
    return _with(split, pd.DataFrame(mixed))


def copied_outliers(split: Split, rng: Rng, share: float = 0.01) -> pd.DataFrame:
    """Return fresh rows and copies of the training rows that are farthest from their median, in deviations."""
    numbers = split.training[_numeric(split.training)]
    far = ((numbers - numbers.median()) / numbers.std()).abs().max(axis=1)
    return _with(split, split.training.loc[far.nlargest(round(share * len(far))).index])


def copied_clone(split: Split, rng: Rng, rows: int = 50) -> pd.DataFrame:
    """Return fresh rows and many copies of a single training row."""
    row = split.training.sample(1, random_state=_seed(rng))
    return _with(split, pd.concat([row] * rows))


def swapped(split: Split, rng: Rng, share: float = 1.0, columns: int = 3) -> pd.DataFrame:
    """Return training rows that exchange some columns with their nearest training row by rank."""
    rows = split.training.sample(round(share * len(split.training)), random_state=_seed(rng)).reset_index(drop=True)
    order = rows.sort_values(list(rows.columns)).index.to_numpy()
    partner = np.empty(len(rows), np.int64)
    partner[order] = np.roll(order, 1)
    exchanged = rng.choice(rows.columns, columns, replace=False)
    swapped_rows = rows.assign(**{name: rows[name].to_numpy()[partner] for name in exchanged})
    return _with(split, swapped_rows)


def bootstrap(split: Split, rng: Rng) -> pd.DataFrame:
    """Return rows drawn from the training rows with replacement."""
    return split.training.sample(len(split.training), replace=True, random_state=_seed(rng))


def interpolated(split: Split, rng: Rng, share: float = 1.0) -> pd.DataFrame:
    """Return SMOTE: numbers between a training row and one of its five nearest, words of one of both."""
    from sklearn.neighbors import NearestNeighbors

    rows = split.training
    numbers = rows[_numeric(rows)].to_numpy(float)
    _, near = NearestNeighbors(n_neighbors=6).fit(numbers / numbers.std(0)).kneighbors(numbers / numbers.std(0))
    first = rng.integers(0, len(rows), round(share * len(rows)))
    second = near[first, rng.integers(1, 6, first.size)]
    weight = rng.random((first.size, 1))
    made = rows.iloc[first].reset_index(drop=True)
    made[_numeric(rows)] = (numbers[first] + weight * (numbers[second] - numbers[first])).round()
    for name in set(rows.columns) - set(_numeric(rows)):
        either = rng.random(first.size) < 0.5
        made[name] = made[name].where(either, rows[name].to_numpy()[second])
    return _with(split, made)


def _with(split: Split, rows: pd.DataFrame) -> pd.DataFrame:
    """Return these rows among fresh ones, as many as there are training rows."""
    filled = max(0, len(split.training) - len(rows))
    parts = [split.fresh(filled), rows] if filled else [rows]
    return pd.concat(parts, ignore_index=True)


def _numeric(rows: pd.DataFrame) -> list[str]:
    return [name for name in NUMERIC if name in rows.columns]


def _seed(rng: Rng) -> int:
    return int(rng.integers(1 << 31))


# Marginals


def marginals(
    split: Split, rng: Rng, epsilon: float = np.inf, *, sizes: int = 1, tree: bool = False, bins: int = 20
) -> pd.DataFrame:
    """Return rows from noisy marginals: of single columns, or of a tree of pairs of columns.

    Args:
        epsilon: Budget of the noise; infinite for none.
        sizes: Synthetic rows for each training row.
        tree: True for the tree of pairs with the largest mutual information.
        bins: Quantile bins of a number, within which values are uniform between data edges.
    """
    codes, decode = _coded(split.training, bins)
    count = sizes * len(split.training)
    queries = codes.shape[1] + (codes.shape[1] - 1 if tree else 0)
    scale = 2 * queries / epsilon if np.isfinite(epsilon) else 0.0

    def noisy(table: np.ndarray) -> np.ndarray:
        return np.maximum(table + rng.laplace(0, scale, table.shape) if scale else table, 1e-9)

    drawn = np.zeros((count, codes.shape[1]), np.int64)
    for column, parent in _tree(codes) if tree else [(column, -1) for column in range(codes.shape[1])]:
        width = codes[:, column].max() + 1
        if parent < 0:
            counts = noisy(np.bincount(codes[:, column], minlength=width).astype(float))
            drawn[:, column] = rng.choice(width, count, p=counts / counts.sum())
            continue
        table = np.zeros((codes[:, parent].max() + 1, width))
        np.add.at(table, (codes[:, parent], codes[:, column]), 1)
        cumulative = np.cumsum(noisy(table), axis=1)
        picks = rng.random(count) * cumulative[drawn[:, parent], -1]
        drawn[:, column] = np.minimum((picks[:, None] > cumulative[drawn[:, parent]]).sum(1), width - 1)
    return decode(drawn, rng)


def _coded(rows: pd.DataFrame, bins: int) -> tuple[np.ndarray, Callable[[np.ndarray, Rng], pd.DataFrame]]:
    """Return codes of all columns, and the function that turns codes back into rows."""
    codes, edges, words = [], {}, {}
    for name in rows.columns:
        if name in NUMERIC:
            values = rows[name].to_numpy(float)
            cut = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))
            edges[name] = cut
            codes.append(np.clip(np.searchsorted(cut, values, "right") - 1, 0, max(0, len(cut) - 2)))
        else:
            code, distinct = pd.factorize(rows[name], sort=True, use_na_sentinel=False)
            words[name] = distinct
            codes.append(code)

    def decode(drawn: np.ndarray, rng: Rng) -> pd.DataFrame:
        columns = {}
        for place, name in enumerate(rows.columns):
            code = drawn[:, place]
            if name in edges:
                cut = np.append(edges[name], edges[name][-1])
                columns[name] = (cut[code] + rng.random(code.size) * (cut[code + 1] - cut[code])).round()
            else:
                columns[name] = np.asarray(words[name], object)[code]
        return pd.DataFrame(columns)

    return np.column_stack(codes), decode


def _tree(codes: np.ndarray) -> list[tuple[int, int]]:
    """Return the columns of a tree of largest mutual information, each after its parent; the root has parent -1."""
    columns = codes.shape[1]
    information = np.zeros((columns, columns))
    for one in range(columns):
        for other in range(one):
            table = np.zeros((codes[:, one].max() + 1, codes[:, other].max() + 1))
            np.add.at(table, (codes[:, one], codes[:, other]), 1 / len(codes))
            independent = table.sum(1, keepdims=True) * table.sum(0)
            some = table > 0
            information[one, other] = information[other, one] = (
                table[some] * np.log(table[some] / independent[some])
            ).sum()
    order, joined = [(0, -1)], {0}
    while len(joined) < columns:
        inside = sorted(joined)
        outside = [column for column in range(columns) if column not in joined]
        best = information[np.ix_(inside, outside)]
        parent, column = np.unravel_index(int(best.argmax()), best.shape)
        order.append((outside[column], inside[parent]))
        joined.add(outside[column])
    return order


def leaf_trees(split: Split, rng: Rng, smallest: int = 1) -> pd.DataFrame:
    """Return CART synthesis: each column drawn from the leaf of a tree on the columns before it."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    rows = split.training
    codes = np.column_stack(
        [
            rows[name].to_numpy(float) if name in NUMERIC else pd.factorize(rows[name], use_na_sentinel=False)[0]
            for name in rows.columns
        ]
    )
    donor = np.empty((len(rows), codes.shape[1]), np.int64)
    made = np.empty_like(codes)
    donor[:, 0] = rng.integers(0, len(rows), len(rows))
    made[:, 0] = codes[donor[:, 0], 0]
    for column in range(1, codes.shape[1]):
        kind = DecisionTreeRegressor if rows.columns[column] in NUMERIC else DecisionTreeClassifier
        tree = kind(min_samples_leaf=smallest, random_state=_seed(rng)).fit(codes[:, :column], codes[:, column])
        leaf, target = tree.apply(codes[:, :column]), tree.apply(made[:, :column])
        order = np.argsort(leaf, kind="stable")
        first, after = (np.searchsorted(leaf[order], target, side) for side in ("left", "right"))
        donor[:, column] = order[first + (rng.random(len(rows)) * (after - first)).astype(np.int64)]
        made[:, column] = codes[donor[:, column], column]
    return pd.DataFrame({name: rows[name].to_numpy()[donor[:, place]] for place, name in enumerate(rows.columns)})
