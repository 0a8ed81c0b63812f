"""Network weights as one flat vector, so that a stack of networks is one matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterLayout:
    """Layout of a network's parameters in its flat vector."""

    names: tuple[str, ...]  # parameter names, in order
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]  # numbers of elements

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return each parameter by name, (*lead, P) to (*lead, *shape), without a copy."""
        # The gradient of one split is one concatenation, which many slices would not give.
        parts = flat.split(self.sizes, dim=-1)
        lead = flat.shape[:-1]
        return {
            name: part.reshape(*lead, *shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def matrices(self) -> Tensor:
        """Return a mask, shape (P,): True for weights, False for biases and normalisation."""
        flags = [torch.full((size,), len(shape) > 1) for shape, size in zip(self.shapes, self.sizes, strict=True)]
        return torch.cat(flags)


def layout_of(module: nn.Module) -> ParameterLayout:
    named = dict(module.named_parameters())
    shapes = tuple(tuple(parameter.shape) for parameter in named.values())
    return ParameterLayout(tuple(named), shapes, tuple(math.prod(shape) for shape in shapes))


def draw_weights(module: nn.Module, generator: torch.Generator) -> Tensor:
    """Draw initial weights, shape (P,), from `generator` alone; the module may be on the device "meta".

    Linear layers and convolutions with a bias: uniform on +-1/sqrt(fan in), as in torch. Convolutions without a bias
    (before a normalisation): normal with variance 2 / fan in (He et al., 2015). Embeddings: normal with variance
    1 / width, so vectors have norm about 1. Normalisation: weight 1 and bias 0.
    """
    weights = dict.fromkeys(layout_of(module).names, torch.zeros(0))
    for prefix, part in module.named_modules():
        for name, parameter in part.named_parameters(prefix, recurse=False):
            weights[name] = _draw_parameter(part, name, tuple(parameter.shape), generator)
    return torch.cat([values.flatten() for values in weights.values()])


def _draw_parameter(part: nn.Module, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if isinstance(part, nn.Embedding):
        return torch.randn(shape, generator=generator) / math.sqrt(part.embedding_dim)
    if not isinstance(part, nn.Linear | nn.Conv2d):
        return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
    fan_in = math.prod(part.weight.shape[1:])
    if part.bias is None:
        return torch.randn(shape, generator=generator) * math.sqrt(2 / fan_in)
    return (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(fan_in)
