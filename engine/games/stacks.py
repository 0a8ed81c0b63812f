"""Trains many models of one mechanism on rows of shared examples: in stacks where the mechanism can, else in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.errors import SpecError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.models.networks import Network
from dpaudit.mechanisms.protocols import Compute, LabelMechanism, Model, TrainingError

if TYPE_CHECKING:
    from torch import Tensor

    from dpaudit.mechanisms.training.plan import StackPlan


@dataclass(frozen=True, eq=False)
class Run:
    """One training of a stack.

    Attributes:
        rows: What it is trained on, positions in the shared examples.
        seed: Decides everything it draws.
    """

    rows: NDArray[np.int64]
    seed: Seed


def train_runs(
    mechanism: Any, examples: Examples, runs: Sequence[Run], *, compute: Compute, validation: Examples | None = None
) -> list[Model | TrainingError]:
    """One model for each run, or the error of a training that failed.

    Networks are stacked whole; how they are grouped follows from the network and the device alone, never from a
    timing, so that a stack trained again gives the same numbers.
    """
    stacked = mechanism.model if isinstance(mechanism, NonPrivate) else mechanism
    if hasattr(stacked, "fit_stack"):
        from dpaudit.mechanisms.training.stack import TrainingTask

        tasks = [TrainingTask(run.rows, examples.labels[run.rows], run.seed.sequence()) for run in runs]
        options = {"plan": _plan(stacked, examples, len(runs), compute)} if isinstance(stacked, Network) else {}
        made: list[Model | TrainingError] = stacked.fit_stack(
            examples.features, tasks, classes=examples.classes, compute=compute, **options
        )
        return made
    return [_one(mechanism, examples, run, compute, validation) for run in runs]


def _one(
    mechanism: Any, examples: Examples, run: Run, compute: Compute, validation: Examples | None
) -> Model | TrainingError:
    train = examples.take(run.rows)
    try:
        model: Model = mechanism.fit(train, seed=run.seed.sequence(), compute=compute, validation=validation)
    except TrainingError as err:
        return err
    return model


def _plan(network: Network, examples: Examples, models: int, compute: Compute) -> StackPlan:
    from dpaudit.mechanisms.models.inputs import as_array
    from dpaudit.mechanisms.training.plan import StackPlan, single_plan

    alone = single_plan(network, as_array(examples.take([0]).features).shape[1:], examples.classes)
    if alone.method == "batched":
        return StackPlan("batched", models)
    batch_norm = getattr(network, "norm", "") == "batch"
    return alone if compute.device == "cpu" or batch_norm else StackPlan("vmapped", models)


@dataclass(frozen=True, eq=False)
class Watched:
    """What an attacker of the training itself gathers of each run.

    Attributes:
        models: The trained models.
        products: Inner product of the released gradients with the canary's, in units of the clip norm: summed over the
            steps, and of the last step; shape (runs, 2).
    """

    models: list[Model | TrainingError]
    products: NDArray[np.float64]


def watch_runs(
    mechanism: Any,
    examples: Examples,
    runs: Sequence[Run],
    *,
    compute: Compute,
    points: NDArray[np.int64] | None = None,
    gradients: NDArray[np.float32] | None = None,
    inserted: NDArray[np.bool_] | None = None,
) -> Watched:
    """Trains by DP-SGD and watches every step.

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
    from dpaudit.mechanisms.training.stack import TrainingTask

    tasks = [TrainingTask(run.rows, examples.labels[run.rows], run.seed.sequence()) for run in runs]
    products = np.zeros((len(runs), 2))
    clip, batch = mechanism.clip, mechanism.model.batch_size
    direction: Callable[[NDArray[np.int64], Tensor], Tensor]
    if gradients is None:
        assert points is not None
        direction = _ExampleGradients(mechanism, examples.take(points), compute)
    else:
        direction = _FixedGradients(gradients)

    def observe(places: NDArray[np.int64], step: int, parameters: Tensor, released: Tensor) -> None:
        looked_for = direction(places, parameters)
        along = (released.double() * looked_for).sum(1).cpu().numpy() * (batch / clip)
        products[places, 0] += along
        products[places, 1] = along

    canaries = None
    if gradients is not None and inserted is not None:
        planted = zip(gradients, inserted, strict=True)
        canaries = [clip * gradient if there else None for gradient, there in planted]
    models = mechanism.fit_stack(
        examples.features, tasks, classes=examples.classes, compute=compute, canaries=canaries, observer=observe
    )
    return Watched(models, products)


class _FixedGradients:
    def __init__(self, gradients: NDArray[np.float32]) -> None:
        self._gradients = gradients

    def __call__(self, places: NDArray[np.int64], parameters: Tensor) -> Tensor:
        import torch

        return torch.from_numpy(self._gradients[places]).to(parameters.device).double()


class _ExampleGradients:
    """The clipped gradient of one example for each run, at the weights of the step, in units of the clip norm."""

    def __init__(self, mechanism: Any, points: Examples, compute: Compute) -> None:
        import torch

        from dpaudit.mechanisms.models.inputs import as_array
        from dpaudit.mechanisms.training.kernels import BatchedMlp, Kernel, Vmapped
        from dpaudit.mechanisms.training.losses import CrossEntropy

        array = as_array(points.features)
        with torch.device("meta"):
            module = mechanism.model.module(array.shape[1:], points.classes)
        self._kernel: Kernel = (
            BatchedMlp(module, loss=CrossEntropy())
            if BatchedMlp.takes(module)
            else Vmapped(module, loss=CrossEntropy())
        )
        device = torch.device(compute.device)
        self._inputs = torch.from_numpy(np.array(array)).to(device)[:, None]
        self._targets = torch.eye(points.classes)[torch.from_numpy(points.labels.copy())].to(device)[:, None]
        self._clip = mechanism.clip

    def __call__(self, places: NDArray[np.int64], parameters: Tensor) -> Tensor:
        import torch

        inputs, targets = self._inputs[places], self._targets[places]
        made = torch.zeros_like(parameters)
        self._kernel.clipped_gradient(parameters, inputs, targets, torch.ones_like(targets[..., 0]), self._clip, made)
        unit: Tensor = made.double() / self._clip
        return unit


def parameter_count(mechanism: Any, examples: Examples) -> int:
    """Number of weights P of the mechanism's network for these examples."""
    import torch

    from dpaudit.mechanisms.models.inputs import as_array
    from dpaudit.mechanisms.training.parameters import layout_of

    with torch.device("meta"):
        module = mechanism.model.module(as_array(examples.take([0]).features).shape[1:], examples.classes)
    return layout_of(module).total


def require_learner(mechanism: Any) -> None:
    """Refuses what trains no model.

    Raises: SpecError.
    """
    if isinstance(mechanism, LabelMechanism) or not hasattr(mechanism, "fit"):
        raise SpecError("a two-world membership game audits learners; audit a label mechanism with a label game")


def require_watchable(mechanism: Any) -> None:
    """Refuses learners whose steps cannot be watched.

    Raises: SpecError.
    """
    if not all(hasattr(mechanism, name) for name in ("private_steps", "clip", "fit_stack")):
        raise SpecError(
            "a white-box attack or a gradient canary needs a learner of the DP-SGD family (dp-sgd); "
            "use a black-box attack and an example as canary"
        )
