"""A trained network: its weights as an array, ready for another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.models.inputs import as_array
from dpaudit.mechanisms.models.networks import Network
from dpaudit.mechanisms.protocols import Compute
from dpaudit.mechanisms.training.batched import batched_kernel
from dpaudit.mechanisms.training.kernels import Kernel, Looped
from dpaudit.mechanisms.training.losses import CrossEntropy

ROWS = 512
TOGETHER = 64


@dataclass(frozen=True, eq=False)
class Scaling:
    """What turns features into the network's inputs: (x - mean) / deviation, missing numbers becoming 0.

    Attributes:
        mean: Of each feature, shape of one example.
        deviation: Of each feature, > 0 (1 where the feature does not vary).
    """

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class NetworkModel:
    """A trained network.

    Attributes:
        trainer: What it was trained by; says which network it is.
        shape: Of one example.
        classes: Number of classes K.
        parameters: Its weights, float32 of shape (P,).
        buffers: Running statistics of batch norm by name, usually none.
        scaling: How features are scaled first, or None.
        compute: Where predictions are made.
    """

    trainer: Network
    shape: tuple[int, ...]
    classes: int
    parameters: NDArray[np.float32]
    buffers: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    scaling: Scaling | None = None
    compute: Compute = field(default=Compute())

    def logits(self, features: Features) -> NDArray[np.float64]:
        """Logits before the softmax, shape (n, classes)."""
        return np.asarray(stack_logits([self], features, compute=self.compute)[0])

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        """Class probabilities, shape (n, classes)."""
        return softmax(self.logits(features))


def stack_logits(models: Sequence[NetworkModel], features: Features, *, compute: Compute) -> NDArray[np.float64]:
    """Logits of many models of one network on the same features, shape (models, n, classes)."""
    array = as_array(features)
    shape = models[0].shape
    require(array.shape[1:] == shape, "features must have the shape the model was trained on", given=array.shape[1:])
    require(all(m.trainer == models[0].trainer for m in models), "models of a stack must be of one network")
    torch.set_num_threads(compute.threads)
    # A model trained on a GPU may be asked where there is none.
    device = torch.device(compute.device if torch.cuda.is_available() else "cpu")
    group = TOGETHER if batched_kernel(_meta(models[0])) else 1
    answers = np.empty((len(models), len(array), models[0].classes))
    for first in range(0, len(models), group):
        some = models[first : first + group]
        kernel = _kernel(some, device)
        parameters = torch.from_numpy(np.stack([model.parameters for model in some])).to(device)
        scaling = stack_scaling([model.scaling for model in some], device)
        for row in range(0, len(array), ROWS):
            inputs = torch.as_tensor(np.array(array[row : row + ROWS]), device=device)[None].expand(
                len(some), *[-1] * array.ndim
            )
            logits = kernel.logits(parameters, scaled(inputs, scaling))
            answers[first : first + group, row : row + ROWS] = logits.double().cpu().numpy()
    return answers


def stack_probabilities(models: Sequence[NetworkModel], features: Features, *, compute: Compute) -> NDArray[np.float64]:
    """Class probabilities of many models of one network on the same features, shape (models, n, classes)."""
    return softmax(stack_logits(models, features, compute=compute))


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax over the last axis."""
    powers: NDArray[np.float64] = np.exp(logits - logits.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    return powers


def stack_scaling(scalings: Sequence[Scaling | None], device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Means and deviations of a stack, each of shape (models, 1, *shape), or None when nothing is scaled."""
    given = [scaling for scaling in scalings if scaling is not None]
    if not given:
        return None
    mean = torch.from_numpy(np.stack([scaling.mean for scaling in given])).to(device)
    deviation = torch.from_numpy(np.stack([scaling.deviation for scaling in given])).to(device)
    return mean[:, None], deviation[:, None]


def scaled(inputs: torch.Tensor, scaling: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    """Inputs (A, b, *shape) under the scaling of the first A models."""
    if scaling is None:
        return inputs
    mean, deviation = (part[: len(inputs)] for part in scaling)
    return ((inputs - mean) / deviation).nan_to_num_(nan=0.0)


def _meta(model: NetworkModel) -> nn.Module:
    with torch.device("meta"):
        return model.trainer.module(model.shape, model.classes)


def _kernel(models: Sequence[NetworkModel], device: torch.device) -> Kernel:
    module = _meta(models[0])
    if batched := batched_kernel(module):
        return batched(module, loss=CrossEntropy())
    looped = Looped(module, loss=CrossEntropy(), device=device)
    for name, buffer in looped.module.named_buffers():
        buffer.copy_(torch.from_numpy(models[0].buffers[name]))
    return looped
