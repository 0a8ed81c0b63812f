"""What the units of the game `private-prediction` do: train and ask, craft, ask those moved, draw answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.adversaries.protocol import Adversary, Crafted, Target
from dpaudit.engine.findings.query_table import QueryTable
from dpaudit.engine.games.answer_laws import (
    AnswerLaws,
    Worlds,
    answer_laws,
    counted,
    is_known,
    log_flips,
    shares_without,
    simulated,
)
from dpaudit.engine.games.torch_answers import torch_counts
from dpaudit.engine.spec.partition import required_part
from dpaudit.engine.views.answer_view import AnswerView
from dpaudit.errors import RunError, require
from dpaudit.estimators.answered_queries import AnsweredQuery
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.predictors.added import Added
from dpaudit.mechanisms.predictors.ensemble import joined
from dpaudit.mechanisms.predictors.protocol import (
    AnsweringPredictor,
    PricedPredictor,
    StudentPredictor,
    VotingPredictor,
)
from dpaudit.mechanisms.predictors.releases import ConfidentArgmax, GaussianArgmax, Release
from dpaudit.mechanisms.protocols import Compute

Ints = NDArray[np.int64]
Sampler = Literal["exact", "simulated", "torch"]


def natural_queries(inputs: Inputs, count: int) -> Examples:
    """The first rows of the test part."""
    test = required_part(inputs, "test")
    require(count <= len(test), f"queries must be at most the {len(test)} rows of the test part", queries=count)
    return test.take(np.arange(count))


def releases_of(predictor: VotingPredictor, queries: Features, voters: int, compute: Compute) -> Sequence[Release]:
    """How each query is answered."""
    if isinstance(predictor, StudentPredictor):
        return predictor.releases(queries, voters=voters, compute=compute)
    return [predictor.release()] * len(queries)


def ints_table(rows: Ints) -> pa.Table:
    """Whole numbers of shape (n, m) as a unit's result; `ints_of` reads them back."""
    flat = pa.array(np.ascontiguousarray(rows, np.int32).ravel())
    return pa.table({"votes": pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])})


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


def ints_of(table: pa.Table) -> Ints:
    """Shape (n, m)."""
    column = table["votes"].combine_chunks()
    flat: Ints = column.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return flat.reshape(len(column), column.type.list_size)


def crafted_table(crafted: Crafted) -> pa.Table:
    """Records and what is asked as a unit's result; `crafted_of` reads it back."""
    features = crafted.records.features
    if isinstance(features, np.ndarray):
        flat = np.ascontiguousarray(features, np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), int(np.prod(flat.shape[1:])))
        table, shape = pa.table({"features": column}), list(flat.shape[1:])
    else:
        table, shape = features, []
    words = {"shape": shape, "asked": [asked.tolist() for asked in crafted.asked], "repeated": crafted.repeated}
    table = table.append_column("crafted label", pa.array(crafted.records.labels))
    return table.replace_schema_metadata({"crafted": json.dumps(words)})


