"""Private predictors: what do answers tell of records, at least, as a Renyi divergence?

The adversary adds records to the data and asks queries. Several runs of the training phase give the law of the votes in
both worlds; answers are drawn from it by the hundred million, for little leaks from a single one. Or nothing is assumed
of the votes, and each answer is that of a full run.

Source: Chadha et al. (2024), "Auditing Private Prediction".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from dpaudit.actors.unit import Unit
from dpaudit.claims import Relation
from dpaudit.engine.adversaries.pois_adv_q import PoisAdvQ
from dpaudit.engine.adversaries.protocol import Adversary
from dpaudit.engine.games.fits import Face, Fits, Look
from dpaudit.engine.games.prediction_units import (
    AskMoved,
    CountRuns,
    Craft,
    DrawAnswers,
    Draws,
    RunInFull,
    Sampler,
    TellAnswers,
    TrainAndAsk,
)
from dpaudit.engine.games.protocol import GamePlan, Setting, require_units
from dpaudit.engine.views.answer_view import AnswerView
from dpaudit.errors import SpecError, require
from dpaudit.estimators.answered_queries import AnsweredQuery
from dpaudit.mechanisms.predictors.protocol import AnsweringPredictor, VotingPredictor
from dpaudit.registry import register

VOTING = Face(VotingPredictor, "private predictors (with methods `votes`, `moved_votes`, `law` and `release`)")
ANSWERING = Face(AnsweringPredictor, "private predictors of one's own (with a method `answers`)")

POINTS = (1, 2, 4, 8)
QUERIES_PER_UNIT = 10


def _looks(relation: Relation) -> tuple[Look, ...]:
    """How the game takes part in a check of a claim about such neighbours."""
    return (
        Look(
            VOTING,
            (relation,),
            "noise too small for a vote that moves, votes that count twice, sampling that is not done",
            trainings=24,
            game={"queries": 20, "runs": 4, "moved_runs": 20, "resamples": 0, "relation": relation.value},
        ),
        Look(
            ANSWERING,
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
    """Two worlds, with some records more and without them: which of them do answers come from?

    The claim is of one answer; it is compared at every order of the divergence, for every query, at once.

    Attributes:
        adversary: Which records, and what is asked.
        queries: Natural queries, >= 1: the first rows of the test part.
        points: Records that are added: 1, 2, 4 or 8; the claim follows by group privacy.
        votes: "modelled": the law of the votes is fitted to several runs, and the finding holds if it does; "run": each
            answer is that of a full run, and nothing is assumed.
        runs: Runs of the training phase without the records, >= 1; of a predictor without randomness one is made.
        moved_runs: Runs of the voters that have them, >= 1.
        full_runs: With `votes: run`, full runs in each world, >= 4, half of which choose the sets of answers.
        answers: Answers drawn in each world, >= 1.
        search: Answers by which the sets of answers are chosen, in each world, >= 1.
        simulated: Of either at most, where they are drawn one by one.
        resamples: How often laws are fitted to resampled runs, to say how sure they are; >= 0.
        sampler: "exact" draws all answers at once; "simulated" and "torch" (a GPU where there is one) one by one.
        repeats: Answers that are counted in a total where one query is asked again and again, >= 1.
        relation: How the worlds differ; "replace" for predictors whose records take the places of others.
    """

    fits: ClassVar[Fits] = Fits(
        relation=Relation.ADD_REMOVE,
        assumes="Answers are independent given the data. With `votes: modelled`, that the votes have the law fitted to "
        "several trainings (teachers independent); with `votes: run` nothing beyond.",
        views={VOTING: AnswerView, ANSWERING: AnswerView},
        attack="answer-set",
        estimator="answers",
        evidence=AnsweredQuery,
        helps="more `answers`, or with `votes: run` more `full_runs`",
        looks=tuple(look for relation in (Relation.ADD_REMOVE, Relation.REPLACE) for look in _looks(relation)),
    )

    adversary: Adversary = field(default=PoisAdvQ(), metadata={"kind": "adversary"})
    queries: int = 20
    points: int = 1
    votes: Literal["modelled", "run"] = "modelled"
    runs: int = 5
    moved_runs: int = 50
    full_runs: int = 1_000
    answers: int = 100_000_000
    search: int = 10_000_000
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
        require(relation is not Relation.LABEL, "relation must be add-remove or replace", relation=relation.value)
        object.__setattr__(self, "relation", relation)
        object.__setattr__(self, "fits", replace(type(self).fits, relation=relation, records=self.points))

    def plan(self, setting: Setting) -> GamePlan:
        """Runs of the training phase, the records, runs with them, answers.

        Raises: SpecError without enough natural queries.
        """
        if self.queries > len(setting.parts.test):
            raise SpecError(
                f"private-prediction asks {self.queries} natural queries, the test part has {len(setting.parts.test)} "
                "rows; give `split.test` a larger share, or ask fewer `queries`"
            )
        if isinstance(setting.mechanism, VotingPredictor) and self.votes == "modelled":
            return self._modelled(setting)
        return self._in_full(setting)

    def _unit(self, setting: Setting, task: Any, label: str, *needs: str) -> Unit:
        names = setting.parts.names("target", "test")
        return Unit(task, label, names, (*needs, *setting.after), setting.resources)

    def _base(self, setting: Setting) -> list[Unit]:
        """Runs without the records."""
        predictor, seed = setting.mechanism, setting.seed.child("runs")
        count = 1 if predictor.deterministic else self.runs
        return [
            self._unit(
                setting, TrainAndAsk(predictor, self.queries, seed.child(run)), f"training {run + 1} of {count}, asked"
            )
            for run in range(count)
        ]

    def _craft(self, setting: Setting, base: list[Unit]) -> Unit:
        keys = tuple(unit.key for unit in base)
        task = Craft(self.adversary, setting.mechanism, self.queries, self.points, setting.seed.child("craft"), keys)
        return self._unit(setting, task, "records to add", *keys)

    def _modelled(self, setting: Setting) -> GamePlan:
        predictor = setting.mechanism
        base = self._base(setting)
        craft = self._craft(setting, base)
        count = 1 if predictor.deterministic else self.moved_runs
        require_units(len(base) + count + self.queries)
        moved = [
            self._unit(
                setting,
                AskMoved(predictor, self.queries, craft.key, setting.seed.child("moved", run)),
                f"training {run + 1} of {count} with the records, asked",
                craft.key,
            )
            for run in range(count)
        ]
        keys, moved_keys = tuple(unit.key for unit in base), tuple(unit.key for unit in moved)
        task = DrawAnswers(
            predictor, setting.attack, self._draws, setting.seed.child("answers"), keys, moved_keys, craft.key, 0, 0
        )
        answers = [
            self._unit(
                setting,
                replace(task, first=first, last=min(first + QUERIES_PER_UNIT, self.queries)),
                f"answers to queries {first}-{min(first + QUERIES_PER_UNIT, self.queries) - 1}",
                *keys,
                *moved_keys,
                craft.key,
            )
            for first in range(0, self.queries, QUERIES_PER_UNIT)
        ]
        return self._planned(setting, [*base, craft, *moved, *answers], answers, base, self.answers)

    def _in_full(self, setting: Setting) -> GamePlan:
        predictor = setting.mechanism
        base = self._base(setting) if isinstance(predictor, VotingPredictor) else []
        craft = self._craft(setting, base)
        each = max(1, self.full_runs // 40)
        replaced = self.relation is Relation.REPLACE
        task = RunInFull(predictor, self.queries, craft.key, setting.seed.child("full"), replaced, 0, 0)
        full = [
            self._unit(
                setting,
                replace(task, first=first, last=min(first + each, self.full_runs)),
                f"full runs {first + 1}-{min(first + each, self.full_runs)}",
                craft.key,
            )
            for first in range(0, self.full_runs, each)
        ]
        keys = tuple(unit.key for unit in full)
        count = self._unit(
            setting,
            CountRuns(predictor, setting.attack, craft.key, keys, self.repeats),
            "answers of full runs",
            craft.key,
            *keys,
        )
        counted = self.full_runs - self.full_runs // 2
        return self._planned(setting, [*base, craft, *full, count], [count], base, counted)

    def _planned(
        self, setting: Setting, units: list[Unit], scores: list[Unit], trained: list[Unit], answers: int
    ) -> GamePlan:
        told = Unit(TellAnswers(self.queries, answers), "answers told", resources=setting.resources.on_cpus)
        return GamePlan(
            units=(*units, told),
            scores=tuple(unit.key for unit in scores),
            trainings=tuple(unit.key for unit in trained),
            observational=False,
            reading=setting.reading,
            replays=self.queries,
            ceilings=(told.key,),
        )

    @property
    def _draws(self) -> Draws:
        return Draws(self.answers, self.search, self.simulated, self.resamples, self.sampler, self.repeats)
