"""Game on small crafted data sets in which one record decides an answer.

The search tries many pairs of data sets on a few runs each, by successive halving. The pair whose answers exceed the
claim most is used. Each fresh run is on one of its two data sets, by a fair coin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Claim, ConvertedClaim, PrivacyCurve, Relation, claim_under
from dpaudit.claims.composition import two_answers
from dpaudit.engine.games.neighbours.world_scores import excess
from dpaudit.engine.games.predictions.answer_set import AnswerView
from dpaudit.engine.games.predictions.game import ANSWERING, VOTING, answers_of
from dpaudit.engine.games.protocol import NOISELESS_TRIALS, CheckTest, GameTraits, Played, Setting
from dpaudit.engine.games.trials import MAX_TRIALS, TrialGame, grouped_for_reading
from dpaudit.errors import InputError, RunError, require, shortened
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.language_models.transport import HttpService
from dpaudit.mechanisms.predictors.ensemble import joined
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.registry import register

Ints = NDArray[np.int64]

FIRST_RUNS = 4
"""Number of runs on each data set of a pair in the first round."""
USED_PAIRS = 2
"""Number of pairs for the fresh runs; after a few search runs, the best pair is uncertain."""
MAX_LEAD = 12
"""Largest lead of one of the two classes at the query, in votes."""
UNCHANGED_QUERIES = 4
"""Number of queries on unchanged records."""
SIZES = (8, 10, 16, 20, 25, 30, 40, 50, 64, 100)
"""Numbers of records at which each teacher may have one."""
MAX_STATED_SIZES = 4
"""Largest number of the predictor's parameters that are used as sizes."""
NEAR = 65
"""Number of records around a query."""
SAME_CLASS_SIZES = (1, 2, 4, NEAR)
"""Numbers of records of one class, to which a record of another class is added."""
OUTLIER_STEP = 0.002
"""Distance of records from the query next to an outlier, as a share of a feature's range."""
REPEATED_QUERIES = 32
"""Number of times that a repeated query is asked."""


@register("attack", "answer-odds", source="Neyman and Pearson")
@dataclass(frozen=True)
class AnswerOdds:
    """Attack by the log-odds of each answer, with the record to without, in the search runs."""

    view: ClassVar[type[AnswerView]] = AnswerView

    def score(self, view: AnswerView) -> NDArray[np.float64]:
        """Return the log-odds of world 1 for each answer, in nats, shape (answers,)."""
        log_1, log_0 = (np.log(counts + 0.5) - np.log(counts.sum() + 1) for counts in (view.world_1, view.world_0))
        return np.asarray(log_1 - log_0)


DECIDED = "answers that one record decides: noise left out or much too small, exact thresholds, votes that count twice"


def _check_test(relation: Relation, answers: int) -> CheckTest:
    several = answers > 1
    return CheckTest(
        ANSWERING,
        (relation,),
        "noise that answers share" if several else DECIDED,
        excluded=HttpService,
        trainings=3_500 if several else 12_000,
        scales={"trials": 0.42, "search": 0.58},
        min_trainings=1_000 if several else 120,
        variant="two answers" if several else "one answer",
        game={"relation": relation.value, "answers": answers},
        estimator={"name": "fair-coins", "guess": "signed"},  # one answer may tell more than all others
        growth_on_repeat={"trials": 4},
        search_field="search",
    )


@dataclass(frozen=True)
class AnswerTraits(GameTraits):
    """Facts about the game, for a number of answers."""

    answers: int = 1

    def compared(self, claim: Claim, *, audit: str = "") -> ConvertedClaim:
        """Return the claim about all answers together that follows from the claim about one."""
        if self.answers == 1 or (claim.is_point and math.isinf(claim.epsilon)):
            return super().compared(claim, audit=audit)
        delta = min(2 * claim.delta, 1 - 1e-12) if claim.is_point else claim.delta
        both = Claim.of(two_answers(claim.curve), relation=claim.relation, delta=delta)
        converted = claim_under(both, self.relation, audit=audit)
        note = (
            f"two answers are tested together. The claim is about one (epsilon {claim.epsilon:g}, delta "
            f"{claim.delta:g}), by composition epsilon {both.epsilon:g}, delta {both.delta:.3g} for both"
        )
        words = "; ".join(filter(None, (note, converted.note)))
        return ConvertedClaim(converted.claim, words, 2 * converted.steps)


