"""Number of coins of a step: enough to find half of the noise, and few enough for what the canaries do to the model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from dpaudit.claims.step_noise import StepNoise
from dpaudit.engine.answer.answer_words import POWER, factor_in_words
from dpaudit.engine.answer.sensitivity import smallest_factor
from dpaudit.errors import require
from dpaudit.estimators.one_run.coin_averages import CoinTally

COINS = 20
"""Coins of a step if the number of steps is not known: half of the claimed noise shows within some fifty steps."""
NUMBERS = (1, 2, 3, 5, 10, 20, 30, 50)
"""Numbers of coins to choose from."""
FACTOR = 2.0
"""Factor of smaller noise that a training should find."""
MOST_ADDED = 0.05
"""Largest share by which canaries may raise the norm of the noise before a replica is advised."""
SURE = 0.999
"""Confidence of a violation."""
SIMULATED, MOST_STEPS = 200, 2_000
"""Simulated trainings for each factor, of which `POWER` must reject, and largest number of simulated steps."""


@dataclass(frozen=True)
class CoinPlan:
    """Coins of each step of a planned training, and what they find and change; `print` shows it.

    Attributes:
        coins: Number of coins of a step.
        steps: Number of steps.
        factor: Factor by which noise must be smaller to be found with 90 % power; inf if one of 8 is not found.
        change: What the canaries add to each step.
    """

    coins: int
    steps: int
    factor: float
    change: Change

    def __str__(self) -> str:
        return f"{self.coins} coins in each of {self.steps:,} steps: {factor_in_words(self.factor)}. {self.change}"


@dataclass(frozen=True)
class Change:
    """Vector that canaries add to each step of a training, in clips.

    Attributes:
        canaries: Mean number of canaries in a step, each of one clip, in directions orthogonal to each other.
        noise: Norm of the noise of a step over all weights.
        batch: Expected number of records in a step, whose sum has at most as many clips; None if it is not known.
    """

    canaries: float
    noise: float
    batch: float | None = None

    @property
    def added(self) -> float:
        """Share by which the canaries raise the norm of the noise."""
        return math.hypot(1, math.sqrt(self.canaries) / self.noise) - 1

    @property
    def needs_replica(self) -> bool:
        """True if the canaries change the training so much that a replica should be audited."""
        return self.added > MOST_ADDED

    def __str__(self) -> str:
        batch = "" if self.batch is None else f" and the sum of {self.batch:g} records at most {self.batch:g}"
        advice = ". Audit a replica instead" if self.needs_replica else ""
        return (
            f"Canaries add a vector of {math.sqrt(self.canaries):.2g} clips to a step, where the noise has "
            f"{self.noise:.3g}{batch}: as noise that is {100 * self.added:.2g} % larger{advice}"
        )


def plan(
    noise: StepNoise, steps: int, weights: int, *, coins: int | None = None, batch: float | None = None
) -> CoinPlan:
    """Return the fewest coins with which a training finds half of its noise with 90 % power, or the most allowed.

    Args:
        noise: Claimed noise.
        steps: Number of steps, >= 1.
        weights: Number of weights of the model, >= 1.
        coins: Number of coins of a step, >= 1; None to choose it.
        batch: Expected number of records of a step.
    """
    require(steps >= 1, "steps must be >= 1", steps=steps)
    require(weights >= 1, "weights must be >= 1", weights=weights)
    claimed, norm = noise.curve(0).delta(0.0), noise.deviation * math.sqrt(weights)
    if coins is None:
        allowed = [number for number in NUMBERS if not Change(number / 2, norm).needs_replica] or [1]
        coins = next((number for number in allowed if is_found(FACTOR, claimed, number, steps)), allowed[-1])
    return CoinPlan(coins, steps, detectable_noise(claimed, coins, steps), Change(coins / 2, norm, batch))


def is_found(factor: float, claimed: float, coins: int, steps: int) -> bool:
    """True if Gaussian noise that is `factor` times smaller is rejected in 90 % of such trainings."""
    mu = 2 * float(ndtri((1 + claimed) / 2))
    rng = np.random.default_rng(0)  # the same draws for each factor
    shape = (SIMULATED, min(steps, MOST_STEPS))
    shares = rng.binomial(coins, float(ndtr(factor * mu / 2)), size=shape) / coins
    return float(np.mean([CoinTally(share).p_value(claimed) <= 1 - SURE for share in shares])) >= POWER


def detectable_noise(claimed: float, coins: int, steps: int) -> float:
    """Return the factor by which Gaussian noise must be smaller for 90 % of such trainings to reject the claim.

    Args:
        claimed: Total variation that the claim allows each coin, in (0, 1).
        coins: Coins of a step.
        steps: Number of steps.
    Returns: A factor in [1, 8]; inf if one of 8 is not detected.
    """
    return smallest_factor(lambda factor: is_found(factor, claimed, coins, steps))
