"""One's own loop of DP-SGD, whatever it does inside, audited by the noisy gradients it hands over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from dpaudit.claims import Claim, Relation, SubsampledGaussian
from dpaudit.errors import require
from dpaudit.given import check_fields
from dpaudit.mechanisms.adapters.randomness import global_randomness, whole_number
from dpaudit.mechanisms.adapters.user_code import code_of
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.training.inputs import as_array
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, PrivateSteps, StepCanary
from dpaudit.registry import register


@register("mechanism", "own-steps", source="one's own code")
@dataclass(frozen=True)
class OwnSteps:
    """A function `train(X, y, seed, canary)` that trains by DP-SGD and lets a canary into its steps.

    X is a float32 array, y holds classes 0 .. K - 1, seed is a whole number below 2^31. At each step, numbered from 0:

        gradients = canary.join(step, gradients)    # one row an example, before they are clipped
        noisy = ...                                 # clipped, summed, noise added, divided
        canary.observe(step, noisy)                 # what the weights are moved by, one vector

    Attributes:
        train: The function, or where it is: "module:function". What it gives is not looked at.
        noise_multiplier: Standard deviation of the noise on a sum over `clip`, > 0.
        steps: How many there are, >= 1.
        clip: Largest norm of one example's gradient, > 0.
        sample_rate: Probability that an example is in a step, in (0, 1].
        divisor: What each noisy sum is divided by, > 0.
        delta: Where the claim of the whole training is printed, in (0, 1).
    """

    train: Any
    noise_multiplier: float
    steps: int
    clip: float = 1.0
    sample_rate: float = 1.0
    divisor: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.noise_multiplier > 0, "noise_multiplier must be > 0", noise_multiplier=self.noise_multiplier)
        require(0 < self.delta < 1, "delta must be in (0, 1)", delta=self.delta)
        self.claimed_steps(0)  # checks the others
        arguments = ("X", "y", "seed", "canary")
        object.__setattr__(self, "train", code_of(self.train, field="train", arguments=arguments))

    def claim(self) -> Claim:
        """The curve of all steps, adding or removing a record."""
        curve = SubsampledGaussian(self.noise_multiplier, self.sample_rate, self.steps)
        return Claim.of(curve, relation=Relation.ADD_REMOVE, delta=self.delta)

    def claimed_steps(self, rows: int) -> ClaimedSteps:
        """As stated, for any number of rows."""
        private = PrivateSteps(self.clip, self.noise_multiplier, self.sample_rate)
        return ClaimedSteps(private, self.steps, self.divisor)

    def show_steps(self, train: Examples, canary: StepCanary, *, seed: SeedSequence, compute: Compute) -> None:
        """Calls the function; its own exceptions pass."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        with global_randomness(seed), threadpool_limits(compute.threads):
            self.train(np.array(as_array(train.features)), train.labels.copy(), whole_number(seed), canary)


def from_steps(train: Callable[..., Any], *, noise_multiplier: float, steps: int, **stated: Any) -> OwnSteps:
    """A loop of DP-SGD `train(X, y, seed, canary)` for an audit step by step; see `OwnSteps`.

    Args:
        train: Lets the canary into its steps and shows each one's noisy gradient.
        noise_multiplier: Standard deviation of the noise on a sum over the clip, > 0.
        steps: How many there are, >= 1.
        stated: clip, sample_rate, divisor, delta.
    Raises: InputError when it cannot be called so, or not be sent to a worker.
    """
    return OwnSteps(train, noise_multiplier, steps, **stated)
