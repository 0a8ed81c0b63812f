"""Game on small crafted data sets in which one record decides an answer.

The search tries many pairs of data sets on a few runs each, by successive halving. Both data sets of a pair are run
with the same seeds, so that mostly the record, not the noise, changes an answer. The pairs whose answers exceed the
claim most are used. Each fresh run has a seed of its own and is on one of the two data sets, by a fair coin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
from dpaudit.engine.games.predictions.crafted_pairs import DecisivePair, pairs
from dpaudit.engine.games.predictions.game import ANSWERING, VOTING, answers_of
from dpaudit.engine.games.protocol import NOISELESS_TRIALS, CheckTest, GameTraits, Played, Setting
from dpaudit.engine.games.trials import MAX_TRIALS, TrialGame, grouped_for_reading
from dpaudit.errors import InputError, RunError, require, shortened
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.transport import HttpService
from dpaudit.mechanisms.threads import limited_threads
from dpaudit.registry import register

Ints = NDArray[np.int64]

FIRST_RUNS = 4
"""Number of runs on each data set of a pair in the first round."""
USED_PAIRS = 2
"""Number of pairs for the fresh runs; after a few search runs, the best pair is uncertain."""


@register("attack", "answer-odds", source="Neyman and Pearson")
@dataclass(frozen=True)
class AnswerOdds:
    """Attack by the log-odds of each answer, with the record to without, in the search runs."""

    view: ClassVar[type[AnswerView]] = AnswerView

    def score(self, view: AnswerView) -> NDArray[np.float64]:
        """Return the log-odds of world 1 for each answer, in nats, shape (answers,)."""
        log_1, log_0 = (np.log(counts + 0.5) - np.log(counts.sum() + 1) for counts in (view.world_1, view.world_0))
        return np.asarray(log_1 - log_0)


DECIDED = (
    "answers that one record decides: noise left out, much too small or in the wrong place, thresholds that are exact "
    "or learned from the records, votes that count twice, records that change several teachers"
)


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
    """Choose pairs by successive halving, with about equally many runs in each round, and twice as many in the first.

    Raises: RunError, or the exception of the predictor, if it runs on none of the data sets.
    """
    offered = pairs(mechanism, target, test, answers, replaced)[: search // (4 * FIRST_RUNS)]
    remaining = [_Candidate(pair, symbols(target.classes, answers)) for pair in offered]
    share = search // (2 * (len(remaining).bit_length() + 2))
    with limited_threads(compute.threads):
        while True:
            for candidate in remaining:
                in_round = 2 * share if len(remaining) == len(offered) else share
                candidate.run(mechanism, max(FIRST_RUNS, in_round // len(remaining)), seed, compute)
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
    """A pair with the answers of its runs so far; both data sets have the same seeds."""

    def __init__(self, pair: DecisivePair, answers: int) -> None:
        self.pair = pair
        self.error: BaseException | None = None
        self._answers = answers
        self._symbols: list[tuple[int, ...]] = []  # of each seed, without the record and with it

    @property
    def counts(self) -> Ints:
        """Count of each answer without the record, and with it; shape (2, answers)."""
        return np.stack([np.bincount(symbols, minlength=self._answers) for symbols in self._worlds])

    @property
    def _worlds(self) -> Ints:
        return np.array(self._symbols, np.int64).reshape(-1, 2).T

    def run(self, mechanism: Any, runs: int, seed: Seed, compute: Compute) -> None:
        """Add runs on each data set; stop at an exception that is no answer."""
        for number in range(len(self._symbols), len(self._symbols) + runs):
            of_seed = []
            for added in (False, True):
                symbol = symbol_of(mechanism, self.pair, added, seed.child(self.pair.name, number), compute)
                if isinstance(symbol, BaseException):
                    self.error = symbol
                    return
                of_seed.append(symbol)
            self._symbols.append(tuple(of_seed))

    def excess(self, curve: PrivacyCurve) -> float:
        """Return the largest excess over the claim, in standard deviations, over thresholds of the answers' odds."""
        without, added = self._worlds
        return max(_excess(curve, without, added), _excess(curve, added, without))


def _excess(curve: PrivacyCurve, world_0: Ints, world_1: Ints) -> float:
    """Return the largest excess over sets of the answers most typical of world 1; runs of one seed share a place."""
    _, places = np.unique(np.concatenate([world_0, world_1]), return_inverse=True)
    place_0, place_1 = places.reshape(2, -1)
    counts_0, counts_1 = (np.bincount(place, minlength=places.max() + 1) for place in (place_0, place_1))
    rank = np.argsort(np.argsort(-(counts_1 + 0.5) / (counts_0 + 0.5), kind="stable"))
    n = len(world_0) + 1.0
    p, q, both = (
        np.asarray((np.cumsum(np.bincount(ranks, minlength=len(rank)))[:-1] + 0.5) / n, np.float64)
        for ranks in (rank[place_1], rank[place_0], np.maximum(rank[place_0], rank[place_1]))
    )
    return excess(curve, p, q, n, covariance=np.asarray(both - p * q))


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
