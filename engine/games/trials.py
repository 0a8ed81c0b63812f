"""Games of independent trials: each runs the mechanism once, in world 0 or world 1 by its own fair coin.

A trial is decided by its number and the seed alone. Trials are run in stacks, one unit each; the attack is a unit of
its own, so that another attack costs no run of the mechanism. What a trial leaves behind (confidences, a vector that
sums up a run, ...) and the view that the attack has of it is the game's; `scored_trials` makes evidence of both.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.unit import Inputs, Unit
from dpaudit.engine.findings.score_table import SCHEMA
from dpaudit.engine.games.fits import Fits, Reading
from dpaudit.engine.games.protocol import Setting
from dpaudit.engine.games.reference import FairCoins, Reference
from dpaudit.errors import RunError, require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.protocols import Compute

MOST_TRIALS = 10_000_000


@dataclass(frozen=True)
class TrialGame:
    """What all games of independent trials share.

    Attributes:
        trials: Runs of the mechanism that are scored, each with a coin of its own, in 2 .. 10,000,000.
        stack: Runs made by one unit, >= 1.
    """

    trials: int = 1000
    stack: int = 64
    fits: ClassVar[Fits]

    def __post_init__(self) -> None:
        require(2 <= self.trials <= MOST_TRIALS, f"trials must be in 2 .. {MOST_TRIALS:,}", trials=self.trials)
        require(self.stack >= 1, "stack must be >= 1", stack=self.stack)

    def reference(self) -> Reference:
        """What the game's power is planned with."""
        return Reference(FairCoins(), self.trials, "trials")

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """One for each stack, and their scores."""
        return -(-self.trials // self.stack) + 1, 1

    def stacks(self) -> list[tuple[int, int]]:
        """First trial of each stack, and one past its last."""
        return [(first, min(first + self.stack, self.trials)) for first in range(0, self.trials, self.stack)]


def grouped_for_reading(trainings: Sequence[Unit], setting: Setting) -> list[tuple[Unit, ...]]:
    """The units of trials that are scored together: each by itself where scores are read in order, else all."""
    return [(unit,) for unit in trainings] if setting.reading is Reading.IN_ORDER else [tuple(trainings)]


def scored_trials(
    attack: Any, view: Any, *, number: NDArray[np.int64], truth: NDArray[np.bool_], failed: NDArray[np.bool_]
) -> Scores:
    """The attack's scores of T trials: one replay, its canaries the numbers of the trials.

    Args:
        attack: The adversary.
        view: What it sees of the trials that did not fail; nothing of the truth.
        number: Of each trial, shape (T,).
        truth: Of each trial, shape (T,).
        failed: Which trials left nothing to look at, shape (T,).
    Raises: RunError when a score is no number.
    """
    # A failed training counts as the attack's worst guess: dropping it would bias the bound.
    scores = np.where(truth, -np.inf, np.inf)
    scores[~failed] = attack.score(view)
    if np.isnan(scores).any():
        raise RunError(f"the attack {type(attack).__name__} gave scores that are no numbers")
    return scored(0, truth, scores, number)


@dataclass(frozen=True)
class ScoreTrials(ABC):
    """The attack on trials.

    Attributes:
        attack: The adversary.
        trainings: Keys of the units that ran the trials; their tables have columns trial, truth and failed, and those
            that `view` reads.
    """

    attack: Any
    trainings: tuple[str, ...]

    def failed(self, trials: pa.Table, inputs: Inputs) -> NDArray[np.bool_]:
        """Which trials left nothing to look at, shape (trials,)."""
        failed: NDArray[np.bool_] = trials["failed"].to_numpy()
        return failed

    def attack_of(self, inputs: Inputs) -> Any:
        """The adversary, as other units may have found it."""
        return self.attack

    @abstractmethod
    def view(self, trials: pa.Table, inputs: Inputs) -> Any:
        """What the attack sees of those trials, which did not fail; nothing of the truth."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table of one replay, canary = number of the trial."""
        return pa.Table.from_batches(list(self.batches(inputs)), SCHEMA)

    def batches(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        """All trials as one record batch.

        Raises: RunError when a score is no number.
        """
        tables = [inputs.tables[key] for key in self.trainings]
        trials = pa.concat_tables(tables, promote_options="none").combine_chunks()
        truth = trials["truth"].to_numpy()
        failed = self.failed(trials, inputs)
        # A failed training counts as the attack's worst guess: dropping it would bias the bound.
        scores = np.where(truth, -np.inf, np.inf)
        scores[~failed] = self.attack_of(inputs).score(
            copy.deepcopy(self.view(trials.filter(pa.array(~failed)), inputs))
        )
        if np.isnan(scores).any():
            raise RunError(f"the attack {type(self.attack).__name__} gave scores that are no numbers")
        unit = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables]).astype(np.int32)
        yield pa.record_batch(
            [
                pa.DictionaryArray.from_arrays(pa.array(unit), pa.array(self.trainings)),
                pa.array(np.zeros(len(truth), np.int32)),
                trials["trial"].combine_chunks().cast(pa.int32()),
                pa.array(truth),
                pa.array(scores.astype(np.float32)),
            ],
            schema=SCHEMA,
        )


def vector_column(vectors: NDArray[Any]) -> pa.Array:
    """One vector a trial, shape (trials, width), as a column of lists; `vectors_in` reads it back."""
    flat = np.ascontiguousarray(vectors)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def vectors_in(table: pa.Table, name: str) -> NDArray[Any]:
    """The vectors of a column, shape (trials, width); of width 0 where there is no such column."""
    if name not in table.column_names:
        return np.empty((table.num_rows, 0), np.float32)
    column = table[name].combine_chunks()
    values: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), column.type.list_size)
