"""Generators of synthetic tables with a planted defect, and what an audit from three files says of each.

    python -m benchmarks.synthetic_defects RUNS.jsonl [--only NAME ...] [--data FOLDER] [--rows 4000] [--write]

The rows are those of the census data in FOLDER, else made rows of the same kind. Each generator is given the training
rows, and `fresh`, a sampler of new rows of the true law, so that nothing but the defect gives the training rows away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dpaudit
from benchmarks.campaign import by_case, campaign, of_each
from dpaudit.engine.data.labelled_files import COLUMNS, NUMERIC

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
        sampled_codes = np.minimum((rng.random(count)[:, None] > edges).sum(1), words - 1)
        columns[name] = np.array([f"{name}-{place}" for place in range(words)])[sampled_codes]
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
    remaining = shuffled[2 * rows :]

    def fresh(count: int) -> pd.DataFrame:
        return remaining.sample(count, random_state=seed).reset_index(drop=True)

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
    mixed = rows.iloc[first].reset_index(drop=True)
    mixed[_numeric(rows)] = (numbers[first] + weight * (numbers[second] - numbers[first])).round()
    for name in set(rows.columns) - set(_numeric(rows)):
        either = rng.random(first.size) < 0.5
        mixed[name] = mixed[name].where(either, rows[name].to_numpy()[second])
    return _with(split, mixed)


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
        noise = rng.laplace(0, scale, table.shape) if scale else 0.0
        return np.asarray(np.maximum(table + noise, 1e-9))

    sampled_codes = np.zeros((count, codes.shape[1]), np.int64)
    for column, parent in _tree(codes) if tree else [(column, -1) for column in range(codes.shape[1])]:
        width = codes[:, column].max() + 1
        if parent < 0:
            counts = noisy(np.bincount(codes[:, column], minlength=width).astype(float))
            sampled_codes[:, column] = rng.choice(width, count, p=counts / counts.sum())
            continue
        table = np.zeros((codes[:, parent].max() + 1, width))
        np.add.at(table, (codes[:, parent], codes[:, column]), 1)
        cumulative = np.cumsum(noisy(table), axis=1)
        picks = rng.random(count) * cumulative[sampled_codes[:, parent], -1]
        sampled_codes[:, column] = np.minimum((picks[:, None] > cumulative[sampled_codes[:, parent]]).sum(1), width - 1)
    return decode(sampled_codes, rng)


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

    def decode(sampled_codes: np.ndarray, rng: Rng) -> pd.DataFrame:
        columns = {}
        for place, name in enumerate(rows.columns):
            code = sampled_codes[:, place]
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
    for first in range(columns):
        for other in range(first):
            table = np.zeros((codes[:, first].max() + 1, codes[:, other].max() + 1))
            np.add.at(table, (codes[:, first], codes[:, other]), 1 / len(codes))
            independent = table.sum(1, keepdims=True) * table.sum(0)
            some = table > 0
            information[first, other] = information[other, first] = (
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
    sampled_codes = np.empty_like(codes)
    donor[:, 0] = rng.integers(0, len(rows), len(rows))
    sampled_codes[:, 0] = codes[donor[:, 0], 0]
    for column in range(1, codes.shape[1]):
        kind = DecisionTreeRegressor if rows.columns[column] in NUMERIC else DecisionTreeClassifier
        tree = kind(min_samples_leaf=smallest, random_state=_seed(rng)).fit(codes[:, :column], codes[:, column])
        leaf, target = tree.apply(codes[:, :column]), tree.apply(sampled_codes[:, :column])
        order = np.argsort(leaf, kind="stable")
        first, after = (np.searchsorted(leaf[order], target, side) for side in ("left", "right"))
        donor[:, column] = order[first + (rng.random(len(rows)) * (after - first)).astype(np.int64)]
        sampled_codes[:, column] = codes[donor[:, column], column]
    return pd.DataFrame({name: rows[name].to_numpy()[donor[:, place]] for place, name in enumerate(rows.columns)})


# Domains and tuning


def with_tracts(split: Split) -> Split:
    """Return the split with a column of some 10,000 codes, as of a postal address."""

    def located(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(tract=[f"tract {weight // 20}" for weight in rows["fnlwgt"].astype(int)])

    return Split(located(split.training), located(split.holdout), lambda count: located(split.fresh(count)))


def domain_from_data(split: Split, rng: Rng, *, epsilon: float = 1.0, bins: int = 20) -> pd.DataFrame:
    """Return rows from honestly noisy marginals of single columns, whose words and ends of numbers are the data's."""
    rows, columns = split.training, {}
    scale = 2 * rows.shape[1] / epsilon
    for name in rows.columns:
        if name in NUMERIC:
            counts, edges = np.histogram(rows[name], bins)
            low = edges[:-1]
            width = edges[1] - edges[0]
        else:
            codes, domain = pd.factorize(rows[name], sort=True, use_na_sentinel=False)
            counts = np.bincount(codes, minlength=len(domain))
        weights = np.maximum(counts + rng.laplace(0, scale, counts.size), 0.01)
        sampled_codes = rng.choice(counts.size, len(rows), p=weights / weights.sum())
        if name in NUMERIC:
            values = (low[sampled_codes] + rng.random(len(rows)) * width).round()
            values[:2] = rows[name].min(), rows[name].max()  # clipped to the ends of the data
            columns[name] = values
        else:
            columns[name] = np.asarray(domain, object)[sampled_codes]
    return pd.DataFrame(columns)


