"""Two neighbouring data sets, thousands of trainings on either, and an output set that is learned from them.

The poisoning chooses D and D' before anything is trained. Search trainings, whose world is known, teach the attack
which outputs speak for D'; fresh ones, each on D or D' by its own fair coin, are what it is judged by. From there on it
is a game of independent trials like every other.

Source: Lu et al. (2022), "A General Framework for Auditing Differentially Private Machine Learning", Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs, Unit
from dpaudit.claims import Relation
from dpaudit.engine.games.fits import LEARNERS, Fits, Reading
from dpaudit.engine.games.numbers import Scale, as_numbers
from dpaudit.engine.games.protocol import GamePlan, Setting, require_units
from dpaudit.engine.games.summaries import (
    SAMPLED,
    SUMMARISED,
    summaries_in,
    summary_columns,
    summary_widths,
    train_and_summarise,
)
from dpaudit.engine.games.trials import MOST_TRIALS, ScoreTrials, TrialGame, grouped_for_reading
from dpaudit.engine.poisonings.class_flip import ClassFlip
from dpaudit.engine.poisonings.protocol import Poisoning
from dpaudit.engine.spec.partition import required_part
from dpaudit.engine.views.summary_view import SummaryView
from dpaudit.engine.views.worlds import worlds_of, worlds_table
from dpaudit.errors import RunError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute, TrainingError
from dpaudit.registry import register

COPIES = (1, 2, 4, 8)


@register("game", "neighbours", source="Lu et al. (2022), Algorithm 1; fair coins for the fresh samples are ours")
@dataclass(frozen=True)
class Neighbours(TrialGame):
    """Two neighbouring data sets, chosen beforehand: on which of them was a learner trained, whose summary is shown?

    Plays every learner: one drawn in bulk, one that is summed up as a vector, and any other by what its models answer.
    A training that raises, or gives no numbers, or a vector of another length than most, counts as the worst guess.

    Attributes:
        trials: Fresh trainings, each on D or D' by its own coin, in 2 .. 10,000,000; the paper's N of each are 2 N.
        stack: Trainings of one unit, >= 1: seconds of work.
        search: Trainings the attack learns from, in 4 .. 10,000,000.
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
    )

    trials: int = 20_000
    stack: int = 2_500
    search: int = 20_000
    poisoning: Poisoning = field(default=ClassFlip(), metadata={"kind": "poisoning"})
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
        object.__setattr__(self, "fits", own)

    def plan(self, setting: Setting) -> GamePlan:
        """The two data sets, search samples, fresh samples, scores."""
        choice = Unit(
            ChooseWorlds(self.poisoning, self.copies, self.scale, setting.seed.child("worlds")),
            "neighbouring data sets",
            setting.parts.names("target"),
            setting.after,
            setting.resources,
        )
        search = self._samples(setting, choice, "search", self.search)
        fresh = self._samples(setting, choice, "fresh", self.trials)
        keys = tuple(unit.key for unit in search)
        scores = [self._score(setting, trials, keys) for trials in grouped_for_reading(fresh, setting)]
        return GamePlan(
            (choice, *search, *fresh, *scores),
            tuple(unit.key for unit in scores),
            tuple(unit.key for unit in fresh),
            observational=False,
            reading=setting.reading,
            reference=self.reference(),
        )

    def _samples(self, setting: Setting, choice: Unit, part: str, trials: int) -> list[Unit]:
        require_units(-(-trials // self.stack))
        data = setting.parts.target
        task = SampleSummaries(
            setting.mechanism,
            choice.key,
            setting.seed.child(part),
            classes=data.classes,
            name=data.name,
            limit_s=self.training_limit_s,
        )
        return [
            Unit(
                replace(task, first=first, last=min(first + self.stack, trials)),
                f"{part} samples {first + 1}-{min(first + self.stack, trials)}",
                (),
                (choice.key,),
                setting.resources,
            )
            for first in range(0, trials, self.stack)
        ]

    def _score(self, setting: Setting, trials: tuple[Unit, ...], search: tuple[str, ...]) -> Unit:
        keys = tuple(unit.key for unit in trials)
        alone = setting.reading is Reading.IN_ORDER
        what = trials[0].label if alone else f"{self.trials} fresh samples"
        task = ScoreSummaries(setting.attack, keys, search)
        return Unit(task, f"scores of {what}", (), (*keys, *search), setting.resources)


@dataclass(frozen=True)
class ChooseWorlds:
    """Makes the two data sets.

    Attributes:
        poisoning: How.
        copies: Records in which they differ.
        scale: The range of their numbers.
        seed: What the poisoning draws from.
    """

    poisoning: Poisoning
    copies: int
    scale: Scale
    seed: Seed

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A worlds table."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        data: Examples = as_numbers(required_part(inputs, "target"), self.scale)
        require(self.copies < len(data), "copies must be fewer than the rows", copies=self.copies, rows=len(data))
        with threadpool_limits(compute.threads):
            return worlds_table(self.poisoning.worlds(data, self.copies, self.seed.rng()))


@dataclass(frozen=True)
class SampleSummaries:
    """Trainings `first` to `last` - 1, each on D or D' by its own coin, summed up.

    Attributes:
        mechanism: What is audited.
        worlds: Key of the unit that made the data sets.
        seed: The coins of a batch are drawn from `seed.child(first)`, its trainings from children of that.
        classes: Of the data.
        name: Of the data.
        limit_s: Seconds a single training may run; None = as long as the unit.
        first: First trial.
        last: One past the last trial.
    """

    mechanism: Any
    worlds: str
    seed: Seed
    classes: int
    name: str
    limit_s: float | None = None
    first: int = 0
    last: int = 1

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a trial: trial, truth, summary, failed, error.

        Raises: TrainingError when every training failed.
        """
        worlds = worlds_of(inputs.tables[self.worlds], classes=self.classes, name=self.name)
        count = self.last - self.first
        own = self.seed.child(self.first)
        truth = own.rng().random(count) < 0.5
        columns = summary_columns(
            train_and_summarise(
                self.mechanism, worlds, truth, self.first, own.child("trainings"), compute, self.limit_s
            )
        )
        failed = np.asarray(columns["failed"])
        if failed.all():
            raise TrainingError(f"all {count} trainings of this batch failed; the first: {columns['error'][0].as_py()}")
        numbers = pa.array(np.arange(self.first, self.last, dtype=np.int32))
        table = pa.table({"trial": numbers, "truth": truth, **columns})
        return table.replace_schema_metadata({"metric:failed_share": repr(float(failed.mean()))})


@dataclass(frozen=True)
class ScoreSummaries(ScoreTrials):
    """The attack learns on the search samples and scores the fresh ones.

    Attributes:
        search: Keys of the units with the search samples.
    """

    search: tuple[str, ...] = ()

    def failed(self, trials: pa.Table, inputs: Inputs) -> NDArray[np.bool_]:
        """Those without a summary, or with one of another length than most search samples have."""
        failed: NDArray[np.bool_] = summary_widths(trials) != _usual_width(self._searched(inputs))
        return failed

    def view(self, trials: pa.Table, inputs: Inputs) -> SummaryView:
        """Summaries; worlds of the search samples alone."""
        search = self._searched(inputs)
        usual = summary_widths(search) == _usual_width(search)
        return SummaryView(
            summaries_in(search, usual),
            search["truth"].to_numpy()[usual],
            summaries_in(trials, np.ones(trials.num_rows, np.bool_)),
        )

    def _searched(self, inputs: Inputs) -> pa.Table:
        return pa.concat_tables([inputs.tables[key] for key in self.search]).combine_chunks()


def _usual_width(table: pa.Table) -> int:
    widths = summary_widths(table)
    there = widths[widths >= 0]
    if not len(there):
        raise RunError("no search sample has a summary")
    return int(np.bincount(there).argmax())
