"""Small data sets made so that one record decides an answer: which of the two was a predictor run on?

Many pairs of data sets are tried on a few runs each, by halving: the one whose answers exceed the claim by most is
played. Fresh runs, each on one of its two data sets by its own fair coin, judge.
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
"""On either data set of a pair, before half of the pairs are left out."""
PLAYED = 2
"""Pairs that are played: a few runs may mistake one."""
LEAD = 12
"""By how many votes one of the two classes is ahead at the query, at most."""
NATURAL = 4
"""Queries about records as they are."""
SIZES = (8, 10, 16, 20, 25, 30, 40, 50, 64, 100)
"""Records, where each teacher may have one."""
OWN_SIZES = 4
"""Numbers of a predictor's own that are taken for sizes, at most."""
NEAR = 65
"""Records around a query."""
ALIKE = (1, 2, 4, NEAR)
"""Records of one class, to which the first one of another class is added."""
STEP = 0.002
"""Of the range of a feature: how far records are from a query whose neighbours an outlier decides."""
OFTEN = 32
"""How often a query is asked that is asked often."""


@register("attack", "answer-odds", source="Neyman and Pearson")
@dataclass(frozen=True)
class AnswerOdds:
    """How much likelier each answer is with the record than without, as it was seen before."""

    view: ClassVar[type[AnswerView]] = AnswerView

    def score(self, view: AnswerView) -> NDArray[np.float64]:
        """Log-odds of world 1 of each answer, in nats, shape (answers,)."""
        one, zero = (np.log(counts + 0.5) - np.log(counts.sum() + 1) for counts in (view.world_1, view.world_0))
        return np.asarray(one - zero)


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
class AnswersFit(GameTraits):
    """What the game goes together with, of so many answers."""

    answers: int = 1

    def compared(self, claim: Claim, *, audit: str = "") -> ConvertedClaim:
        """What a claim about one answer says of all that are looked at together."""
        if self.answers == 1 or (claim.is_point and math.isinf(claim.epsilon)):
            return super().compared(claim, audit=audit)
        delta = min(2 * claim.delta, 1 - 1e-12) if claim.is_point else claim.delta
        both = Claim.of(two_answers(claim.curve), relation=claim.relation, delta=delta)
        converted = claim_under(both, self.relation, audit=audit)
        note = (
            f"two answers are looked at together, what is claimed is about one (epsilon {claim.epsilon:g}, delta "
            f"{claim.delta:g}): by composition compared with epsilon {both.epsilon:g}, delta {both.delta:.3g}"
        )
        words = "; ".join(filter(None, (note, converted.note)))
        return ConvertedClaim(converted.claim, words, 2 * converted.steps)


