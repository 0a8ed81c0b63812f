"""Trains one model for each task, stack by stack, on one device; an interrupted call resumes from its checkpoint.

The grouping into stacks depends on the network, the data and the device alone, so it is reproducible. Only if the GPU
turns out to have too little memory, a note says that smaller stacks were trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.mechanisms.compute import Compute, TrainingError, leave_note
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.gpu_memory import (
    NO_ROOM_FOR_A_MODEL,
    RESIDENT_SHARE,
    digest_if_shared,
    digest_of,
    is_out_of_memory,
    on_device,
    release_resident,
    unit_bytes,
)
from dpaudit.mechanisms.training.augment import Augment
from dpaudit.mechanisms.training.checkpoint import TrainingCheckpoint, training_digest
from dpaudit.mechanisms.training.divided import current_group, train_divided
from dpaudit.mechanisms.training.inputs import as_array, example_shape
from dpaudit.mechanisms.training.kernels import CrossEntropy, Loss, couples_examples
from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel, Stack

PRIVATE_STACK = 64  # maximum stack of DP-SGD, which has each example's gradient in memory for every model
GPU_SHARE = 0.7  # share of the unit's GPU memory available to a stack and to data


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
    others_type: Callable[..., Stack] | None = None,
    key_parts: tuple[object, ...] = (),
) -> list[NetworkModel | TrainingError]:
    """Train one model for each task; returns the model, or an error if its loss is no longer finite.

    `key_parts` identify the training in the digest of its checkpoint, if `stack_type` alone does not. Of a training
    in several processes, `others_type` builds the stacks of those that return nothing; None for `stack_type`.

    If a stack does not fit in the GPU's memory, it is trained as stacks of half its size, and a note says so.

    Raises: TrainingError if the GPU has too little memory for the data or for one model.
    """
    loss, stack_class = loss or CrossEntropy(), stack_type or Stack
    if plan is None:
        shape, rows = example_shape(features), len(features)
        if len(tasks) == 1:
            plan = single_plan(recipe, shape, classes)
        else:
            plan = default_plan(recipe, shape, classes=classes, models=len(tasks), rows=rows, compute=compute)
    array = as_array(features)
    data_digest = digest_if_shared(features) or (digest_of(array) if compute.scratch else None)
    settings = key_parts or (recipe, plan, loss, stack_class)
    digest = training_digest((*settings, data_digest), tasks) if compute.scratch else ""
    train, train_others = (
        partial(
            _train_stacks,
            partial(kind, recipe, classes=classes, loss=loss, plan=plan),
            partial(NetworkModel, recipe, tuple(array.shape[1:]), classes),
            plan.size,
            tasks,
            array,
            data_digest,
            digest,
        )
        for kind in (stack_class, others_type or stack_class)
    )
    return train(compute) if compute.processes == 1 else train_divided(train, train_others, compute)


def _train_stacks(
    build_stack: Callable[..., Stack],
    build_model: Callable[..., NetworkModel],
    planned_size: int,
    tasks: Sequence[TrainingTask],
    array: NDArray[np.float32],
    data_digest: str | None,
    digest: str,
    compute: Compute,
) -> list[NetworkModel | TrainingError]:
    """Train the stacks one after another, as in `train_stack`; `digest` is that of the checkpoint."""
    torch.set_num_threads(compute.threads)
    # Otherwise a GPU may use other algorithms, with other rounding, in each run.
    torch.backends.cudnn.deterministic = True
    data = on_device(array, compute, data_digest)
    checkpoint = TrainingCheckpoint(compute, digest, partial(build_model, compute=compute))
    outcomes: list[NetworkModel | TrainingError] = list(checkpoint.finished)
    size, has_smaller_stacks = checkpoint.stack_size or planned_size, False
    while len(outcomes) < len(tasks):
        first = len(outcomes)
        group = tasks[first : first + size]
        trained = _train_if_it_fits(partial(build_stack, data, group, first=first), checkpoint, compute)
        if trained is None:
            checkpoint.discard_state()
            if not release_resident(keep=data):
                if len(group) == 1:
                    raise TrainingError(NO_ROOM_FOR_A_MODEL)
                size = -(-len(group) // 2)
            continue
        has_smaller_stacks |= len(group) < len(tasks[first : first + planned_size])
        outcomes += trained
        if len(outcomes) < len(tasks):
            checkpoint.finish(outcomes)
    if has_smaller_stacks:
        leave_note(
            f"stacks of {planned_size} models did not fit in the GPU's memory, so models were trained in stacks of "
            f"{size}. This changes results by rounding only"
        )
    return outcomes


def _train_if_it_fits(
    build_stack: Callable[[], Stack], checkpoint: TrainingCheckpoint, compute: Compute
) -> list[NetworkModel | TrainingError] | None:
    """Train one stack from its checkpoint on, also from within an epoch; None if the GPU has too little memory for it.

    Returns: The outcomes in the order of the tasks.
    """
    try:
        stack = build_stack()
        for epoch in range(checkpoint.restore(stack), stack.recipe.epochs):
            stack.after_step = partial(checkpoint.keep, stack, epoch)
            stack.run_epoch(epoch)
            if not stack.losses.isfinite().any():
                break  # every model has failed; `outcomes` also checks the weights
            checkpoint.keep(stack, epoch + 1)
        return stack.outcomes(compute)
    except RuntimeError as error:
        if not is_out_of_memory(error) or current_group() is not None:
            raise
        return None


def single_plan(recipe: Recipe, shape: tuple[int, ...], classes: int) -> StackPlan:
    """Return the plan for a single model."""
    return StackPlan("batched" if recipe.batched_kernel(recipe.meta_module(shape, classes)) else "looped")


def default_plan(
    recipe: Recipe, shape: tuple[int, ...], *, classes: int, models: int, rows: int, compute: Compute
) -> StackPlan:
    """Plan one stack of all models, or as many as fit on the GPU; single models if stacks are not faster.

    `rows` is the number of examples in the data.
    """
    module = recipe.meta_module(shape, classes)
    batched = recipe.batched_kernel(module)
    if not batched and (compute.device == "cpu" or couples_examples(module)):
        return StackPlan("looped")
    size = _largest_stack(recipe, module, shape, models=models, rows=rows, compute=compute)
    return StackPlan("batched" if batched else "vmapped", size)


def private_plan(
    recipe: Recipe, shape: tuple[int, ...], *, classes: int, models: int, rows: int, compute: Compute
) -> StackPlan:
    """Plan stacks for DP-SGD, which needs each example's gradient; arguments as in `default_plan`."""
    module = recipe.meta_module(shape, classes)
    batched = recipe.batched_kernel(module)
    if not batched and compute.device == "cpu":
        return StackPlan("vmapped", 1)
    largest = min(models, PRIVATE_STACK)
    size = _largest_stack(recipe, module, shape, models=largest, rows=rows, compute=compute, each_gradient=True)
    return StackPlan("batched" if batched else "vmapped", size)


