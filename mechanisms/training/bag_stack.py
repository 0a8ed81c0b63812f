"""Trains many perceptrons of one shape on released proportions, as one stack.

Proportion matching: cross-entropy moves the model's mean prediction in each bag towards the target of the bag. For bags
of size 1 and the unbiased targets of randomised response, this is the unbiased loss.

Source: Busa-Fekete et al. (2024), section 2, PropMatch, and section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError, epoch_generator, spawned, torch_generator
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.gpu_memory import digest_if_shared, on_device
from dpaudit.mechanisms.training.inputs import as_array, scale_inputs, scaling_of, stack_scaling
from dpaudit.mechanisms.training.kernels import BatchedMlp, CrossEntropy, draw_weights
from dpaudit.mechanisms.training.optimizers import Optimizer
from dpaudit.mechanisms.training.recipe import Recipe
from dpaudit.mechanisms.training.stack import NetworkModel


@dataclass(frozen=True, eq=False)
class BagTask:
    """One model to train on released proportions."""

    # Positions of each bag's examples in the features, shape (B, k); arbitrary if the share is 0
    rows: NDArray[np.int64]
    shares: NDArray[np.float32]  # weights in the bag's mean, >= 0 with sum 1, shape (B, k)
    # Targets of the mean predictions, shape (B, classes); rows sum to 1, values may be outside [0, 1]
    targets: NDArray[np.float32]
    learning_rate: float  # step size, > 0
    seed: SeedSequence  # seed of initial weights and order


def train_on_bags(
    recipe: Recipe, features: Features, tasks: Sequence[BagTask], *, classes: int, compute: Compute
) -> list[NetworkModel | TrainingError]:
    """Return a model for each task, or its error if the loss is not finite; all tasks have one shape (B, k)."""
    array = as_array(features)
    module = recipe.meta_module(tuple(array.shape[1:]), classes)
    message = "proportion matching needs a perceptron with relu or tanh"
    require(BatchedMlp.supports(module), message, model=type(recipe).__name__, do="use mlp")
    torch.set_num_threads(compute.threads)
    data = on_device(array, compute, digest_if_shared(features))
    device = data.device
    kernel = BatchedMlp(module, loss=CrossEntropy())
    seeds = [spawned(task.seed, 2) for task in tasks]  # initial weights, order
    parameters = torch.stack([draw_weights(module, torch_generator(weights)) for weights, _ in seeds]).to(device)
    gradient = torch.empty_like(parameters)
    optimizer = Optimizer(recipe, parameters)
    scaling = scaling_of(data, np.arange(len(array))) if recipe.standardise else None
    scales = stack_scaling([scaling], device)
    inputs = scale_inputs(data[None], scales)[0]
    rows, shares, targets = (
        torch.from_numpy(np.stack([getattr(task, name) for task in tasks])).to(device)
        for name in ("rows", "shares", "targets")
    )
    rates = torch.tensor([[task.learning_rate] for task in tasks], device=device)
    losses = torch.zeros(len(tasks), device=device)
    bags, bag_size = rows.shape[1:]
    step = max(1, recipe.batch_size // bag_size)
    models = torch.arange(len(tasks), device=device)[:, None]
    for epoch in range(recipe.epochs):
        orders = [epoch_generator(order, epoch).permutation(bags) for _, order in seeds]
        order = torch.from_numpy(np.stack(orders)).to(device)
        losses.zero_()
        for begin in range(0, bags, step):
            picked = order[:, begin : begin + step]
            members = rows[models, picked]  # (models, bags, k)
            batch = inputs.index_select(0, members.flatten()).view(len(tasks), -1, *inputs.shape[1:])
            activations = kernel.forward(parameters, batch)
            logits = activations[-1].unflatten(1, members.shape[1:])
            loss, slope = bag_cross_entropy(logits, shares[models, picked], targets[models, picked])
            kernel.backward(parameters, activations, slope.flatten(1, 2).div_(picked.shape[1]), gradient)
            losses += loss.mean(1)
            optimizer.step(parameters, gradient, rates)
    finite = (torch.isfinite(losses) & torch.isfinite(parameters).all(1)).tolist()
    weights = parameters.cpu().numpy()
    error = TrainingError("the loss is no longer finite. Lower the learning rate or check the features for NaN.")
    shape = tuple(array.shape[1:])
    return [
        NetworkModel(recipe, shape, classes, weights[place].copy(), scaling=scaling, compute=compute)
        if is_finite
        else error
        for place, is_finite in enumerate(finite)
    ]


def bag_cross_entropy(logits: Tensor, shares: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy between each bag's target t and mean prediction m, and its gradient by the logits.

    t has shape (models, bags, classes), logits (models, bags, k, classes), shares w (models, bags, k). The loss is
    -sum_c t_c log m_c with m = sum_j w_j p_j. Its gradient by the logits of example j is p_jc sum_a t_a r_ja - t_c
    r_jc, where r_jc = w_j p_jc / m_c is the share of example j in the mean.
    """
    logs = torch.log_softmax(logits, -1)
    weighted = logs + shares.log()[..., None]
    mean = torch.logsumexp(weighted, 2)
    part = (weighted - mean[:, :, None]).exp_()
    part *= targets[:, :, None]
    slope = logs.exp_().mul_(part.sum(-1, keepdim=True)).sub_(part)
    return -(targets * mean).sum(-1), slope
