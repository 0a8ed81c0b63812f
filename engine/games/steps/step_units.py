"""What the units of the game of steps do: make a training, have its steps guessed, say what could be seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import unit
from dpaudit.engine.games.steps.step_midpoint import StepView
from dpaudit.engine.games.two_world.canaries.protocol import GradientCanary
from dpaudit.errors import RunError, require
from dpaudit.estimators.scores import StepScores, steps_scored
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.training.private.private_steps import StepCanary


@dataclass(frozen=True, eq=False)
class Steps:
    """What one training showed of each step that it states.

    Attributes:
        coin: Whether the step's coin let the canary in, shape (steps,).
        product: What the canary saw of the step's gradient, shape (steps,); NaN for a step that was not made.
    """

    coin: NDArray[np.bool_]
    product: NDArray[np.float64]


@unit
def train_steps(
    mechanism: Any, canary: GradientCanary, target: Examples, compute: Compute, *, sampled: bool = False, seed: Seed
) -> Steps:
    """One training with a canary that each step's own coin lets in. A step that was not made is one that told nothing.

    Args:
        mechanism: What is audited.
        canary: Where the canary points.
        target: What is trained on.
        compute: Where it runs.
        sampled: Whether the step's own sampling has to take the canary as well.
        seed: Of the direction, the coins and the training, which share nothing.
    Raises: InputError when the training shows no step, or more than it states.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    train = target.writable()
    claimed = mechanism.claimed_steps(len(train))
    direction = seed.child("direction").rng()
    joining = StepCanary(
        lambda weights: canary.gradient(weights, direction),
        seed.child("coins").rng(),
        clip=claimed.private.clip,
        divisor=claimed.divisor,
        sampled=sampled,
    )
    with threadpool_limits(compute.threads):
        mechanism.show_steps(train, joining, seed=seed.child("training").sequence(), compute=compute)
    coins, products = joining.shown()
    missing = claimed.count - len(coins)
    require(missing >= 0, f"a training must show the {claimed.count} steps it states", shown=len(coins))
    # The number of trials must not depend on them, as it would if a training that breaks off had fewer.
    return Steps(
        np.concatenate([coins, np.zeros(missing, np.bool_)]), np.concatenate([products, np.full(missing, np.nan)])
    )


@unit
def score_steps(attack: Any, trainings: tuple[Steps, ...]) -> Iterator[StepScores]:
    """The attack on the steps of all trainings, one after another: of each it sees that step and what was before it.

    Raises: RunError when a score is no number.
    """
    coins = np.concatenate([steps.coin for steps in trainings])
    score = np.concatenate([_guessed(attack, steps) for steps in trainings])
    if np.isnan(score).any():
        raise RunError(f"the attack {type(attack).__name__} gave scores that are no numbers")
    yield steps_scored(coins, score)


def _guessed(attack: Any, steps: Steps) -> NDArray[np.float64]:
    """The score of each step of a training, shape (steps,)."""
    # A view ends where its step does, so that no attack can use what comes later.
    seen = (StepView(steps.product[: step + 1].copy(), steps.coin[:step].copy()) for step in range(len(steps.coin)))
    return np.concatenate([attack.score(view) for view in seen])


@unit
def tell_steps(count: int) -> Iterator[StepScores]:
    """The game against a training without privacy: the coin of each of `count` steps is told."""
    coins = np.arange(count) % 2 == 0
    yield steps_scored(coins, np.where(coins, 1.0, -1.0))
