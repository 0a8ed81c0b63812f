"""DP-SGD steps: their parameters, their accountants, and the interface for attacks: a step observer and a canary.

Each step samples every record with probability q and adds N(0, (m C)^2) to a sum of vectors of norm at most C. This is
the Poisson-subsampled Gaussian mechanism under adding or removing a record.

Fair coins decide which canaries join a step. At every step, the DP-SGD loop gets their gradients from a `StepCanary`
(`gradients` or `join`), treats them like those of examples, and passes the noisy gradient to `observe`.

Source: Nasr et al. (2023), arXiv:2302.07956, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.claims.curve import rdp_to_epsilon
from dpaudit.errors import require
from dpaudit.mechanisms.ranges import require_at_least, require_delta, require_epsilon, require_positive
from dpaudit.mechanisms.training.recipe import require_one_of
from dpaudit.tensors import numpy_of

if TYPE_CHECKING:
    from torch import Tensor


Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MAX_BATCH_NUMBERS = 20_000_000  # maximum size of a batch of gradients that is passed to a probe

Observer = Callable[[NDArray[np.int64], int, "Tensor", "Tensor"], None]
"""Called at each step with positions of the models in the list of tasks (A,), the step, the parameters before it (A, P)
and the noisy sum divided by the public batch size (A, P), less the part of the rows if other records are observed."""


@dataclass(frozen=True)
class PrivateSteps:
    """Clipping, noise and sampling of a step.

    Attributes:
        clip: Maximum norm C of one example's gradient, > 0.
        noise_multiplier: Standard deviation of the noise on the sum over C, >= 0.
        sample_rate: Probability q that an example is in a step, in (0, 1].
    """

    clip: float
    noise_multiplier: float
    sample_rate: float

    def __post_init__(self) -> None:
        require_at_least(0, self, "noise_multiplier")
        require_positive(self, "clip")
        require(0 < self.sample_rate <= 1, "sample_rate must be in (0, 1]", sample_rate=self.sample_rate)

    def steps(self, epochs: int) -> int:
        """Return the number of steps in `epochs` expected passes over the data."""
        return max(1, round(epochs / self.sample_rate))


@dataclass(frozen=True)
class ClaimedSteps:
    """Claimed parameters of all steps of a training."""

    private: PrivateSteps  # sampling, clipping and noise of a step
    count: int  # number of steps, >= 1
    divisor: float = 1.0  # divisor of each noisy sum, > 0
    # number of steps without noise, by the record of a training; the claim is that of steps with noise
    without_noise: int = 0

    def __post_init__(self) -> None:
        require(self.count >= 1, "a training must have at least one step", count=self.count)
        require_positive(self, "divisor")


class StepProbe(Protocol):
    """Chooses the canaries of each step and receives the released sum; all in units of the clip."""

    def gradients(self, weights: int, batch: Floats | None) -> Floats:
        """Return the gradients of the next canaries before clipping, shape (canaries, weights).

        `batch` has the other gradients of the step before clipping, shape (batch, weights), or None if unknown.
        """

    def see(self, released: Floats, joined: Flags) -> None:
        """Receive the step's noisy sum, shape (weights,); `joined` is True for each canary that took part."""


class StepCanary:
    """The canaries of one training. Each step 0, 1, 2, ... requests their gradients once and is then observed.

    Attributes:
        clip: Claimed maximum norm of one example's gradient.
        sampled: True if the step's sampling must also select a canary after the coin admits it.
        step: Number of observed steps.
        awaits_observation: True if the current step has requested its canaries and is not observed yet.
    """

    def __init__(
        self, probe: StepProbe, rng: np.random.Generator, *, clip: float, divisor: float, sampled: bool = False
    ) -> None:
        self.clip, self.sampled, self.step, self.awaits_observation = clip, sampled, 0, False
        self._probe, self._rng, self._unit = probe, rng, clip / divisor
        self._weights: int | None = None
        self._joined: Flags = np.zeros(0, np.bool_)

    def gradients(self, step: int, weights: int, batch: Any = None) -> NDArray[np.float32]:
        """Return the gradients before clipping of the canaries that the coins admit, shape (canaries, weights).

        `batch` has the other gradients of the step, shape (batch, weights). Call once for each step, in order.
        """
        require(
            step == self.step and not self.awaits_observation,
            f"step {self.step} must ask for its canary once and then be observed; steps are numbered from 0",
            asked=step,
        )
        expected = self._weights or weights
        require(weights == expected, f"a gradient must have {expected} weights", weights=weights)
        self._weights, self.awaits_observation = weights, True
        rows = None if batch is None or batch.shape[0] * weights > MAX_BATCH_NUMBERS else _array(batch) / self.clip
        canaries = self._probe.gradients(weights, rows)
        self._joined = self._rng.random(len(canaries)) < 0.5
        return (self.clip * canaries[self._joined]).astype(np.float32)

    def join(self, step: int, gradients: Any) -> Any:
        """Return the gradients (batch, weights) before clipping, with those of the canaries that take part appended."""
        rows = self.gradients(step, gradients.shape[1], gradients)
        if isinstance(gradients, np.ndarray):
            return np.concatenate([gradients, rows.astype(gradients.dtype)])
        import torch

        return torch.cat([gradients, torch.from_numpy(rows).to(gradients)])

    def observe(self, step: int, gradient: Any) -> None:
        """Record the noisy gradient used by a step, shape (weights,), array or tensor."""
        require(
            step == self.step and self.awaits_observation,
            f"step {self.step} must ask for its canary (join) before it is observed, once",
            observed=step,
        )
        released = _array(gradient)
        require(
            released.shape == (self._weights,),
            "an observed gradient must be one vector of all weights",
            shape=released.shape,
            expected=(self._weights,),
        )
        self.step, self.awaits_observation = step + 1, False
        self._probe.see(released / self._unit, self._joined)


def _array(value: Any) -> Floats:
    return numpy_of(value).astype(np.float64)


ORDERS = np.concatenate([np.arange(1.1, 11.0, 0.1), np.arange(11, 64), 2.0 ** np.arange(6, 11)])
"""Orders of the Renyi divergence that the accountant minimises over; fractional below 11."""

ACCOUNTANTS = ("rdp", "pld")


def dp_sgd_epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """Return epsilon of `steps` >= 1 at `delta` in (0, 1) under add/remove; noise > 0, sample rate in (0, 1]."""
    require_one_of("accountant", accountant, ACCOUNTANTS)
    require(steps >= 1, "steps must be >= 1", steps=steps)
    if accountant == "pld":
        return SubsampledGaussian(noise_multiplier, sample_rate, steps).epsilon(delta)
    single_step = SubsampledGaussian(noise_multiplier, sample_rate, steps=1)
    return rdp_to_epsilon(ORDERS, steps * np.asarray([single_step.renyi(order) for order in ORDERS]), delta)


@cache
def dp_sgd_noise_multiplier(
    epsilon: float, *, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """Return the smallest noise multiplier <= 1e6 with at most `epsilon`, to 1e-4; 0 for infinite epsilon."""
    require_epsilon(epsilon)
    require_delta(delta)
    if math.isinf(epsilon):
        return 0.0

    def is_affordable(multiplier: float) -> bool:
        spent = dp_sgd_epsilon(
            noise_multiplier=multiplier, sample_rate=sample_rate, steps=steps, delta=delta, accountant=accountant
        )
        return spent <= epsilon

    low, high = 0.0, 1.0
    while not is_affordable(high):
        require(high < 1e6, "epsilon must be reachable with a noise multiplier of at most 1e6", epsilon=epsilon)
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_affordable(middle) else (middle, high)
    return high
