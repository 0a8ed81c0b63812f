"""What makes a training private, and what an attacker of its steps sees: all gradients, or a canary's share in them.

A `StepCanary` is let into each step by a fair coin. A loop of DP-SGD asks at every step for its gradient (`gradient`,
or `join`, which appends it to the gradients of the batch), treats it as if it were one more example's, and shows the
noisy gradient it goes on with (`observe`).

Source: Nasr et al. (2023), arXiv:2302.07956, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import InputError, require

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
        require(self.clip > 0, "clip must be > 0", clip=self.clip)
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
        require(self.divisor > 0, "divisor must be > 0", divisor=self.divisor)


LENGTH = 10.0
"""Norm of the canary's gradient in clips: the training has to clip it itself, and one that does not is seen at once."""

Direction = Callable[[int], NDArray[np.float32]]
"""A vector of norm 1 for a number of weights, shape (weights,)."""


class StepCanary:
    """One training's canary. Steps are numbered 0, 1, 2, ...; each is asked about once, then shown.

    Attributes:
        clip: The largest norm of one example's gradient, as stated.
        sampled: Whether the step's own sampling has to take the canary as well, once its coin lets it in.
        coins: Of the steps so far: whether the canary was let in.
        products: What the released gradients of the steps so far have along the canary, in clips: about 1 where it
            took part; NaN where a gradient was not finite.
    """

    def __init__(
        self, direction: Direction, rng: np.random.Generator, *, clip: float, divisor: float, sampled: bool = False
    ) -> None:
        self.sampled = sampled
        self.coins: list[bool] = []
        self.products: list[float] = []
        self.clip = clip
        self._direction, self._rng = direction, rng
        self._unit = clip / divisor
        self._points: NDArray[np.float32] | None = None

    @property
    def asked(self) -> bool:
        """Whether the current step has asked for the canary and has not been shown yet."""
        return len(self.coins) > len(self.products)

    def gradient(self, step: int, weights: int) -> NDArray[np.float32] | None:
        """The canary's gradient before clipping, shape (weights,); None where the step's coin keeps it out.

        Raises: InputError when a step asks twice, or out of turn.
        """
        require(
            step == len(self.products) and not self.asked,
            f"step {len(self.products)} must ask for its canary once and then be observed; steps are numbered from 0",
            asked=step,
        )
        if self._points is None:
            self._points = self._direction(weights)
        require(len(self._points) == weights, f"a gradient must have {len(self._points)} weights", weights=weights)
        self.coins.append(bool(self._rng.random() < 0.5))
        return LENGTH * self.clip * self._points if self.coins[-1] else None

    def join(self, step: int, gradients: Any) -> Any:
        """The gradients of a batch, not yet clipped, with the canary's behind them if it takes part.

        Shape (batch, weights), a NumPy array or a tensor of torch.
        """
        row = self.gradient(step, gradients.shape[1])
        if row is None:
            return gradients
        if isinstance(gradients, np.ndarray):
            return np.concatenate([gradients, row[None].astype(gradients.dtype)])
        import torch

        return torch.cat([gradients, torch.from_numpy(row)[None].to(gradients)])

    def observe(self, step: int, gradient: Any) -> None:
        """Is shown a step's noisy gradient, as the training goes on with it, shape (weights,), array or tensor.

        Raises: InputError when the step has not asked for its canary, or has another number of weights.
        """
        require(
            step == len(self.products) and self.asked,
            f"step {len(self.products)} must ask for its canary (join) before it is observed, once",
            observed=step,
        )
        assert self._points is not None
        array = gradient if isinstance(gradient, np.ndarray) else gradient.detach().cpu().numpy()
        released = array.astype(np.float64)
        require(
            released.shape == self._points.shape,
            "an observed gradient must be one vector of all weights",
            shape=released.shape,
            expected=self._points.shape,
        )
        along = float(released @ self._points) / self._unit if np.isfinite(released).all() else np.nan
        self.products.append(along)

    def shown(self) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Coins and products of all steps, each of shape (steps,); refuses a training that showed none."""
        if not self.products:
            raise InputError("a training must show its steps: it never called `observe`")
        return np.array(self.coins[: len(self.products)]), np.array(self.products)
