"""A defect on purpose: label noise drawn again in every epoch, in the training loop itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from dpaudit.claims import Claim
from dpaudit.mechanisms.budget import require_epsilon
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.training.recipe import Recipe
from dpaudit.mechanisms.training.stack_trainer import StackTrainer
from dpaudit.registry import register

if TYPE_CHECKING:
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

    def stack_type(self) -> Callable[..., Stack]:
        """Stacks that draw the noise again."""
        from dpaudit.mechanisms.planted.redrawing_stack import RedrawingStack

        return partial(RedrawingStack, mechanism=RandomizedResponse(self.epsilon))
