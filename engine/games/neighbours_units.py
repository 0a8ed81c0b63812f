"""The units of the game `neighbours`: the two data sets, trainings on them summed up, scores of the fresh ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.findings.score_table import TRIAL_ERRORS
from dpaudit.engine.games.numbers import Scale, as_numbers
from dpaudit.engine.games.summaries import (
    Trainings,
    summaries_in,
    summary_columns,
    summary_widths,
    train_and_summarise,
)
from dpaudit.engine.games.trials import ScoreTrials
from dpaudit.engine.poisonings.protocol import Poisoning
from dpaudit.engine.spec.partition import required_part
from dpaudit.engine.views.summary_view import SummaryView
from dpaudit.engine.views.worlds import worlds_of, worlds_table
from dpaudit.errors import RunError, require
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.protocols import Compute, TrainingError


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
        """One row a trial: trial, truth, summary, failed, name, error.

        Raises: TrainingError when every training failed.
        """
        worlds = worlds_of(inputs.tables[self.worlds], classes=self.classes, name=self.name)
        count = self.last - self.first
        own = self.seed.child(self.first)
        truth = own.rng().random(count) < 0.5
        asked = Trainings(worlds, truth, self.first, own.child("trainings"), compute, self.limit_s)
        columns = summary_columns(train_and_summarise(self.mechanism, asked))
        failed = np.asarray(columns["failed"])
        if failed.all():
            raise TrainingError(f"all {count} trainings of this batch failed; the first: {columns['error'][0].as_py()}")
        numbers = pa.array(np.arange(self.first, self.last, dtype=np.int32))
        return pa.table({"trial": numbers, "truth": truth, **columns})


@runtime_checkable
class ManyCandidates(Protocol):
    """An attack that is one of several, each judged by the search samples alone."""

    def candidates(self) -> Sequence[Any]:
        """Each by itself."""
        ...

    def best(self, worth: Sequence[float]) -> Any:
        """The candidate that is worth most."""
        ...


@dataclass(frozen=True)
class JudgeCandidate:
    """What one candidate of an attack is worth on the search samples.

    Attributes:
        candidate: Of a `ManyCandidates`.
        search: Keys of the units with the search samples.
    """

    candidate: Any
    search: tuple[str, ...]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row: worth."""
        search = pa.concat_tables([inputs.tables[key] for key in self.search]).combine_chunks()
        usual = summary_widths(search) == usual_width(search)
        summaries = summaries_in(search, usual)
        return pa.table(
            {"worth": [self.candidate.worth(SummaryView(summaries, search["truth"].to_numpy()[usual], summaries[:0]))]}
        )


@dataclass(frozen=True)
class ScoreSummaries(ScoreTrials):
    """The attack learns on the search samples and scores the fresh ones.

    Attributes:
        search: Keys of the units with the search samples.
        judged: Keys of the units that judged the attack's candidates, in their order; none where it judges them itself.
    """

    search: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()

    def attack_of(self, inputs: Inputs) -> Any:
        """The attack, or its best candidate."""
        worth = [inputs.tables[key]["worth"][0].as_py() for key in self.judged]
        return self.attack.best(worth) if worth else self.attack

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table of one replay; beside it, which fresh samples have another length than most search samples."""
        scored = super().run(inputs, compute)
        usual = usual_width(self._searched(inputs))
        odd = [
            f"{name}: it gave {width} numbers, most gave {usual}"
            for key in self.trainings
            for name, width in _widths_by_name(inputs.tables[key])
            if width not in (usual, -1)
        ]
        return scored.replace_schema_metadata({TRIAL_ERRORS: json.dumps(odd)}) if odd else scored

    def failed(self, trials: pa.Table, inputs: Inputs) -> NDArray[np.bool_]:
        """Those without a summary, or with one of another length than most search samples have."""
        failed: NDArray[np.bool_] = summary_widths(trials) != usual_width(self._searched(inputs))
        return failed

    def view(self, trials: pa.Table, inputs: Inputs) -> SummaryView:
        """Summaries; worlds of the search samples alone."""
        search = self._searched(inputs)
        usual = summary_widths(search) == usual_width(search)
        return SummaryView(
            summaries_in(search, usual),
            search["truth"].to_numpy()[usual],
            summaries_in(trials, np.ones(trials.num_rows, np.bool_)),
        )

    def _searched(self, inputs: Inputs) -> pa.Table:
        return pa.concat_tables([inputs.tables[key] for key in self.search]).combine_chunks()


def _widths_by_name(table: pa.Table) -> Iterator[tuple[str, int]]:
    return zip(table["name"].to_pylist(), summary_widths(table).tolist(), strict=True)


def usual_width(table: pa.Table) -> int:
    """The length that most summaries have.

    Raises: RunError when there is none.
    """
    widths = summary_widths(table)
    there = widths[widths >= 0]
    if not len(there):
        raise RunError("no search sample has a summary")
    return int(np.bincount(there).argmax())
