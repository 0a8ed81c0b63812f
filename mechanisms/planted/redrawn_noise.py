"""A defect on purpose: label noise drawn again in every epoch, in the training loop itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit.claims import Claim
from dpaudit.mechanisms.budget import require_epsilon
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.protocols import Compute, TrainingError
from dpaudit.mechanisms.training.recipe import Recipe
from dpaudit.mechanisms.training.stack_plan import StackPlan
from dpaudit.mechanisms.training.stack_trainer import StackTrainer
from dpaudit.mechanisms.training.task import TrainingTask
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from dpaudit.mechanisms.training.network_model import NetworkModel
    from dpaudit.mechanisms.training.stack import Stack


@register("mechanism", "planted-redrawn-noise", source="planted defect")
@dataclass(frozen=True)
class RedrawnNoise(StackTrainer):
    """DEFECT ON PURPOSE: LP-1ST that draws the noise of its labels again in each epoch; costs epochs times its claim.

    Attributes:
        epsilon: What is claimed, in nats, > 0.
        model: The network and how it is trained.
    """

    epsilon: float
    model: Network = field(default=Mlp(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_network(self.model, of="planted-redrawn-noise")

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP, which is false."""
        return Claim(self.epsilon)

    @property
    def recipe(self) -> Recipe:
        """The model's."""
        return self.model

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
        """One model, or its error, for each task; arguments as in `train_stack`."""
        from dpaudit.mechanisms.planted.redrawing_stack import RedrawingStack
        from dpaudit.mechanisms.training.calibrate import calibrated_plan
        from dpaudit.mechanisms.training.train import run_stacks

        mechanism = RandomizedResponse(self.epsilon)
        plan = plan or calibrated_plan(self.model, features, classes=classes, models=len(tasks), compute=compute)

        def stack_of(resident: Tensor, group: Sequence[TrainingTask], first: int) -> Stack:
            return RedrawingStack(self.model, resident, group, classes=classes, plan=plan, mechanism=mechanism)

        return run_stacks(
            stack_of, features, tasks, size=plan.size, settings=(self, plan), compute=compute, checkpoint=checkpoint
        )
