"""A trained network with its weights as an array, so that it can be sent to another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.gpu_memory import digest_if_shared, may_stay, on_device
from dpaudit.mechanisms.training.inputs import Scaling, as_array, scale_inputs, stack_scaling
from dpaudit.mechanisms.training.kernels import CrossEntropy, Kernel, Looped
from dpaudit.mechanisms.training.recipe import Recipe

ROWS_PER_PASS = 512
MODELS_PER_PASS = 64


@dataclass(frozen=True, eq=False)
class NetworkModel:
    """A trained network."""

    recipe: Recipe  # the network and its training settings
    shape: tuple[int, ...]  # shape of one example
    classes: int  # number of classes K
    parameters: NDArray[np.float32]  # weights, shape (P,)
    # Running statistics of batch norm by name, usually empty
    buffers: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    scaling: Scaling | None = None  # scaling of the features, or None
    compute: Compute = field(default=Compute())  # threads and device of predictions

    def logits(self, features: Features) -> NDArray[np.float64]:
        return np.asarray(stack_logits([self], features, compute=self.compute)[0])

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return np.asarray(softmax(self.logits(features), axis=-1))


def stack_logits(models: Sequence[NetworkModel], features: Features, *, compute: Compute) -> NDArray[np.float64]:
    """Return logits of many models of one network on the same features, shape (models, n, classes)."""
    array = as_array(features)
    shape = models[0].shape
    require(
        array.shape[1:] == shape, "features must have the shape that the model was trained on", given=array.shape[1:]
    )
    torch.set_num_threads(compute.threads)
    # A model trained on a GPU may predict on a machine without one.
    compute = compute if torch.cuda.is_available() else replace(compute, device="cpu")
    data = on_device(array, compute, digest_if_shared(features)) if may_stay(array, compute) else None
    device = torch.device(compute.device) if data is None else data.device
    module = models[0].recipe.meta_module(shape, models[0].classes)
    batched = models[0].recipe.batched_kernel(module)
    group = MODELS_PER_PASS if batched else 1
    answers = np.empty((len(models), len(array), models[0].classes))
    for first in range(0, len(models), group):
        stack = models[first : first + group]
        kernel: Kernel = batched(module, loss=CrossEntropy()) if batched else _looped_kernel(stack[0], device)
        parameters = torch.from_numpy(np.stack([model.parameters for model in stack])).to(device)
        scaling = stack_scaling([model.scaling for model in stack], device)
        for row in range(0, len(array), ROWS_PER_PASS):
            rows = slice(row, row + ROWS_PER_PASS)
            inputs = torch.as_tensor(np.array(array[rows]), device=device) if data is None else data[rows]
            repeated = inputs[None].expand(len(stack), *[-1] * array.ndim)
            logits = kernel.logits(parameters, scale_inputs(repeated, scaling))
            answers[first : first + group, rows] = logits.double().cpu().numpy()
    return answers


def _looped_kernel(model: NetworkModel, device: torch.device) -> Looped:
    looped = Looped(model.recipe.meta_module(model.shape, model.classes), loss=CrossEntropy(), device=device)
    for name, buffer in looped.module.named_buffers():
        buffer.copy_(torch.from_numpy(model.buffers[name]))
    return looped
