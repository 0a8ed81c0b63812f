"""A defect on purpose: label noise drawn again in every epoch, in the training loop itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.networks import Mlp, Network, stack_of_one
from dpaudit.mechanisms.planted.labels import redrawn_labels
from dpaudit.mechanisms.protocols import Compute, Model, TrainingError
from dpaudit.mechanisms.seeds import spawned
from dpaudit.registry import register

if TYPE_CHECKING:
    from dpaudit.mechanisms.models.network_model import NetworkModel
    from dpaudit.mechanisms.training.plan import StackPlan
    from dpaudit.mechanisms.training.stack import TrainingTask


@register("mechanism", "planted-redrawn-noise", source="planted defect")
@dataclass(frozen=True)
class RedrawnNoise:
    """DEFECT ON PURPOSE: LP-1ST that draws the noise of its labels again in each epoch; costs epochs times its claim.

    Attributes:
        epsilon: What is claimed, in nats, > 0.
        model: The network and how it is trained.
    """

    epsilon: float
    model: Network = field(default=Mlp(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require(self.epsilon > 0, "epsilon must be > 0", epsilon=self.epsilon)
        require(
            isinstance(self.model, Network),
            "the model of planted-redrawn-noise must be a network",
            model=type(self.model).__name__,
        )

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP, which is false."""
        return Claim(self.epsilon)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains; `validation` is not used.

        Raises: TrainingError when the loss stops being a number.
        """
        return stack_of_one(self, train, seed=seed, compute=compute)

    def fit_stack(
        self,
        features: Features,
        tasks: Sequence[TrainingTask],
        *,
        classes: int,
        compute: Compute,
        plan: StackPlan | None = None,
        checkpoint: Path | None = None,
    ) -> list[NetworkModel | TrainingError]:
        """Trains one model for each task; arguments as in `train_stack`."""
        import torch

        from dpaudit.mechanisms.training.losses import CrossEntropy
        from dpaudit.mechanisms.training.stack import Stack, planned, run_stacks

        mechanism = RandomizedResponse(self.epsilon)
        plan = plan or planned(self.model, features, classes=classes, models=len(tasks), compute=compute)

        class RedrawingStack(Stack):
            """Gets other labels before each epoch."""

            def run_epoch(self, epoch: int) -> None:
                drawn = []
                for task in self.tasks:
                    (noise,) = spawned(task.seed, 4)[3:]  # behind the three seeds of an ordinary training
                    labels = redrawn_labels(mechanism, np.asarray(task.labels), classes=classes, seed=noise)
                    drawn.append(torch.from_numpy(labels(epoch)))
                self.relabel(drawn)
                super().run_epoch(epoch)

        def make(resident: torch.Tensor, some: Sequence[TrainingTask], first: int) -> Stack:
            return RedrawingStack(self.model, resident, some, classes=classes, loss=CrossEntropy(), plan=plan)

        return run_stacks(
            make, features, tasks, size=plan.size, settings=(self, plan), compute=compute, checkpoint=checkpoint
        )
