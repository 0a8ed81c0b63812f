"""What makes a training private, and what an attacker of its steps sees: all gradients, or a canary's share in them.

A `StepCanary` is let into each step by a fair coin. A loop of DP-SGD asks at every step for its gradient (`gradient`,
or `join`), treats it as if it were one more example's, and shows the noisy gradient it goes on with (`observe`).

Source: Nasr et al. (2023), arXiv:2302.07956, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.ranges import require_at_least, require_positive

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]

MAX_BATCH_NUMBERS = 20_000_000  # Of a batch's gradients that a canary looks at

Observer = Callable[[NDArray[np.int64], int, "Tensor", "Tensor"], None]
"""Is shown each step: positions of the models in the list of tasks (A,), the step, the parameters before it (A, P), and
the noisy sum divided by the public batch size (A, P), all an attacker of the training itself sees."""


@dataclass(frozen=True)
class PrivateSteps:
    """What makes a training private.

    Attributes:
        clip: Largest norm C of one example's gradient, > 0.
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
        """Steps in `epochs` expected passes over the data."""
        return max(1, round(epochs / self.sample_rate))


@dataclass(frozen=True)
class ClaimedSteps:
    """What a training says of its steps."""

    private: PrivateSteps  # sampling, clipping and noise of one
    count: int  # how many there are, >= 1
    divisor: float = 1.0  # what each noisy sum is divided by, > 0

    def __post_init__(self) -> None:
        require(self.count >= 1, "a training must have at least one step", count=self.count)
        require_positive(self, "divisor")


class StepProbe(Protocol):
    """Chooses the canary of each step and reads what the step shows; everything in units of the clip."""

    def gradient(self, weights: int, batch: Floats | None) -> Floats:
        """The next canary's gradient before it is clipped, shape (weights,).

        `batch` has the gradients it joins, before they are clipped, shape (batch, weights); None where these are not
        known.
        """

    def see(self, released: Floats, joined: bool) -> None:
        """The step's noisy sum, shape (weights,), and whether the canary took part."""


class StepCanary:
    """One training's canary. Steps are numbered 0, 1, 2, ...; each is asked about once, then shown.

    Attributes:
        clip: The largest norm of one example's gradient, as stated.
        sampled: Whether the step's own sampling has to take the canary as well, once its coin lets it in.
        step: How many steps have been shown.
        asked: Whether the current step has asked for the canary and has not been shown yet.
    """

    def __init__(
        self, probe: StepProbe, rng: np.random.Generator, *, clip: float, divisor: float, sampled: bool = False
    ) -> None:
        self.clip, self.sampled, self.step, self.awaits_observation = clip, sampled, 0, False
        self._probe, self._rng, self._unit = probe, rng, clip / divisor
        self._weights: int | None = None
        self._joined = False

    def gradient(self, step: int, weights: int, batch: Any = None) -> NDArray[np.float32] | None:
        """The canary's gradient before clipping, shape (weights,); None where the step's coin keeps it out.

        `batch` has the other gradients of the step, shape (batch, weights). A step asks once, in its turn.
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
        row = self._probe.gradient(weights, rows)
        self._joined = bool(self._rng.random() < 0.5)
        return (self.clip * row).astype(np.float32) if self._joined else None

    def join(self, step: int, gradients: Any) -> Any:
        """The gradients (batch, weights), not yet clipped, with the canary's behind if it takes part."""
        row = self.gradient(step, gradients.shape[1], gradients)
        if row is None:
            return gradients
        if isinstance(gradients, np.ndarray):
            return np.concatenate([gradients, row[None].astype(gradients.dtype)])
        import torch

        return torch.cat([gradients, torch.from_numpy(row)[None].to(gradients)])

    def observe(self, step: int, gradient: Any) -> None:
        """Is shown a step's noisy gradient, as the training goes on with it, shape (weights,), array or tensor."""
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
    array = value if isinstance(value, np.ndarray) else value.detach().cpu().numpy()
    return array.astype(np.float64)
