"""Specification of stack training: the network and its settings, the task of each model, the grouping into stacks.

Torch is imported only when a network is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.ranges import require_at_least, require_positive

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpaudit.mechanisms.training.kernels import BatchedMlp

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "cosine", "cosine-7-16", "warmup-tenths", "warmup-fifths")
AUGMENTS = ("none", "flip", "crop", "crop-flip", "crop-flip-cutout")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """Training settings of a network; subclasses define the network.

    Attributes:
        epochs: Passes over the training examples, >= 1.
        learning_rate: Peak step size, > 0; `schedule` scales it.
        momentum: Momentum of sgd, in [0, 1).
        nesterov: Use Nesterov's form of momentum.
        weight_decay: L2 penalty added to the gradient, >= 0.
        batch_size: Examples per step, >= 1; the last batch of an epoch may be smaller.
        optimizer: "sgd" or "adam".
        schedule: Factor of the learning rate over progress u in [0, 1]. "constant" is 1. "cosine" is half a period,
            down to 0. "cosine-7-16" is cos(7 pi u / 16), as in FixMatch. "warmup-tenths", as in LP-MST, rises to 1
            until u = 0.15, and falls by a factor of 10 at 0.3, 0.6 and 0.9. "warmup-fifths", as in ALIBI, falls by 5.
        augment: Image augmentation: "none", "flip", "crop" (padding of an eighth of the side), "crop-flip",
            "crop-flip-cutout" (a square of a quarter of the side).
        mixup: Beta parameter of mixup, >= 0; 0 turns it off.
        standardise: Scale each feature to mean 0 and variance 1 over the training examples. This is free under
            label DP, and not allowed in DP-SGD.
        precision: "float32", or "bfloat16" for the forward and backward pass on a GPU.
        compile: Compile the gradient with torch, on a GPU only; training continues without it if that fails.
    """

    epochs: int = 20
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    batch_size: int = 64
    optimizer: str = "sgd"
    schedule: str = "constant"
    augment: str = "none"
    mixup: float = 0.0
    standardise: bool = False
    precision: str = "float32"
    compile: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, self, "epochs", "batch_size")
        require_positive(self, "learning_rate")
        require(0 <= self.momentum < 1, "momentum must be in [0, 1)", momentum=self.momentum)
        require_at_least(0, self, "weight_decay", "mixup")
        require_one_of("optimizer", self.optimizer, OPTIMIZERS)
        require_one_of("schedule", self.schedule, SCHEDULES)
        require_one_of("augment", self.augment, AUGMENTS)
        require_one_of("precision", self.precision, PRECISIONS)

    @abstractmethod
    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for examples of `shape`, without drawing its weights."""

    def meta_module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network on the device "meta", without memory for its weights."""
        import torch

        with torch.device("meta"):
            return self.module(shape, classes)

    def check(self, features: Tensor) -> None:  # noqa: B027, most networks accept all features
        """Reject features that the network cannot be trained on; by default none."""

    def batched_kernel(self, module: nn.Module) -> type[BatchedMlp] | None:
        """Return the kernel that trains a stack of `module` by batched products, or None."""
        from dpaudit.mechanisms.training.kernels import BatchedMlp

        return BatchedMlp if BatchedMlp.supports(module) else None


def require_one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    """Reject a `value` that is not among `allowed`."""
    require(value in allowed, f"{field} must be one of {', '.join(allowed)}", value=value)


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """Training of one model on some rows of shared features."""

    rows: NDArray[np.int64]  # positions of the examples in the features, shape (n,), n >= 1
    # Labels of those examples: int64 (n,), or float (n, classes) with one number for each class
    labels: NDArray[np.int64] | NDArray[np.float32]
    seed: SeedSequence  # seed of all randomness
    initial: NDArray[np.float32] | None = None  # initial weights, shape (P,); None draws them from the seed

    def __post_init__(self) -> None:
        require(len(self.rows) >= 1, "a training needs at least one example", rows=len(self.rows))
        labels = len(self.labels)
        require(len(self.rows) == labels, "a task needs one label for each row", rows=len(self.rows), labels=labels)


@dataclass(frozen=True)
class StackPlan:
    """Grouping of models into stacks."""

    method: str  # "looped", "batched" (perceptrons, bags of embeddings) or "vmapped"
    size: int = 1  # models in a stack, >= 1; 1 when looped
