"""Trains one model for each task, stack by stack, on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.protocols import Compute, TrainingError
from dpaudit.mechanisms.training.calibrate import calibrated_plan
from dpaudit.mechanisms.training.checkpoint import Checkpoint, training_digest
from dpaudit.mechanisms.training.inputs import as_array
from dpaudit.mechanisms.training.losses import CrossEntropy, Loss
from dpaudit.mechanisms.training.network_model import NetworkModel
from dpaudit.mechanisms.training.recipe import Recipe
from dpaudit.mechanisms.training.stack import Stack
from dpaudit.mechanisms.training.stack_plan import StackPlan
from dpaudit.mechanisms.training.task import TrainingTask


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

    Args:
        recipe: The network, and how it is trained.
        features: Shared by all tasks, n rows.
        tasks: What each model is trained on.
        classes: Number of classes K.
        compute: Threads and device.
        loss: Of one example; cross-entropy by default.
        plan: How to group the models; found by a short calibration when there are several and none is given.
        checkpoint: A file that keeps finished stacks and the epoch of the current one, so that the same call goes on
            where it was cut off; removed by nobody but the caller. Left out: one in `compute.scratch`, if there is any.
        stack_type: What trains the models of a stack; takes the arguments of `Stack`.
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
    """Trains the tasks in stacks of `size`.

    Args:
        stack_of: Gives the stack of some tasks, from the features on the device, the tasks, and the place of the first.
        features: Shared by all tasks.
        tasks: What each model is trained on.
        recipe: The network of all of them.
        classes: Number of classes K.
        size: Models in a stack.
        settings: Whatever else decides the numbers, with a repr that says it all; guards the checkpoint.
        compute: Threads and device.
        checkpoint: See `train_stack`.
    """
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