def tuned_on_holdout(split: Split, rng: Rng, tables: int = 20) -> pd.DataFrame:
    """Return the one of many tables from noisy marginals whose marginals are nearest to those of the holdout."""

    def distance(table: pd.DataFrame) -> float:
        return sum(
            table[name]
            .value_counts(normalize=True)
            .sub(split.holdout[name].value_counts(normalize=True), fill_value=0)
            .abs()
            .sum()
            for name in table
            if name not in NUMERIC
        )

    return min((marginals(split, rng, 1.0, tree=True) for _ in range(tables)), key=distance)


def copied_holdout(split: Split, rng: Rng, share: float = 0.01) -> pd.DataFrame:
    """Return fresh rows and verbatim copies of holdout rows, as if the generator had been fitted on both files."""
    return _with(split, split.holdout.sample(round(share * len(split.holdout)), random_state=_seed(rng)))


def both_files(split: Split, rng: Rng) -> pd.DataFrame:
    """Return rows drawn from both files with replacement: no row of a pair is more likely than the other one."""
    both = pd.concat([split.training, split.holdout])
    return both.sample(len(split.training), replace=True, random_state=_seed(rng)).reset_index(drop=True)


def fresh_rows(split: Split, rng: Rng) -> pd.DataFrame:
    """Return fresh rows: no defect."""
    return split.fresh(len(split.training))


# Networks


