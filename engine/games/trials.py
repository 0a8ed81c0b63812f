"""Trainings of games of two worlds: stacks that train together, and an example's gradient at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally
from dpaudit.actors.seed import Seed
from dpaudit.errors import AuditError, described
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.gpu_memory import fit_on_emptied_gpu
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.protocols import Learner, Model, StackLearner
from dpaudit.mechanisms.training.recipe import Recipe, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One training of a stack."""

    rows: NDArray[np.int64]  # positions of the training rows in the shared examples
    seed: Seed
    initial: NDArray[np.float32] | None = None  # initial weights, for a `StartingLearner`; None for random ones

    def task(self, examples: Examples) -> TrainingTask:
        """Return the training task on these shared examples."""
        return TrainingTask(self.rows, examples.labels[self.rows], self.seed.sequence(), self.initial)


def train_runs(
    mechanism: Any,
    examples: Examples,
    runs: Sequence[TrainingRun],
    *,
    compute: Compute,
    validation: Examples | None = None,
) -> list[Model | TrainingError]:
    """Return one model for each run, or the error of a failed training.

    The grouping of models in a stack depends on the network and the device only, never on timings, so that a repeated
    stack gives the same numbers.
    """
    stacked = mechanism.model if isinstance(mechanism, NonPrivate) else mechanism
    if isinstance(stacked, StackLearner):
        from dpaudit.mechanisms.training.inputs import example_shape

        shape = example_shape(examples.features)
        sizes = {"models": len(runs), "rows": len(examples)}
        plan = stacked.stack_plan(shape, classes=examples.classes, compute=compute, **sizes)
        tasks = [run.task(examples) for run in runs]
        return list(stacked.fit_stack(examples.features, tasks, classes=examples.classes, compute=compute, plan=plan))
    return [_trained_alone(mechanism, examples, run, compute, validation) for run in runs]


def _trained_alone(
    mechanism: Learner, examples: Examples, run: TrainingRun, compute: Compute, validation: Examples | None
) -> Model | TrainingError:
    train = examples.take(run.rows)
    validation = None if validation is None else validation.writable()
    options: dict[str, Any] = {} if run.initial is None else {"initial": run.initial}
    try:
        model: Model = fit_on_emptied_gpu(
            lambda: mechanism.fit(train, seed=run.seed.sequence(), compute=compute, validation=validation, **options)
        )
    except TrainingError as err:
        return err
    except AuditError:  # wrong use, which fails for every seed
        raise
    except BaseException as err:  # user code may raise anything, and one failed training is one failed trial
        if raised_externally(err):
            raise
        failed = TrainingError(described(err))
        failed.__cause__ = err
        return failed
    return model


class ExampleGradients:
    """Clipped gradient of one example for each run, at the current weights, in units of the clipping norm."""

    def __init__(self, recipe: Recipe, clip: float, points: Examples, compute: Compute) -> None:
        import torch

        from dpaudit.mechanisms.training.inputs import as_array
        from dpaudit.mechanisms.training.kernels import BatchedMlp, CrossEntropy, Kernel, Vmapped

        array = as_array(points.features)
        module = recipe.meta_module(array.shape[1:], points.classes)
        self._kernel: Kernel = (
            BatchedMlp(module, loss=CrossEntropy())
            if BatchedMlp.supports(module)
            else Vmapped(module, loss=CrossEntropy())
        )
        device = torch.device(compute.device)
        self._inputs = torch.from_numpy(np.array(array)).to(device)[:, None]
        self._targets = torch.eye(points.classes)[torch.from_numpy(points.labels.copy())].to(device)[:, None]
        self._clip = clip

    def __call__(self, places: NDArray[np.int64], parameters: Tensor) -> Tensor:
        import torch

        inputs, targets = self._inputs[places], self._targets[places]
        gradient = torch.zeros_like(parameters)
        present = torch.ones_like(targets[..., 0])
        self._kernel.clipped_gradient(parameters, inputs, targets, present, self._clip, gradient)
        unit: Tensor = gradient.double() / self._clip
        return unit
