"""Two neighbouring data sets, thousands of trainings on either, and an output set that is learned from them.

The poisoning chooses D and D' before anything is trained. Search trainings, whose world is known, teach the attack
which outputs speak for D'; fresh ones, each on D or D' by its own fair coin, are what it is judged by. From there on it
is a game of independent trials like every other.

Source: Lu et al. (2022), "A General Framework for Auditing Differentially Private Machine Learning", Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from dpaudit.actors.unit import Unit
from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.games.neighbours.numbers import Scale
from dpaudit.engine.games.neighbours.output_set import SummaryView
from dpaudit.engine.games.neighbours.poisoning_search import offer_worlds, take_best, try_summaries
from dpaudit.engine.games.neighbours.poisonings.automatic import Automatic
from dpaudit.engine.games.neighbours.poisonings.protocol import Poisoning, PoisoningSearch, fitted
from dpaudit.engine.games.neighbours.summaries import SAMPLED, SUMMARISED
from dpaudit.engine.games.neighbours.work import (
    ManyCandidates,
    choose_worlds,
    judge_candidate,
    sample_summaries,
    score_summaries,
)
from dpaudit.engine.games.protocol import LEARNERS, Capability, CheckTest, Fits, Played, Reading, Setting, require_units
from dpaudit.engine.games.trials import MOST_TRIALS, TrialGame, grouped_for_reading
from dpaudit.errors import SpecError, require
from dpaudit.registry import register

COPIES = (1, 2, 4, 8)
FEWEST_TRIED = 16
"""Trainings on each candidate of a search: half to learn from, half to judge by."""
JUDGED_APART = 10_000
"""Search trainings from which on the candidates of an attack are judged by units of their own: 0.3 s and more."""
TRAININGS_OF_TEST = 6_000
"""Trainings of a check, search and fresh together: those of other people's libraries take some milliseconds each."""


def _check_test(face: Capability, claimed: Relation, differ: Relation, variant: str) -> CheckTest:
    return CheckTest(
        face,
        (claimed,),
        "what the released numbers as a whole tell of a few chosen records: noise too small, exact counts",
        trainings=TRAININGS_OF_TEST,
        scales={"trials": 0.5, "search": 0.5},
        variant=variant,
        game={"poisoning": {"name": "automatic", "relation": str(differ)}, "stack": 500},
    )


CHECK_TESTS = tuple(
    _check_test(face, claimed, differ, variant)
    for face in (SAMPLED, SUMMARISED)
    for claimed, differ, variant in (
        (Relation.LABEL, Relation.LABEL, ""),
        (Relation.REPLACE, Relation.REPLACE, ""),
        (Relation.ADD_REMOVE, Relation.ADD_REMOVE, "records that come"),
        (Relation.ADD_REMOVE, Relation.REPLACE, "records replaced"),
    )
)