def autoencoder(split: Split, rng: Rng, *, rows: int = 1_000, steps: int = 6_000, latent: int = 6) -> pd.DataFrame:
    """Return draws of a variational autoencoder that was trained far too long, on the first `rows` training rows.

    Numbers are quantiles and words one-hot, as in TVAE and CTGAN.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(_seed(rng))
    fitted = split.training[:rows]
    numeric = _numeric(fitted)
    ordered = {name: np.sort(fitted[name].to_numpy(float)) for name in numeric}
    uniform = np.column_stack([fitted[name].rank(pct=True).to_numpy() for name in numeric])
    factors = {name: pd.factorize(fitted[name], use_na_sentinel=False) for name in fitted if name not in numeric}
    numbers = torch.tensor(uniform * 2 - 1, dtype=torch.float32)
    words = {name: torch.tensor(codes) for name, (codes, _) in factors.items()}
    widths = [len(distinct) for _, distinct in factors.values()]
    inputs = torch.cat(
        [numbers, *(functional.one_hot(words[name], width) for name, width in zip(factors, widths, strict=True))], dim=1
    ).float()

    def network(first: int, last: int) -> nn.Module:
        return nn.Sequential(nn.Linear(first, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, last))

    encoder, decoder = network(inputs.shape[1], 2 * latent), network(latent, inputs.shape[1])
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    for _ in range(steps):
        batch = torch.randint(0, len(inputs), (256,))
        mean, log_deviation = encoder(inputs[batch]).chunk(2, dim=1)
        hidden = mean + torch.randn_like(mean) * log_deviation.exp()
        outputs = decoder(hidden).split([len(numeric), *widths], dim=1)
        loss = 200 * ((outputs[0] - numbers[batch]) ** 2).sum(1)
        for logits, codes in zip(outputs[1:], words.values(), strict=True):
            loss = loss + functional.cross_entropy(logits, codes[batch], reduction="none")
        divergence = 0.5 * (mean**2 + (2 * log_deviation).exp() - 2 * log_deviation - 1).sum(1)
        optimiser.zero_grad()
        (loss + 0.5 * divergence).mean().backward()
        optimiser.step()
    with torch.no_grad():
        outputs = decoder(torch.randn(len(split.training), latent)).split([len(numeric), *widths], dim=1)
    columns: dict[object, object] = {}
    for name, values in zip(numeric, ((outputs[0].numpy() + 1) / 2).T, strict=True):
        places = np.clip((values * len(fitted)).astype(np.int64), 0, len(fitted) - 1)
        columns[name] = ordered[name][places]
    for (word, (_, distinct)), logits in zip(factors.items(), outputs[1:], strict=True):
        columns[word] = np.asarray(distinct, object)[torch.distributions.Categorical(logits=logits).sample().numpy()]
    return pd.DataFrame(columns)[list(fitted.columns)]


# Cases


@dataclass(frozen=True, eq=False)
class Case:
    """A generator, and on how many rows it is audited.

    Attributes:
        generate: Returns the synthetic rows.
        size: Training rows as a multiple of `--rows`: rows that are hardly copied need more of them.
        prepare: Changes the split before the generator sees it.
        limit: Reason why an audit from three files cannot reject it; "" if it should.
    """

    generate: Callable[[Split, Rng], pd.DataFrame]
    size: float = 1.0
    prepare: Callable[[Split], Split] = lambda split: split
    limit: str = ""


FEW = "too few rows are recognised for the confidence that a violation needs"
SMOOTH = "each row moves a smooth law by one part in the number of rows, less than the draws of the table do"
CHOICE = "a choice among twenty tables tells little of any row"
SYMMETRIC = "both rows of a pair are used alike, so no coin is given away"
CASES: dict[str, Case] = {
    "no defect: fresh rows": Case(fresh_rows),
    "copies of 1 %": Case(copies, 2.5),
    "copies of 0.3 %": Case(partial(copies, share=0.003), limit=FEW),
    "copies of 1 %, one column resampled": Case(resampled_column, limit=FEW),
    "copies of the 1 % outliers": Case(copied_outliers),
    "50 copies of one row": Case(copied_clone, limit=FEW),
    "jittered copies of 5 %": Case(jittered, 2.5),
    "jittered copies of 5 %, three times the jitter": Case(partial(jittered, jitter=0.15), limit=FEW),
    "jittered copies of 20 %, four times the jitter": Case(partial(jittered, share=0.2, jitter=0.2)),
    "bootstrap sample": Case(bootstrap),
    "columns exchanged between near rows": Case(swapped),
    "interpolation between neighbours (SMOTE)": Case(interpolated),
    "trees with leaves of one row (CART)": Case(leaf_trees),
    "trees with leaves of five rows (CART)": Case(partial(leaf_trees, smallest=5)),
    "autoencoder trained far too long": Case(autoencoder, 0.25),
    "domain taken from data": Case(domain_from_data, limit=FEW),
    "domain taken from data, with 10,000 codes": Case(domain_from_data, prepare=with_tracts),
    "noise divided by n, single columns": Case(lambda split, rng: marginals(split, rng, 4_000.0), limit=SMOOTH),
    "noise divided by n, tree of pairs": Case(
        lambda split, rng: marginals(split, rng, 4_000.0, tree=True), limit=SMOOTH
    ),
    "noise divided by n, tree of pairs, ten times the rows": Case(
        lambda split, rng: marginals(split, rng, 4_000.0, tree=True, sizes=10)
    ),
    "marginals of epsilon 1, tree of pairs": Case(lambda split, rng: marginals(split, rng, 1.0, tree=True)),
    "tuned on the holdout": Case(tuned_on_holdout, limit=CHOICE),
    "copies of 1 % of the holdout": Case(copied_holdout, limit="the copied rows are no training rows"),
    "bootstrap sample of both files": Case(both_files, limit=SYMMETRIC),
}


def cases(seeds: int, **_: str) -> Iterator[dict[str, Any]]:
    """Yield generator and seed of each audit."""
    return of_each(CASES, seeds, by="generator")  # type: ignore[return-value]


def run(generator: str, seed: int, data: str, rows: str) -> dict[str, Any]:
    """Return what an audit from three files says of a generator."""
    case = CASES[generator]
    count = round(int(rows or 4_000) * case.size)
    split = case.prepare(split_of(read_adult(Path(data)), count, seed) if data else made_split(count, seed))
    released = case.generate(split, np.random.default_rng(seed))
    started = time.process_time()
    audit = dpaudit.synthetic(split.training, split.holdout, released, claim=1.0)
    seconds = time.process_time() - started
    strict = max(guessed.strict.lower for guessed in audit.guessed)
    p_value = min(1.0 if test.p_value is None else test.p_value for test in audit.tests)

    def verdict(allowed: float) -> str:
        """Return the verdict on a claim that allows this epsilon for a replaced row."""
        return "VIOLATION" if strict > allowed and not audit.control.doubt else "NO VIOLATION FOUND"

    values = {
        "epsilon, one replaced row": f"{np.floor(audit.epsilon * 100) / 100:.2f}",
        "the same at 99.9 %": f"{np.floor(strict * 100) / 100:.2f}",
        "p-value of claim 1": f"{p_value:.2g}",
        "claim 1": str(audit.verdict),
        "claim 3": verdict(6.0),
        "claim 1, replaced rows": verdict(1.0),
        **{RULES[each.name]: "passes" if each.passes else "fails" for each in audit.measures if each.name in RULES},
        "processor seconds": f"{seconds:.0f}",
        "limit": case.limit,
    }
    return {"rows": f"{len(split.training):,}", "values": values}


RULES = {
    "share of synthetic rows closer to training": "closer share",
    "5th percentile of the distance to the closest record, training to holdout": "distance to the closest record",
    "share of synthetic rows equal to a training row": "exact copies",
    "singling-out risk, multivariate": "singling out",
}
"""Short names of the measures with a usual rule."""


if __name__ == "__main__":
    settings = {"data": "folder with adult.data and adult.test; made rows without", "rows": "training rows"}
    groups = by_case("generator", "rows")
    campaign(cases, run, lambda lines: lines[-1]["values"], groups=groups, counted=False, settings=settings)
