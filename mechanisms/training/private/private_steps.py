"""What makes a training private, and what an attacker of the training itself sees of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require

if TYPE_CHECKING:
    from torch import Tensor

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
        require(self.noise_multiplier >= 0, "noise_multiplier must be >= 0", noise_multiplier=self.noise_multiplier)
        require_clip_and_rate(self.clip, self.sample_rate)

    def steps(self, epochs: int) -> int:
        """Steps in `epochs` expected passes over the data."""
        return steps_in(epochs, self.sample_rate)


@dataclass(frozen=True)
class ClaimedSteps:
    """What a training says of its steps."""

    private: PrivateSteps  # sampling, clipping and noise of one
    count: int  # how many there are, >= 1
    divisor: float = 1.0  # what each noisy sum is divided by, > 0

    def __post_init__(self) -> None:
        require(self.count >= 1, "a training must have at least one step", count=self.count)
        require(self.divisor > 0, "divisor must be > 0", divisor=self.divisor)


def steps_in(epochs: int, sample_rate: float) -> int:
    """Steps in `epochs` expected passes over the data at a sampling rate in (0, 1]."""
    return max(1, round(epochs / sample_rate))


def require_clip_and_rate(clip: float, sample_rate: float) -> None:
    """Refuses a clip that is not > 0 and a sampling rate outside (0, 1]."""
    require(clip > 0, "clip must be > 0", clip=clip)
    require(0 < sample_rate <= 1, "sample_rate must be in (0, 1]", sample_rate=sample_rate)
