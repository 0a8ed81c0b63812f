"""Planted defects in learners of labels, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import spawned
from dpaudit.mechanisms.labels.one_hot_laplace import OneHotLaplace
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.models.networks import Mlp, Network, require_network
from dpaudit.mechanisms.planted.learners import OneHotLaplaceSigmaForB, redraw_labels
from dpaudit.mechanisms.protocols import LabelMechanism
from dpaudit.mechanisms.ranges import require_epsilon
from dpaudit.mechanisms.training.stack_trainer import StackTrainer

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.stack import Stack


class AlibiSigmaForB(Alibi):
    """DEFECT ON PURPOSE: ALIBI with 2 / eps taken for the noise's standard deviation; the truth is sqrt(2) eps."""

    def labels(self) -> OneHotLaplace:
        return OneHotLaplaceSigmaForB(self.epsilon)


@dataclass(frozen=True)
class RedrawnNoise(StackTrainer):
    """DEFECT ON PURPOSE: LP-1ST that draws the noise of its labels again in each epoch; costs epochs times its claim.

    Attributes:
        epsilon: Claimed epsilon in nats, > 0.
        model: The network and its training.
    """

    epsilon: float
    model: Network = field(default=Mlp(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_network(self.model, of="RedrawnNoise")

    def claim(self) -> Claim:
        return Claim(self.epsilon)

    def stack_type(self) -> Callable[..., Stack]:
        return partial(_redrawing_stack(), mechanism=RandomizedResponse(self.epsilon))


@cache
def _redrawing_stack() -> Callable[..., Stack]:
    import torch

    from dpaudit.mechanisms.training.stack import Stack

    class RedrawingStack(Stack):
        """A stack with new labels before each epoch."""

        def __init__(self, *args: Any, mechanism: LabelMechanism, **settings: Any) -> None:
            super().__init__(*args, **settings)
            self.mechanism = mechanism

        def run_epoch(self, epoch: int) -> None:
            noises = []
            for task in self.tasks:
                (noise,) = spawned(task.seed, 4)[3:]  # after the three seeds of an ordinary training
                true = np.asarray(task.labels, np.int64)
                labels = redraw_labels(self.mechanism, true, epoch, classes=self.classes, seed=noise)
                noises.append(torch.from_numpy(labels))
            self.relabel(noises)
            super().run_epoch(epoch)

    return RedrawingStack
