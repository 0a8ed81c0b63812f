"""Games of independent trials: each runs the mechanism once, in world 0 or 1 by a separate fair coin.

Its number and the seed determine a trial. One unit runs a stack of trials, which train together if the mechanism
allows. The attack is a separate unit, so another attack needs no further run of the mechanism.
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
from dpaudit.engine.games.protocol import GameTraits, Reading, Setting
from dpaudit.engine.games.reference import CoinResponse, Reference
from dpaudit.errors import AuditError, RunError, described, require
from dpaudit.estimators.scores import Scores, scored
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.gpu_memory import fit_on_emptied_gpu
from dpaudit.mechanisms.learners.non_private import NonPrivate
from dpaudit.mechanisms.protocols import Learner, Model, StackLearner
from dpaudit.mechanisms.teachers import has_separate_teachers
from dpaudit.mechanisms.training.recipe import Recipe, TrainingTask

if TYPE_CHECKING:
    from torch import Tensor

MAX_TRIALS = 10_000_000


@dataclass(frozen=True)
class TrialGame:
    """Base of all games of independent trials.

    Attributes:
        trials: Number of scored runs of the mechanism, each with a separate coin, in 2 .. 10,000,000.
        stack: Number of runs in one unit, >= 1; a learner with teachers has one.
    """

    trials: int = 1000
    stack: int = 64
    traits: ClassVar[GameTraits]

    def __post_init__(self) -> None:
        require(2 <= self.trials <= MAX_TRIALS, f"trials must be in 2 .. {MAX_TRIALS:,}", trials=self.trials)
        require(self.stack >= 1, "stack must be >= 1", stack=self.stack)

    def reference(self) -> Reference:
        """Return the reference for planning the sensitivity."""
        return Reference(CoinResponse(), self.trials, "trials")

    def runs_per_unit(self, mechanism: Any) -> int:
        """Return the number of runs in one unit: one for a learner whose training is that of many teachers."""
        return 1 if has_separate_teachers(mechanism) else self.stack

    def fewest_units(self, rows: int, rows_per_unit: int) -> tuple[int, int]:
        """Return lower limits of the number of units and of those with scores, for a target set of `rows` rows."""
        return -(-self.trials // self.stack) + 1, 1


def grouped_for_reading(trainings: Sequence[Unit], setting: Setting) -> list[tuple[Unit, ...]]:
    """Return groups of units whose trials are scored together: single units if scores are read in order, else all."""
    return [(unit,) for unit in trainings] if setting.reading is Reading.IN_ORDER else [tuple(trainings)]


def scored_trials(
    attack: Any,
    view: Any,
    *,
    number: NDArray[np.int64],
    truth: NDArray[np.bool_],
    failed: NDArray[np.bool_],
    failed_score: NDArray[np.float64] | float = np.inf,
) -> Scores:
    """Return the attack's scores of T trials as one replay, whose canaries are the numbers of the trials.

    Args:
        failed_score: Score of a failed training, for each trial, shape (T,), or for all. A failure is an outcome,
            because a record may cause it. By default it counts for world 1, which contains the canary.
    """
    scores = np.where(failed, failed_score, 0.0)
    if not failed.all():
        scores[~failed] = attack.score(view)
    if np.isnan(scores).any():
        raise RunError(f"the attack {type(attack).__name__} returned NaN scores. Scores must be numbers")
    return scored(0, truth, scores, number)


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One training of a stack."""

    rows: NDArray[np.int64]  # positions of the training rows in the shared examples
    seed: Seed

    def task(self, examples: Examples) -> TrainingTask:
        """Return the training task on these shared examples."""
        return TrainingTask(self.rows, examples.labels[self.rows], self.seed.sequence())


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
    try:
        model: Model = fit_on_emptied_gpu(
            lambda: mechanism.fit(train, seed=run.seed.sequence(), compute=compute, validation=validation)
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


def failed_among(models: Sequence[Any]) -> NDArray[np.bool_]:
    """Return a mask of failed trainings; raise the first TrainingError if all failed."""
    failed = np.array([isinstance(model, TrainingError) for model in models])
    if failed.all():
        raise models[0]
    return failed


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
