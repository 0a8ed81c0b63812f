"""Trains many models of one mechanism on rows of shared examples: in stacks where the mechanism can, else in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.errors import SpecError
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.protocols import Learner, Model, ObservableLearner, StackLearner
from dpaudit.mechanisms.training.recipe import Recipe, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One training of a stack.

    Attributes:
        rows: What it is trained on, positions in the shared examples.
        seed: Decides everything it draws.
    """

    rows: NDArray[np.int64]
    seed: Seed


def train_runs(
    mechanism: Any,
    examples: Examples,
    runs: Sequence[TrainingRun],
    *,
    compute: Compute,
    validation: Examples | None = None,
) -> list[Model | TrainingError]:
    """One model for each run, or the error of a training that failed.

    How models of a stack are grouped follows from the network and the device alone, never from a
    timing, so that a stack trained again gives the same numbers.
    """
    stacked = mechanism.model if isinstance(mechanism, NonPrivate) else mechanism
    if isinstance(stacked, StackLearner):
        from dpaudit.mechanisms.training.inputs import example_shape

        shape = example_shape(examples.features)
        plan = stacked.stack_plan(shape, classes=examples.classes, models=len(runs), compute=compute)
        return list(
            stacked.fit_stack(
                examples.features, _tasks(examples, runs), classes=examples.classes, compute=compute, plan=plan
            )
        )
    return [_trained_alone(mechanism, examples, run, compute, validation) for run in runs]


def _trained_alone(
    mechanism: Learner, examples: Examples, run: TrainingRun, compute: Compute, validation: Examples | None
) -> Model | TrainingError:
    train = examples.take(run.rows)
    validation = None if validation is None else validation.writable()
    try:
        model: Model = mechanism.fit(train, seed=run.seed.sequence(), compute=compute, validation=validation)
    except TrainingError as err:
        return err
    return model


def _tasks(examples: Examples, runs: Sequence[TrainingRun]) -> list[TrainingTask]:
    return [TrainingTask(run.rows, examples.labels[run.rows], run.seed.sequence()) for run in runs]


@dataclass(frozen=True, eq=False)
class ObservedTrainings:
    """What an attacker of the training itself gathers of each run.

    Attributes:
        models: The trained models.
        products: Inner product of each step's released gradient with the canary's clipped one, in units of the clip
            norm; shape (runs, steps). 0 for steps that were not made, as where a training failed.
        norms: Squared norm of the canary's clipped gradient at each step, in the same units; shape (runs, steps).
    """

    models: list[Model | TrainingError]
    products: NDArray[np.float64]
    norms: NDArray[np.float64]


def train_observed(
    mechanism: ObservableLearner,
    examples: Examples,
    runs: Sequence[TrainingRun],
    *,
    compute: Compute,
    points: NDArray[np.int64] | None = None,
    gradients: NDArray[np.float32] | None = None,
    inserted: NDArray[np.bool_] | None = None,
) -> ObservedTrainings:
    """Trains by DP-SGD and observes every step.

    Args:
        mechanism: A learner of the DP-SGD family.
        examples: Shared by the runs.
        runs: What is trained.
        compute: Threads and device.
        points: The challenge of each run, positions in the examples, shape (runs,); its own clipped gradient at the
            weights of each step is what is looked for.
        gradients: Or a fixed gradient for each run, shape (runs, P), of norm 1 in units of the clip norm.
        inserted: Which runs are given their gradient as if it were an example's, shape (runs,).
    Source: Nasr et al. (2023), arXiv:2302.07956: white-box audits of DP-SGD.
    """
    private, batch = mechanism.private_steps(), mechanism.recipe.batch_size
    clip = private.clip
    products, norms = np.zeros((2, len(runs), private.steps(mechanism.recipe.epochs)))
    direction: Callable[[NDArray[np.int64], Tensor], Tensor]
    if gradients is None:
        assert points is not None
        direction = ExampleGradients(mechanism.recipe, clip, examples.take(points), compute)
    else:
        direction = _FixedGradients(gradients)

    def observe(places: NDArray[np.int64], step: int, parameters: Tensor, released: Tensor) -> None:
        looked_for = direction(places, parameters)
        products[places, step] = (released.double() * looked_for).sum(1).cpu().numpy() * (batch / clip)
        norms[places, step] = looked_for.square().sum(1).cpu().numpy()

    canaries = None
    if gradients is not None and inserted is not None:
        canaries = [clip * gradient if there else None for gradient, there in zip(gradients, inserted, strict=True)]
    models = mechanism.fit_stack(
        examples.features,
        _tasks(examples, runs),
        classes=examples.classes,
        compute=compute,
        canaries=canaries,
        observer=observe,
    )
    return ObservedTrainings(list(models), products, norms)


class _FixedGradients:
    def __init__(self, gradients: NDArray[np.float32]) -> None:
        self._gradients = gradients

    def __call__(self, places: NDArray[np.int64], parameters: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self._gradients[places]).to(parameters.device).double()


class ExampleGradients:
    """The clipped gradient of one example for each run, at the weights of the step, in units of the clip norm."""

    def __init__(self, recipe: Recipe, clip: float, points: Examples, compute: Compute) -> None:
        import torch

        from dpaudit.mechanisms.training.compute.kernels import BatchedMlp, Kernel, Vmapped
        from dpaudit.mechanisms.training.inputs import as_array
        from dpaudit.mechanisms.training.losses import CrossEntropy

        array = as_array(points.features)
        module = recipe.meta_module(array.shape[1:], points.classes)
        self._kernel: Kernel = (
            BatchedMlp(module, loss=CrossEntropy())
            if BatchedMlp.takes(module)
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


def parameter_count(mechanism: StackLearner, examples: Examples) -> int:
    """Number of weights P of the mechanism's network for these examples."""
    from dpaudit.mechanisms.training.inputs import example_shape
    from dpaudit.mechanisms.training.parameters import layout_of

    return layout_of(mechanism.recipe.meta_module(example_shape(examples.features), examples.classes)).total


def require_observable(mechanism: object) -> None:
    """Refuses learners whose steps cannot be observed.

    Raises: SpecError.
    """
    if not isinstance(mechanism, ObservableLearner):
        raise SpecError(
            "a white-box attack or a gradient canary needs a learner of the DP-SGD family (dp-sgd); "
            "use a black-box attack and an example as canary"
        )
