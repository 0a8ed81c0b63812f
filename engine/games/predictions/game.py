"""Game for private predictors, which bounds the Renyi divergence of their answers from below.

The adversary adds records to the data and asks queries. The law of the votes in both worlds is fitted to several runs
of the training phase, and hundreds of millions of answers are drawn from it. Alternatively, each answer comes from a
full run.
Source: Chadha et al. (2024), "Auditing Private Prediction".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, measuring, priced, unit
from dpaudit.claims import Relation
from dpaudit.engine.games.predictions.adversaries import Adversary, AnswerView, Crafted, PoisAdvQ, Target, chosen_set
from dpaudit.engine.games.predictions.answer_laws import Draws, Sampler, Votes, draw_answers, releases_of
from dpaudit.engine.games.protocol import Capability, CheckTest, GameTraits, Played, Setting, require_units
from dpaudit.errors import SpecError, require
from dpaudit.estimators.private_prediction.answers_estimator import AnsweredQuery
from dpaudit.mechanisms.compute import Compute, limited_threads
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.predictors.ensemble import Ensemble, has_separate_teachers, joined
from dpaudit.mechanisms.predictors.protocol import AddedRecords, AnsweringPredictor, PricedPredictor, VotingPredictor
from dpaudit.mechanisms.predictors.transport import HttpService
from dpaudit.mechanisms.teachers import TeacherVotes, joined_votes
from dpaudit.registry import register

VOTING = Capability(
    VotingPredictor, "private predictors (with methods `votes`, `votes_with_canary`, `law` and `release`)"
)
ANSWERING = Capability(AnsweringPredictor, "user-defined private predictors (with a method `answers`)")
SERVICES = Capability(HttpService, "private predictors behind an address")
POINTS = (1, 2, 4, 8)
QUERIES_PER_UNIT = 10


def _check_tests(relation: Relation) -> tuple[CheckTest, ...]:
    return (
        CheckTest(
            VOTING,
            (relation,),
            "noise too small for a vote that moves, votes that count twice, sampling that is not done",
            trainings=24,
            game={"queries": 20, "runs": 4, "moved_runs": 20, "resamples": 0, "relation": relation.value},
        ),
        CheckTest(
            SERVICES,
            (relation,),
            "answers that give a mislabelled record away, run by run",
            trainings=1_000,
            scales={"full_runs": 0.5},
            game={"adversary": "pois-nat-q-unconfident", "queries": 20, "relation": relation.value},
        ),
    )


@register("game", "private-prediction", source="Chadha et al. (2024), Algorithm 1 and section 4")
@dataclass(frozen=True)
class PrivatePrediction:
    """Game of two worlds, with and without some added records, whose answers the attacker distinguishes.

    The claim is about one answer. It is tested at all orders of the divergence and for all queries simultaneously.

    Attributes:
        adversary: Chooses the records and the queries.
        queries: Number of natural queries, >= 1, which are the first rows of the test part.
        points: Number of added records: 1, 2, 4 or 8. Their claim follows by group privacy.
        votes: "modelled" to fit the law of the votes to several runs, which the finding then assumes; "run" to take
            each answer from a full run, without assumptions.
        runs: Number of training runs without the records, >= 1; a deterministic predictor runs once.
        moved_runs: Number of training runs of the voters that have the records, >= 1.
        full_runs: With `votes: run`, number of full runs in each world, >= 4; half of them choose the sets of answers.
        answers: Number of answers drawn in each world, >= 1.
        search: Number of answers in each world that choose the sets of answers, >= 1.
        simulated: Largest number of either if answers are drawn one by one.
        resamples: Number of bootstrap samples of the runs, which measure the uncertainty of the laws; >= 0.
        sampler: "exact" draws all answers at once; "simulated" and "torch" (on a GPU if available) one by one.
        repeats: Number of answers in the reported total if one query is asked repeatedly, >= 1.
        relation: Relation of the two worlds; "replace" for predictors in which new records replace others.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Answers are independent given the data. With `votes: modelled`, that the votes have the law fitted to "
        "several trainings (teachers independent); with `votes: run` nothing beyond.",
        views={VOTING: AnswerView, ANSWERING: AnswerView},
        attack="answer-set",
        estimator="answers",
        evidence=AnsweredQuery,
        repeats_calls=True,
        helps="more `answers`, or with `votes: run` more `full_runs`",
        check_tests=tuple(
            test for relation in (Relation.ADD_REMOVE, Relation.REPLACE) for test in _check_tests(relation)
        ),
    )

    adversary: Adversary = field(default=PoisAdvQ(), metadata={"kind": "adversary"})
    queries: int = 20
    points: int = 1
    votes: Literal["modelled", "run"] = "modelled"
    runs: int = 5
    moved_runs: int = 50
    full_runs: int = 1_000
    answers: int = field(default=100_000_000, metadata={"held": False})
    search: int = field(default=10_000_000, metadata={"held": False})
    simulated: int = 1_000_000
    resamples: int = 20
    sampler: Sampler = "exact"
    repeats: int = 1_000
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        for name in ("queries", "runs", "moved_runs", "answers", "search", "simulated", "repeats"):
            require(getattr(self, name) >= 1, f"{name} must be >= 1", **{name: getattr(self, name)})
        require(self.points in POINTS, "points must be 1, 2, 4 or 8", points=self.points)
        require(self.full_runs >= 4, "full_runs must be >= 4", full_runs=self.full_runs)
        require(self.resamples >= 0, "resamples must be >= 0", resamples=self.resamples)
        relation = Relation(self.relation)
        fits = relation in (Relation.ADD_REMOVE, Relation.REPLACE)
        require(fits, "relation must be add-remove or replace", relation=relation.value)
        object.__setattr__(self, "relation", relation)
        object.__setattr__(self, "traits", replace(type(self).traits, relation=relation, records=self.points))

    def play(self, setting: Setting, work: Work) -> Played:
        if self.queries > len(setting.parts.test):
            raise SpecError(
                f"private-prediction asks {self.queries} natural queries, but the test part has "
                f"{len(setting.parts.test)} rows. Give `split.test` a larger share or ask fewer `queries`"
            )
        if isinstance(setting.mechanism, VotingPredictor) and self.votes == "modelled":
            return self._modelled(setting, work)
        return self._in_full(setting, work)

    def _base(self, setting: Setting, work: Work) -> tuple[Unit, ...]:
        seeds, count = setting.seed.child("runs"), 1 if setting.mechanism.deterministic else self.runs
        return tuple(
            self._run(setting, work, seeds.child(run), f"training {run + 1} of {count}") for run in range(count)
        )

    def _run(self, setting: Setting, work: Work, seed: Seed, label: str) -> Unit:
        """Return the unit with the votes of one run; groups of teachers are units of their own."""
        arguments = setting.mechanism, self.queries, *_data(setting)
        if not has_separate_teachers(setting.mechanism):
            return work.add(train_and_ask, *arguments, seed=seed, label=f"{label}, asked", **setting.unit_options)
        teachers = work.split(
            ask_teachers,
            setting.mechanism.teachers,
            setting.mechanism.together(setting.parts.target),
            *arguments,
            seed=seed,
            label=f"{label}, teachers",
            **setting.unit_options,
        )
        on_cpus = setting.resources.without_gpu
        return work.add(
            train_and_ask, *arguments, teachers=teachers, seed=seed, label=f"{label}, asked", resources=on_cpus
        )

    def _crafted(self, setting: Setting, work: Work, base: tuple[Unit, ...]) -> Unit:
        return work.add(
            craft,
            self.adversary,
            setting.mechanism,
            self.queries,
            self.points,
            base,
            *_data(setting),
            seed=setting.seed.child("craft"),
            label="records to add",
            **setting.unit_options,
        )

    def _modelled(self, setting: Setting, work: Work) -> Played:
        predictor = setting.mechanism
        count = 1 if predictor.deterministic else self.moved_runs
        require_units(self.runs + count + self.queries)
        base = self._base(setting, work)
        crafted = self._crafted(setting, work, base)
        moved = tuple(
            work.add(
                ask_moved,
                predictor,
                self.queries,
                crafted,
                *_data(setting),
                seed=setting.seed.child("moved", run),
                label=f"training {run + 1} of {count} with the records, asked",
                **setting.unit_options,
            )
            for run in range(count)
        )
        answers = work.split(
            draw_answers,
            self.queries,
            QUERIES_PER_UNIT,
            predictor,
            setting.attack,
            self._draws,
            base,
            moved,
            crafted,
            *_data(setting),
            seed=setting.seed.child("answers"),
            label="answers to queries",
            **setting.unit_options,
        )
        return self._played(setting, work, answers, base, self.answers)

    def _in_full(self, setting: Setting, work: Work) -> Played:
        predictor = setting.mechanism
        base = self._base(setting, work) if isinstance(predictor, VotingPredictor) else ()
        crafted = self._crafted(setting, work, base)
        full = work.split(
            run_in_full,
            self.full_runs,
            1 if has_separate_teachers(predictor) else max(1, self.full_runs // 40),
            predictor,
            self.queries,
            crafted,
            *_data(setting),
            replaced=self.relation is Relation.REPLACE,
            seed=setting.seed.child("full"),
            label="full runs",
            **setting.unit_options,
        )
        counted = work.add(
            count_runs,
            predictor,
            setting.attack,
            crafted,
            full,
            *_data(setting),
            repeats=self.repeats,
            label="answers of full runs",
            resources=setting.resources,
        )
        return self._played(setting, work, (counted,), base, self.full_runs - self.full_runs // 2)

    def _played(
        self, setting: Setting, work: Work, evidence: tuple[Unit, ...], trained: tuple[Unit, ...], answers: int
    ) -> Played:
        ceiling = work.add(
            reveal_worlds, self.queries, answers, label="answers told", resources=setting.resources.without_gpu
        )
        return Played(evidence, trainings=trained, ceiling=(ceiling,), replays=self.queries)

    @property
    def _draws(self) -> Draws:
        return Draws(self.answers, self.search, self.simulated, self.resamples, self.sampler, self.repeats)


def _data(setting: Setting) -> tuple[Any, Any]:
    """Return the placeholders of the target part, which is trained on, and the test part with natural queries."""
    return setting.required_part("target"), setting.required_part("test")


Ints = NDArray[np.int64]


def natural_queries(test: Examples, count: int) -> Examples:
    require(count <= len(test), f"queries must be at most the {len(test)} rows of the test part", queries=count)
    return test.take(np.arange(count))


def whole_numbers(votes: object, *, columns: int, most: int, what: str) -> Ints:
    """Return `votes` if they are integers from 0 to `most` with one column for each query; InputError otherwise."""
    array = np.asarray(votes)
    require(
        array.ndim == 2 and array.shape[1] == columns,
        f"{what} must have one column for each of the {columns} queries",
        shape=array.shape,
    )
    is_integer = np.issubdtype(array.dtype, np.integer)
    valid = is_integer and bool(((array >= 0) & (array <= most)).all())
    require(valid, f"{what} must be whole numbers, 0 to {most}", dtype=array.dtype, given=array.ravel()[:3])
    return np.asarray(array, np.int64)


def price_of_asking(predictor: Any, count: int, data: Examples, test: Examples, **_: Any) -> str:
    """Return the expected cost of the queries; "" if they are free."""
    if not isinstance(predictor, PricedPredictor):
        return ""
    return str(predictor.expected(data, natural_queries(test, count).features))


@unit
@priced(price_of_asking)
@measuring(lambda: ("accuracy_of_the_vote", "answers_that_name_no_class"))
def train_and_ask(
    predictor: VotingPredictor,
    count: int,
    data: Examples,
    test: Examples,
    compute: Compute,
    *,
    seed: Seed,
    teachers: tuple[TeacherVotes, ...] = (),
) -> Outcome[Votes]:
    """Return the vote of each voter on each query in a run without added records, from its `teachers` if given."""
    queries = natural_queries(test, count)
    if teachers:
        votes = joined_votes(teachers).votes
    else:
        with limited_threads(compute.threads):
            votes = predictor.votes(data, queries.features, seed=seed.sequence(), compute=compute)
    votes = whole_numbers(votes, columns=count, most=data.classes, what="votes")
    counts = predictor.histograms(votes, classes=data.classes, rng=seed.child("votes").rng())
    metrics = {"accuracy_of_the_vote": float((counts.argmax(axis=1) == queries.labels).mean())}
    if (votes >= data.classes).any():
        metrics["answers_that_name_no_class"] = float((votes >= data.classes).mean())
    return Outcome(Votes(votes), metrics=metrics)


@unit
def ask_teachers(
    predictor: Ensemble,
    count: int,
    data: Examples,
    test: Examples,
    compute: Compute,
    *,
    seed: Seed,
    first: int,
    last: int,
) -> TeacherVotes:
    """Train the teachers `first` to `last` - 1 of a run without added records and return their votes."""
    queries = natural_queries(test, count).features
    with limited_threads(compute.threads):
        return predictor.train_teachers(data, queries, range(first, last), seed=seed.sequence(), compute=compute)


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
    """Let the adversary choose `points` records and its queries, by the votes in runs without added records."""
    expected = np.zeros((count, data.classes))
    if runs:
        votes = np.stack([run.votes for run in runs])
        none = np.zeros((len(runs), 0), np.int64)
        for query in range(count):
            law = predictor.law(votes[:, :, query], none, none[0], added=False, classes=data.classes)
            expected[query] = law.mean()
    target = Target(predictor, data, natural_queries(test, count), expected, points, compute)
    crafted = adversary.craft(target, seed.rng())
    total = sum(map(len, crafted.asked))
    require(total == count, f"an adversary must ask {count} queries in all", asked=total)
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
    """Run the training phase with each record and return the votes of its voter on all queries.

    For a priced predictor, the voter votes only on the queries about its pair; its other votes are 0.
    """
    queries = natural_queries(test, count)
    added = AddedRecords(data, crafted.records, np.tile(np.arange(crafted.points), len(crafted.asked)))
    votes = np.zeros((len(crafted.records), count), np.int64)
    with limited_threads(compute.threads):
        if isinstance(predictor, PricedPredictor):
            for pair, indices in enumerate(crafted.asked):
                rows, features = crafted.of_pair(pair), queries.take(indices).features
                pair_records = AddedRecords(data, added.records.take(rows), added.places[rows])
                votes[np.ix_(rows, indices)] = predictor.votes_with_canary(
                    pair_records, features, seed=seed.sequence(), compute=compute
                )
            return Votes(votes)
        votes = predictor.votes_with_canary(added, queries.features, seed=seed.sequence(), compute=compute)
    votes = whole_numbers(votes, columns=count, most=np.iinfo(np.int32).max, what="votes_with_canary")
    require(len(votes) == len(crafted.records), "votes_with_canary must have a row for each record", rows=len(votes))
    return Votes(votes)


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
    """Run the predictor in both worlds; each run answers each query once.

    Returns: One row for each run: the answers to the queries about all pairs, with the records, then without.
    """
    queries = natural_queries(test, count)
    rows = []
    with limited_threads(compute.threads):
        for number in range(first, last):
            run = seed.child(number)
            without, added = [], []
            for pair, indices in enumerate(crafted.asked):
                records = crafted.records.take(crafted.of_pair(pair))
                more = _with(data, records, replaced=replaced)
                features = queries.take(indices).features
                without.append(answers_of(predictor, data, features, run.child("without", pair), compute))
                added.append(answers_of(predictor, more, features, run.child("with", pair), compute))
            rows.append(np.concatenate([*added, *without]))
    return Votes(np.stack(rows))


def _with(data: Examples, records: Examples, *, replaced: bool) -> Examples:
    extended = joined(data, records)
    if not replaced:
        return extended
    return extended.take(np.concatenate([np.arange(len(data), len(extended)), np.arange(len(records), len(data))]))


def answers_of(predictor: Any, data: Examples, features: Features, seed: Seed, compute: Compute) -> Ints:
    """Train the predictor on the data and return its answer to each query."""
    run_seed = seed.child("run").sequence()
    if isinstance(predictor, AnsweringPredictor):
        answers = np.asarray(predictor.answers(data, features, seed=run_seed, compute=compute))
        require(answers.shape == (len(features),), "a run must answer each query once", shape=answers.shape)
        return answers.astype(np.int64)
    votes, noise = predictor.votes(data, features, seed=run_seed, compute=compute), seed.child("noise").rng()
    histograms = predictor.histograms(votes, classes=data.classes, rng=noise)
    releases = releases_of(predictor, features, len(votes), compute)
    by_query = [release.answers(row[None], noise) for release, row in zip(releases, histograms, strict=True)]
    return np.concatenate(by_query).astype(np.int64)


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
    """Yield the counts of answers in the second half of the full runs; the first half chooses the sets of answers."""
    answers = np.concatenate([run.votes for run in runs])
    kinds = max(data.classes, int(answers.max()) + 1)
    half, queries = len(answers) // 2, answers.shape[1] // 2
    cached = bool(getattr(predictor, "cached", False))
    informative = crafted.informative_answers(test.features, cached=cached, repeats=repeats)
    for number in range(queries):
        search, fresh = (
            [np.bincount(part[:, column], minlength=kinds) for column in (number, queries + number)]
            for part in (answers[:half], answers[half:])
        )
        yield AnsweredQuery(
            query=number,
            world_1=fresh[0],
            world_0=fresh[1],
            chosen=chosen_set(attack, *search),
            asked=int(informative[number]),
            together=not crafted.repeated,
        )


@unit
def reveal_worlds(queries: int, answers: int) -> Iterator[AnsweredQuery]:
    """Yield the evidence against a predictor without privacy, whose answers reveal the world."""
    counts, chosen = np.array([0, answers]), np.array([False, True])
    return (AnsweredQuery(query, counts, counts[::-1].copy(), chosen) for query in range(queries))
