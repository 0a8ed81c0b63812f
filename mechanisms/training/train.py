"""Trains one model for each task, stack by stack, on one device.

Finds the fastest way to train many models of one network on one device, by timing a few steps of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.random import SeedSequence
from torch import Tensor

from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.training.checkpoint import Checkpoint, training_digest
from dpaudit.mechanisms.training.compute.compiled_mlp import CompiledMlp
from dpaudit.mechanisms.training.compute.kernels import couples_examples
from dpaudit.mechanisms.training.inputs import as_array, example_shape
from dpaudit.mechanisms.training.losses import CrossEntropy, Loss
from dpaudit.mechanisms.training.memory import bytes_per_model, stack_bytes
from dpaudit.mechanisms.training.network_model import NetworkModel
from dpaudit.mechanisms.training.plan import single_plan
from dpaudit.mechanisms.training.recipe import Recipe
from dpaudit.mechanisms.training.stack import Stack
from dpaudit.mechanisms.training.stack_plan import StackPlan
from dpaudit.mechanisms.training.task import TrainingTask

SIZES = (8, 32, 128, 512)
STEPS = 2
REPEATS = 20
ENOUGH_S = 0.5
CLEARLY = 1.3


def calibrated_plan(recipe: Recipe, features: Features, *, classes: int, models: int, compute: Compute) -> StackPlan:
    """The plan of trainings for which none was given: a rule for one model, a calibration for several."""
    shape = example_shape(features)
    if models == 1:
        return single_plan(recipe, shape, classes)
    return calibrate(recipe, shape, classes=classes, models=models, compute=compute)


def calibrate(
    recipe: Recipe,
    shape: tuple[int, ...],
    *,
    classes: int,
    models: int,
    compute: Compute,
    memory_bytes: int | None = None,
) -> StackPlan:
    """The plan with the least time for one step of one model: found by timing, where compiled code does not fit.

    Sizes grow until a larger stack is clearly slower or would not fit. Timings differ from run to run: keep the plan
    with the run, so that it is repeated exactly.

    Args:
        memory_bytes: What a stack may use; by default 2 GiB, or 70 % of this piece's share of the GPU.
    """
    torch.set_num_threads(compute.threads)
    device = torch.device(compute.device)
    module = recipe.meta_module(shape, classes)
    best = single_plan(recipe, shape, classes)
    if couples_examples(module):
        return best
    batched = recipe.batched_kernel(module)
    largest = (memory_bytes or stack_bytes(compute)) // bytes_per_model(recipe, module, shape)
    if batched and CompiledMlp.fits(batched, module, CrossEntropy(), device):
        return StackPlan("batched", max(1, min(models, largest)))  # takes a model as long in any stack
    method = "batched" if batched else "vmapped"
    least = seconds_per_step(recipe, shape, best, classes=classes, device=device)
    for size in stack_sizes(models, largest=largest):
        plan = StackPlan(method, size)
        taken = seconds_per_step(recipe, shape, plan, classes=classes, device=device)
        if taken < least:
            best, least = plan, taken
        elif taken > CLEARLY * least:
            break  # larger ones will not be faster
    return best


def stack_sizes(models: int, *, largest: int) -> list[int]:
    """The sizes to try, each of them needing fewer stacks than the one before."""
    return sorted({min(size, models, largest) for size in SIZES if min(size, models, largest) > 1})


def seconds_per_step(
    recipe: Recipe, shape: tuple[int, ...], plan: StackPlan, *, classes: int, device: torch.device
) -> float:
    """Time of one step of one model, in seconds: the best of some short epochs, fewer the longer they take."""
    rng = np.random.default_rng(0)
    rows = STEPS * recipe.batch_size
    features = torch.from_numpy(recipe.synthetic_features((rows, *shape), rng)).to(device)
    labels = rng.integers(0, classes, rows)
    tasks: Sequence[TrainingTask] = [
        TrainingTask(np.arange(rows), labels, seed) for seed in SeedSequence(0).spawn(plan.size)
    ]
    stack = Stack(recipe, features, tasks, classes=classes, loss=CrossEntropy(), plan=plan)
    if device.type == "cuda":
        stack.run_epoch(0)  # the first one loads kernels
    times: list[float] = []
    while not times or (sum(times) < ENOUGH_S and len(times) < REPEATS):
        _wait(device)
        start = time.perf_counter()
        stack.run_epoch(len(times))
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times) / (STEPS * plan.size)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train_stack(
    recipe: Recipe,
    features: Features,
    tasks: Sequence[TrainingTask],
    *,
    classes: int,
    compute: Compute,
    loss: Loss | None = None,
    plan: StackPlan | None = None,
    checkpoint: Path | None = None,
    stack_type: Callable[..., Stack] = Stack,
) -> list[NetworkModel | TrainingError]:
    """Trains one model for each task.

    Returns: For each task its model, or the error when its loss stopped being a number.
    Raises: TrainingError when the GPU has not enough memory for the plan.
    """
    loss = loss or CrossEntropy()
    plan = plan or calibrated_plan(recipe, features, classes=classes, models=len(tasks), compute=compute)

    def stack_of(resident: Tensor, group: Sequence[TrainingTask], first: int) -> Stack:
        return stack_type(recipe, resident, group, classes=classes, loss=loss, plan=plan)

    settings = (recipe, plan, loss, stack_type)
    return run_stacks(
        stack_of,
        features,
        tasks,
        recipe=recipe,
        classes=classes,
        size=plan.size,
        settings=settings,
        compute=compute,
        checkpoint=checkpoint,
    )


def run_stacks(
    stack_of: Callable[[Tensor, Sequence[TrainingTask], int], Stack],
    features: Features,
    tasks: Sequence[TrainingTask],
    *,
    recipe: Recipe,
    classes: int,
    size: int,
    settings: tuple[object, ...],
    compute: Compute,
    checkpoint: Path | None,
) -> list[NetworkModel | TrainingError]:
    """Trains the tasks in stacks of `size`."""
    torch.set_num_threads(compute.threads)
    array = as_array(features)
    # Arrays from an object store are read-only, which torch cannot wrap: those are copied.
    writeable = np.ascontiguousarray(array) if array.flags.writeable else np.array(array)
    torch.backends.cudnn.deterministic = True  # else a GPU may choose another algorithm, and other rounding, each time
    resident = torch.from_numpy(writeable).to(torch.device(compute.device))
    digest = training_digest(settings, array, tasks) if checkpoint or compute.scratch else ""
    trained = partial(NetworkModel, recipe, tuple(array.shape[1:]), classes, compute=compute)
    saved = Checkpoint(checkpoint or (compute.scratch and compute.scratch / f"{digest}.pt"), digest, trained)
    outcomes: list[NetworkModel | TrainingError] = list(saved.finished)
    for first in range(len(outcomes), len(tasks), size):
        try:
            outcomes += stack_of(resident, tasks[first : first + size], first).train(saved, compute)
        except torch.cuda.OutOfMemoryError as error:
            raise TrainingError(f"the GPU has no memory for a stack of {size}; use a smaller plan") from error
        if len(outcomes) < len(tasks):
            saved.finish(outcomes)
    return outcomes