@register("game", "crafted-queries", source="Ours")
@dataclass(frozen=True)
class CraftedQueries(TrialGame):
    """Game of two worlds: a few records crafted for a query, with or without a record that decides its answer.

    Votes at the query are balanced, or nearly so; or a record is isolated, each teacher has one record, or the query
    was asked many times before. On data of a usual size, an exception of the predictor is an answer.

    Attributes:
        trials: Number of fresh runs, each on one of the two data sets by a fair coin, in 2 .. 10,000,000.
        stack: Number of runs in one unit, >= 1.
        search: Number of search runs, which choose the data sets and train the attack, in 16 .. 10,000,000. It limits
            the number of pairs that are tried.
        answers: Number of answers that are tested together, 1 or 2; the claim about two follows by composition.
        relation: Relation of the two data sets, "add-remove" or "replace".
    """

    traits: ClassVar[AnswerTraits] = AnswerTraits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent runs: both data sets and the attack were fixed before the "
        "fresh runs. The claim is taken to hold for every data set, as it says, and for each of two answers given the "
        "other one.",
        views={ANSWERING: AnswerView, VOTING: AnswerView},
        attack="answer-odds",
        estimator="fair-coins",
        independent_trials=True,
        repeats_calls=True,
        helps="more `trials`",
        check_tests=tuple(
            _check_test(relation, answers) for answers in (1, 2) for relation in (Relation.ADD_REMOVE, Relation.REPLACE)
        ),
    )

    trials: int = 5_000
    stack: int = 1_250
    search: int = 7_000
    answers: int = 1
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 4 * FIRST_RUNS
        require(least <= self.search <= MAX_TRIALS, f"search must be in {least} .. {MAX_TRIALS:,}", search=self.search)
        require(self.answers in (1, 2), "answers must be 1 or 2", answers=self.answers)
        relation = Relation(self.relation)
        require(relation is not Relation.LABEL, "relation must be add-remove or replace", relation=relation.value)
        object.__setattr__(self, "relation", relation)
        object.__setattr__(self, "traits", replace(type(self).traits, relation=relation, answers=self.answers))

    def play(self, setting: Setting, work: Work) -> Played:
        claim = replace(_search_claim(setting.mechanism), relation=self.relation)
        curve = self.traits.compared(claim).claim.curve
        choice, fresh, scores = self._units(setting, work, curve)
        ceiling: tuple[Unit, ...] = ()
        if setting.noiseless is not None:  # needs its own choice: with noise, near ties may do as well as ties
            few = replace(self, trials=min(self.trials, NOISELESS_TRIALS), search=min(self.search, NOISELESS_TRIALS))
            ceiling = few._units(setting.noiseless, work, curve, ", without noise")[2]
        return Played(
            scores,
            trainings=fresh,
            ceiling=ceiling,
            noiseless=bool(ceiling),
            choices=(choice,),
            reference=self.reference(),
        )

    def _units(
        self, setting: Setting, work: Work, curve: PrivacyCurve, suffix: str = ""
    ) -> tuple[Unit, tuple[Unit, ...], tuple[Unit, ...]]:
        """Return the unit that chooses the data sets, the fresh runs, and the units with their scores."""
        choice = work.add(
            choose_pair,
            setting.mechanism,
            curve,
            self.search,
            self.answers,
            setting.required_part("target"),
            setting.required_part("test"),
            replaced=self.relation is Relation.REPLACE,
            seed=setting.search_seed.child("search"),
            label=f"data sets and a query{suffix}",
            **setting.unit_options,
        )
        fresh = work.split(
            run_pair,
            self.trials,
            self.stack,
            setting.mechanism,
            choice,
            seed=setting.seed.child("fresh"),
            label=f"fresh runs{suffix}",
            **setting.unit_options,
        )
        scores = tuple(
            work.add(
                score_answers,
                setting.attack,
                choice,
                trials,
                label=f"scores of {trials[0].label}",
                resources=setting.resources.without_gpu,
            )
            for trials in grouped_for_reading(fresh, setting)
        )
        return choice, fresh, scores


