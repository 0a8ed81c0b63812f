"""Small data sets made so that one record decides an answer: which of the two was a predictor run on?

Many pairs of data sets are tried on a few runs each, by halving: the one whose answers exceed the claim by most is
played. Fresh runs, each on one of its two data sets by its own fair coin, judge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from dpaudit.actors.audited.signals import from_outside
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Outcome, Work, unit
from dpaudit.claims import Claim, PrivacyCurve, Relation, claim_under
from dpaudit.engine.games.predictions.answer_set import AnswerView
from dpaudit.engine.games.predictions.decisive_data import DecisivePair, pairs
from dpaudit.engine.games.predictions.game import ANSWERING, VOTING, answers_of
from dpaudit.engine.games.protocol import NOISELESS_TRIALS, CheckTest, Fits, Played, Setting
from dpaudit.engine.games.trials import MAX_TRIALS, TrialGame, grouped_for_reading
from dpaudit.errors import InputError, RunError, require, shortened
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.language_models.transport import HttpService
from dpaudit.registry import register

Ints = NDArray[np.int64]

FIRST_RUNS = 4
"""On either data set of a pair, before half of the pairs are left out."""
PLAYED = 2
"""Pairs that are played: a few runs may mistake one."""
LEVELS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Of epsilon, at which answers are held against the claim while pairs are tried."""


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
        unless=HttpService,
        trainings=3_500 if several else 12_000,
        scales={"trials": 0.42, "search": 0.58},
        least=1_000 if several else 120,
        variant="two answers" if several else "one answer",
        game={"relation": relation.value, "answers": answers},
        estimator={"name": "fair-coins", "guess": "signed"},  # one answer may tell more than all others
        again={"trials": 4},
    )


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

    fits: ClassVar[Fits] = Fits(
        relation=Relation.ADD_REMOVE,
        assumes="Nothing beyond fair coins and independent runs: both data sets and the attack were fixed before the "
        "fresh runs. The claim is taken to hold for every data set, as it says.",
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
        # Two answers tell no more than one about two records: the products of worlds P, Q pass through P x Q.
        object.__setattr__(self, "fits", replace(type(self).fits, relation=relation, records=self.answers))

    def play(self, setting: Setting, work: Work) -> Played:
        claim = replace(_claimed(setting.mechanism), relation=self.relation)
        curve = claim_under(claim, self.relation, records=self.answers).claim.curve
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
            setting.required("target"),
            setting.required("test"),
            replaced=self.relation is Relation.REPLACE,
            seed=setting.seed.child("search"),
            label=f"data sets and a query{how}",
            **setting.running,
        )
        fresh = work.split(
            run_pair,
            self.trials,
            self.stack,
            setting.mechanism,
            choice,
            seed=setting.seed.child("fresh"),
            label=f"fresh runs{how}",
            **setting.running,
        )
        scores = tuple(
            work.add(
                score_answers,
                setting.attack,
                choice,
                trials,
                label=f"scores of {trials[0].label}",
                resources=setting.resources.on_cpus,
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
        if from_outside(err):
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
    with threadpool_limits(compute.threads):
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
    return Outcome(choices, notes=(f"of {len(offered)} pairs of data sets the one with {words} was taken",))


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
    if not p.size:
        return -np.inf
    found = []
    for level in LEVELS:
        deviation = np.sqrt((p * (1 - p) + np.exp(2 * level) * q * (1 - q)) / n)
        found.append((p - np.exp(level) * q - curve.delta(level)) / deviation)
    return float(np.max(found))


@unit
def run_pair(
    mechanism: Any, choices: tuple[PlayedPair, ...], compute: Compute, *, first: int, last: int, seed: Seed
) -> Outcome[Answered]:
    """Fresh runs on each pair in turn, by its own coin; one that raises counts as the worst guess."""
    own = seed.child(first)
    truth = own.rng().random(last - first) < 0.5
    said, failures = [], []
    with threadpool_limits(compute.threads):
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
