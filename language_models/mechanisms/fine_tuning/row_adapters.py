"""LoRA adapters of which each row of a batch has another one, on one frozen language model.

The gradient of the adapter that a row uses is the gradient of the row: per-sample gradients cost no further pass.
Source: Hu et al. (2021), arXiv:2106.09685, with the initial values of PEFT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpaudit.errors import InputError, require


@dataclass(frozen=True)
class AdaptedLayer:
    """Linear layer of a language model with an adapter.

    Attributes:
        name: Name of the module, as in `named_modules`.
        inputs, outputs: Width of its inputs and outputs.
    """

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class AdapterLayout:
    """Places of an adapter's numbers in one vector: for each layer, down (rank, inputs), then up (outputs, rank).

    Attributes:
        layers: Layers with an adapter, in the order of the model.
        rank: Rank of each layer's change, >= 1.
        scale: Factor of the change, alpha / rank in LoRA.
    """

    layers: tuple[AdaptedLayer, ...]
    rank: int
    scale: float

    @property
    def sizes(self) -> list[int]:
        """Lengths of the parts: down and up of each layer."""
        return [self.rank * width for layer in self.layers for width in (layer.inputs, layer.outputs)]

    @property
    def total(self) -> int:
        """Number of weights of one adapter."""
        return sum(self.sizes)

    def parts(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return down (n, rank, inputs) and up (n, outputs, rank) of each layer, as views of weights (n, total)."""
        pieces = weights.split(self.sizes, dim=1)
        return [
            (
                pieces[2 * place].unflatten(1, (self.rank, layer.inputs)),
                pieces[2 * place + 1].unflatten(1, (layer.outputs, self.rank)),
            )
            for place, layer in enumerate(self.layers)
        ]

    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw initial weights as PEFT does, shape (total,): down is uniform within 1 / sqrt(inputs), up is 0."""
        weights = torch.zeros(1, self.total)
        for down, up in self.parts(weights):
            torch.empty_like(down).uniform_(generator=generator)  # numbers that PEFT draws and does not use
            torch.empty_like(up).uniform_(generator=generator)
            limit = 1 / math.sqrt(down.shape[2])
            down.copy_(torch.empty_like(down[0]).uniform_(-limit, limit, generator=generator))
        return weights[0]

    def named(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the weights (total,) of one adapter by names, as `get_peft_model_state_dict` of PEFT has them."""
        named = {}
        for layer, (down, up) in zip(self.layers, self.parts(weights[None]), strict=True):
            named[f"base_model.model.{layer.name}.lora_A.weight"] = down[0]
            named[f"base_model.model.{layer.name}.lora_B.weight"] = up[0]
        return named


def adapter_layout(base: nn.Module, targets: Sequence[str], *, rank: int, alpha: float) -> AdapterLayout:
    """Return the layout of adapters on the layers of a model whose names end in one of `targets`.

    Raises: InputError if there is no such layer, or one that is not linear.
    """
    layers = []
    for name, module in base.named_modules():
        if name.rpartition(".")[2] in targets or any(name.endswith(f".{target}") for target in targets):
            layers.append(AdaptedLayer(name, *_widths(name, module)))
    require(
        bool(layers), "no layer has one of the names", do="name linear layers, such as q_proj", targets=tuple(targets)
    )
    return AdapterLayout(tuple(layers), rank, alpha / rank)


def _widths(name: str, module: nn.Module) -> tuple[int, int]:
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int):  # GPT-2: weight (in, out)
        weight: Any = module.weight
        return int(weight.shape[0]), int(weight.shape[1])
    raise InputError(
        f"adapters need linear layers, but {name} is a {type(module).__name__}. Name layers of type Linear or Conv1D"
    )


class RowAdapted(nn.Module):
    """A linear layer to which each row of a batch adds the change of its adapter."""

    down: Tensor  # (rows, rank, inputs)
    up: Tensor  # (rows, outputs, rank)

    def __init__(self, base: nn.Module, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (rows, tokens, outputs) of inputs (rows, tokens, inputs)."""
        outputs: Tensor = self.base(inputs)
        by_row = inputs.reshape(len(self.down), -1, inputs.shape[-1])  # some models join rows and tokens
        change = torch.baddbmm(
            outputs.reshape(len(self.down), -1, outputs.shape[-1]),
            torch.bmm(by_row, self.down.transpose(1, 2)),
            self.up.transpose(1, 2),
            alpha=self.scale,
        )
        return change.view(outputs.shape)


class RowAdapters:
    """The adapters in a model; `use` sets those of the next batch."""

    def __init__(self, layout: AdapterLayout, layers: list[RowAdapted], dtype: torch.dtype) -> None:
        self.layout, self._layers, self.dtype = layout, layers, dtype

    def use(self, weights: Tensor) -> None:
        """Let row k of the next batch have the adapter `weights[k]`, shape (rows, total)."""
        for layer, (down, up) in zip(self._layers, self.layout.parts(weights), strict=True):
            layer.down, layer.up = down, up


def row_adapters(module: nn.Module, layout: AdapterLayout, *, compiled: bool = False) -> RowAdapters:
    """Put adapters into a frozen model with no other user; its blocks are compiled if `compiled`."""
    dtype = next(parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    layers = []
    for layer in layout.layers:
        adapted = RowAdapted(module.get_submodule(layer.name), layout.scale).eval()
        _replace(module, layer.name, adapted)
        layers.append(adapted)
    for block in decoder_layers(module) if compiled else []:
        block.compile()
    return RowAdapters(layout, layers, dtype)


def _replace(base: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(base.get_submodule(parent), child, module)


def decoder_layers(base: nn.Module) -> list[Any]:
    """Return the blocks of a model: the members of its longest list of modules."""
    lists = [list(module) for module in base.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])