def _largest_stack(
    recipe: Recipe,
    module: nn.Module,
    shape: tuple[int, ...],
    *,
    models: int,
    rows: int,
    compute: Compute,
    each_gradient: bool = False,
) -> int:
    """Return the number of models per stack: all, or as many as fit with the data into the unit's share of the GPU.

    The data are these, and those of earlier units that may have stayed on the GPU.
    """
    if not compute.device.startswith("cuda"):
        return models
    memory = unit_bytes(compute)
    data = max(4 * rows * math.prod(shape), int(RESIDENT_SHARE * memory))
    each = bytes_per_model(recipe, module, shape, rows=rows, each_gradient=each_gradient)
    return max(1, min(models, (int(GPU_SHARE * memory) - data) // each))


def bytes_per_model(
    recipe: Recipe, module: nn.Module, shape: tuple[int, ...], *, rows: int, each_gradient: bool = False
) -> int:
    """Estimate the bytes of one model in a stack: weights, gradients, moments, activations of a batch, and its rows."""
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
    # Of each row: its number, its label, its place in the order, and the draws of its augmentation.
    row_bytes = 4 + 8 + 8 + 4 * Augment(recipe.augment, shape).draws
    return 4 * (copies * parameters + 3 * outputs * recipe.batch_size) + row_bytes * rows
