"""What the units of the game of steps do: make a training, have its steps guessed, say what could be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.canaries.protocol import GradientCanary
from dpaudit.engine.findings.score_table import score_rows
from dpaudit.engine.spec.partition import required_part
from dpaudit.engine.views.steps import StepView
from dpaudit.errors import RunError, require
from dpaudit.mechanisms.protocols import Compute
from dpaudit.mechanisms.training.step_canary import StepCanary


@dataclass(frozen=True)
class TrainSteps:
    """One training with a canary that each step's own coin lets in.

    Attributes:
        mechanism: What is audited.
        canary: Where the canary points.
        seed: Of the direction, the coins and the training, which share nothing.
        sampled: Whether the step's own sampling has to take the canary as well.
    """

    mechanism: Any
    canary: GradientCanary
    seed: Seed
    sampled: bool = False

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """One row a step that is claimed: coin, product. A step that was not made is one that told nothing.

        Raises: InputError when the training shows no step, or more than it states.
        """
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        train = required_part(inputs, "target").writable()
        claimed = self.mechanism.claimed_steps(len(train))
        direction = self.seed.child("direction").rng()
        canary = StepCanary(
            lambda weights: self.canary.gradient(weights, direction),
            self.seed.child("coins").rng(),
            clip=claimed.private.clip,
            divisor=claimed.divisor,
            sampled=self.sampled,
        )
        with threadpool_limits(compute.threads):
            self.mechanism.show_steps(train, canary, seed=self.seed.child("training").sequence(), compute=compute)
        coins, products = canary.shown()
        missing = claimed.count - len(coins)
        require(missing >= 0, f"a training must show the {claimed.count} steps it states", shown=len(coins))
        # The number of trials must not depend on them, as it would if a training that breaks off had fewer.
        return pa.table(
            {
                "coin": np.concatenate([coins, np.zeros(missing, np.bool_)]),
                "product": np.concatenate([products, np.full(missing, np.nan)]),
            }
        )


@dataclass(frozen=True)
class ScoreSteps:
    """The attack on the steps of all trainings, one after another: of each it sees that step and what was before it.

    Attributes:
        attack: The adversary.
        trainings: Keys of the units that made the trainings.
    """

    attack: Any
    trainings: tuple[str, ...]

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table of one replay, canary = number of the step.

        Raises: RunError when a score is no number.
        """
        tables = [inputs.tables[key] for key in self.trainings]
        coins = np.concatenate([table["coin"].to_numpy(zero_copy_only=False) for table in tables])
        score = np.concatenate([self._scores(table) for table in tables])
        if np.isnan(score).any():
            raise RunError(f"the attack {type(self.attack).__name__} gave scores that are no numbers")
        return pa.Table.from_batches([score_rows(self.trainings[0], 0, coins, score)])

    def _scores(self, table: pa.Table) -> NDArray[np.float64]:
        coins = table["coin"].to_numpy(zero_copy_only=False)
        products = table["product"].to_numpy()
        # A view ends where its step does, so that no attack can use what comes later.
        seen = (StepView(products[: step + 1].copy(), coins[:step].copy()) for step in range(len(coins)))
        return np.concatenate([self.attack.score(view) for view in seen])


@dataclass(frozen=True)
class TellSteps:
    """The game against a training that hides nothing: every coin is told.

    Attributes:
        steps: How many there are.
    """

    steps: int

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A score table of one replay."""
        coins = np.arange(self.steps) % 2 == 0
        return pa.Table.from_batches([score_rows("", 0, coins, np.where(coins, 1.0, -1.0))])