def crafted_of(table: pa.Table, like: Examples) -> Crafted:
    """What was crafted; its records are of the kind of `like`."""
    words = json.loads(table.schema.metadata[b"crafted"])
    labels = table["crafted label"].to_numpy().astype(np.int64)
    features: Any = table.drop_columns(["crafted label"]).replace_schema_metadata(None)
    if words["shape"]:
        flat = features["features"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        features = flat.reshape(len(labels), *words["shape"])
    asked = tuple(np.array(each, np.int64) for each in words["asked"])
    return Crafted(like.with_(features=features, labels=labels), asked, words["repeated"])


@dataclass(frozen=True)
class TrainAndAsk:
    """One run of the training phase without further records: the vote of every voter on every query.

    Attributes:
        predictor: What is audited.
        queries: How many natural queries there are.
        seed: Of the run.
    """

    predictor: VotingPredictor
    queries: int
    seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a voter."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        data, queries = required_part(inputs, "target"), natural_queries(inputs, self.queries)
        with threadpool_limits(compute.threads):
            votes = self.predictor.votes(data, queries.features, seed=self.seed.sequence(), compute=compute)
        votes = whole_numbers(votes, columns=self.queries, most=data.classes, what="votes")
        counts = self.predictor.histograms(votes, classes=data.classes, rng=self.seed.child("votes").rng())
        metrics = {"accuracy_of_the_vote": float((counts.argmax(axis=1) == queries.labels).mean())}
        if (votes >= data.classes).any():
            metrics["answers_that_name_no_class"] = float((votes >= data.classes).mean())
        return ints_table(votes).replace_schema_metadata(
            {f"metric:{name}": repr(value) for name, value in metrics.items()}
        )

    def price(self, inputs: Inputs) -> str:
        """What asking is going to take, where the predictor can tell; "" where it takes nothing."""
        if not isinstance(self.predictor, PricedPredictor):
            return ""
        data, queries = required_part(inputs, "target"), natural_queries(inputs, self.queries)
        return str(self.predictor.expected(data, queries.features))


@dataclass(frozen=True)
class Craft:
    """The adversary chooses records and queries.

    Attributes:
        adversary: Who.
        predictor: What is audited.
        queries: How many natural queries there are.
        points: Records to add.
        seed: What the adversary draws from.
        runs: Keys of the runs without further records.
    """

    adversary: Adversary
    predictor: Any
    queries: int
    points: int
    seed: Seed
    runs: tuple[str, ...]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a record."""
        data, queries = required_part(inputs, "target"), natural_queries(inputs, self.queries)
        expected = np.zeros((self.queries, data.classes))
        if self.runs:
            votes = np.stack([ints_of(inputs.tables[key]) for key in self.runs])
            none = np.zeros((len(self.runs), 0), np.int64)
            for query in range(self.queries):
                law = self.predictor.law(votes[:, :, query], none, none[0], added=False, classes=data.classes)
                expected[query] = law.mean()
        target = Target(self.predictor, data, queries, expected, self.points, compute)
        crafted = self.adversary.craft(target, self.seed.rng())
        asked = sum(map(len, crafted.asked))
        require(asked == self.queries, f"an adversary must ask {self.queries} queries in all", asked=asked)
        return crafted_table(crafted)


@dataclass(frozen=True)
class AskMoved:
    """One run of the training phase for each record: the vote of the voter that has it, on every query.

    Attributes:
        predictor: What is audited.
        queries: How many natural queries there are.
        crafted: Key of the unit that crafted.
        seed: Of the run.
    """

    predictor: VotingPredictor
    queries: int
    crafted: str
    seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a record."""
        from threadpoolctl import threadpool_limits

        data, queries = required_part(inputs, "target"), natural_queries(inputs, self.queries)
        crafted = crafted_of(inputs.tables[self.crafted], data)
        more = Added(data, crafted.records, np.tile(np.arange(crafted.points), len(crafted.asked)))
        with threadpool_limits(compute.threads):
            if isinstance(self.predictor, PricedPredictor):
                return ints_table(self._asked_alone(more, queries, crafted, compute))
            votes = self.predictor.moved_votes(more, queries.features, seed=self.seed.sequence(), compute=compute)
        votes = whole_numbers(votes, columns=self.queries, most=np.iinfo(np.int32).max, what="moved_votes")
        require(len(votes) == len(crafted.records), "moved_votes must have a row for each record", rows=len(votes))
        return ints_table(votes)

    def _asked_alone(self, more: Added, queries: Examples, crafted: Crafted, compute: Compute) -> Ints:
        """Each pair's records are asked that pair's queries alone, for each costs; 0 stands for the others."""
        votes = np.zeros((len(crafted.records), self.queries), np.int64)
        for pair, asked in enumerate(crafted.asked):
            own, features = crafted.of_pair(pair), queries.take(asked).features
            pair_own = Added(more.data, more.records.take(own), more.places[own])
            votes[np.ix_(own, asked)] = self.predictor.moved_votes(
                pair_own, features, seed=self.seed.sequence(), compute=compute
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


@dataclass(frozen=True)
class DrawAnswers:
    """Fits the laws of the votes on some queries in both worlds, and draws answers from them.

    Attributes:
        predictor: What is audited.
        attack: Says which answers speak for the records.
        draws: How.
        seed: Each pair and query has a child of its own.
        runs: Keys of the runs without further records.
        moved: Keys of the runs with them.
        crafted: Key of the unit that crafted.
        first: First query asked, of all pairs one after another.
        last: One past the last.
    """

    predictor: VotingPredictor
    attack: Any
    draws: Draws
    seed: Seed
    runs: tuple[str, ...]
    moved: tuple[str, ...]
    crafted: str
    first: int
    last: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a query."""
        data = required_part(inputs, "target")
        crafted = crafted_of(inputs.tables[self.crafted], data)
        asked = [(pair, int(query)) for pair, queries in enumerate(crafted.asked) for query in queries]
        votes = np.stack([ints_of(inputs.tables[key]) for key in self.runs])
        moved = np.stack([ints_of(inputs.tables[key]) for key in self.moved])
        here = range(self.first, min(self.last, len(asked)))
        natural = required_part(inputs, "test")
        told = asked_of(crafted, natural.features, cached=self.predictor.cached, repeats=self.draws.repeats)
        queries = natural.take(np.array([asked[number][1] for number in here]))
        found = []
        for number, release in zip(
            here, releases_of(self.predictor, queries.features, votes.shape[1], compute), strict=True
        ):
            pair, query = asked[number]
            own = crafted.of_pair(pair)
            runs = _Runs(votes[:, :, query], moved[:, own, query], crafted.records.labels[own])
            count, together = int(told[number]), not crafted.repeated
            found.append(self._answered(number, runs, release, data.classes, compute, told=count, together=together))
        return QueryTable().encode(found)

    def _answered(
        self, number: int, runs: _Runs, release: Release, classes: int, compute: Compute, *, told: int, together: bool
    ) -> AnsweredQuery:
        seed = self.seed.child(number)
        worlds = runs.worlds(self.predictor, classes)
        laws = answer_laws(worlds, release, seed.child("votes"))
        drawn = {}
        for part, many in (("search", self.draws.search), ("answers", self.draws.answers)):
            for world, law in (("one", worlds.one), ("zero", worlds.zero)):
                own = seed.child(part, world)
                if laws is not None and self.draws.sampler == "exact":
                    drawn[part, world] = counted(getattr(laws, world), many, own.rng())
                elif self.draws.sampler == "torch" and isinstance(release, GaussianArgmax):
                    count = min(many, self.draws.simulated)
                    drawn[part, world] = torch_counts(law, release.sigma, count, own, device=compute.device)
                else:
                    drawn[part, world] = simulated(law, release, min(many, self.draws.simulated), own.rng())
        kinds = len(drawn["answers", "one"])
        resampled, unmoved = self._resampled(runs, release, classes, seed) if laws is not None else ([], [])
        exact = laws is not None and self.draws.sampler == "exact"
        charged = laws is not None and len(runs.labels) == 1  # accounting is about one vote that moves
        none = (np.empty(0), np.empty(0))
        flips = [log_flips(law, release, seed.child("flips")) if charged else none for law in (worlds.one, worlds.zero)]
        known = is_known(worlds.one) and is_known(worlds.zero)
        return AnsweredQuery(
            query=number,
            world_1=drawn["answers", "one"],
            world_0=drawn["answers", "zero"],
            chosen=chosen_set(self.attack, drawn["search", "one"], drawn["search", "zero"]),
            law_1=laws.one if laws is not None else np.empty(0),
            law_0=laws.zero if laws is not None else np.empty(0),
            resampled_1=np.array([each.one for each in resampled]).reshape(-1, kinds),
            resampled_0=np.array([each.zero for each in resampled]).reshape(-1, kinds),
            unmoved_1=np.array([each.one for each in unmoved]).reshape(-1, kinds),
            flips_1=flips[0][0],
            flips_0=flips[1][0],
            checks_1=flips[0][1],
            checks_0=flips[1][1],
            sigma=release.sigma if isinstance(release, GaussianArgmax | ConfidentArgmax) else float("nan"),
            threshold_sigma=release.threshold_sigma if isinstance(release, ConfidentArgmax) else float("nan"),
            fitted=not self.predictor.deterministic or (exact and not known),
            asked=told,
            together=together,
        )

    def _resampled(
        self, runs: _Runs, release: Release, classes: int, seed: Seed
    ) -> tuple[list[AnswerLaws], list[AnswerLaws]]:
        """Laws of answers by runs drawn anew from those there are; and where records change nothing, as if they did."""
        if self.predictor.deterministic:
            return [], []
        again: list[AnswerLaws] = []
        unmoved: list[AnswerLaws] = []
        for number in range(self.draws.resamples):
            rng = seed.child("resamples", number).rng()
            for found, others in ((again, runs.resampled(rng)), (unmoved, runs.unmoved(self.predictor, classes, rng))):
                laws = answer_laws(others.worlds(self.predictor, classes), release, seed.child("votes"))
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


@dataclass(frozen=True)
class RunInFull:
    """Full runs in both worlds, each of which answers every query once: nothing about the votes is assumed.

    Attributes:
        predictor: What is audited; has votes, or answers alone.
        queries: How many natural queries there are.
        crafted: Key of the unit that crafted.
        seed: Each run has a child of its own.
        replaced: Whether the records stand in the places of the first ones, instead of being more.
        first: First run.
        last: One past the last.
    """

    predictor: Any
    queries: int
    crafted: str
    seed: Seed
    replaced: bool
    first: int
    last: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a run: the answers to all queries asked of all pairs, with the records, then without."""
        from threadpoolctl import threadpool_limits

        data, queries = required_part(inputs, "target"), natural_queries(inputs, self.queries)
        crafted = crafted_of(inputs.tables[self.crafted], data)
        rows = []
        with threadpool_limits(compute.threads):
            for number in range(self.first, self.last):
                seed = self.seed.child(number)
                without = [
                    self._answers(data, queries, asked, seed.child("without", pair), compute)
                    for pair, asked in enumerate(crafted.asked)
                ]
                added = [
                    self._answers(
                        self._with(data, crafted.records.take(crafted.of_pair(pair))),
                        queries,
                        asked,
                        seed.child("with", pair),
                        compute,
                    )
                    for pair, asked in enumerate(crafted.asked)
                ]
                rows.append(np.concatenate([*added, *without]))
        return ints_table(np.stack(rows))

    def _with(self, data: Examples, records: Examples) -> Examples:
        whole = joined(data, records)
        if not self.replaced:
            return whole
        more = np.arange(len(data), len(whole))
        return whole.take(np.concatenate([more, np.arange(len(records), len(data))]))

    def _answers(self, data: Examples, queries: Examples, asked: Ints, seed: Seed, compute: Compute) -> Ints:
        own, noise = seed.child("run").sequence(), seed.child("noise").rng()
        features = queries.take(asked).features
        if isinstance(self.predictor, AnsweringPredictor):
            given = np.asarray(self.predictor.answers(data, features, seed=own, compute=compute))
            require(given.shape == asked.shape, "a run must answer each query once", shape=given.shape)
            return given.astype(np.int64)
        votes = self.predictor.votes(data, features, seed=own, compute=compute)
        histograms = self.predictor.histograms(votes, classes=data.classes, rng=noise)
        releases = releases_of(self.predictor, features, len(votes), compute)
        each = [release.answers(row[None], noise) for release, row in zip(releases, histograms, strict=True)]
        return np.concatenate(each).astype(np.int64)


@dataclass(frozen=True)
class CountRuns:
    """Counts the answers of full runs; the first half chooses the sets of answers, the other is counted.

    Attributes:
        predictor: What is audited.
        attack: Says which answers speak for the records.
        crafted: Key of the unit that crafted.
        runs: Keys of the units that ran in full, in order.
        repeats: Answers to one query that a total counts, where it is repeated.
    """

    predictor: Any
    attack: Any
    crafted: str
    runs: tuple[str, ...]
    repeats: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a query."""
        data = required_part(inputs, "target")
        crafted = crafted_of(inputs.tables[self.crafted], data)
        answers = np.concatenate([ints_of(inputs.tables[key]) for key in self.runs])
        kinds = max(data.classes, int(answers.max()) + 1)
        half, asked = len(answers) // 2, answers.shape[1] // 2
        cached = bool(getattr(self.predictor, "cached", False))
        told = asked_of(crafted, required_part(inputs, "test").features, cached=cached, repeats=self.repeats)
        found = []
        for number in range(asked):
            search, fresh = (
                [np.bincount(part[:, column], minlength=kinds) for column in (number, asked + number)]
                for part in (answers[:half], answers[half:])
            )
            found.append(
                AnsweredQuery(
                    query=number,
                    world_1=fresh[0],
                    world_0=fresh[1],
                    chosen=chosen_set(self.attack, *search),
                    asked=int(told[number]),
                    together=not crafted.repeated,
                )
            )
        return QueryTable().encode(found)


@dataclass(frozen=True)
class TellAnswers:
    """The game against a predictor that hides nothing: each answer says which world it comes from.

    Attributes:
        queries: How many there are.
        answers: To each, in each world.
    """

    queries: int
    answers: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a query."""
        told, chosen = np.array([0, self.answers]), np.array([False, True])
        return QueryTable().encode(
            AnsweredQuery(query, told, told[::-1].copy(), chosen) for query in range(self.queries)
        )
