"""Rules that group models for training, from the network and the device alone: the same at any time, everywhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.training.compute.kernels import couples_examples
from dpaudit.mechanisms.training.recipe import Recipe, StackPlan

PRIVATE_STACK = 64
"""Models trained by DP-SGD together at most: each example's gradient is held for each of them."""
GPU_SHARE = 0.7
"""Of the part of a GPU's memory that is a piece of work's, how much a stack may use."""


def single_plan(recipe: Recipe, shape: tuple[int, ...], classes: int) -> StackPlan:
    """The plan of a model on its own."""
    return StackPlan("batched" if recipe.batched_kernel(recipe.meta_module(shape, classes)) else "looped")


def whole_plan(recipe: Recipe, shape: tuple[int, ...], *, classes: int, models: int, compute: Compute) -> StackPlan:
    """All models in one stack, or as many as fit on the GPU, but one by one where a stack is no faster."""
    module = recipe.meta_module(shape, classes)
    batched = recipe.batched_kernel(module)
    if not batched and (compute.device == "cpu" or couples_examples(module)):
        return StackPlan("looped")
    size = _largest_stack(recipe, module, shape, models=models, compute=compute)
    return StackPlan("batched" if batched else "vmapped", size)


def private_plan(recipe: Recipe, shape: tuple[int, ...], *, classes: int, models: int, compute: Compute) -> StackPlan:
    """The plan of models trained by DP-SGD, which needs each example's gradient."""
    module = recipe.meta_module(shape, classes)
    batched = recipe.batched_kernel(module)
    if not batched and compute.device == "cpu":
        return StackPlan("vmapped", 1)
    most = min(models, PRIVATE_STACK)
    size = _largest_stack(recipe, module, shape, models=most, compute=compute, each_gradient=True)
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
    """How many of some models are trained together: all, or as many as fit into this piece's share of the GPU."""
    if not compute.device.startswith("cuda"):
        return models
    total: int = torch.cuda.get_device_properties(compute.device).total_memory
    room = int(GPU_SHARE * compute.device_share * total)
    return max(1, min(models, room // bytes_per_model(recipe, module, shape, each_gradient=each_gradient)))


def bytes_per_model(recipe: Recipe, module: nn.Module, shape: tuple[int, ...], *, each_gradient: bool = False) -> int:
    """About what one model of a stack needs: weights, gradients and moments, and the activations of a batch."""
    parameters = sum(parameter.numel() for parameter in module.parameters())
    outputs = 0

    def count(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal outputs
        outputs += output.numel()

    hooks = [part.register_forward_hook(count) for part in module.modules() if not list(part.children())]
    module(torch.empty(1, *shape, device="meta"))
    for hook in hooks:
        hook.remove()
    # Weights, gradient, its copy, two moments; each activation with its gradient and one temporary.
    held = 5 + (recipe.batch_size if each_gradient else 0)
    return 4 * (held * parameters + 3 * outputs * recipe.batch_size)
