"""Games of independent trials: each runs the mechanism once, in world 0 or world 1 by its own fair coin.

A trial is decided by its number and the seed alone. Trials are run in stacks, one unit each; the attack is a unit of
its own, so that another attack costs no run of the mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.unit import Unit
from dpaudit.engine.games.protocol import Fits, Reading, Setting
from dpaudit.engine.games.reference import FairCoins, Reference
from dpaudit.errors import RunError, require
from dpaudit.estimators.scores import Scores, scored

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
        return Reference(FairCoins(), self.trials, "trials")

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """One for each stack, and their scores."""
        return -(-self.trials // self.stack) + 1, 1


def grouped_for_reading(trainings: Sequence[Unit], setting: Setting) -> list[tuple[Unit, ...]]:
    """The units of trials that are scored together: each by itself where scores are read in order, else all."""
    return [(unit,) for unit in trainings] if setting.reading is Reading.IN_ORDER else [tuple(trainings)]


def scored_trials(
    attack: Any, view: Any, *, number: NDArray[np.int64], truth: NDArray[np.bool_], failed: NDArray[np.bool_]
) -> Scores:
    """The attack's scores of T trials: one replay, its canaries the numbers of the trials."""
    # A failed training counts as the attack's worst guess: dropping it would bias the bound.
    scores = np.where(truth, -np.inf, np.inf)
    scores[~failed] = attack.score(view)
    if np.isnan(scores).any():
        raise RunError(f"the attack {type(attack).__name__} gave scores that are no numbers")
    return scored(0, truth, scores, number)
