"""Game on small crafted data sets in which one record decides an answer.

The search tries many pairs of data sets on a few runs each. Both data sets of a pair are run with the same seeds, so
that mostly the record, not the noise, changes an answer. The pairs whose answers exceed the claim most are used. Each
fresh run has a seed of its own and is on one of the two data sets, by a fair coin. An answer is the ending of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpaudit.actors.seed import Seed
from dpaudit.claims import Claim, ConvertedClaim, PrivacyCurve, Relation, claim_under
from dpaudit.claims.composition import two_answers
from dpaudit.engine.attacks.output_set import SummaryView
from dpaudit.engine.games.outcomes import Outcomes, Runs
from dpaudit.engine.games.predictions.crafted_pairs import DecisivePair, crafted_pairs
from dpaudit.engine.games.predictions.game import ANSWERING, VOTING, answers_of
from dpaudit.engine.games.protocol import CheckTest
from dpaudit.engine.games.search import ending_excess
from dpaudit.engine.games.two_worlds import PairTraits, TwoWorlds
from dpaudit.errors import require
from dpaudit.mechanisms.predictors.transport import HttpService
from dpaudit.registry import register

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
class AnswerTraits(PairTraits):
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
class CraftedQueries(TwoWorlds):
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
        views={ANSWERING: SummaryView, VOTING: SummaryView},
        check_tests=tuple(
            _check_test(relation, answers) for answers in (1, 2) for relation in (Relation.ADD_REMOVE, Relation.REPLACE)
        ),
    )

    parts: ClassVar[tuple[str, ...]] = ("target", "test")
    search_share: ClassVar[float] = 1.0
    used_pairs: ClassVar[int] = 2

    trials: int = 5_000
    stack: int = 1_250
    search: int = 7_000
    answers: int = 1
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.answers in (1, 2), "answers must be 1 or 2", answers=self.answers)
        self.state(answers=self.answers)

    def runs_per_unit(self, mechanism: Any) -> int:
        return self.stack

    def pairs(self, mechanism: Any, rows: tuple[Any, ...], rng: np.random.Generator) -> Iterator[DecisivePair]:
        target, test = rows
        return crafted_pairs(mechanism, target, test, self.answers, replaced=self.relation is Relation.REPLACE)

    def run(self, mechanism: Any, pair: DecisivePair, runs: Runs) -> Outcomes:
        """Return the tested answers of each run as its ending."""

        def answer(world: bool, seed: Seed) -> str:
            data = pair.added if world else pair.without
            answers = answers_of(mechanism, data, pair.asked.features, seed, runs.compute)
            return f"answers {answers[pair.looked_at].tolist()}"

        return runs.each(answer)

    def worth(self, curve: PrivacyCurve, attack: Any, pair: DecisivePair, outcomes: Outcomes) -> float:
        """Return the largest excess over the claim, in standard deviations, over thresholds of the answers' odds."""
        failed = outcomes.fault != ""
        return -math.inf if failed.all() or (failed.any() and not pair.failing) else ending_excess(curve, outcomes)
