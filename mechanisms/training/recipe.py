"""What the training of stacks is told: the network and its settings, what each model learns, how they are grouped.

Holds hyper-parameters only; torch is imported when a network is built.
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
    """How a network is trained; subclasses say which network. It trains nothing itself.

    Attributes:
        epochs: Passes over the training examples, >= 1.
        learning_rate: Peak step size, > 0; `schedule` scales it.
        momentum: Of sgd, in [0, 1).
        nesterov: Nesterov's form of momentum.
        weight_decay: L2 penalty added to the gradient, >= 0.
        batch_size: Examples a step, >= 1; the last batch of an epoch may be smaller.
        optimizer: "sgd" or "adam".
        schedule: Of the learning rate over progress u in [0, 1]: "constant"; "cosine", half a period down to 0;
            "cosine-7-16", cos(7 pi u / 16), FixMatch's; "warmup-tenths", linear up to u = 0.15, then a tenth at 0.3,
            0.6 and 0.9, LP-MST's; "warmup-fifths", linear up to u = 0.15, then a fifth at 0.3, 0.6 and 0.9, ALIBI's.
        augment: Of images: "none", "flip", "crop" (padding of an eighth of the side), "crop-flip", "crop-flip-cutout"
            (a square of a quarter of the side).
        mixup: Beta parameter of mixup, >= 0; 0 turns it off.
        standardise: Scale each feature to mean 0 and variance 1 over the training examples: free under label DP alone.
        precision: "float32", or "bfloat16" for the forward and backward pass on a GPU.
        compile: Let torch compile the gradient; used on a GPU only, left out when the compiler fails.
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
        """The network for examples of `shape`, its weights not drawn yet."""

    def meta_module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network on the device "meta", without numbers: to look at, or to be given some."""
        import torch

        with torch.device("meta"):
            return self.module(shape, classes)

    def check(self, features: Tensor) -> None:  # noqa: B027, most networks need no more than this
        """Refuses features that it cannot be trained on; takes all of them unless a subclass knows better."""

    def batched_kernel(self, module: nn.Module) -> type[BatchedMlp] | None:
        """What trains a stack of this network, built as `module`, in batched products; None when nothing can."""
        from dpaudit.mechanisms.training.kernels import BatchedMlp

        return BatchedMlp if BatchedMlp.supports(module) else None


def require_one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a `value` that is not among the `allowed` ones."""
    require(value in allowed, f"{field} must be one of {', '.join(allowed)}", value=value)


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """One model to train on some rows of shared features."""

    rows: NDArray[np.int64]  # positions of its examples in the features, shape (n,), n >= 1
    # Of those examples: int64 of shape (n,), or one number for each class, float of shape (n, classes)
    labels: NDArray[np.int64] | NDArray[np.float32]
    seed: SeedSequence  # decides everything that is drawn

    def __post_init__(self) -> None:
        require(len(self.rows) >= 1, "a training needs at least one example", rows=len(self.rows))
        labels = len(self.labels)
        require(len(self.rows) == labels, "a task needs one label for each row", rows=len(self.rows), labels=labels)


@dataclass(frozen=True)
class StackPlan:
    """How models are grouped."""

    method: str  # "looped", "batched" (perceptrons, bags of embeddings) or "vmapped"
    size: int = 1  # models in a stack, >= 1; 1 when looped