@register("game", "crafted-queries", source="Ours")
@dataclass(frozen=True)
class CraftedQueries(TrialGame):
    """Two worlds: a few records made for a query, with one more (or another one) that decides its answer, or without.

    Votes are balanced at the query, or off by a few; a record stands alone; each teacher has one record; the query was
    asked many times before. A predictor that raises has answered so where the data are of a usual size.

    Attributes:
        trials: Fresh runs, each on one of the two data sets by its own coin, in 2 .. 10,000,000.
        stack: Runs made by one unit, >= 1.
        search: Runs to choose the data sets by, and to learn from, in 16 .. 10,000,000; with few, few pairs are tried.
        answers: How many answers are looked at together, 1 or 2; the claim of so many follows from that of one.
        relation: How the two data sets differ: "add-remove" or "replace".
    """

    traits: ClassVar[AnswersFit] = AnswersFit(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent runs: both data sets and the attack were fixed before the "
        "fresh runs. The claim is taken to hold for every data set, as it says, and for each of two answers whatever "
        "the other one was.",
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
        claim = replace(_claimed(setting.mechanism), relation=self.relation)
        curve = self.traits.compared(claim).claim.curve
        choice, fresh, scores = self._units(setting, work, curve)
        shown: tuple[Unit, ...] = ()
        if setting.noiseless is not None:  # data sets are chosen anew: with the noise near ties may do as well as ties
            few = replace(self, trials=min(self.trials, NOISELESS_TRIALS), search=min(self.search, NOISELESS_TRIALS))
            shown = few._units(setting.noiseless, work, curve, ", without noise")[2]
        return Played(
            scores,
            trainings=fresh,
            ceiling=shown,
            noiseless=bool(shown),
            choices=(choice,),
            reference=self.reference(),
        )

    def _units(
        self, setting: Setting, work: Work, curve: PrivacyCurve, how: str = ""
    ) -> tuple[Unit, tuple[Unit, ...], tuple[Unit, ...]]:
        """The unit that chooses the data sets, those of the fresh runs, and those of their scores."""
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
            label=f"data sets and a query{how}",
            **setting.unit_options,
        )
        fresh = work.split(
            run_pair,
            self.trials,
            self.stack,
            setting.mechanism,
            choice,
            seed=setting.seed.child("fresh"),
            label=f"fresh runs{how}",
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


def _claimed(mechanism: Any) -> Claim:
    """What pairs are tried against; where nothing is claimed, epsilon 1."""
    try:
        claim = mechanism.claim()
    except InputError:
        return Claim(1.0)
    return Claim(1.0) if claim.is_point and math.isinf(claim.epsilon) else claim


@dataclass(frozen=True, eq=False)
class PlayedPair:
    """A pair that is played, and how often each answer was given on it."""

    pair: DecisivePair
    world_1: Ints  # how often each answer was given with the record, shape (symbols,)
    world_0: Ints  # the same without it


@dataclass(frozen=True, eq=False)
class Answered:
    """What fresh runs answered."""

    number: Ints = field(metadata={"stored": "int32"})  # of each run
    truth: NDArray[np.bool_]  # their coins, shape (n,)
    symbol: Ints = field(metadata={"stored": "int32"})  # the answers looked at, as one number, shape (n,)


def symbols(classes: int, answers: int) -> int:
    """How many different answers there are: classes, none, and none for the run failed; of several together."""
    return int((classes + 2) ** answers)


def symbol_of(mechanism: Any, pair: DecisivePair, added: bool, seed: Seed, compute: Compute) -> int | BaseException:
    """The answers that are looked at of one run, as one number; what it raised where that is no answer."""
    data = pair.added if added else pair.without
    try:
        given = answers_of(mechanism, data, pair.asked.features, seed, compute)[pair.looked_at]
    except BaseException as err:  # other people's code may raise anything
        if raised_externally(err):
            raise
        if not pair.failing:
            return err
        given = np.full(len(pair.looked_at), data.classes + 1)
    return int(np.ravel_multi_index(tuple(given.tolist()), (data.classes + 2,) * len(given)))


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
    """Tries all pairs on a few runs, then the better half on as many in all, and so on; all runs are learned from.

    Raises: What the predictor raises where it runs on none of them.
    """
    tried = _Tried(mechanism, curve, seed, compute)
    several = symbols(target.classes, answers)
    offered = pairs(mechanism, target, test, answers, replaced)[: search // (4 * FIRST_RUNS)]
    left = [_Candidate(pair, several) for pair in offered]
    share = search // (2 * (len(left).bit_length() + 1))
    with limited_threads(compute.threads):
        while True:
            for candidate in left:
                tried.more(candidate, max(FIRST_RUNS, share // len(left)))
            able = [candidate for candidate in left if candidate.error is None]
            if not any(candidate.answered for candidate in able):
                answers_of(mechanism, offered[0].without, offered[0].asked.features, seed.child("again"), compute)
                raise RunError("the predictor runs on none of the data sets made for it")
            ranked = sorted(able, key=tried.excess, reverse=True)
            if len(left) <= PLAYED:
                break
            left = ranked[: max(PLAYED, len(left) // 2)]
    words = " and the one with ".join(candidate.pair.name for candidate in ranked)
    choices = tuple(candidate.choice for candidate in ranked)
    return Outcome(choices, notes=(f"data sets chosen: of {len(offered)} pairs the one with {words} was taken",))


class _Candidate:
    """A pair and the answers on it so far."""

    def __init__(self, pair: DecisivePair, answers: int) -> None:
        self.pair = pair
        self.counts = np.zeros((2, answers), np.int64)
        self.error: BaseException | None = None

    @property
    def answered(self) -> bool:
        """Whether any run came to an end: of all symbols the last one says that it raised."""
        return bool(self.counts[:, :-1].any())

    @property
    def choice(self) -> PlayedPair:
        return PlayedPair(self.pair, self.counts[1], self.counts[0])


@dataclass(frozen=True)
class _Tried:
    mechanism: Any
    curve: PrivacyCurve
    seed: Seed
    compute: Compute

    def more(self, candidate: _Candidate, runs: int) -> None:
        """Runs on either data set; the first one that raises ends it, where that is no answer."""
        done = int(candidate.counts[0].sum())
        for number in range(done, done + runs):
            for added in (False, True):
                own = self.seed.child(candidate.pair.name, number, int(added))
                said = symbol_of(self.mechanism, candidate.pair, added, own, self.compute)
                if isinstance(said, BaseException):
                    candidate.error = said
                    return
                candidate.counts[int(added), said] += 1

    def excess(self, candidate: _Candidate) -> float:
        """By how many deviations the likelier of some answers exceed the claim, at the level where they do most."""
        return max(_excess(self.curve, *worlds) for worlds in (candidate.counts, candidate.counts[::-1]))


def _excess(curve: PrivacyCurve, zero: Ints, one: Ints) -> float:
    seen = np.flatnonzero(one + zero)
    order = seen[np.argsort(-(one[seen] + 0.5) / (zero[seen] + 0.5), kind="stable")]
    n = one.sum() + 1.0
    p, q = ((np.cumsum(counts[order])[:-1] + 0.5) / n for counts in (one, zero))
    return excess(curve, p, q, n)


@unit
def run_pair(
    mechanism: Any, choices: tuple[PlayedPair, ...], compute: Compute, *, first: int, last: int, seed: Seed
) -> Outcome[Answered]:
    """Fresh runs on each pair in turn, by its own coin; one that raises counts as the worst guess."""
    own = seed.child(first)
    truth = own.rng().random(last - first) < 0.5
    said, failures = [], []
    with limited_threads(compute.threads):
        for place, added in enumerate(truth.tolist()):
            choice = choices[(first + place) % len(choices)]
            symbol = symbol_of(mechanism, choice.pair, added, own.child("runs", place), compute)
            if isinstance(symbol, BaseException):
                failures.append(f"run {first + place}: {type(symbol).__name__}: {shortened(symbol)}")
                symbol = -1
            said.append(symbol)
    answered = Answered(np.arange(first, last), truth, np.array(said, np.int64))
    return Outcome(answered, failures=tuple(failures))


@unit
def score_answers(attack: Any, choices: tuple[PlayedPair, ...], trials: tuple[Answered, ...]) -> Iterator[Scores]:
    """Scores each run by its answers: one replay."""
    number, truth, symbol = (
        np.concatenate([getattr(part, name) for part in trials]) for name in ("number", "truth", "symbol")
    )
    views = (AnswerView(choice.world_1, choice.world_0) for choice in choices)
    odds = np.stack([np.asarray(attack.score(view), np.float64) for view in views])
    scores = np.where(symbol >= 0, odds[number % len(choices), symbol], np.where(truth, -np.inf, np.inf))
    yield scored(0, truth, scores, number)


@dataclass(frozen=True, eq=False)
class DecisivePair:
    """Two neighbouring data sets and what is asked."""

    name: str  # what they are, in words
    without: Examples
    added: Examples  # with a record more, or another one in its place
    asked: Examples  # the queries of a run, in order
    looked_at: Ints  # places of the answers that are looked at
    failing: bool = True  # whether raising is an answer: not where few records may be too few for anybody


def pairs(mechanism: Any, target: Examples, test: Examples, answers: int, replaced: bool) -> list[DecisivePair]:
    """All pairs that are tried, each with so many answers to look at."""
    makes = _Maker(target, test, replaced)
    return list(makes.of_two() if answers == 2 else makes.of_one(own_sizes(mechanism)))


def own_sizes(mechanism: Any) -> list[int]:
    """Whole numbers among the public facts of a predictor: numbers of teachers, of neighbours, thresholds."""
    own = getattr(mechanism, "predictor", mechanism)
    places = (vars(own) if isinstance(own, type) else {}, getattr(mechanism, "parameters", {}), vars(mechanism))
    found = [value for place in places for value in place.values() if type(value) is int and 2 <= value <= 512]
    return list(dict.fromkeys(found))[:OWN_SIZES]


class _Maker:
    """Makes pairs of the rows that there are."""

    def __init__(self, target: Examples, test: Examples, replaced: bool) -> None:
        self._target, self._test, self._replaced = target, test, replaced

    def of_one(self, sizes: list[int]) -> Iterator[DecisivePair]:
        """Pairs where one answer is looked at, of each kind in turn."""
        leads = sorted(range(-LEAD, LEAD + 1), key=lambda lead: (abs(lead), lead))
        one_each = dict.fromkeys((*sizes, *SIZES))
        kinds: tuple[Iterable[DecisivePair | None], ...] = (
            (self._around(0, lead, 0, 1) for lead in leads),
            (self._natural(number, shuffled=shuffled) for number in range(NATURAL) for shuffled in (False, True)),
            (self._alone(number, number, 1 - number) for number in (0, 1)),
            (self._few(number, size, 1, number % 2, 1 - number % 2) for number, size in enumerate(one_each)),
            (self._first_of_its_class(number, size) for number, size in enumerate(ALIKE)),
            (self._outlier(number) for number in (0, 1)),
            (self._around(1, lead, 1, 0) for lead in (-1, 0)),
            (self._around(0, lead, 0, 1, often=OFTEN) for lead in (0, -1)),
            (self._few(number, 2 * size - 1, 2, 0, 1) for number, size in enumerate(sizes or SIZES[1:4:2])),
        )
        for of_each_kind in zip_longest(*kinds):
            yield from (pair for pair in of_each_kind if pair is not None)

    def of_two(self) -> Iterator[DecisivePair]:
        """Pairs where the record decides one answer, and another one tells what noise it had."""
        for number, (zero, one) in enumerate(((0, 1), (1, 0))):
            for lead in (0, -1, -2, 1):
                for other in (0, -1, 1, -2, 2, -3, 3):
                    yield self._apart(number, lead, other, zero, one)

    def _query(self, number: int) -> Examples:
        return self._test.take(np.array([number % len(self._test)]))

    def _near(self, query: Examples, count: int) -> Examples:
        """Records in a line from near a query to farther off, none at it; of a table, the query itself."""
        here = query.take(np.zeros(count, np.int64))
        away = self._far(query, 1).features
        if not isinstance(away, np.ndarray):
            return here
        shares = np.linspace(0.01, 0.03, count).reshape(-1, *[1] * (away.ndim - 1))
        return here.with_(features=(here.features + shares * (away - here.features)).astype(np.float32))

    def _far(self, query: Examples, count: int) -> Examples:
        """The records that are farthest from a query; of a table, any."""
        features = self._target.features
        if not isinstance(features, np.ndarray):
            return self._target.take(np.resize(np.arange(len(self._target)), count))
        distance = ((features - query.features).reshape(len(features), -1) ** 2).sum(axis=1)
        return self._target.take(np.argsort(-distance, kind="stable")[:count])

    def _around(self, number: int, lead: int, zero: int, one: int, often: int = 1) -> DecisivePair:
        """All records near the query, their labels in turn, those ahead first; the record is the nearest one."""
        query = self._query(number)
        labels = _in_turn(NEAR, zero, one, lead=lead)
        words = f"labels {zero} ahead by {lead} around query {number}"
        if often > 1:
            words += f", asked {often} times"
        return self._pair(words, self._near(query, NEAR).with_(labels=labels), query, zero, one, often=often)

    def _alone(self, number: int, zero: int, one: int) -> DecisivePair:
        """All records far from the query."""
        query = self._query(number)
        rows = self._far(query, NEAR)
        return self._pair(
            f"a record alone at query {number}", rows.with_(labels=_in_turn(len(rows), zero, one)), query, zero, one
        )

    def _few(self, number: int, size: int, runs: int, zero: int, one: int) -> DecisivePair:
        """As few records as there may be teachers, or nearly twice as many; half of either label."""
        query = self._query(number)
        rows = self._near(query, size).with_(labels=_in_turn(size, zero, one, runs=runs))
        words = f"{size} records around query {number}, {runs} of a label in turn"
        return self._pair(words, rows, query, zero, one, failing=False)

    def _first_of_its_class(self, number: int, size: int) -> DecisivePair:
        """All records are of one class, the record more is of another one."""
        query, zero = self._query(number), number % 2
        rows = self._near(query, size).with_(labels=np.full(size, zero))
        words = f"the first of its class beside {size}, query {number}"
        return self._pair(words, rows, query, zero, 1 - zero, failing=size == NEAR)

    def _outlier(self, number: int) -> DecisivePair | None:
        """The record is at the end of a feature's range, all others are near: whoever scales by the data moves these.

        Along that feature lie those of one class, along another feature, half as far, those of the other class.
        """
        query, features = self._query(number), self._target.features
        if not isinstance(features, np.ndarray) or np.prod(features.shape[1:]) < 2:
            return None
        flat = features.reshape(len(features), -1)
        low, high = flat.min(axis=0), flat.max(axis=0)
        long, short = np.argsort(low - high, kind="stable")[:2]
        here = query.features.reshape(-1)
        step = STEP * (high - low)
        made = np.tile(here, (NEAR, 1))
        labels = _in_turn(NEAR, 0, 1)
        away = np.random.default_rng(number).uniform(0.9, 1.1, NEAR)
        made[labels == 0, long] += 2 * (away * step[long])[labels == 0]
        made[labels == 1, short] += (away * step[short])[labels == 1]
        for row, side in enumerate((-10, -10, 10, 10)):  # both features have as wide a range without the outlier
            made[row, [long, short]] = here[[long, short]] + side * step[[long, short]]
        far = here.copy()
        far[long] = max(low[long], high[long], key=lambda end: abs(end - here[long]))
        rows = query.take(np.zeros(NEAR, np.int64)).with_(
            features=made.reshape(NEAR, *features.shape[1:]).astype(np.float32), labels=labels
        )
        record = query.with_(features=far.reshape(query.features.shape).astype(np.float32))
        return self._pair(f"an outlier, query {number}", rows, query, 1, 0, record=record)

    def _natural(self, number: int, shuffled: bool) -> DecisivePair:
        """Records as they are, or with labels at random."""
        query = self._query(number)
        rows = self._target.take(np.arange(min(len(self._target), 2 * NEAR)))
        if shuffled:
            rows = rows.with_(labels=np.random.default_rng(number).integers(0, rows.classes, len(rows)))
        label = int(query.labels[0])
        words = "labels at random" if shuffled else "records as they are"
        return self._pair(f"{words}, query {number}", rows, query, label, (label + 1) % rows.classes)

    def _apart(self, number: int, lead: int, other: int, zero: int, one: int) -> DecisivePair:
        """Two queries with records of their own around each; the record is at the second one."""
        query = self._query(number)
        away = self._far(query, 1)
        rows = joined(
            self._near(query, NEAR).with_(labels=_in_turn(NEAR, zero, one, lead=lead)),
            self._near(away, NEAR).with_(labels=_in_turn(NEAR, zero, one, lead=other)),
        )
        words = f"labels {zero} ahead by {lead} at query {number} and by {other} at another one"
        made = self._pair(words, rows, query, zero, one)
        return DecisivePair(words, made.without, made.added, joined(away, query), np.array([0, 1]))

    def _pair(
        self,
        name: str,
        rows: Examples,
        query: Examples,
        zero: int,
        one: int,
        *,
        often: int = 1,
        failing: bool = True,
        record: Examples | None = None,
    ) -> DecisivePair:
        """With a record more, the query itself if none is given; or that record in the place of another one."""
        record = (record or query).with_(labels=np.array([one]))
        without = rows
        if self._replaced:
            rows = rows.take(np.arange(len(rows) - 1))
            without = joined(rows, query.with_(labels=np.array([zero])))
        asked = query.take(np.zeros(often, np.int64))
        return DecisivePair(name, without, joined(rows, record), asked, np.array([often - 1]), failing)


def _in_turn(count: int, zero: int, one: int, *, lead: int = 0, runs: int = 1) -> Ints:
    """Labels in turn, so many of one and then of the other, after those of the class that is ahead."""
    labels = np.where(np.arange(count) // runs % 2 == 0, zero, one)
    ahead = np.full(min(abs(lead), count), zero if lead > 0 else one)
    return np.concatenate([ahead, labels])[:count].astype(np.int64)
