"""Neural networks to train, one registered name for each architecture.

The classes hold hyper-parameters only; torch is imported when one is built or trained.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpaudit.errors import require
from dpaudit.mechanisms.training.recipe import Recipe, one_of
from dpaudit.mechanisms.training.stack_trainer import StackTrainer
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import nn

ACTIVATIONS = ("relu", "tanh", "gelu", "silu")
NORMS = ("group", "batch", "none")


@dataclass(frozen=True, kw_only=True)
class Network(Recipe, StackTrainer, ABC):
    """A network to train on the labels as they are given; its attributes are those of `Recipe`."""

    @property
    def recipe(self) -> Recipe:
        """A network is its own recipe."""
        return self


def require_network(model: object, *, of: str) -> None:
    """Refuses, for the mechanism registered as `of`, a model that is no network."""
    require(isinstance(model, Network), f"the model of {of} must be a network", model=type(model).__name__)


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
