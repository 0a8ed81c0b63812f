"""How many models fit beside each other on a device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.training.recipe import Recipe

CPU_BYTES = 2 * 2**30
GPU_SHARE = 0.7


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


def stack_bytes(compute: Compute) -> int:
    """What a stack may use: of a GPU the share that is this piece's, whatever else is on the card at the moment.

    So the stacks are the same on every card of a kind, whoever shares it.
    """
    if compute.device.startswith("cuda"):
        total: int = torch.cuda.get_device_properties(compute.device).total_memory
        return int(GPU_SHARE * compute.device_share * total)
    return CPU_BYTES


def largest_stack(
    recipe: Recipe,
    module: nn.Module,
    shape: tuple[int, ...],
    *,
    models: int,
    compute: Compute,
    each_gradient: bool = False,
) -> int:
    """How many of some models are trained together, >= 1: all of them, or as many as fit on the GPU."""
    if not compute.device.startswith("cuda"):
        return models
    needed = bytes_per_model(recipe, module, shape, each_gradient=each_gradient)
    return max(1, min(models, stack_bytes(compute) // needed))
