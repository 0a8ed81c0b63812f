"""Optimisers and learning-rate schedules for a stack of flat parameters, as defined in torch.optim."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpaudit.mechanisms.training.recipe import Recipe

WARM_UP = 0.15
DROPS_AT = (0.3, 0.6, 0.9)


def schedule_factor(schedule: str, progress: float) -> float:
    """Return the factor of the learning rate at `progress` in [0, 1]; see `Recipe` for the schedules."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if schedule == "cosine-7-16":
        return math.cos(7 / 16 * math.pi * progress)
    if schedule in ("warmup-tenths", "warmup-fifths"):
        drop = 0.1 if schedule == "warmup-tenths" else 0.2
        # A ramp that starts at 0 would waste the first step.
        return min(1.0, max(progress, 1e-3) / WARM_UP) * drop ** sum(progress >= at for at in DROPS_AT)
    return 1.0


class Optimizer:
    """SGD with momentum or Adam on parameters of shape (models, P).

    Models without further batches in this epoch come last; neither they nor their state change.
    """

    def __init__(self, recipe: Recipe, parameters: Tensor, *, decayed: Tensor | None = None) -> None:
        """`decayed`, shape (P,), is True for parameters under weight decay; None for all parameters."""
        self._recipe = recipe
        self._decayed = None if decayed is None else decayed.to(parameters)
        self._adam = recipe.optimizer == "adam"
        moments = 2 if self._adam else int(recipe.momentum > 0)
        self.moments = [torch.zeros_like(parameters) for _ in range(moments)]
        self.steps = torch.zeros(len(parameters), 1, device=parameters.device)

    def restore(self, moments: Sequence[Tensor], steps: Tensor) -> None:
        """Go back to these moments and numbers of steps."""
        for moment, stored in zip(self.moments, moments, strict=True):
            moment.copy_(stored)
        self.steps.copy_(steps)

    def step(self, parameters: Tensor, gradient: Tensor, rate: Tensor | float) -> None:
        """Update the first A models; parameters and gradient have shape (A, P), `rate` is a number or (A, 1)."""
        if self._recipe.weight_decay:
            decayed = parameters if self._decayed is None else parameters * self._decayed
            gradient.add_(decayed, alpha=self._recipe.weight_decay)
        update, momentum = gradient, self._recipe.momentum
        if self._adam:
            first, second = (moment[: len(gradient)] for moment in self.moments)
            steps = self.steps[: len(gradient)].add_(1)
            first.lerp_(gradient, 0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            update = first / (1 - 0.9**steps) / (second / (1 - 0.999**steps)).sqrt_().add_(1e-8)
        elif self.moments:
            velocity = self.moments[0][: len(gradient)].mul_(momentum).add_(gradient)
            update = gradient.add_(velocity, alpha=momentum) if self._recipe.nesterov else velocity
        if isinstance(rate, float):
            parameters.sub_(update, alpha=rate)
        else:
            parameters.sub_(update * rate)
