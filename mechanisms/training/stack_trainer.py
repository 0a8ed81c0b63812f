"""Base of trainers and learners that train one or many models in stacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import SeedSequence

from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.kernels import Loss
    from dpaudit.mechanisms.training.network_model import NetworkModel
    from dpaudit.mechanisms.training.stack import Stack


class StackTrainer:
    """A trainer or learner of one network whose models are trained in stacks."""

    model: Recipe

    @property
    def recipe(self) -> Recipe:
        """The network and its training settings."""
        return self.model

    def stack_type(self) -> Callable[..., Stack] | None:
        """Return the class that trains a stack, with the arguments of `Stack`; None for `Stack`."""
        return None

    def loss(self) -> Loss | None:
        """Return the loss of one example; None for cross-entropy."""
        return None

    def release_task(self, task: TrainingTask, classes: int) -> TrainingTask:
        """Return the task to train on; a label mechanism replaces its labels by a release."""
        return task

    def stack_plan(
        self, shape: tuple[int, ...], *, classes: int, models: int, rows: int, compute: Compute
    ) -> StackPlan:
        """Return how `models` models for `rows` examples of `shape` are grouped into stacks, by a fixed rule."""
        from dpaudit.mechanisms.training.train import default_plan

        return default_plan(self.recipe, shape, classes=classes, models=models, rows=rows, compute=compute)

    def require_features(self, train: Examples) -> None:
        """Raise InputError for features that the network does not support."""
        from dpaudit.mechanisms.training.inputs import example_shape

        shape = example_shape(train.features)
        if not getattr(self.recipe, "takes_any_shape", False):
            self.recipe.meta_module(shape, train.classes)

    def fit_stack(
        self,
        features: Features,
        tasks: Sequence[TrainingTask],
        *,
        classes: int,
        compute: Compute,
        plan: StackPlan | None = None,
    ) -> list[NetworkModel | TrainingError]:
        """Return a model or its error for each task; arguments as in `train_stack`."""
        from dpaudit.mechanisms.training.train import train_stack

        return train_stack(
            self.recipe,
            features,
            [self.release_task(task, classes) for task in tasks],
            classes=classes,
            compute=compute,
            loss=self.loss(),
            plan=plan,
            stack_type=self.stack_type(),
        )

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> NetworkModel:
        """Train one model; ignores `validation`."""
        task = TrainingTask(np.arange(len(train)), train.labels, seed)
        (outcome,) = self.fit_stack(train.features, [task], classes=train.classes, compute=compute)
        if isinstance(outcome, TrainingError):
            raise outcome
        return outcome
