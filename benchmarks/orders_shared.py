"""Bounds of one synthetic table by the orders of guesses: learned, of attacks alone, and all sharing the error.

    python -m benchmarks.orders_shared RUNS.jsonl --data FOLDER [--only LEAK ...] [--seeds 1] [--write]

FOLDER holds the census data (adult.data and adult.test); rows made by `synthetic_defects` stand in without it. Each
generator gives away its 2,000 training rows in another way. The best attack alone is chosen afterwards, so that its
bound is no valid one: it is what a reader who knew the attack beforehand would have shown.

Further rows: how often all orders together reject the exact epsilon, for coins of pairs and for independent ones; and
the bound from scores that tell all canaries apart, below the maximum of exact guesses with all of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from benchmarks.campaign import campaign, of_each
from benchmarks.synthetic_defects import Rng, Split, jittered, leaf_trees, made_split, read_adult, split_of
from dpaudit import estimate
from dpaudit.engine.attacks.guess_order import learned_order, signed_tail_rank
from dpaudit.estimators.one_run.guess_band import SimultaneousGuessCount
from dpaudit.estimators.scores import Scores
from dpaudit.language_models.canary_texts.view import order_of_all
from dpaudit.synthetic_tables.front_door.auditing import attack_features
from dpaudit.synthetic_tables.games.columns import read_as
from dpaudit.synthetic_tables.games.pairs import PairedTables, PairFeatures, paired
from tests.engine.test_shared_orders import game, ours, rejects

ROWS = 2_000
CONFIDENCES = {"95 %": 0.95, "99.9 %": 0.999}


def sorted_pairs(split: Split, rng: Rng) -> pd.DataFrame:
    """Return training rows in the order of their columns, of which neighbours exchange half of the columns."""
    rows = split.training.sort_values(list(split.training.columns)).reset_index(drop=True)
    partner = np.arange(len(rows)) ^ 1
    exchanged = rng.choice(rows.columns, rows.shape[1] // 2, replace=False)
    return rows.assign(**{name: rows[name].to_numpy()[partner] for name in exchanged})


def blended(split: Split, rng: Rng) -> pd.DataFrame:
    """Return rows of which each has a random half of the columns from one training row, and the rest from another."""
    rows = split.training
    other = rows.sample(frac=1, random_state=int(rng.integers(1 << 31))).reset_index(drop=True)
    first = rng.random(rows.shape).argsort(axis=1) < rows.shape[1] // 2
    return pd.DataFrame(
        {name: rows[name].where(first[:, place], other[name]) for place, name in enumerate(rows.columns)}
    )


def markov_chain(split: Split, rng: Rng, order: int = 2) -> pd.DataFrame:
    """Return rows whose columns come from random training rows that agree with the `order` columns before."""
    codes = np.column_stack([pd.factorize(split.training[name])[0] for name in split.training])
    chain = np.empty_like(codes)
    for column in range(codes.shape[1]):
        before = slice(max(0, column - order), column)
        for row, prefix in enumerate(chain[:, before]):
            agree = np.flatnonzero((codes[:, before] == prefix).all(axis=1))
            chain[row, column] = codes[rng.choice(agree), column]
    values = {name: pd.factorize(split.training[name])[1] for name in split.training}
    return pd.DataFrame(
        {
            name: pd.Series(np.asarray(values[name], object)[code]).where(code >= 0)
            for name, code in zip(values, chain.T, strict=True)
        }
    ).infer_objects()


def oldest_jittered(split: Split, rng: Rng, share: float = 0.07) -> pd.DataFrame:
    """Return fresh rows, and the oldest training rows with jittered numbers."""
    oldest = split.training.nlargest(round(share * len(split.training)), "age").reset_index(drop=True)
    count = len(split.training) - len(oldest)
    copied = jittered(Split(oldest, split.holdout, lambda _: oldest[:0]), rng, share=1.0)
    return pd.concat([split.fresh(count), copied], ignore_index=True)


def clusters(split: Split, rng: Rng, sizes: int = 20) -> pd.DataFrame:
    """Return training rows that exchange three columns within clusters of like rows."""
    from sklearn.cluster import KMeans

    rows = split.training
    inputs = _numbers_of(rows)
    cluster = KMeans(len(rows) // sizes, n_init=1, random_state=0).fit_predict(inputs)
    columns = {}
    for name in rng.choice(rows.columns, 3, replace=False):
        shuffled = np.lexsort([rng.random(len(rows)), cluster])
        columns[name] = np.empty(len(rows), object)
        columns[name][np.argsort(cluster, kind="stable")] = rows[name].to_numpy()[shuffled]
    return rows.assign(**columns).infer_objects()


def mixture(split: Split, rng: Rng, components: int = 250) -> pd.DataFrame:
    """Return draws of a mixture: normal ranks of numbers, and words of a random row of the component."""
    from sklearn.mixture import GaussianMixture

    rows = split.training
    inputs = _numbers_of(rows)
    model = GaussianMixture(components, covariance_type="diag", reg_covar=1e-3, max_iter=50, random_state=0)
    weights = np.cumsum(model.fit(inputs).predict_proba(inputs), axis=0)
    chosen = rng.choice(components, len(rows), p=model.weights_ / model.weights_.sum())
    numeric = [name for name in rows if pd.api.types.is_numeric_dtype(rows[name])]
    draws = rng.normal(model.means_[chosen], np.sqrt(model.covariances_[chosen]))
    columns = {}
    for place, name in enumerate(numeric):
        quantiles = np.sort(split.fresh(len(rows))[name].to_numpy(float))  # of other rows: no value gives a row away
        share = np.clip(draws[:, place] / 3.5 + 0.5, 0, 1)
        columns[name] = quantiles[np.minimum((share * len(quantiles)).astype(int), len(quantiles) - 1)]
    for name in rows.columns.difference(numeric, sort=False):
        words = rows[name].to_numpy()
        picked = [int(np.searchsorted(weights[:, part], rng.random() * weights[-1, part])) for part in chosen]
        columns[name] = words[np.minimum(picked, len(rows) - 1)]
    return pd.DataFrame(columns)[list(rows.columns)]


def _numbers_of(rows: pd.DataFrame) -> np.ndarray[Any, Any]:
    """Return ranks of numbers and frequent words as columns of like size, numbers first, shape (rows, k)."""
    numeric = [name for name in rows if pd.api.types.is_numeric_dtype(rows[name])]
    ranks = [(rows[name].rank(pct=True).to_numpy() - 0.5) * 3.5 for name in numeric]
    words = pd.get_dummies(rows.drop(columns=numeric), dtype=float)
    return np.column_stack([*ranks, words.loc[:, words.mean() > 0.02].to_numpy()])


LEAKS: dict[str, Callable[[Split, Rng], pd.DataFrame]] = {
    "sorted pairs": sorted_pairs,
    "half of a row blended": blended,
    "Markov chain, order 2": markov_chain,
    "oldest 7 % jittered": oldest_jittered,
    "swapped in clusters": clusters,
    "trees, leaf 10": partial(leaf_trees, smallest=10),
    "mixture of 250": mixture,
}


def attacked(leak: str, seed: int, data: str) -> tuple[PairedTables, list[np.ndarray[Any, Any]]]:
    """Return the pairs of one table, and the features of their rows by each attack."""
    split = split_of(read_adult(Path(data)), ROWS, seed) if data else made_split(ROWS, seed)
    released = LEAKS[leak](split, np.random.default_rng(seed))
    tables, _ = read_as(split.training, split.holdout, released)
    pairs = paired(tables[0], tables[1], tables[2], seed=seed)
    features, failures = attack_features(pairs, lambda _, step: step())
    assert not failures, failures
    return pairs, list(features.values())


def bound(scores: Scores, confidence: float) -> float:
    """Return the bound of the guesses at delta = 0."""
    estimator = SimultaneousGuessCount(confidence=confidence)
    return float(estimator.bound([estimator.tally(scores)]).lower)


def run(
    seed: int, data: str, leak: str = "", coins: str = "", epsilon: float = 0.0, canaries: int = 0
) -> dict[str, Any]:
    """Return bounds of one table, rejections of `GAMES` games at the truth, or bounds of scores that tell all."""
    if leak:
        return bounds_of_table(leak, seed, data)
    rng = np.random.default_rng([seed, int(epsilon), canaries, len(coins)])
    if coins:
        paired_coins = coins == "of pairs"
        games = (game(60, epsilon, rng, paired=paired_coins) for _ in range(GAMES))
        return {"rejected": sum(rejects(ours(*each), epsilon) for each in games)}
    members = rng.random(canaries) < 0.5
    telling = 10.0 * members + rng.normal(size=canaries)
    others = {name: rng.normal(size=canaries) + strength * members for name, strength in OTHERS.items()}
    texts = order_of_all({**others, "telling": telling}, members)
    maximum = float(special.logit(0.05 ** (1 / canaries)))
    return {"estimate": maximum - estimate(telling, members).lower, "texts": maximum - bound(texts, 0.95)}


GAMES = 100
"""Games of a run at the truth."""
OTHERS = {"nothing": 0.0, "a little": 1.0, "nothing more": 0.0}
"""Strengths of the other attacks, in deviations, next to the one that tells all canaries apart."""


def bounds_of_table(leak: str, seed: int, data: str) -> dict[str, Any]:
    """Return the bounds of one table by each order of guesses, at both confidences."""
    pairs, attacks = attacked(leak, seed, data)
    coins, everything = pairs.first_trained, np.ones(pairs.pairs, np.bool_)
    features = PairFeatures.of(pairs, attacks)
    together = features.opinions[:, list(features.summed)].sum(axis=1, keepdims=True)
    experts = signed_tail_rank(np.concatenate([features.opinions, together], axis=1))
    orders = {
        "learned": [learned_order(experts, features.learned, coins)],
        "best alone": [Scores(experts[:, place], coins) for place in features.summed],
        "shared": [features.order(coins, everything)],
    }
    return {
        f"{name}, {at}": max(bound(scores, confidence) for scores in some)
        for at, confidence in CONFIDENCES.items()
        for name, some in orders.items()
    }


def cases(seeds: int, **_: str) -> Iterator[Mapping[str, Any]]:
    """Yield leak and seed of each table; and twenty runs of each game at the truth and of scores that tell all."""
    yield from of_each(LEAKS, seeds, by="leak")
    for seed in range(20):
        yield from ({"canaries": canaries, "seed": seed} for canaries in (50, 100, 200, 400, 1_000))
        for coins in ("of pairs", "independent"):
            yield from ({"coins": coins, "epsilon": epsilon, "seed": seed} for epsilon in (0.0, 1.0, 3.0))


def groups(line: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the row of a run; a leak counts among all leaks too."""
    if "coins" in line:
        return [({"coins": line["coins"], "epsilon": f"{line['epsilon']:g}"}, line)]
    if "canaries" in line:
        return [({"scores": "tell all canaries apart", "canaries": f"{line['canaries']:,}"}, line)]
    return [({"leak": line["leak"]}, line), ({"leak": "all of these, mean"}, line)]


def columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the mean bounds, and the mean share of the best attack alone that the shared orders reach; or rates."""
    if "coins" in lines[0]:
        rejected, games = sum(line["rejected"] for line in lines), GAMES * len(lines)
        return {"exact epsilon rejected at 5 %": f"{rejected} of {games:,}"}
    if "canaries" in lines[0]:
        names = {"estimate": "estimate, below the maximum", "texts": "order of text audits, below the maximum"}
        return {words: f"{max(line[name] for line in lines):.2f} at most" for name, words in names.items()}
    values = {}
    for at in CONFIDENCES:
        for name in ("learned", "best alone", "shared"):
            values[f"{name}, {at}"] = f"{np.mean([line[f'{name}, {at}'] for line in lines]):.2f}"
        shares = [line[f"shared, {at}"] / line[f"best alone, {at}"] for line in lines if line[f"best alone, {at}"]]
        values[f"share of the best alone, {at}"] = f"{np.mean(shares):.2f}" if shares else ""
    return values


if __name__ == "__main__":
    settings = {"data": "folder with adult.data and adult.test; made rows without"}
    campaign(cases, run, columns, groups=groups, seeds=1, settings=settings)