def _search_claim(mechanism: Any) -> Claim:
    """Return the claim of the mechanism for choosing pairs; epsilon 1 if it makes none."""
    try:
        claim = mechanism.claim()
    except InputError:
        return Claim(1.0)
    return Claim(1.0) if claim.is_point and math.isinf(claim.epsilon) else claim


@dataclass(frozen=True, eq=False)
class PlayedPair:
    """A chosen pair, with counts of the answers of its search runs."""

    pair: DecisivePair
    world_1: Ints  # count of each answer with the record, shape (symbols,)
    world_0: Ints  # count of each answer without it, shape (symbols,)


@dataclass(frozen=True, eq=False)
class Answered:
    """Answers of fresh runs."""

    number: Ints = field(metadata={"stored": "int32"})  # number of each run, shape (n,)
    truth: NDArray[np.bool_]  # coin of each run, shape (n,)
    symbol: Ints = field(metadata={"stored": "int32"})  # tested answers of each run as one number, shape (n,)


def symbols(classes: int, answers: int) -> int:
    """Return the number of combinations of answers; each is a class, no class, or a failure of the run."""
    return int((classes + 2) ** answers)


def symbol_of(mechanism: Any, pair: DecisivePair, added: bool, seed: Seed, compute: Compute) -> int | BaseException:
    """Return the tested answers of one run as one number, or its exception if that is no answer."""
    data = pair.added if added else pair.without
    try:
        answers = answers_of(mechanism, data, pair.asked.features, seed, compute)[pair.looked_at]
    except BaseException as err:  # audited code may raise anything
        if raised_externally(err):
            raise
        if not pair.failing:
            return err
        answers = np.full(len(pair.looked_at), data.classes + 1)
    return int(np.ravel_multi_index(tuple(answers.tolist()), (data.classes + 2,) * len(answers)))


