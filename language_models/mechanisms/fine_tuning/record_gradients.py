"""Clipped sums of the gradients of records, from one forward and one backward pass.

The gradient of a weight matrix is a sum over tokens of outer products: the gradient of the layer's output times its
input. Hooks record both factors. The norm of a record's gradient follows from inner products of tokens, without the
gradient itself (ghost clipping; Li et al., 2022, arXiv:2110.05679), and the sum of the clipped gradients from the
recorded factors, without a second backward pass (book-keeping; Bu et al., 2023, arXiv:2210.00038). The gradients of
small matrices, such as those of LoRA, are computed record by record instead.

A parameter that is used more than once, such as tied embeddings, has the gradient of all uses together.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpaudit.errors import InputError
from dpaudit.mechanisms.training.kernels import clip_factors

TOLERANCE, SHORT_TOLERANCE = 1e-3, 0.05
"""Relative difference of summed record gradients to those of torch that rounding of activations explains: of 32 bits
or more, and of 16 bits."""


# Parts of the gradient of one parameter


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """Gradients of a matrix (out, in) as sums over tokens of outer products.

    Attributes:
        outer: Shape (records, tokens, out).
        inner: Shape (records, tokens, in).
    """

    outer: Tensor
    inner: Tensor

    @property
    def is_large(self) -> bool:
        """True if the gradients themselves would be larger than their factors."""
        tokens, out, into = self.outer.shape[1], self.outer.shape[2], self.inner.shape[2]
        return out * into > tokens * (out + into)

    def whole(self) -> Tensor:
        """Return the gradients, shape (records, out, in)."""
        return torch.bmm(self.outer.transpose(1, 2), self.inner)

    def products(self, change: Tensor) -> Tensor:
        """Return the inner product of each record's gradient with a matrix (out, in), shape (records,)."""
        return (self.outer * (self.inner @ change.T)).sum((1, 2))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Return the sum over records of factor times gradient, shape (out, in)."""
        return (self.outer * factors[:, None, None]).flatten(0, 1).T @ self.inner.flatten(0, 1)


@dataclass(frozen=True, eq=False)
class RowAdditions:
    """Gradients of a table (rows, width) whose rows were looked up: each token adds its gradient to one row.

    Attributes:
        rows: Number of the row of each token, shape (records, tokens).
        inner: Gradient of the row that was looked up, shape (records, tokens, width); 0 if no row of the table was.
        count: Number of rows of the table.
    """

    rows: Tensor
    inner: Tensor
    count: int

    @property
    def is_large(self) -> bool:
        return self.count * self.inner.shape[2] > self.inner.shape[1] * self.inner.shape[2]

    def whole(self) -> Tensor:
        records, _, width = self.inner.shape
        gradients = self.inner.new_zeros(records, self.count, width)
        return gradients.scatter_add_(1, self.rows[..., None].expand_as(self.inner), self.inner)

    def products(self, change: Tensor) -> Tensor:
        return (self.inner * change[self.rows]).sum((1, 2))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        weighted = (self.inner * factors[:, None, None]).flatten(0, 1)
        return weighted.new_zeros(self.count, weighted.shape[1]).index_add_(0, self.rows.flatten(), weighted)


Factored = OuterProducts | RowAdditions


def inner_products(first: Factored, second: Factored) -> Tensor:
    """Return the inner product of each record's two gradients of one parameter, shape (records,)."""
    inner_factors = torch.bmm(first.inner, second.inner.transpose(1, 2))
    return (_outer_products(first, second) * inner_factors).sum((1, 2))


def _outer_products(first: Factored, second: Factored) -> Tensor:
    """Return the products of the outer factors of all pairs of tokens; the outer factor of a row is one-hot."""
    if isinstance(first, OuterProducts) and isinstance(second, OuterProducts):
        return torch.bmm(first.outer, second.outer.transpose(1, 2))
    if isinstance(first, RowAdditions) and isinstance(second, RowAdditions):
        return (first.rows[:, :, None] == second.rows[:, None, :]).to(first.inner)
    if isinstance(first, RowAdditions) and isinstance(second, OuterProducts):
        tokens = second.outer.shape[1]
        return second.outer.transpose(1, 2).gather(1, first.rows[:, :, None].expand(-1, -1, tokens))
    return _outer_products(second, first).transpose(1, 2)


