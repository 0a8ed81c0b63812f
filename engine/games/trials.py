"""Games of independent trials: each runs the mechanism once, in world 0 or world 1 by its own fair coin.

A trial is decided by its number and the seed alone. Trials are run in stacks, one unit each, which train together where
the mechanism can; the attack is a unit of its own, so that another attack costs no run of the mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.audited.signals import raised_externally
from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Unit
from dpaudit.engine.games.protocol import Fits, Reading, Setting
from dpaudit.engine.games.reference import FairCoins, Reference
from dpaudit.errors import AuditError, RunError, require, shortened
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.protocols import Learner, Model, StackLearner
from dpaudit.mechanisms.training.recipe import Recipe, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor

MAX_TRIALS = 10_000_000


@dataclass(frozen=True)
class TrialGame:
    """What all games of independent trials share.

    Attributes:
        trials: Runs of the mechanism that are scored, each with a coin of its own, in 2 .. 10,000,000.
        stack: Runs made by one unit, >= 1.
    """

    trials: int = 1000
    stack: int = 64
    fits: ClassVar[Fits]

    def __post_init__(self) -> None:
        require(2 <= self.trials <= MAX_TRIALS, f"trials must be in 2 .. {MAX_TRIALS:,}", trials=self.trials)
        require(self.stack >= 1, "stack must be >= 1", stack=self.stack)

    def reference(self) -> Reference:
        return Reference(FairCoins(), self.trials, "trials")

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Units at least, for a target set of so many rows and units of at most so many score rows; those scored."""
        return -(-self.trials // self.stack) + 1, 1


def grouped_for_reading(trainings: Sequence[Unit], setting: Setting) -> list[tuple[Unit, ...]]:
    """The units of trials that are scored together: each by itself where scores are read in order, else all."""
    return [(unit,) for unit in trainings] if setting.reading is Reading.IN_ORDER else [tuple(trainings)]


def scored_trials(
    attack: Any,
    view: Any,
    *,
    number: NDArray[np.int64],
    truth: NDArray[np.bool_],
    failed: NDArray[np.bool_],
    of_failed: NDArray[np.float64] | float = np.inf,
) -> Scores:
    """The attack's scores of T trials: one replay, its canaries the numbers of the trials.

    A failed training is an outcome too: a record may be what it fails for. `of_failed` scores it, for each trial, shape
    (T,), or for all: where nothing was learned of failures, they speak for world 1, in which the canary is.
    """
    scores = np.where(failed, of_failed, 0.0)
    if not failed.all():
        scores[~failed] = attack.score(view)
    if np.isnan(scores).any():
        raise RunError(f"the attack {type(attack).__name__} gave scores that are no numbers")
    return scored(0, truth, scores, number)


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One training of a stack."""

    rows: NDArray[np.int64]  # what it is trained on, positions in the shared examples
    seed: Seed

    def task(self, examples: Examples) -> TrainingTask:
        return TrainingTask(self.rows, examples.labels[self.rows], self.seed.sequence())


def train_runs(
    mechanism: Any,
    examples: Examples,
    runs: Sequence[TrainingRun],
    *,
    compute: Compute,
    validation: Examples | None = None,
) -> list[Model | TrainingError]:
    """One model for each run, or the error of a training that failed.

    How models of a stack are grouped follows from the network and the device alone, never from a timing: a stack
    trained again gives the same numbers.
    """
    stacked = mechanism.model if isinstance(mechanism, NonPrivate) else mechanism
    if isinstance(stacked, StackLearner):
        from dpaudit.mechanisms.training.inputs import example_shape

        shape = example_shape(examples.features)
        plan = stacked.stack_plan(shape, classes=examples.classes, models=len(runs), compute=compute)
        tasks = [run.task(examples) for run in runs]
        return list(stacked.fit_stack(examples.features, tasks, classes=examples.classes, compute=compute, plan=plan))
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
    except AuditError:  # it is used in a wrong way, for every seed
        raise
    except BaseException as err:  # other people's code may raise anything; one training is no more than one trial
        if raised_externally(err):
            raise
        failed = TrainingError(f"{type(err).__name__}: {shortened(err)}")
        failed.__cause__ = err
        return failed
    return model


def failed_among(models: Sequence[Any]) -> NDArray[np.bool_]:
    """Which trainings failed; raises the first one's TrainingError when all did."""
    failed = np.array([isinstance(model, TrainingError) for model in models])
    if failed.all():
        raise models[0]
    return failed


class ExampleGradients:
    """The clipped gradient of one example for each run, at the weights of the step, in units of the clip norm."""

    def __init__(self, recipe: Recipe, clip: float, points: Examples, compute: Compute) -> None:
        import torch

        from dpaudit.mechanisms.training.compute.kernels import BatchedMlp, CrossEntropy, Kernel, Vmapped
        from dpaudit.mechanisms.training.inputs import as_array

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
