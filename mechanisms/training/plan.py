"""Rules that group models for training, from the network and the device alone."""

from __future__ import annotations

from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.training.compute.kernels import couples_examples
from dpaudit.mechanisms.training.memory import largest_stack
from dpaudit.mechanisms.training.recipe import Recipe
from dpaudit.mechanisms.training.stack_plan import StackPlan

PRIVATE_STACK = 64
"""Models trained by DP-SGD together at most: each example's gradient is held for each of them."""


def single_plan(recipe: Recipe, shape: tuple[int, ...], classes: int) -> StackPlan:
    """The plan of a model on its own; a rule, so that it is the same everywhere."""
    return StackPlan("batched" if recipe.batched_kernel(recipe.meta_module(shape, classes)) else "looped")


def whole_plan(recipe: Recipe, shape: tuple[int, ...], *, classes: int, models: int, compute: Compute) -> StackPlan:
    """All models in one stack, or as many as fit on the GPU, but one by one where a stack is no faster.

    A rule, so that it is the same everywhere.
    """
    module = recipe.meta_module(shape, classes)
    batched = recipe.batched_kernel(module)
    if not batched and (compute.device == "cpu" or couples_examples(module)):
        return StackPlan("looped")
    size = largest_stack(recipe, module, shape, models=models, compute=compute)
    return StackPlan("batched" if batched else "vmapped", size)


def private_plan(recipe: Recipe, shape: tuple[int, ...], *, classes: int, models: int, compute: Compute) -> StackPlan:
    """The plan of models trained by DP-SGD, which needs each example's gradient; a rule as well."""
    module = recipe.meta_module(shape, classes)
    batched = recipe.batched_kernel(module)
    if not batched and compute.device == "cpu":
        return StackPlan("vmapped", 1)
    most = min(models, PRIVATE_STACK)
    size = largest_stack(recipe, module, shape, models=most, compute=compute, each_gradient=True)
    return StackPlan("batched" if batched else "vmapped", size)
