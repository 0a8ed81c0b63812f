"""Residual networks, as modules of torch; nothing couples the examples of a batch unless the norm is "batch".

Weights are drawn by `mechanisms.training.parameters`, never by the constructors here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

GROUPS = 16


class ResNet(nn.Module):
    """ResNet for small images: a 3x3 stem and stages of basic blocks, normalisation after each convolution."""

    def __init__(self, channels: int, classes: int, *, blocks: Sequence[int], width: int, norm: str) -> None:
        super().__init__()
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

    def __init__(self, channels: int, classes: int, *, depth: int, widen: int, norm: str) -> None:
        super().__init__()
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
