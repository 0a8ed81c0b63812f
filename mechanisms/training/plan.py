"""How models are grouped for training."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import torch

from dpaudit.errors import require
from dpaudit.mechanisms.models.networks import Network
from dpaudit.mechanisms.training.batched import batched_kernel

METHODS = ("looped", "batched", "vmapped")


@dataclass(frozen=True)
class StackPlan:
    """How models are grouped.

    Attributes:
        method: "looped", "batched" (perceptrons, bags of embeddings) or "vmapped".
        size: Models in a stack, >= 1; 1 when looped.
    """

    method: str
    size: int = 1

    def __post_init__(self) -> None:
        require(self.method in METHODS, f"method must be one of {', '.join(METHODS)}", method=self.method)
        require(self.size >= 1, "size must be >= 1", size=self.size)
        require(self.method != "looped" or self.size == 1, "looped models are trained one at a time", size=self.size)

    def to_json(self) -> str:
        """For the run folder."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> StackPlan:
        """What `to_json` wrote."""
        return StackPlan(**json.loads(text))


def single_plan(trainer: Network, shape: tuple[int, ...], classes: int) -> StackPlan:
    """The plan of a model on its own; a rule, so that it is the same everywhere."""
    with torch.device("meta"):
        module = trainer.module(shape, classes)
    return StackPlan("batched" if batched_kernel(module) else "looped")
