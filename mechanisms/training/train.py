"""Trains one model for each task, stack by stack, on one device; an interrupted call resumes from its checkpoint.

The grouping into stacks depends on the network and the device alone, so it is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.training.checkpoint import TrainingCheckpoint, training_digest
from dpaudit.mechanisms.training.inputs import as_array, example_shape
from dpaudit.mechanisms.training.kernels import CrossEntropy, Loss, couples_examples
from dpaudit.mechanisms.training.network_model import NetworkModel
from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import Stack

PRIVATE_STACK = 64  # maximum stack of DP-SGD, which has each example's gradient in memory for every model
GPU_SHARE = 0.7  # share of the unit's GPU memory available to a stack


def train_stack(
    recipe: Recipe,
    features: Features,
    tasks: Sequence[TrainingTask],
    *,
    classes: int,
    compute: Compute,
    loss: Loss | None = None,
    plan: StackPlan | None = None,
    stack_type: Callable[..., Stack] | None = None,
    key_parts: tuple[object, ...] = (),
) -> list[NetworkModel | TrainingError]:
    """Train one model for each task; returns the model, or an error if its loss is no longer finite.

    `key_parts` identify the training in the digest of its checkpoint, if `stack_type` alone does not.

    Raises: TrainingError if the GPU has too little memory for the plan.
    """
    loss, stack_class = loss or CrossEntropy(), stack_type or Stack
    if plan is None:
        shape = example_shape(features)
        if len(tasks) == 1:
            plan = single_plan(recipe, shape, classes)
        else:
            plan = default_plan(recipe, shape, classes=classes, models=len(tasks), compute=compute)
    torch.set_num_threads(compute.threads)
    array = as_array(features)
    # Copy read-only arrays from an object store, which torch cannot wrap.
    writeable = np.ascontiguousarray(array) if array.flags.writeable else np.array(array)
    torch.backends.cudnn.deterministic = (
        True  # otherwise a GPU may use other algorithms, with other rounding, in each run
    )
    resident = torch.from_numpy(writeable).to(torch.device(compute.device))
    settings = key_parts or (recipe, plan, loss, stack_class)
    digest = training_digest(settings, np.ascontiguousarray(array).data, tasks) if compute.scratch else ""
    build_model = partial(NetworkModel, recipe, tuple(array.shape[1:]), classes, compute=compute)
    checkpoint = TrainingCheckpoint(compute, digest, build_model)
    outcomes: list[NetworkModel | TrainingError] = list(checkpoint.finished)
    for first in range(len(outcomes), len(tasks), plan.size):
        group = tasks[first : first + plan.size]
        try:
            stack = stack_class(recipe, resident, group, classes=classes, loss=loss, plan=plan, first=first)
            outcomes += _train_epochs(stack, checkpoint, compute)
        except torch.cuda.OutOfMemoryError as error:
            raise TrainingError(
                f"the GPU has too little memory for a stack of {plan.size} models. Use a smaller plan."
            ) from error
        if len(outcomes) < len(tasks):
            checkpoint.finish(outcomes)
    return outcomes


def _train_epochs(stack: Stack, checkpoint: TrainingCheckpoint, compute: Compute) -> list[NetworkModel | TrainingError]:
    """Run a stack from its checkpoint on, also from within an epoch; returns the outcomes in the order of the tasks."""
    for epoch in range(checkpoint.restore(stack), stack.recipe.epochs):
        stack.after_step = partial(checkpoint.keep, stack, epoch)
        stack.run_epoch(epoch)
        if not stack.losses.isfinite().any():
            break  # every model has failed; `outcomes` also checks the weights
        checkpoint.keep(stack, epoch + 1)
    return stack.outcomes(compute)


def single_plan(recipe: Recipe, shape: tuple[int, ...], classes: int) -> StackPlan:
    """Return the plan for a single model."""
    return StackPlan("batched" if recipe.batched_kernel(recipe.meta_module(shape, classes)) else "looped")


def default_plan(recipe: Recipe, shape: tuple[int, ...], *, classes: int, models: int, compute: Compute) -> StackPlan:
    """Plan one stack of all models, or as many as fit on the GPU; single models if stacks are not faster."""
    module = recipe.meta_module(shape, classes)
    batched = recipe.batched_kernel(module)
    if not batched and (compute.device == "cpu" or couples_examples(module)):
        return StackPlan("looped")
    size = _largest_stack(recipe, module, shape, models=models, compute=compute)
    return StackPlan("batched" if batched else "vmapped", size)


def private_plan(recipe: Recipe, shape: tuple[int, ...], *, classes: int, models: int, compute: Compute) -> StackPlan:
    """Plan stacks for DP-SGD, which needs each example's gradient."""
    module = recipe.meta_module(shape, classes)
    batched = recipe.batched_kernel(module)
    if not batched and compute.device == "cpu":
        return StackPlan("vmapped", 1)
    largest = min(models, PRIVATE_STACK)
    size = _largest_stack(recipe, module, shape, models=largest, compute=compute, each_gradient=True)
    return StackPlan("batched" if batched else "vmapped", size)


def _largest_stack(
    recipe: Recipe,
    module: nn.Module,
    shape: tuple[int, ...],
    *,
    models: int,
    compute: Compute,
    each_gradient: bool = False,
) -> int:
    """Return the number of models per stack: all, or as many as fit into the unit's share of the GPU."""
    if not compute.device.startswith("cuda"):
        return models
    total: int = torch.cuda.get_device_properties(compute.device).total_memory
    room = int(GPU_SHARE * compute.device_share * total)
    return max(1, min(models, room // bytes_per_model(recipe, module, shape, each_gradient=each_gradient)))


def bytes_per_model(recipe: Recipe, module: nn.Module, shape: tuple[int, ...], *, each_gradient: bool = False) -> int:
    """Estimate the bytes of one model in a stack: weights, gradients, moments and activations of a batch."""
    parameters = sum(parameter.numel() for parameter in module.parameters())
    outputs = 0

    def count(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal outputs
        outputs += output.numel()

    hooks = [part.register_forward_hook(count) for part in module.modules() if not list(part.children())]
    module(torch.empty(1, *shape, device="meta"))
    for hook in hooks:
        hook.remove()
    # Weights, gradient and its copy, two moments; for each activation its gradient and one temporary.
    copies = 5 + (recipe.batch_size if each_gradient else 0)
    return 4 * (copies * parameters + 3 * outputs * recipe.batch_size)
