"""What the units of the game `private-prediction` do: train and ask, craft, ask those moved, draw answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import Outcome, priced, unit
from dpaudit.engine.games.predictions.adversaries.protocol import Adversary, Crafted, Target
from dpaudit.engine.games.predictions.answer_laws import (
    AnswerLaws,
    Worlds,
    answer_laws,
    counted,
    is_known,
    log_flips,
    shares_without,
    simulated,
)
from dpaudit.engine.games.predictions.answer_set import AnswerView
from dpaudit.engine.games.predictions.torch_answers import torch_counts
from dpaudit.errors import RunError, require
from dpaudit.estimators.answered_queries import AnsweredQuery
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.predictors.ensemble import joined
from dpaudit.mechanisms.predictors.protocol import (
    Added,
    AnsweringPredictor,
    PricedPredictor,
    StudentPredictor,
    VotingPredictor,
)
from dpaudit.mechanisms.predictors.releases import ConfidentArgmax, GaussianArgmax, Release

Ints = NDArray[np.int64]
Sampler = Literal["exact", "simulated", "torch"]


@dataclass(frozen=True, eq=False)
class Votes:
    """What voters said, or answers given.

    Attributes:
        votes: One row a voter, record or run, one column a query.
    """

    votes: Ints = field(metadata={"stored": "int32"})


def natural_queries(test: Examples, count: int) -> Examples:
    """The first rows of the test part."""
    require(count <= len(test), f"queries must be at most the {len(test)} rows of the test part", queries=count)
    return test.take(np.arange(count))


def releases_of(predictor: VotingPredictor, queries: Features, voters: int, compute: Compute) -> Sequence[Release]:
    """How each query is answered."""
    if isinstance(predictor, StudentPredictor):
        return predictor.releases(queries, voters=voters, compute=compute)
    return [predictor.release()] * len(queries)


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
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

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
    from threadpoolctl import threadpool_limits

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


@dataclass(frozen=True)
class Draws:
    """How answers are drawn.

    Attributes:
        answers: In each world, that are counted.
        search: In each world, by which the set of answers is chosen.
        simulated: In each world at most, where answers are drawn one by one.
        resamples: How often the laws are fitted to resampled runs.
        sampler: "exact": one draw from the exact law; "simulated" or "torch": one by one.
        repeats: Answers to one query that a total counts, where it is repeated.
    """

    answers: int
    search: int
    simulated: int
    resamples: int
    sampler: Sampler
    repeats: int


@unit
def draw_answers(
    predictor: VotingPredictor,
    attack: Any,
    draws: Draws,
    runs: tuple[Votes, ...],
    moved: tuple[Votes, ...],
    crafted: Crafted,
    data: Examples,
    test: Examples,
    compute: Compute,
    *,
    first: int,
    last: int,
    seed: Seed,
) -> Iterator[AnsweredQuery]:
    """Fits the laws of the votes on some queries in both worlds, and draws answers from them.

    Args:
        predictor: What is audited.
        attack: Says which answers speak for the records.
        draws: How.
        runs: Without further records.
        moved: Runs with them.
        crafted: The records, and what is asked.
        data: What is trained on.
        test: Whose first rows are the natural queries.
        compute: Where it runs.
        first: First query asked, of all pairs one after another.
        last: One past the last.
        seed: Each query has a child of its own.
    """
    asked = [(pair, int(query)) for pair, queries in enumerate(crafted.asked) for query in queries]
    votes, with_records = (np.stack([run.votes for run in several]) for several in (runs, moved))
    here = range(first, min(last, len(asked)))
    told = asked_of(crafted, test.features, cached=predictor.cached, repeats=draws.repeats)
    queries = test.take(np.array([asked[number][1] for number in here]))
    releases = releases_of(predictor, queries.features, votes.shape[1], compute)
    for number, release in zip(here, releases, strict=True):
        pair, query = asked[number]
        own = crafted.of_pair(pair)
        seen = _Runs(votes[:, :, query], with_records[:, own, query], crafted.records.labels[own])
        yield _answered(
            number,
            seen,
            release,
            predictor,
            attack,
            draws,
            seed.child(number),
            data.classes,
            compute,
            told=int(told[number]),
            together=not crafted.repeated,
        )


def _answered(
    number: int,
    runs: _Runs,
    release: Release,
    predictor: VotingPredictor,
    attack: Any,
    draws: Draws,
    seed: Seed,
    classes: int,
    compute: Compute,
    *,
    told: int,
    together: bool,
) -> AnsweredQuery:
    worlds = runs.worlds(predictor, classes)
    laws = answer_laws(worlds, release, seed.child("votes"))
    drawn = {}
    for part, many in (("search", draws.search), ("answers", draws.answers)):
        for world, law in (("one", worlds.one), ("zero", worlds.zero)):
            own = seed.child(part, world)
            if laws is not None and draws.sampler == "exact":
                drawn[part, world] = counted(getattr(laws, world), many, own.rng())
            elif draws.sampler == "torch" and isinstance(release, GaussianArgmax):
                count = min(many, draws.simulated)
                drawn[part, world] = torch_counts(law, release.sigma, count, own, device=compute.device)
            else:
                drawn[part, world] = simulated(law, release, min(many, draws.simulated), own.rng())
    kinds = len(drawn["answers", "one"])
    resampled, unmoved = _resampled(runs, release, predictor, draws, classes, seed) if laws is not None else ([], [])
    exact = laws is not None and draws.sampler == "exact"
    charged = laws is not None and len(runs.labels) == 1  # accounting is about one vote that moves
    none = (np.empty(0), np.empty(0))
    flips = [log_flips(law, release, seed.child("flips")) if charged else none for law in (worlds.one, worlds.zero)]
    known = is_known(worlds.one) and is_known(worlds.zero)
    return AnsweredQuery(
        query=number,
        world_1=drawn["answers", "one"],
        world_0=drawn["answers", "zero"],
        chosen=chosen_set(attack, drawn["search", "one"], drawn["search", "zero"]),
        law_1=laws.one if laws is not None else np.empty(0),
        law_0=laws.zero if laws is not None else np.empty(0),
        resampled_1=np.array([each.one for each in resampled]).reshape(-1, kinds),
        resampled_0=np.array([each.zero for each in resampled]).reshape(-1, kinds),
        unmoved_1=np.array([each.one for each in unmoved]).reshape(-1, kinds),
        log_p_flip_1=flips[0][0],
        log_p_flip_0=flips[1][0],
        log_p_check_1=flips[0][1],
        log_p_check_0=flips[1][1],
        sigma=release.sigma if isinstance(release, GaussianArgmax | ConfidentArgmax) else float("nan"),
        threshold_sigma=release.threshold_sigma if isinstance(release, ConfidentArgmax) else float("nan"),
        fitted=not predictor.deterministic or (exact and not known),
        asked=told,
        together=together,
    )


def _resampled(
    runs: _Runs, release: Release, predictor: VotingPredictor, draws: Draws, classes: int, seed: Seed
) -> tuple[list[AnswerLaws], list[AnswerLaws]]:
    """Laws of answers by runs drawn anew from those there are; and where records change nothing, as if they did."""
    if predictor.deterministic:
        return [], []
    again: list[AnswerLaws] = []
    unmoved: list[AnswerLaws] = []
    for number in range(draws.resamples):
        rng = seed.child("resamples", number).rng()
        for found, others in ((again, runs.resampled(rng)), (unmoved, runs.unmoved(predictor, classes, rng))):
            laws = answer_laws(others.worlds(predictor, classes), release, seed.child("votes"))
            assert laws is not None
            found.append(laws)
    return again, unmoved


@dataclass(frozen=True, eq=False)
class _Runs:
    """All that was seen of one query.

    Attributes:
        votes: Without further records, shape (runs, voters).
        moved: Of the voters that have them, shape (runs, m).
        labels: Of the records, shape (m,).
    """

    votes: Ints
    moved: Ints
    labels: Ints

    def worlds(self, predictor: VotingPredictor, classes: int) -> Worlds:
        """The laws of the votes."""
        one, zero = (
            predictor.law(self.votes, self.moved, self.labels, added=added, classes=classes) for added in (True, False)
        )
        return Worlds(one, zero)

    def resampled(self, rng: np.random.Generator) -> _Runs:
        """As many runs, drawn with replacement; those with the records by themselves."""
        own, moved = (rng.integers(0, len(rows), len(rows)) for rows in (self.votes, self.moved))
        return _Runs(self.votes[own], self.moved[moved], self.labels)

    def unmoved(self, predictor: VotingPredictor, classes: int, rng: np.random.Generator) -> _Runs:
        """As many runs of the voters that have the records as if these changed nothing."""
        shares = shares_without(self.worlds(predictor, classes).zero, self.moved.shape[1])
        drawn = [rng.choice(classes, size=len(self.moved), p=share) for share in shares]
        return _Runs(self.votes, np.stack(drawn, axis=1).astype(np.int64), self.labels)


def asked_of(crafted: Crafted, natural: Features, *, cached: bool, repeats: int) -> Ints:
    """Answers to each query asked that tell something new: a cached one repeats itself, by whomever it was asked.

    Args:
        crafted: What is asked.
        natural: The natural queries.
        cached: Whether a query that is asked again gets the answer it got before.
        repeats: Answers to a query that is asked again and again.
    """
    if crafted.repeated:
        return np.full(len(crafted.asked), 1 if cached else repeats, np.int64)
    (asked,) = crafted.asked
    rows = natural.to_pylist() if isinstance(natural, pa.Table) else [row.tobytes() for row in natural]
    first = {repr(rows[query]): place for place, query in reversed(list(enumerate(asked.tolist())))}
    new = [not cached or first[repr(rows[query])] == place for place, query in enumerate(asked.tolist())]
    return np.array(new, np.int64)


def chosen_set(attack: Any, one: Ints, zero: Ints) -> NDArray[np.bool_]:
    """Which answers speak for the records.

    Raises: RunError when the attack gives no score for each answer.
    """
    score = np.asarray(attack.score(AnswerView(one, zero)), np.float64)
    if score.shape != one.shape or np.isnan(score).any():
        raise RunError(f"the attack {type(attack).__name__} must give one number for each answer, got {score.shape}")
    return np.asarray(score > 0)


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

    Args:
        predictor: What is audited; has votes, or answers alone.
        count: How many natural queries there are.
        crafted: The records, and what is asked.
        data: What is trained on.
        test: Whose first rows are the natural queries.
        compute: Where it runs.
        replaced: Whether the records stand in the places of the first ones, instead of being more.
        first: First run.
        last: One past the last.
        seed: Each run has a child of its own.
    Returns: One row a run: the answers to all queries asked of all pairs, with the records, then without.
    """
    from threadpoolctl import threadpool_limits

    queries = natural_queries(test, count)
    rows = []
    with threadpool_limits(compute.threads):
        for number in range(first, last):
            run = seed.child(number)
            without, added = [], []
            for pair, asked in enumerate(crafted.asked):
                records = crafted.records.take(crafted.of_pair(pair))
                more = _with(data, records, replaced=replaced)
                without.append(_answers(predictor, data, queries, asked, run.child("without", pair), compute))
                added.append(_answers(predictor, more, queries, asked, run.child("with", pair), compute))
            rows.append(np.concatenate([*added, *without]))
    return Votes(np.stack(rows))


def _with(data: Examples, records: Examples, *, replaced: bool) -> Examples:
    whole = joined(data, records)
    if not replaced:
        return whole
    more = np.arange(len(data), len(whole))
    return whole.take(np.concatenate([more, np.arange(len(records), len(data))]))


def _answers(predictor: Any, data: Examples, queries: Examples, asked: Ints, seed: Seed, compute: Compute) -> Ints:
    own, noise = seed.child("run").sequence(), seed.child("noise").rng()
    features = queries.take(asked).features
    if isinstance(predictor, AnsweringPredictor):
        given = np.asarray(predictor.answers(data, features, seed=own, compute=compute))
        require(given.shape == asked.shape, "a run must answer each query once", shape=given.shape)
        return given.astype(np.int64)
    votes = predictor.votes(data, features, seed=own, compute=compute)
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
    told = asked_of(crafted, test.features, cached=cached, repeats=repeats)
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
