"""Planted defects in label mechanisms and in learners of labels, which an audit must detect."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import spawned
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace, RandomizedResponse
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.learners.lp_mst import LP2ST, LP1STDomainPrior
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.models.networks import Mlp, Network, StackTrainer, require_network
from dpaudit.mechanisms.planted.learners import redraw_labels
from dpaudit.mechanisms.protocols import LabelMechanism
from dpaudit.mechanisms.ranges import require_epsilon

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


class OneHotLaplaceSigmaForB(OneHotLaplace):
    """DEFECT ON PURPOSE: uses 2 / eps as standard deviation of the noise; the truth is sqrt(2) epsilon."""

    def scale(self) -> float:
        """Return the scale with standard deviation 2 / eps, too small by sqrt(2)."""
        return 2 / self.epsilon / math.sqrt(2)


class OneHotLaplaceHalfScale(OneHotLaplace):
    """DEFECT ON PURPOSE: accounts for one changed coordinate instead of two; the truth is 2 epsilon."""

    def scale(self) -> float:
        return super().scale() / 2


class BinaryFormulaResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: uses the formula for two classes with K; the truth is epsilon + log(K - 1)."""

    def keep(self, classes: int) -> float:
        return super().keep(2)

    def transition(self, classes: int) -> NDArray[np.float64]:
        return RandomizedResponse(self.epsilon + math.log(classes - 1)).transition(classes)


class OneDrawPerLabelResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: replaces equal labels by equal labels, so classes remain separable."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return super().release(np.arange(classes), classes=classes, rng=rng)[labels]


class ConstantSeedResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: draws from a public constant seed, so that anyone can undo the noise."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return super().release(labels, classes=classes, rng=np.random.default_rng(2020))


class LP1STDomainPriorUncharged(LP1STDomainPrior):
    """DEFECT ON PURPOSE: does not subtract the cost of the prior; the truth is epsilon + prior_epsilon."""

    @property
    def labels_epsilon(self) -> float:
        return self.epsilon


class LP2STReusedRandomness(LP2ST):
    """DEFECT ON PURPOSE: every stage uses the seed of the first, so all have the same noise."""

    def stage_seeds(self, seed: SeedSequence) -> list[SeedSequence]:
        """Return the seed of the split, then that of the first stage for all stages."""
        splitting, first, *others = super().stage_seeds(seed)
        return [splitting, first, *(first for _ in others)]


class PATEWithoutNoise(PATE):
    """DEFECT ON PURPOSE: releases the majority vote of the teachers without noise."""

    def answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return np.asarray(votes.argmax(axis=1), dtype=np.int64)


class AlibiHalfScale(Alibi):
    """DEFECT ON PURPOSE: ALIBI with half its noise; the truth is 2 epsilon."""

    def labels(self) -> OneHotLaplace:
        return OneHotLaplaceHalfScale(self.epsilon)