@register("game", "neighbours", source="Lu et al. (2022), Algorithm 1; fair coins for the fresh samples are ours")
@dataclass(frozen=True)
class Neighbours(TrialGame):
    """Two neighbouring data sets, chosen beforehand: on which of them was a learner trained, whose summary is shown?

    Plays every learner: one drawn in bulk, one that is summed up as a vector, and any other by what its models answer.
    A training that raises, or gives no numbers, or a vector of another length than most, counts as the worst guess.

    Attributes:
        trials: Fresh trainings, each on D or D' by its own coin, in 2 .. 10,000,000; the paper's N of each are 2 N.
        stack: Trainings of one unit, >= 1: seconds of work.
        search: Trainings the attack learns from, in 4 .. 10,000,000; a poisoning that is searched for takes its share.
        poisoning: How D and D' are chosen.
        copies: In how many records they differ: 1, 2, 4 or 8; the claim follows by group privacy.
        scale: The range of the numbers: each column from 0 to 1 ("box"), rows of length at most 1 ("ball"), or "none".
        training_limit_s: Seconds, > 0, after which a training that is run by itself is ended and has failed; None: only
            the unit's limit holds, which ends the whole batch.
    """

    fits: ClassVar[Fits] = Fits(
        relation=Relation.LABEL,
        assumes="Nothing beyond fair coins and independent trainings: both data sets and the attack were fixed before "
        "the fresh samples were drawn. The range of the data is taken for public.",
        views={SAMPLED: SummaryView, SUMMARISED: SummaryView, LEARNERS: SummaryView},
        attack="output-set",
        estimator="fair-coins",
        independent_trials=True,
        helps="more `trials`",
        check_tests=CHECK_TESTS,
    )

    trials: int = 20_000
    stack: int = 2_500
    search: int = 20_000
    poisoning: Poisoning | PoisoningSearch = field(default=Automatic(), metadata={"kind": "poisoning"})
    copies: int = 1
    scale: Scale = "box"
    training_limit_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(4 <= self.search <= MOST_TRIALS, f"search must be in 4 .. {MOST_TRIALS:,}", search=self.search)
        require(self.copies in COPIES, "copies must be 1, 2, 4 or 8", copies=self.copies)
        limit = self.training_limit_s
        require(limit is None or limit > 0, "training_limit_s must be > 0", training_limit_s=limit)
        # The poisoning decides how the data sets differ, and so what a claim says of them.
        own = replace(type(self).fits, relation=self.poisoning.relation, records=self.copies)
        if self.copies > 1:
            own = replace(
                own, helps=f"{own.helps}, or fewer `copies`: what is claimed of one grows with them, delta above all"
            )
        object.__setattr__(self, "fits", own)

    def play(self, setting: Setting, work: Work) -> Played:
        """The two data sets, search samples, fresh samples, scores."""
        worlds, left = self._worlds(setting, work)
        search = self._samples(setting, work, sample_summaries, worlds, "search", left)
        judged = self._judged(setting, work, search, left)
        fresh = self._samples(setting, work, sample_summaries, worlds, "fresh", self.trials)
        alone = setting.reading is Reading.IN_ORDER
        scores = tuple(
            work.add(
                score_summaries,
                setting.attack,
                search,
                trials,
                judged,
                label=f"scores of {trials[0].label if alone else f'{self.trials} fresh samples'}",
                resources=setting.resources.on_cpus,
            )
            for trials in grouped_for_reading(fresh, setting)
        )
        searched = isinstance(self.poisoning, PoisoningSearch)
        return Played(scores, trainings=fresh, choices=(worlds,) if searched else (), reference=self.reference())

    def _worlds(self, setting: Setting, work: Work) -> tuple[Unit, int]:
        """The two data sets, and how many search trainings finding them leaves."""
        if isinstance(self.poisoning, PoisoningSearch):
            return self._best_worlds(setting, work, self.poisoning)
        poisoning = fitted(self.poisoning, setting.mechanism)
        return self._choice(setting, work, choose_worlds, poisoning, "neighbouring data sets"), self.search

    def _best_worlds(self, setting: Setting, work: Work, search: PoisoningSearch) -> tuple[Unit, int]:
        candidates = search.candidates(setting.mechanism)
        each = int(self.search * search.share) // len(candidates)
        if each < FEWEST_TRIED:
            least = -(-FEWEST_TRIED * len(candidates) // search.share)
            raise SpecError(
                f"search must be at least {least:.0f} to try {len(candidates)} poisonings, got {self.search}; give "
                "more, name fewer (`among`), or one `poisoning`"
            )
        offers, tried = [], []
        for name, poisoning in candidates.items():
            offer = self._choice(setting, work, offer_worlds, poisoning, f"neighbouring data sets by {name}")
            offers.append(offer)
            tried.append(self._samples(setting, work, try_summaries, offer, f"{name} tried", each))
        best = work.add(
            take_best,
            setting.attack,
            tuple(candidates),
            tuple(offers),
            tuple(tried),
            label=f"best of {len(offers)} poisonings",
            resources=setting.resources.on_cpus,
        )
        return best, self.search - each * len(candidates)

    def _choice(
        self, setting: Setting, work: Work, function: Callable[..., Any], poisoning: Poisoning, label: str
    ) -> Unit:
        return work.add(
            function,
            poisoning,
            self.copies,
            self.scale,
            setting.required("target"),
            seed=setting.seed.child("worlds"),
            label=label,
            resources=setting.resources,
            after=setting.after,
        )

    def _samples(
        self, setting: Setting, work: Work, function: Callable[..., Any], worlds: Unit, part: str, trials: int
    ) -> tuple[Unit, ...]:
        require_units(-(-trials // self.stack))
        return work.split(
            function,
            trials,
            self.stack,
            setting.mechanism,
            worlds,
            self.training_limit_s,
            seed=setting.seed.child(part),
            label=f"{part} samples",
            resources=setting.resources,
            after=setting.after,
        )

    def _judged(self, setting: Setting, work: Work, search: tuple[Unit, ...], samples: int) -> tuple[Unit, ...]:
        """The units that judge the candidates of an attack, each its own; none where one unit is as quick."""
        if not isinstance(setting.attack, ManyCandidates) or samples < JUDGED_APART:
            return ()
        candidates = setting.attack.candidates()
        return tuple(
            work.add(
                judge_candidate,
                candidate,
                search,
                label=f"worth of candidate {number + 1}/{len(candidates)}",
                resources=setting.resources.on_cpus,
            )
            for number, candidate in enumerate(candidates)
            if len(candidates) > 1
        )
