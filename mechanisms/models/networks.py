"""Trainable neural networks, one registered name for each architecture, and the base of what trains in stacks.

Torch is imported when a network is built or trained. Inputs are float32 (batch, *shape), outputs are logits (batch,
classes).
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.random import SeedSequence

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask, require_one_of
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpaudit.mechanisms.training.kernels import BatchedMlp, Loss
    from dpaudit.mechanisms.training.stack import NetworkModel, Stack


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

    def require_divisible(self, train: Examples) -> None:
        """Raise InputError for a network with batch norm, which needs the whole batch in one process."""
        from dpaudit.mechanisms.training.inputs import example_shape
        from dpaudit.mechanisms.training.kernels import couples_examples

        module = self.recipe.meta_module(example_shape(train.features), train.classes)
        problem = "batch norm couples the examples of a batch, which several GPUs would divide"
        require(not couples_examples(module), problem, do="use norm: group, or gpus of at most 1")

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


ACTIVATIONS = ("relu", "tanh", "gelu", "silu")
NORMS = ("group", "batch", "none")


class Network(Recipe, StackTrainer, ABC):
    """A network trained without privacy on the labels; attributes as in `Recipe`."""

    @property
    def recipe(self) -> Recipe:
        return self


def require_network(model: object, *, of: str) -> None:
    """Reject a `model` that is not a network, for the mechanism registered as `of`."""
    require(isinstance(model, Network), f"the model of {of} must be a network", model=type(model).__name__)


def _image_shape(shape: tuple[int, ...], *, min_side: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of one example; rejects images below `min_side` pixels a side."""
    require(len(shape) == 3, "a convolutional network takes images of shape (channels, height, width)", shape=shape)
    require(
        min(shape[1:]) >= min_side, f"images must be at least {min_side} pixels a side for this network", shape=shape
    )
    return shape[0], shape[1], shape[2]


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

    takes_any_shape: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "hidden", tuple(self.hidden))
        require(all(width >= 1 for width in self.hidden), "hidden widths must be >= 1", hidden=self.hidden)
        require_one_of("activation", self.activation, ACTIVATIONS)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}[self.activation]
        widths = [math.prod(shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@register("model", "small-cnn", source="conv16-conv32-linear")
class SmallCnn(Network):
    """Small convolutional network, conv16-conv32-linear: 3x3 convolutions, each with ReLU and 2x2 max pooling."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        channels, height, width = _image_shape(shape, min_side=4)
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), classes),
        )


@register("model", "tanh-cnn", source="arXiv:2206.05199, section 5: 4-layer CNN, 974 K parameters, tanh")
class TanhCnn(Network):
    """Four-layer CNN with tanh and 974 K parameters, for DP-SGD on CIFAR-10: 974,250 on 3x32x32 and 10 classes.

    The paper does not give the widths. These are the non-decreasing multiples of 16 with that number of parameters.
    """

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        channels, _, _ = _image_shape(shape, min_side=8)
        return nn.Sequential(
            nn.Conv2d(channels, 96, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(96, 160, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(160, 192, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 320, 3, padding=1),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(320, classes),
        )


@register("model", "lenet-5", source="LeCun et al. (1998)")
class LeNet5(Network):
    """LeNet-5 for images of 28x28 or 32x32: 5x5 convolutions with tanh and average pooling, then linear layers."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        channels, height, width = _image_shape(shape, min_side=12)
        padding = 2 if min(height, width) < 32 else 0  # 28x28 is padded to 32x32, as in the original
        rows, columns = (((size + 2 * padding - 4) // 2 - 4) // 2 for size in (height, width))
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=padding),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * rows * columns, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
            nn.Linear(84, classes),
        )


@dataclass(frozen=True, kw_only=True)
class Residual(Network):
    """A residual network.

    Attributes:
        norm: "group" (16 groups), "batch" (couples examples, so it excludes stacks and DP-SGD) or "none".
    """

    norm: str = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("norm", self.norm, NORMS)


@register("model", "resnet-18", source="He et al. (2016), 3x3 stem for small images")
@dataclass(frozen=True, kw_only=True)
class ResNet18(Residual):
    """ResNet-18 for small images, with group norm by default.

    Attributes:
        width: Channels of the first stage, >= 1; 64 in the original.
    """

    width: int = 64

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import ResNet

        channels, _, _ = _image_shape(shape, min_side=8)
        return ResNet(channels, classes, blocks=(2, 2, 2, 2), width=self.width, norm=self.norm)


@register("model", "wrn-16-4", source="Zagoruyko and Komodakis (2016)")
class WideResNet16x4(Residual):
    """Wide ResNet with 16 layers, four times as wide."""

    layers: ClassVar[int] = 16

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models.architectures import WideResNet

        channels, _, _ = _image_shape(shape, min_side=4)
        return WideResNet(channels, classes, depth=self.layers, widen=4, norm=self.norm)


@register("model", "wrn-28-4", source="Zagoruyko and Komodakis (2016), the network of PATE-FM and ALIBI")
class WideResNet28x4(WideResNet16x4):
    """Wide ResNet with 28 layers, four times as wide."""

    layers = 28


@dataclass(frozen=True, kw_only=True)
class TextNetwork(Network):
    """Base of text networks; inputs are rows of word numbers, as in the text data sets.

    Attributes:
        vocabulary: Number of words including padding, >= 2 and at least that of the data.
        width: Width of the word vectors, >= 1.
    """

    vocabulary: int = 4096
    width: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(2, self, "vocabulary")
        require_at_least(1, self, "width")
        plain = not self.standardise and not self.mixup and self.augment == "none"
        require(plain, "word numbers cannot be scaled, mixed or augmented", do="leave out standardise, mixup, augment")

    def check(self, features: Tensor) -> None:
        low, high = (float(end) for end in features.aminmax()) if features.numel() else (0.0, 0.0)
        require(
            low >= 0 and high < self.vocabulary and bool((features == features.floor()).all()),
            f"word numbers must be integers in 0..{self.vocabulary - 1}",
            do="use the same vocabulary in data and model",
            lowest=low,
            highest=high,
        )


@register("model", "bag-of-embeddings", source="Joulin et al. (2017), arXiv:1607.01759, without n-grams")
class BagOfEmbeddings(TextNetwork):
    """A linear classifier on the mean word vector, trained from scratch; fast in stacks, also with DP-SGD."""

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models import architectures

        return architectures.EmbeddingBagModule(shape, classes, vocabulary=self.vocabulary, width=self.width)

    def batched_kernel(self, module: nn.Module) -> type[BatchedMlp] | None:
        from dpaudit.mechanisms.models.architectures import BatchedBag

        return BatchedBag


@register("model", "small-transformer", source="Vaswani et al. (2017), arXiv:1706.03762; normalisation first")
@dataclass(frozen=True, kw_only=True)
class SmallTransformer(TextNetwork):
    """A small transformer encoder on word numbers, trained from scratch.

    Attributes:
        width: Width of the word vectors, a multiple of `heads`.
        heads: Number of attention heads, >= 1.
        layers: Number of encoder blocks, >= 1.
    """

    width: int = 32
    heads: int = 2
    layers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.heads >= 1 and self.layers >= 1, "heads and layers must be >= 1", heads=self.heads)
        require(self.width % self.heads == 0, "width must be a multiple of heads", width=self.width, heads=self.heads)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from dpaudit.mechanisms.models import architectures

        return architectures.TransformerModule(
            shape, classes, vocabulary=self.vocabulary, width=self.width, heads=self.heads, layers=self.layers
        )