class ParameterGradient:
    """Gradients of one parameter, one for each record of a batch; all uses of the parameter together."""

    def __init__(self, shape: torch.Size) -> None:
        self._shape = shape
        self._whole: Tensor | None = None  # shape (records, *shape)
        self._factored: list[Factored] = []

    def add(self, use: Factored | Tensor) -> None:
        """Add the gradients of one use: factors, or the gradients themselves, shape (records, *shape)."""
        if isinstance(use, Tensor) or not use.is_large:
            gradients = use if isinstance(use, Tensor) else use.whole()
            self._whole = gradients if self._whole is None else self._whole + gradients
        else:
            self._factored.append(use)

    def whole(self) -> Tensor | None:
        """Return the gradients, shape (records, *shape); None if the parameter was not used."""
        for use in self._factored:
            gradients = use.whole()
            self._whole = gradients if self._whole is None else self._whole + gradients
        self._factored = []
        return self._whole

    def squared_norms(self) -> Tensor | None:
        """Return the squared norm of each record's gradient, shape (records,); None if the parameter was not used."""
        if self._whole is not None and self._factored:
            self.whole()
        if self._whole is not None:
            return self._whole.flatten(1).square().sum(1)
        products = [
            inner_products(use, other) * (1 if number == place else 2)
            for number, use in enumerate(self._factored)
            for place, other in enumerate(self._factored[: number + 1])
        ]
        return torch.stack(products).sum(0).clamp(min=0) if products else None

    def products(self, change: Tensor) -> Tensor:
        """Return the inner product of each record's gradient with a value of the parameter's shape, (records,)."""
        values = [use.products(change) for use in self._factored]
        if self._whole is not None:
            values.append(self._whole.flatten(1) @ change.flatten().to(self._whole.dtype))
        return torch.stack(values).sum(0)

    def add_weighted_sum(self, factors: Tensor, out: Tensor) -> None:
        """Add the sum over records of factor times gradient to `out`, of the parameter's shape."""
        if self._whole is not None:
            out += torch.tensordot(factors, self._whole, 1)
        for use in self._factored:
            out += use.weighted_sum(factors)


# Layers that use trained parameters


class TrainedLayer(ABC):
    """A layer of a module with the trained parameters that it uses."""

    def __init__(self, layer: Any, parameters: Mapping[str, str]) -> None:
        """`parameters` are the full names of the trained parameters by their names in the layer."""
        self.layer, self.names = layer, parameters

    @abstractmethod
    def uses(
        self, inputs: Tensor, gradient: Tensor, by_record: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[str, Factored | Tensor]]:
        """Yield the full name of each trained parameter with the gradients of one use.

        Args:
            inputs: Input of the layer, shape (texts, tokens, ...).
            gradient: Gradient of its output, shape (texts, tokens, out).
            by_record: Rearranges (texts, tokens, ...) to (records, tokens of the record, ...).
        """


class TrainedLinear(TrainedLayer):
    """A linear layer of torch, or transformers' `Conv1D`, whose matrix is transposed."""

    def uses(
        self, inputs: Tensor, gradient: Tensor, by_record: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[str, Factored | Tensor]]:
        out, into = by_record(gradient), by_record(_wide(inputs))
        if "weight" in self.names:
            is_transposed = not isinstance(self.layer, nn.Linear)
            yield self.names["weight"], OuterProducts(into, out) if is_transposed else OuterProducts(out, into)
        if "bias" in self.names:
            yield self.names["bias"], out.sum(1)


class TrainedEmbedding(TrainedLayer):
    """An embedding of torch."""

    def uses(
        self, inputs: Tensor, gradient: Tensor, by_record: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[str, Factored | Tensor]]:
        if self.layer.padding_idx is not None:  # torch does not train this row
            gradient = gradient.masked_fill((inputs == self.layer.padding_idx)[..., None], 0)
        yield self.names["weight"], RowAdditions(by_record(inputs), by_record(gradient), self.layer.num_embeddings)


class TrainedScale(TrainedLayer):
    """A normalisation whose output is affine in its weight and bias, element by element."""

    def uses(
        self, inputs: Tensor, gradient: Tensor, by_record: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[str, Factored | Tensor]]:
        if "weight" in self.names:
            values = {name: torch.zeros_like(value) for name, value in self.layer.named_parameters()}
            without = torch.func.functional_call(self.layer, values, (inputs,))
            values["weight"] = torch.ones_like(values["weight"])
            slope = torch.func.functional_call(self.layer, values, (inputs,)) - without
            yield self.names["weight"], by_record(gradient * _wide(slope)).sum(1)
        if "bias" in self.names:
            yield self.names["bias"], by_record(gradient).sum(1)


