"""Number of coins of a step: enough to find half of the noise, and few enough for what the canaries do to the model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from dpaudit.claims.step_noise import GaussianNoise, StepNoise
from dpaudit.engine.answer.answer_words import POWER, factor_in_words
from dpaudit.engine.answer.sensitivity import smallest_factor
from dpaudit.errors import require
from dpaudit.estimators.one_run.coin_averages import CoinTally

COINS, NUMBERS = 20, (1, 2, 3, 5, 10, 20, 30, 50)
"""Coins of a step if the number of steps is not known, and numbers to choose from if it is."""
FACTOR = 2.0
"""Factor of smaller noise that a training should find."""
MOST_ADDED = 0.05
"""Largest share by which canaries may raise the norm of the noise before a replica is advised."""
SURE, SIMULATED, MOST_STEPS = 0.999, 200, 2_000
"""Confidence of a violation; simulated trainings, of which `POWER` must reject; largest number of simulated steps."""


@dataclass(frozen=True)
class CoinPlan:
    """Coins of each step of a planned training, and what they find and change; `print` shows it."""

    coins: int
    steps: int
    factor: float  # by which noise must be smaller to be found with 90 % power; inf if one of 8 is not found
    change: Change

    def __str__(self) -> str:
        return f"{self.coins} coins in each of {self.steps:,} steps: {factor_in_words(self.factor)}. {self.change}"


@dataclass(frozen=True)
class Change:
    """Vector that canaries add to each step of a training, in clips."""

    canaries: float  # mean number of canaries in a step, each of one clip, in directions orthogonal to each other
    noise: float  # norm of the noise of a step over all weights
    batch: float | None = None  # expected number of records in a step, whose sum has at most as many clips

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


def plan_coins(noise: StepNoise | float, *, steps: int, weights: int, batch: float | None = None) -> CoinPlan:
    """Return the fewest coins with which a training finds half of its noise with 90 % power, or the most allowed.

    Args:
        noise: The claimed noise, or the multiplier of independent Gaussian noise.
        steps: Number of steps of the training, >= 1.
        weights: Number of weights of the model, >= 1.
        batch: Expected number of records of a step.
    """
    noise = noise if isinstance(noise, StepNoise) else GaussianNoise(float(noise))
    require(steps >= 1, "steps must be >= 1", steps=steps)
    require(weights >= 1, "weights must be >= 1", weights=weights)
    claimed, norm = noise.curve(0).delta(0.0), noise.deviation * math.sqrt(weights)
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

    The claim allows each coin the total variation `claimed`, in (0, 1). The factor is in [1, 8], or inf.
    """
    return smallest_factor(lambda factor: is_found(factor, claimed, coins, steps))