@unit
def choose_pair(
    mechanism: Any,
    curve: PrivacyCurve,
    search: int,
    answers: int,
    target: Examples,
    test: Examples,
    compute: Compute,
    *,
    replaced: bool,
    seed: Seed,
) -> Outcome[tuple[PlayedPair, ...]]:
    """Choose pairs by successive halving, with about equally many runs in each round.

    Raises: RunError, or the exception of the predictor, if it runs on none of the data sets.
    """
    offered = pairs(mechanism, target, test, answers, replaced)[: search // (4 * FIRST_RUNS)]
    remaining = [_Candidate(pair, symbols(target.classes, answers)) for pair in offered]
    share = search // (2 * (len(remaining).bit_length() + 1))
    with limited_threads(compute.threads):
        while True:
            for candidate in remaining:
                candidate.run(mechanism, max(FIRST_RUNS, share // len(remaining)), seed, compute)
            able = [candidate for candidate in remaining if candidate.error is None]
            # The last symbol stands for a failed run.
            if not any(candidate.counts[:, :-1].any() for candidate in able):
                answers_of(mechanism, offered[0].without, offered[0].asked.features, seed.child("again"), compute)
                raise RunError("the predictor fails on all data sets that were crafted for it")
            ranked = sorted(able, key=lambda candidate: candidate.excess(curve), reverse=True)
            if len(remaining) <= USED_PAIRS:
                break
            remaining = ranked[: max(USED_PAIRS, len(remaining) // 2)]
    names = " and ".join(candidate.pair.name for candidate in ranked)
    choices = tuple(PlayedPair(candidate.pair, candidate.counts[1], candidate.counts[0]) for candidate in ranked)
    return Outcome(choices, notes=(f"data sets chosen: {names}, out of {len(offered)} pairs",))


class _Candidate:
    """A pair with counts of the answers of its runs so far."""

    def __init__(self, pair: DecisivePair, answers: int) -> None:
        self.pair = pair
        self.counts = np.zeros((2, answers), np.int64)  # without the record, and with it
        self.error: BaseException | None = None

    def run(self, mechanism: Any, runs: int, seed: Seed, compute: Compute) -> None:
        """Add runs on each data set; stop at an exception that is no answer."""
        finished = int(self.counts[0].sum())
        for number in range(finished, finished + runs):
            for added in (False, True):
                run_seed = seed.child(self.pair.name, number, int(added))
                symbol = symbol_of(mechanism, self.pair, added, run_seed, compute)
                if isinstance(symbol, BaseException):
                    self.error = symbol
                    return
                self.counts[int(added), symbol] += 1

    def excess(self, curve: PrivacyCurve) -> float:
        """Return the largest excess over the claim, in standard deviations, over thresholds of the answers' odds."""
        return max(_excess(curve, *worlds) for worlds in (self.counts, self.counts[::-1]))


def _excess(curve: PrivacyCurve, world_0: Ints, world_1: Ints) -> float:
    observed = np.flatnonzero(world_1 + world_0)
    order = observed[np.argsort(-(world_1[observed] + 0.5) / (world_0[observed] + 0.5), kind="stable")]
    n = world_1.sum() + 1.0
    p, q = ((np.cumsum(counts[order])[:-1] + 0.5) / n for counts in (world_1, world_0))
    return excess(curve, p, q, n)


@unit
def run_pair(
    mechanism: Any, choices: tuple[PlayedPair, ...], compute: Compute, *, first: int, last: int, seed: Seed
) -> Outcome[Answered]:
    """Run the predictor on the pairs in turn, each time on a data set by a fair coin.

    A failed run has symbol -1.
    """
    unit_seed = seed.child(first)
    truth = unit_seed.rng().random(last - first) < 0.5
    run_symbols, failures = [], []
    with limited_threads(compute.threads):
        for place, added in enumerate(truth.tolist()):
            choice = choices[(first + place) % len(choices)]
            symbol = symbol_of(mechanism, choice.pair, added, unit_seed.child("runs", place), compute)
            if isinstance(symbol, BaseException):
                failures.append(f"run {first + place}: {type(symbol).__name__}: {shortened(symbol)}")
                symbol = -1
            run_symbols.append(symbol)
    answered = Answered(np.arange(first, last), truth, np.array(run_symbols, np.int64))
    return Outcome(answered, failures=tuple(failures))


@unit
def score_answers(attack: Any, choices: tuple[PlayedPair, ...], trials: tuple[Answered, ...]) -> Iterator[Scores]:
    """Yield the scores of all runs; a failed run counts as a wrong guess."""
    number, truth, symbol = (
        np.concatenate([getattr(part, name) for part in trials]) for name in ("number", "truth", "symbol")
    )
    views = (AnswerView(choice.world_1, choice.world_0) for choice in choices)
    odds = np.stack([np.asarray(attack.score(view), np.float64) for view in views])
    scores = np.where(symbol >= 0, odds[number % len(choices), symbol], np.where(truth, -np.inf, np.inf))
    yield scored(0, truth, scores, number)


@dataclass(frozen=True, eq=False)
class DecisivePair:
    """Two neighbouring data sets and the queries of a run."""

    name: str  # description
    without: Examples
    added: Examples  # with one record more, or with one replaced
    asked: Examples  # queries in order
    looked_at: Ints  # indices of the tested answers
    failing: bool = True  # True if an exception is an answer; False if the data may be too small for the predictor


def pairs(mechanism: Any, target: Examples, test: Examples, answers: int, replaced: bool) -> list[DecisivePair]:
    """Return all pairs with this number of tested answers, in the order in which they are tried."""
    maker = _PairMaker(target, test, replaced)
    return list(maker.with_two_answers() if answers == 2 else maker.with_one_answer(stated_sizes(mechanism)))


def stated_sizes(mechanism: Any) -> list[int]:
    """Return integers among the parameters of a predictor, such as numbers of teachers or neighbours."""
    predictor = getattr(mechanism, "predictor", mechanism)
    class_values = vars(predictor) if isinstance(predictor, type) else {}
    values = [*class_values.values(), *getattr(mechanism, "parameters", {}).values(), *vars(mechanism).values()]
    sizes = [value for value in values if type(value) is int and 2 <= value <= 512]
    return list(dict.fromkeys(sizes))[:MAX_STATED_SIZES]


class _PairMaker:
    """Builds pairs of data sets from the target and test rows.

    `label_1` is the label of the added record, `label_0` the other label.
    """

    def __init__(self, target: Examples, test: Examples, replaced: bool) -> None:
        self._target, self._test, self._replaced = target, test, replaced

    def with_one_answer(self, sizes: list[int]) -> Iterator[DecisivePair]:
        """Yield pairs with one tested answer, of each kind in turn."""
        leads = sorted(range(-MAX_LEAD, MAX_LEAD + 1), key=lambda lead: (abs(lead), lead))
        one_each = dict.fromkeys((*sizes, *SIZES))
        unchanged = ((number, shuffled) for number in range(UNCHANGED_QUERIES) for shuffled in (False, True))
        kinds: tuple[Iterable[DecisivePair | None], ...] = (
            (self._around(0, lead, 0, 1) for lead in leads),
            (self._unchanged(number, shuffled=shuffled) for number, shuffled in unchanged),
            (self._isolated(number, number, 1 - number) for number in (0, 1)),
            (self._few(number, size, 1, number % 2, 1 - number % 2) for number, size in enumerate(one_each)),
            (self._first_of_its_class(number, size) for number, size in enumerate(SAME_CLASS_SIZES)),
            (self._outlier(number) for number in (0, 1)),
            (self._around(1, lead, 1, 0) for lead in (-1, 0)),
            (self._around(0, lead, 0, 1, repeats=REPEATED_QUERIES) for lead in (0, -1)),
            (self._few(number, 2 * size - 1, 2, 0, 1) for number, size in enumerate(sizes or SIZES[1:4:2])),
        )
        for of_each_kind in zip_longest(*kinds):
            yield from (pair for pair in of_each_kind if pair is not None)

    def with_two_answers(self) -> Iterator[DecisivePair]:
        """Yield pairs in which the record decides one answer, and the other answer reveals the noise."""
        for number, (label_0, label_1) in enumerate(((0, 1), (1, 0))):
            for lead in (0, -1, -2, 1):
                for other in (0, -1, 1, -2, 2, -3, 3):
                    yield self._two_queries(number, lead, other, label_0, label_1)

    def _query(self, number: int) -> Examples:
        return self._test.take(np.array([number % len(self._test)]))

    def _near(self, query: Examples, count: int) -> Examples:
        """Return records on a line from near the query to farther away; for tables, copies of the query."""
        copies = query.take(np.zeros(count, np.int64))
        away = self._far(query, 1).features
        if not isinstance(away, np.ndarray):
            return copies
        shares = np.linspace(0.01, 0.03, count).reshape(-1, *[1] * (away.ndim - 1))
        return copies.with_(features=(copies.features + shares * (away - copies.features)).astype(np.float32))

    def _far(self, query: Examples, count: int) -> Examples:
        """Return the records farthest from the query; for tables, the first records."""
        features = self._target.features
        if not isinstance(features, np.ndarray):
            return self._target.take(np.resize(np.arange(len(self._target)), count))
        distance = ((features - query.features).reshape(len(features), -1) ** 2).sum(axis=1)
        return self._target.take(np.argsort(-distance, kind="stable")[:count])

    def _around(self, number: int, lead: int, label_0: int, label_1: int, repeats: int = 1) -> DecisivePair:
        """Return a pair with all records near the query and alternating labels; the added record is at the query."""
        query = self._query(number)
        rows = self._near(query, NEAR).with_(labels=_alternating(NEAR, label_0, label_1, lead=lead))
        name = f"labels {label_0} ahead by {lead} around query {number}"
        if repeats > 1:
            name += f", asked {repeats} times"
        return self._pair(name, rows, query, label_0, label_1, repeats=repeats)

    def _isolated(self, number: int, label_0: int, label_1: int) -> DecisivePair:
        """Return a pair with all other records far from the query."""
        query = self._query(number)
        rows = self._far(query, NEAR)
        rows = rows.with_(labels=_alternating(len(rows), label_0, label_1))
        return self._pair(f"a record alone at query {number}", rows, query, label_0, label_1)

    def _few(self, number: int, size: int, runs: int, label_0: int, label_1: int) -> DecisivePair:
        """Return a pair with as many records as teachers, or almost twice as many; half have each label."""
        query = self._query(number)
        rows = self._near(query, size).with_(labels=_alternating(size, label_0, label_1, runs=runs))
        name = f"{size} records around query {number}, {runs} of a label in turn"
        return self._pair(name, rows, query, label_0, label_1, failing=False)

    def _first_of_its_class(self, number: int, size: int) -> DecisivePair:
        """Return a pair in which only the added record is of another class."""
        query, label_0 = self._query(number), number % 2
        rows = self._near(query, size).with_(labels=np.full(size, label_0))
        # The name is part of the seed of search runs.
        name = f"the first of its class beside {size}, query {number}"
        return self._pair(name, rows, query, label_0, 1 - label_0, failing=size == NEAR)

    def _outlier(self, number: int) -> DecisivePair | None:
        """Return a pair whose added record extends the range of a feature, for predictors that scale by the range.

        The records of one class lie along that feature, those of the other class along another one, half as far.
        """
        query, features = self._query(number), self._target.features
        if not isinstance(features, np.ndarray) or np.prod(features.shape[1:]) < 2:
            return None
        flat = features.reshape(len(features), -1)
        low, high = flat.min(axis=0), flat.max(axis=0)
        long, short = np.argsort(low - high, kind="stable")[:2]
        center = query.features.reshape(-1)
        step = OUTLIER_STEP * (high - low)
        points = np.tile(center, (NEAR, 1))
        labels = _alternating(NEAR, 0, 1)
        away = np.random.default_rng(number).uniform(0.9, 1.1, NEAR)
        points[labels == 0, long] += 2 * (away * step[long])[labels == 0]
        points[labels == 1, short] += (away * step[short])[labels == 1]
        for row, side in enumerate((-10, -10, 10, 10)):  # equal relative ranges of both features without the outlier
            points[row, [long, short]] = center[[long, short]] + side * step[[long, short]]
        far = center.copy()
        far[long] = max(low[long], high[long], key=lambda end: abs(end - center[long]))
        rows = query.take(np.zeros(NEAR, np.int64)).with_(
            features=points.reshape(NEAR, *features.shape[1:]).astype(np.float32), labels=labels
        )
        record = query.with_(features=far.reshape(query.features.shape).astype(np.float32))
        return self._pair(f"an outlier, query {number}", rows, query, 1, 0, record=record)

    def _unchanged(self, number: int, shuffled: bool) -> DecisivePair:
        """Return a pair with unchanged records, or with random labels."""
        query = self._query(number)
        rows = self._target.take(np.arange(min(len(self._target), 2 * NEAR)))
        if shuffled:
            rows = rows.with_(labels=np.random.default_rng(number).integers(0, rows.classes, len(rows)))
        label = int(query.labels[0])
        name = "labels at random" if shuffled else "records as they are"
        return self._pair(f"{name}, query {number}", rows, query, label, (label + 1) % rows.classes)

    def _two_queries(self, number: int, lead: int, other: int, label_0: int, label_1: int) -> DecisivePair:
        """Return a pair with records around each of two queries; the added record is at the second query."""
        query = self._query(number)
        away = self._far(query, 1)
        rows = joined(
            self._near(query, NEAR).with_(labels=_alternating(NEAR, label_0, label_1, lead=lead)),
            self._near(away, NEAR).with_(labels=_alternating(NEAR, label_0, label_1, lead=other)),
        )
        name = f"labels {label_0} ahead by {lead} at query {number} and by {other} at another one"
        pair = self._pair(name, rows, query, label_0, label_1)
        return replace(pair, asked=joined(away, query), looked_at=np.array([0, 1]))

    def _pair(
        self,
        name: str,
        rows: Examples,
        query: Examples,
        label_0: int,
        label_1: int,
        *,
        repeats: int = 1,
        failing: bool = True,
        record: Examples | None = None,
    ) -> DecisivePair:
        """Return the pair of `rows` with and without `record`, or with it replaced; by default it is the query."""
        record = (record or query).with_(labels=np.array([label_1]))
        without = rows
        if self._replaced:
            rows = rows.take(np.arange(len(rows) - 1))
            without = joined(rows, query.with_(labels=np.array([label_0])))
        queries = query.take(np.zeros(repeats, np.int64))
        return DecisivePair(name, without, joined(rows, record), queries, np.array([repeats - 1]), failing)


def _alternating(count: int, label_0: int, label_1: int, *, lead: int = 0, runs: int = 1) -> Ints:
    """Return `lead` labels of class `label_0` (if negative, `label_1`), then alternating runs of both labels."""
    labels = np.where(np.arange(count) // runs % 2 == 0, label_0, label_1)
    ahead = np.full(min(abs(lead), count), label_0 if lead > 0 else label_1)
    return np.concatenate([ahead, labels])[:count].astype(np.int64)