class TrainedTokens(TrainedLayer):
    """PEFT's layer that trains some rows of an embedding, and of an output layer tied to it."""

    def __init__(self, layer: Any, parameters: Mapping[str, str]) -> None:
        super().__init__(layer, parameters)
        (self._adapter,) = parameters

    def uses(
        self, inputs: Tensor, gradient: Tensor, by_record: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[str, Factored | Tensor]]:
        trained = torch.tensor(self.layer.token_indices[self._adapter], device=inputs.device)
        name, base = self.names[self._adapter], self.layer.get_base_layer()
        if isinstance(base, nn.Linear):
            yield name, OuterProducts(by_record(gradient[..., trained]), by_record(_wide(inputs)))
            return
        rows = torch.full((base.num_embeddings,), -1, device=inputs.device)
        rows[trained] = torch.arange(len(trained), device=inputs.device)
        if base.padding_idx is not None:
            rows[base.padding_idx] = -1
        looked_up = rows[inputs]
        gradient = gradient.masked_fill((looked_up < 0)[..., None], 0)
        yield name, RowAdditions(by_record(looked_up.clamp(min=0)), by_record(gradient), len(trained))


def trained_layers(module: nn.Module, names: Mapping[nn.Parameter, str]) -> list[TrainedLayer]:
    """Return the layers that use trained parameters.

    Args:
        module: The whole model.
        names: Full names of the trained parameters.
    Raises: InputError if a trained parameter belongs to a layer whose gradients of single records are not known.
    """
    layers: list[TrainedLayer] = []
    covered: set[str] = set()
    parts = {id(child) for layer in module.modules() if _trains_tokens(layer) for child in layer.children()}
    for path, layer in module.named_modules():
        if id(layer) in parts and isinstance(layer, nn.ParameterDict):
            continue
        source = layer.trainable_tokens_delta if _trains_tokens(layer) else layer
        trained = {name: names[value] for name, value in _own_parameters(source) if value in names}
        if not trained:
            continue
        kind = _kind_of(layer, trained)
        if kind is None:
            raise InputError(
                f"gradients of single records are not known for {type(layer).__name__} ({path}): train a model of "
                "linear layers, embeddings and normalisations, or train with LoRA"
            )
        layers.append(kind(layer, trained))
        covered |= set(trained.values())
    missing = sorted(set(names.values()) - covered)
    if missing:
        raise InputError(f"trained parameters must belong to a layer of the model, {', '.join(missing)} do not")
    return layers


