"""Networks of one example each: a layout to build, and nothing that couples the examples of a batch by default.

Every network takes float32 of shape (batch, *shape) and gives logits of shape (batch, classes). Weights are drawn by
`mechanisms.training.parameters`, never by the constructors here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from dpaudit.errors import require

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}
NORMS = ("group", "batch", "none")
GROUPS = 16


def mlp(shape: tuple[int, ...], classes: int, *, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers of widths `hidden`, each followed by `activation`, and a linear layer to the logits."""
    inputs = 1
    for size in shape:
        inputs *= size
    widths = [inputs, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """conv16-conv32-linear: two 3x3 convolutions, each with ReLU and 2x2 max pooling."""
    channels, height, width = image_shape(shape, least=4)
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


def tanh_cnn(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Four 3x3 convolutions with tanh, max and average pooling: 974,250 parameters on 3x32x32 and 10 classes.

    The paper gives the number of layers, the activation, the kinds of pooling and 974 K parameters; the widths are the
    non-decreasing multiples of 16 that give that number.
    """
    channels, _, _ = image_shape(shape, least=8)
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


def lenet_5(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """LeNet-5: 5x5 convolutions to 6 and 16 channels with tanh and average pooling, linear layers of 120 and 84."""
    channels, height, width = image_shape(shape, least=12)
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


class ResNet(nn.Module):
    """ResNet for small images: a 3x3 stem and stages of basic blocks, normalisation after each convolution."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, blocks: Sequence[int], width: int, norm: str) -> None:
        super().__init__()
        channels, _, _ = image_shape(shape, least=8)
        self.stem = nn.Sequential(conv3x3(channels, width, norm=norm), normalisation(norm, width), nn.ReLU())
        stages: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(blocks):
            outputs = width * 2**stage
            for block in range(depth):
                stages.append(BasicBlock(inputs, outputs, stride=2 if stage and not block else 1, norm=norm))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean((2, 3)))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv3x3(inputs, outputs, stride=stride, norm=norm),
            normalisation(norm, outputs),
            nn.ReLU(),
            conv3x3(outputs, outputs, norm=norm),
            normalisation(norm, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=norm == "none")
            self.shortcut = nn.Sequential(projection, normalisation(norm, outputs))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


class WideResNet(nn.Module):
    """Wide ResNet: three stages of pre-activation blocks, 16, 32 and 64 channels times `widen`."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, depth: int, widen: int, norm: str) -> None:
        super().__init__()
        channels, _, _ = image_shape(shape, least=4)
        self.stem = conv3x3(channels, 16, norm=norm)
        blocks: list[nn.Module] = []
        inputs = 16
        for stage in range(3):
            outputs = 16 * widen * 2**stage
            for block in range((depth - 4) // 6):
                blocks.append(PreActivationBlock(inputs, outputs, stride=2 if stage and not block else 1, norm=norm))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(normalisation(norm, inputs), nn.ReLU())
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.last(self.blocks(self.stem(images))).mean((2, 3)))  # type: ignore[no-any-return]


class PreActivationBlock(nn.Module):
    """Normalisation, ReLU and 3x3 convolution, twice, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: str) -> None:
        super().__init__()
        self.first = nn.Sequential(normalisation(norm, inputs), nn.ReLU())
        self.body = nn.Sequential(
            conv3x3(inputs, outputs, stride=stride, norm=norm),
            normalisation(norm, outputs),
            nn.ReLU(),
            conv3x3(outputs, outputs, norm=norm),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        activated = self.first(images)
        # A projection sees the activated input, the identity the raw one (Zagoruyko and Komodakis, 2016).
        skipped = images if self.shortcut is None else self.shortcut(activated)
        return skipped + self.body(activated)  # type: ignore[no-any-return]


def conv3x3(inputs: int, outputs: int, *, stride: int = 1, norm: str) -> nn.Conv2d:
    """A 3x3 convolution; its bias is left out where a normalisation follows."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=norm == "none")


def normalisation(norm: str, channels: int) -> nn.Module:
    """Group norm (of 16 groups at most), batch norm, or nothing."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(min(GROUPS, channels), channels) if norm == "group" else nn.Identity()


def image_shape(shape: tuple[int, ...], *, least: int) -> tuple[int, int, int]:
    """(channels, height, width) of one example; refuses what is not an image or is below `least` pixels a side."""
    require(len(shape) == 3, "a convolutional network takes images of shape (channels, height, width)", shape=shape)
    require(min(shape[1:]) >= least, f"images must be at least {least} pixels a side for this network", shape=shape)
    return shape[0], shape[1], shape[2]
