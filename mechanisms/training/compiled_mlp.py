"""Kernel that trains small perceptrons on a CPU in compiled code, one model at a time."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.mechanisms.training.inputs import Scaling
from dpaudit.mechanisms.training.kernels import NORM_FLOOR, AlibiLoss, BatchedMlp, CrossEntropy, Kernel, Loss
from dpaudit.mechanisms.training.optimizers import Optimizer
from dpaudit.mechanisms.training.recipe import Recipe

MAX_PARAMETERS = 2**20  # larger perceptrons keep several cores busy on their own


class CompiledMlp(BatchedMlp):
    """Multilayer perceptrons with cross-entropy or ALIBI's loss; one call runs an epoch or a step's clipped sums.

    A model's numbers depend on its rows and weights alone, in a fixed order of operations. They are bit-identical in
    any stack and with any number of threads.
    """

    def __init__(self, module: nn.Module, *, loss: Loss) -> None:
        super().__init__(module, loss=loss)
        shapes = self.layout.shapes[0::2]
        widths = np.array([shapes[0][1], *(outputs for outputs, _ in shapes)])
        alibi, floor = (True, loss.floor) if isinstance(loss, AlibiLoss) else (False, 0.0)
        self._network = widths, self._tanh, alibi, np.float32(floor)

    @staticmethod
    def fits(kind: type[Kernel], module: nn.Module, loss: Loss, device: torch.device) -> bool:
        """True if this kernel can replace a kernel of class `kind`."""
        size = sum(parameter.numel() for parameter in module.parameters())
        return (
            kind is BatchedMlp
            and isinstance(loss, CrossEntropy | AlibiLoss)
            and device.type == "cpu"
            and size <= MAX_PARAMETERS
        )

    def train_epoch(
        self,
        recipe: Recipe,
        parameters: Tensor,
        optimizer: Optimizer,
        model: int,
        *,
        features: Tensor,
        rows: NDArray[np.int64],
        targets: NDArray[np.float32],
        scaling: Scaling | None,
        rates: NDArray[np.float32],
    ) -> float:
        """Run one epoch over a model's `rows`, updating it and its moments; returns the sum of batch mean losses."""
        from dpaudit.mechanisms.training import _perceptron_steps as compiled  # slow to import: numba

        first, second = _moments(optimizer, len(parameters))
        step = optimizer.steps[model]
        scales = np.zeros((0, self._network[0][0]), np.float32)
        if scaling is not None:
            scales = np.stack([scaling.mean.ravel(), scaling.deviation.ravel()])
        total = compiled.train_epoch(
            parameters[model].numpy(),
            first[model],
            second[model],
            int(step),
            self._network,
            features.flatten(1).numpy(),
            rows,
            targets,
            scales,
            rates,
            recipe.batch_size,
            _rule(recipe),
        )
        step += len(rates)
        return float(total)

    def step(self, recipe: Recipe, parameters: Tensor, gradient: Tensor, optimizer: Optimizer, rate: float) -> None:
        """Do `optimizer.step` in one pass on one thread; overwrites `gradient`."""
        from dpaudit.mechanisms.training import _perceptron_steps as compiled

        first, second = _moments(optimizer, len(parameters))
        steps = optimizer.steps.numpy()
        rule, moved = _rule(recipe), parameters.numpy()
        compiled.update_all(rule, moved, gradient.numpy(), first, second, steps, np.float32(rate))

    def clipped_sums(
        self,
        parameters: Tensor,
        features: Tensor,
        rows: NDArray[np.int64],
        targets: NDArray[np.float32],
        ends: NDArray[np.int64],
        clip: float,
        out: Tensor,
    ) -> None:
        """Write each model's sum of clipped gradients to `out` (A, P); `ends` (A,) has the end of each batch."""
        from dpaudit.mechanisms.training import _perceptron_steps as compiled

        compiled.clipped_sums(
            parameters.numpy(),
            self._network,
            features.flatten(1).numpy(),
            rows,
            targets,
            ends,
            np.float32(clip),
            np.float32(NORM_FLOOR),
            out.numpy(),
        )


def _rule(recipe: Recipe) -> tuple[bool, bool, np.float32, np.float32]:
    """Return the update rule: is Adam, uses Nesterov's momentum, momentum, weight decay."""
    return recipe.optimizer == "adam", recipe.nesterov, np.float32(recipe.momentum), np.float32(recipe.weight_decay)


def _moments(optimizer: Optimizer, models: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return both moments, (models, P), or (models, 0) for those that the optimizer lacks."""
    none = np.zeros((models, 0), np.float32)
    first, second = [*(moment.numpy() for moment in optimizer.moments), none, none][:2]
    return first, second
