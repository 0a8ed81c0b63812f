"""Neural networks to train, one registered name for each architecture.

The classes hold hyper-parameters only; torch is imported when one is built or trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.protocols import Compute, Model, TrainingError
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpaudit.mechanisms.models.network_model import NetworkModel
    from dpaudit.mechanisms.training.plan import StackPlan
    from dpaudit.mechanisms.training.stack import TrainingTask

ACTIVATIONS = ("relu", "tanh", "gelu", "silu")
OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("constant", "cosine", "cosine-7-16", "warmup-tenths", "warmup-fifths")
AUGMENTS = ("none", "flip", "crop", "crop-flip", "crop-flip-cutout")
NORMS = ("group", "batch", "none")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Network(ABC):
    """How a network is trained; subclasses say which network.

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
        standardise: Scale each feature to mean 0 and variance 1 over the training examples. That is free under label
            privacy, where features are public, and a leak under any other relation.
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
        require(self.epochs >= 1, "epochs must be >= 1", epochs=self.epochs)
        require(self.learning_rate > 0, "learning_rate must be > 0", learning_rate=self.learning_rate)
        require(0 <= self.momentum < 1, "momentum must be in [0, 1)", momentum=self.momentum)
        require(self.weight_decay >= 0, "weight_decay must be >= 0", weight_decay=self.weight_decay)
        require(self.batch_size >= 1, "batch_size must be >= 1", batch_size=self.batch_size)
        require(self.mixup >= 0, "mixup must be >= 0", mixup=self.mixup)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("augment", self.augment, AUGMENTS)
        one_of("precision", self.precision, PRECISIONS)

    @abstractmethod
    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for examples of `shape`, its weights not drawn yet."""

    def check(self, features: Tensor) -> None:  # noqa: B027, most networks need no more than this
        """Refuses features that it cannot be trained on; takes all of them unless a subclass knows better."""

    def made_up(self, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
        """Features of `shape` to time a training with: images or columns in [0, 1)."""
        return rng.random(shape, dtype=np.float32)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains on the labels as they are given; `validation` is not used.

        Raises: TrainingError when the loss stops being a number; InputError for features it cannot take.
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
        from dpaudit.mechanisms.training.stack import train_stack

        return train_stack(self, features, tasks, classes=classes, compute=compute, plan=plan, checkpoint=checkpoint)


class Stackable(Protocol):
    """A trainer or learner that trains many models side by side."""

    def fit_stack(
        self, features: Features, tasks: Sequence[TrainingTask], *, classes: int, compute: Compute
    ) -> list[NetworkModel | TrainingError]:
        """One model, or its error, for each task."""


def stack_of_one(stackable: Stackable, train: Examples, *, seed: np.random.SeedSequence, compute: Compute) -> Model:
    """The model of one training: `fit` in terms of `fit_stack`.

    Raises: TrainingError when the training failed.
    """
    from dpaudit.mechanisms.training.stack import TrainingTask

    task = TrainingTask(np.arange(len(train)), train.labels, seed)
    (outcome,) = stackable.fit_stack(train.features, [task], classes=train.classes, compute=compute)
    return trained(outcome)


def trained(outcome: NetworkModel | TrainingError) -> NetworkModel:
    """The model; raises the error when it is one."""
    if isinstance(outcome, TrainingError):
        raise outcome
    return outcome


@register("model", "mlp", source="multilayer perceptron")
@dataclass(frozen=True, kw_only=True)
class Mlp(Network):
    """Multilayer perceptron on flat features or numeric columns.

    Attributes:
        hidden: Widths of the hidden layers, each >= 1.
        activation: "relu", "tanh", "gelu" or "silu".
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "hidden", tuple(self.hidden))
        require(all(width >= 1 for width in self.hidden), "hidden widths must be >= 1", hidden=self.hidden)
        one_of("activation", self.activation, ACTIVATIONS)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import mlp

        return mlp(shape, classes, hidden=self.hidden, activation=self.activation)


@register("model", "small-cnn", source="conv16-conv32-linear")
@dataclass(frozen=True, kw_only=True)
class SmallCnn(Network):
    """Small convolutional network: conv16-conv32-linear with ReLU and max pooling."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import small_cnn

        return small_cnn(shape, classes)


@register("model", "tanh-cnn", source="arXiv:2206.05199, section 5: 4-layer CNN, 974 K parameters, tanh")
@dataclass(frozen=True, kw_only=True)
class TanhCnn(Network):
    """Four-layer CNN with tanh and 974 K parameters, for DP-SGD on CIFAR-10."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import tanh_cnn

        return tanh_cnn(shape, classes)


@register("model", "lenet-5", source="LeCun et al. (1998)")
@dataclass(frozen=True, kw_only=True)
class LeNet5(Network):
    """LeNet-5 for images of 28x28 or 32x32."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import lenet_5

        return lenet_5(shape, classes)


@dataclass(frozen=True, kw_only=True)
class Residual(Network):
    """A residual network.

    Attributes:
        norm: "group" (16 groups), "batch" (couples the examples of a batch: no stacks, no DP-SGD) or "none".
    """

    norm: str = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("norm", self.norm, NORMS)


@register("model", "resnet-18", source="He et al. (2016), 3x3 stem for small images")
@dataclass(frozen=True, kw_only=True)
class ResNet18(Residual):
    """ResNet-18 for small images, with group norm unless told otherwise.

    Attributes:
        width: Channels of the first stage, >= 1; 64 in the original.
    """

    width: int = 64

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import ResNet

        return ResNet(shape, classes, blocks=(2, 2, 2, 2), width=self.width, norm=self.norm)


@register("model", "wrn-16-4", source="Zagoruyko and Komodakis (2016)")
@dataclass(frozen=True, kw_only=True)
class WideResNet16x4(Residual):
    """Wide ResNet with 16 layers, four times as wide."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import WideResNet

        return WideResNet(shape, classes, depth=16, widen=4, norm=self.norm)


@register("model", "wrn-28-4", source="Zagoruyko and Komodakis (2016), the network of PATE-FM and ALIBI")
@dataclass(frozen=True, kw_only=True)
class WideResNet28x4(Residual):
    """Wide ResNet with 28 layers, four times as wide."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import WideResNet

        return WideResNet(shape, classes, depth=28, widen=4, norm=self.norm)


def one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a `value` that is not among the `allowed` ones."""
    require(value in allowed, f"{field} must be one of {', '.join(allowed)}", value=value)
