"""What the units of the game `private-prediction` do: train and ask, craft, ask those moved, draw answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, priced, unit
from dpaudit.engine.games.predictions.adversaries import Adversary, Crafted, Target
from dpaudit.engine.games.predictions.answer_laws import Votes, releases_of
from dpaudit.engine.games.predictions.answer_set import chosen_set
from dpaudit.errors import require
from dpaudit.estimators.answered_queries import AnsweredQuery
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.predictors.ensemble import joined
from dpaudit.mechanisms.predictors.protocol import Added, AnsweringPredictor, PricedPredictor, VotingPredictor

Ints = NDArray[np.int64]


def natural_queries(test: Examples, count: int) -> Examples:
    require(count <= len(test), f"queries must be at most the {len(test)} rows of the test part", queries=count)
    return test.take(np.arange(count))


def whole_numbers(votes: object, *, columns: int, most: int, what: str) -> Ints:
    """What a predictor gave, if it is an array of whole numbers from 0 to `most`, one column a query."""
    given = np.asarray(votes)
    require(
        given.ndim == 2 and given.shape[1] == columns,
        f"{what} must have one column for each of the {columns} queries",
        shape=given.shape,
    )
    whole = np.issubdtype(given.dtype, np.integer)
    valid = whole and bool(((given >= 0) & (given <= most)).all())
    require(valid, f"{what} must be whole numbers, 0 to {most}", dtype=given.dtype, given=given.ravel()[:3])
    return np.asarray(given, np.int64)


def price_of_asking(predictor: Any, count: int, data: Examples, test: Examples, **_: Any) -> str:
    """What asking is going to take, where the predictor can tell; "" where it takes nothing."""
    if not isinstance(predictor, PricedPredictor):
        return ""
    return str(predictor.expected(data, natural_queries(test, count).features))


@unit
@priced(price_of_asking)
def train_and_ask(
    predictor: VotingPredictor, count: int, data: Examples, test: Examples, compute: Compute, *, seed: Seed
) -> Outcome[Votes]:
    """One run of the training phase without further records: the vote of every voter on every query."""
    queries = natural_queries(test, count)
    with threadpool_limits(compute.threads):
        votes = predictor.votes(data, queries.features, seed=seed.sequence(), compute=compute)
    votes = whole_numbers(votes, columns=count, most=data.classes, what="votes")
    counts = predictor.histograms(votes, classes=data.classes, rng=seed.child("votes").rng())
    metrics = {"accuracy_of_the_vote": float((counts.argmax(axis=1) == queries.labels).mean())}
    if (votes >= data.classes).any():
        metrics["answers_that_name_no_class"] = float((votes >= data.classes).mean())
    return Outcome(Votes(votes), metrics=metrics)


@unit
def craft(
    adversary: Adversary,
    predictor: Any,
    count: int,
    points: int,
    runs: tuple[Votes, ...],
    data: Examples,
    test: Examples,
    compute: Compute,
    *,
    seed: Seed,
) -> Crafted:
    """The adversary chooses `points` records and its queries, from what runs without further records said."""
    expected = np.zeros((count, data.classes))
    if runs:
        votes = np.stack([run.votes for run in runs])
        none = np.zeros((len(runs), 0), np.int64)
        for query in range(count):
            law = predictor.law(votes[:, :, query], none, none[0], added=False, classes=data.classes)
            expected[query] = law.mean()
    target = Target(predictor, data, natural_queries(test, count), expected, points, compute)
    crafted = adversary.craft(target, seed.rng())
    asked = sum(map(len, crafted.asked))
    require(asked == count, f"an adversary must ask {count} queries in all", asked=asked)
    return crafted


@unit
def ask_moved(
    predictor: VotingPredictor,
    count: int,
    crafted: Crafted,
    data: Examples,
    test: Examples,
    compute: Compute,
    *,
    seed: Seed,
) -> Votes:
    """One run of the training phase for each record: the vote of the voter that has it, on every query."""
    queries = natural_queries(test, count)
    more = Added(data, crafted.records, np.tile(np.arange(crafted.points), len(crafted.asked)))
    with threadpool_limits(compute.threads):
        if isinstance(predictor, PricedPredictor):
            return Votes(_asked_alone(predictor, more, queries, crafted, seed, compute))
        votes = predictor.votes_with_canary(more, queries.features, seed=seed.sequence(), compute=compute)
    votes = whole_numbers(votes, columns=count, most=np.iinfo(np.int32).max, what="votes_with_canary")
    require(len(votes) == len(crafted.records), "votes_with_canary must have a row for each record", rows=len(votes))
    return Votes(votes)


def _asked_alone(
    predictor: Any, more: Added, queries: Examples, crafted: Crafted, seed: Seed, compute: Compute
) -> Ints:
    """Each pair's records are asked that pair's queries alone, for each costs; 0 stands for the others."""
    votes = np.zeros((len(crafted.records), len(queries)), np.int64)
    for pair, asked in enumerate(crafted.asked):
        own, features = crafted.of_pair(pair), queries.take(asked).features
        pair_own = Added(more.data, more.records.take(own), more.places[own])
        votes[np.ix_(own, asked)] = predictor.votes_with_canary(
            pair_own, features, seed=seed.sequence(), compute=compute
        )
    return votes


@unit
def run_in_full(
    predictor: Any,
    count: int,
    crafted: Crafted,
    data: Examples,
    test: Examples,
    compute: Compute,
    *,
    replaced: bool,
    first: int,
    last: int,
    seed: Seed,
) -> Votes:
    """Full runs in both worlds, each of which answers every query once: nothing about the votes is assumed.

    Returns: One row a run: the answers to all queries asked of all pairs, with the records, then without.
    """
    queries = natural_queries(test, count)
    rows = []
    with threadpool_limits(compute.threads):
        for number in range(first, last):
            run = seed.child(number)
            without, added = [], []
            for pair, asked in enumerate(crafted.asked):
                records = crafted.records.take(crafted.of_pair(pair))
                more = _with(data, records, replaced=replaced)
                features = queries.take(asked).features
                without.append(answers_of(predictor, data, features, run.child("without", pair), compute))
                added.append(answers_of(predictor, more, features, run.child("with", pair), compute))
            rows.append(np.concatenate([*added, *without]))
    return Votes(np.stack(rows))


def _with(data: Examples, records: Examples, *, replaced: bool) -> Examples:
    whole = joined(data, records)
    if not replaced:
        return whole
    more = np.arange(len(data), len(whole))
    return whole.take(np.concatenate([more, np.arange(len(records), len(data))]))


def answers_of(predictor: Any, data: Examples, features: Features, seed: Seed, compute: Compute) -> Ints:
    """One full run on some data: trains, and answers each query once."""
    own = seed.child("run").sequence()
    if isinstance(predictor, AnsweringPredictor):
        given = np.asarray(predictor.answers(data, features, seed=own, compute=compute))
        require(given.shape == (len(features),), "a run must answer each query once", shape=given.shape)
        return given.astype(np.int64)
    votes, noise = predictor.votes(data, features, seed=own, compute=compute), seed.child("noise").rng()
    histograms = predictor.histograms(votes, classes=data.classes, rng=noise)
    releases = releases_of(predictor, features, len(votes), compute)
    each = [release.answers(row[None], noise) for release, row in zip(releases, histograms, strict=True)]
    return np.concatenate(each).astype(np.int64)


@unit
def count_runs(
    predictor: Any,
    attack: Any,
    crafted: Crafted,
    runs: tuple[Votes, ...],
    data: Examples,
    test: Examples,
    *,
    repeats: int,
) -> Iterator[AnsweredQuery]:
    """Counts the answers of full runs; the first half chooses the sets of answers, the other is counted."""
    answers = np.concatenate([run.votes for run in runs])
    kinds = max(data.classes, int(answers.max()) + 1)
    half, asked = len(answers) // 2, answers.shape[1] // 2
    cached = bool(getattr(predictor, "cached", False))
    told = crafted.told(test.features, cached=cached, repeats=repeats)
    for number in range(asked):
        search, fresh = (
            [np.bincount(part[:, column], minlength=kinds) for column in (number, asked + number)]
            for part in (answers[:half], answers[half:])
        )
        yield AnsweredQuery(
            query=number,
            world_1=fresh[0],
            world_0=fresh[1],
            chosen=chosen_set(attack, *search),
            asked=int(told[number]),
            together=not crafted.repeated,
        )


@unit
def tell_answers(queries: int, answers: int) -> Iterator[AnsweredQuery]:
    """The game against a predictor without privacy: each answer says which world it comes from."""
    told, chosen = np.array([0, answers]), np.array([False, True])
    return (AnsweredQuery(query, told, told[::-1].copy(), chosen) for query in range(queries))