def _own_parameters(layer: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(layer.named_parameters(recurse=False, remove_duplicate=False))


def _trains_tokens(layer: nn.Module) -> bool:
    return type(layer).__name__ == "TrainableTokensLayer"


def _kind_of(layer: nn.Module, trained: Mapping[str, str]) -> type[TrainedLayer] | None:
    forward = type(layer).forward
    if _trains_tokens(layer):
        return TrainedTokens
    if forward is nn.Linear.forward or (type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")):
        return TrainedLinear
    # Other tables may scale their rows, or change the gradient of a batch as a whole.
    if forward is nn.Embedding.forward:
        plain = isinstance(layer, nn.Embedding) and layer.max_norm is None and not layer.scale_grad_by_freq
        return TrainedEmbedding if plain else None
    flat = all(value.ndim == 1 for _, value in _own_parameters(layer))
    name = type(layer).__name__
    if name.endswith("Norm") and not isinstance(layer, nn.modules.batchnorm._NormBase) and flat:
        return TrainedScale if trained.keys() <= {"weight", "bias"} else None
    return None


# A model with hooks


class RecordGradients:
    """Computes clipped sums of the gradients of records for the trained parameters of a model.

    The parameters need no gradient of torch, so that its backward pass computes those of activations alone.
    """

    def __init__(self, module: nn.Module) -> None:
        """The trained parameters of `module` are those that require a gradient."""
        named = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        if not named:
            raise InputError("a model must have a parameter that requires a gradient")
        mixing = next((layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._NormBase)), None)
        if mixing is not None:
            raise InputError(f"{type(mixing).__name__} mixes the records of a batch, which DP-SGD cannot clip")
        self.module = module
        self.parameters = dict(named)
        self._layers = trained_layers(module, {value: name for name, value in named})
        self._current: dict[str, ParameterGradient] = {}
        self._is_paused = False

    def zeros(self) -> dict[str, Tensor]:
        """Return a sum of no gradients."""
        return {name: torch.zeros_like(value, dtype=_wide_type(value)) for name, value in self.parameters.items()}

    def of(self, loss: Callable[[], Tensor], places: Tensor) -> dict[str, ParameterGradient]:
        """Return the gradients of each record for each parameter.

        Args:
            loss: Runs the model on a batch and returns the sum of the losses of its records.
            places: Numbers of the texts of each record, as in `RecordBatch`.
        """
        self._current = {name: ParameterGradient(value.shape) for name, value in self.parameters.items()}
        with self._requiring(gradients=False), self._recording(places):
            loss().backward()
        return self._current

    def add_clipped(
        self, gradients: Mapping[str, ParameterGradient], clip: float, sums: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Add the gradients of records, each clipped to norm `clip`, to sums by parameter.

        Returns: The norms before clipping, shape (records,); None if no parameter was used.
        """
        squares = [
            values for values in (gradient.squared_norms() for gradient in gradients.values()) if values is not None
        ]
        if not squares:
            return None
        norms = torch.stack(squares).sum(0).sqrt()
        factors = clip_factors(norms, clip)
        for name, gradient in gradients.items():
            gradient.add_weighted_sum(factors, sums[name])
        return norms

    def check(self, loss: Callable[[], Tensor], places: Tensor, *, tolerance: float = TOLERANCE) -> None:
        """Compare the sum of the records' gradients with the gradient of torch, which sees every use of a parameter.

        `loss` and `places` as for `of`; `tolerance` is the largest difference of norms over the norm of the gradient.

        Raises: InputError if they differ: the model uses a trained parameter outside of its layer.
        """
        sums = self.zeros()
        for name, recorded in self.of(loss, places).items():
            recorded.add_weighted_sum(torch.ones(len(places), device=places.device, dtype=sums[name].dtype), sums[name])
        with self._requiring(gradients=True):
            expected = torch.autograd.grad(loss(), list(self.parameters.values()), allow_unused=True)
        for name, gradient in zip(self.parameters, expected, strict=True):
            difference = sums[name] if gradient is None else sums[name] - gradient
            scale = 0.0 if gradient is None else float(_wide(gradient).norm())
            if float(difference.norm()) > tolerance * scale + 1e-6:
                raise InputError(
                    f"the gradient of {name} must be the sum over the layers that hold it: the model uses it in "
                    "another way, so that records cannot be clipped; train with LoRA on linear layers"
                )

    @contextlib.contextmanager
    def _requiring(self, *, gradients: bool) -> Iterator[None]:
        for value in self.parameters.values():
            value.requires_grad_(gradients)
        try:
            yield
        finally:
            for value in self.parameters.values():
                value.requires_grad_(True)

    @contextlib.contextmanager
    def _recording(self, places: Tensor) -> Iterator[None]:
        texts = int(places.max()) + 1
        present = (places >= 0)[..., None] if places.shape[1] > 1 else None

        def by_record(values: Tensor) -> Tensor:
            if present is None:
                return values
            selected = values[places.clamp(min=0)]  # shape (records, texts of a record, tokens, ...)
            mask = present.reshape(present.shape[:2] + (1,) * (selected.ndim - 2))
            return (selected * mask).flatten(1, 2)

        def hook(trained: TrainedLayer) -> Callable[[Any, tuple[Any, ...], Tensor], Tensor | None]:
            def forward(layer: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
                if self._is_paused:
                    return None
                values = inputs[0].detach()
                if not output.requires_grad:
                    output.requires_grad_()
                changed = None
                if output.shape[0] == 1 and texts > 1:  # such as the embedding of positions
                    values = values.expand(texts, *values.shape[1:])
                    changed = output = output.expand(texts, *output.shape[1:])
                if output.shape[0] != texts or output.ndim != 3:
                    raise InputError(
                        f"the output of {type(layer).__name__} must have the shape ({texts} texts, tokens, width), got "
                        f"{tuple(output.shape)}; train other layers"
                    )
                output.register_hook(lambda gradient: self._record(trained, values, gradient, by_record))
                return changed

            return forward

        handles = [trained.layer.register_forward_hook(hook(trained)) for trained in self._layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _record(
        self, trained: TrainedLayer, inputs: Tensor, gradient: Tensor, by_record: Callable[[Tensor], Tensor]
    ) -> None:
        self._is_paused = True
        try:
            with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
                for name, use in trained.uses(inputs, _wide(gradient), by_record):
                    self._current[name].add(use)
        finally:
            self._is_paused = False


def _wide_type(value: Tensor) -> torch.dtype:
    """Return the type in which norms and sums of gradients are computed."""
    return torch.float64 if value.dtype == torch.float64 else torch.float32


def _wide(value: Tensor) -> Tensor:
    return value.to(_wide_type(value))


def flat(values: Sequence[Tensor]) -> Tensor:
    """Return tensors as one vector."""
    return torch.cat([value.flatten() for value in values])
