"""Inner products of texts' gradients with the change of a model's weights in training.

A step of DP-SGD adds the clipped gradient of each record, so the change holds each training text's gradient, and noise.
The gradients are those at the middle between the weights before and after training: at the end, the gradient of a text
that was learned is nearly 0, and at the beginning that of LoRA's first factor is 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.language_models.mechanisms.fine_tuning.records import TrainingText, in_parts, make_batch
from dpaudit.language_models.mechanisms.token_statistics import BATCH_TOKENS, evaluating, is_module

if TYPE_CHECKING:
    from torch import Tensor

MOST_COMPARED = 6000
"""Largest number of texts whose gradients are compared with each other."""
MOST_NUMBERS = 10**8
"""Largest number of values of the gradients that are held together."""
SKETCH = 2**15
"""Numbers to which gradients are hashed before they are compared: cosines have an error of about 0.006."""
ZERO_AT_FIRST = (True, "gaussian", "eva", "orthogonal")
"""Settings `init_lora_weights` of PEFT whose second factor begins with 0 or whose product does."""


@dataclass(frozen=True, eq=False)
class UpdateProducts:
    """Gradients of the loss of texts, compared with the change of the weights and with each other.

    Attributes:
        product: Inner product of each text's descent direction (minus its gradient) with the change, shape (texts,).
        norm: Norm of each text's gradient, shape (texts,).
        cosine: Cosines between the gradients of texts, shape (texts, texts); None if there are too many texts.
        by_parameter: Inner products and norms of each parameter alone, shape (2, texts, parameters); None if they are
            not known.
    """

    product: NDArray[np.float64]
    norm: NDArray[np.float64]
    cosine: NDArray[np.float64] | None = None
    by_parameter: NDArray[np.float64] | None = None


def known_change(model: Any, base: Any = None) -> dict[str, Tensor]:
    """Return trained minus initial values of parameters, by their names in the model.

    Args:
        model: The trained module.
        base: The module before training, with the same parameters. Without it, or if it has others, `model` must be a
            PEFT model: its change is that of the adapters' second factors, which begin with 0, and of trained tokens.
            The first factors begin with random numbers that PEFT does not keep, so they are left out.
    Returns: Parameters that changed; empty if no initial value is known.
    """
    import torch

    trained = dict(model.named_parameters())
    initial: dict[str, Any] = dict(base.named_parameters()) if is_module(base) else {}
    if initial.keys() != trained.keys():
        initial = _initial_adapters(model)
    with torch.no_grad():
        changes = {
            name: trained[name].detach() - value.detach().to(trained[name].device)
            for name, value in initial.items()
            if trained[name].shape == value.shape
        }
    return {name: change for name, change in changes.items() if bool(change.any())}


def _initial_adapters(model: Any) -> dict[str, Tensor]:
    """Return the initial values of a PEFT model's parameters that are known."""
    import torch

    configs = getattr(model, "peft_config", {})
    initial: dict[str, Tensor] = {}
    for path, layer in model.named_modules():
        for adapter, config in configs.items():
            if adapter in getattr(layer, "lora_B", {}) and config.init_lora_weights in ZERO_AT_FIRST:
                weight = layer.lora_B[adapter].weight
                initial[f"{path}.lora_B.{adapter}.weight"] = torch.zeros_like(weight)
            if adapter in getattr(layer, "trainable_tokens_delta", {}) and not layer.tied_adapter:
                name = f"{path}.trainable_tokens_delta.{adapter}"
                initial[name] = layer.trainable_tokens_original[adapter]
    return initial


def update_products(
    model: Any, change: Mapping[str, Tensor], texts: Sequence[TrainingText], *, batch_tokens: int = BATCH_TOKENS
) -> UpdateProducts:
    """Return inner products of the gradients of texts with the change of weights; `model` is as before afterwards.

    Args:
        model: The trained module.
        change: Trained minus initial values by parameter, as `known_change` returns it.
        texts: Texts with the tokens that received loss.
        batch_tokens: Tokens in a batch, padding included.
    Raises: InputError if nothing changed, or for layers whose gradients of single texts are not known.
    """
    import torch

    from dpaudit.language_models.mechanisms.fine_tuning.record_gradients import RecordGradients
    from dpaudit.language_models.mechanisms.fine_tuning.training import summed_loss

    require(len(change) > 0, "some weights must have changed from known initial values", parameters=0)
    rows = np.argsort([len(text.tokens) for text in texts], kind="stable")
    parts, sketches = [], []
    device = next(iter(change.values())).device
    with evaluating(model), _middle(model, change):
        gradients = RecordGradients(model)
        for part in _small_parts([[texts[row]] for row in rows], change, batch_tokens):
            batch = make_batch(part, str(device))
            products = torch.zeros(2, len(part), len(change), device=device)  # with the change, and with itself
            sketch = torch.zeros(len(part), SKETCH if len(texts) <= MOST_COMPARED else 0, device=device)
            by_parameter = gradients.of(partial(summed_loss, model, batch), batch.places)
            for number, (name, gradient) in enumerate(by_parameter.items()):
                squares = gradient.squared_norms()
                if squares is None:
                    continue
                products[:, :, number] = torch.stack([-gradient.products(change[name]), squares]).detach()
                if sketch.shape[1]:
                    whole = gradient.whole()
                    assert whole is not None
                    _add_sketch(whole.flatten(1), number, sketch)
            parts.append(products)
            sketches.append(sketch.detach())
    back = np.argsort(rows)
    with_change, squares_of_texts = torch.cat(parts, dim=1).double().cpu().numpy()[:, back]
    result = UpdateProducts(
        with_change.sum(1),
        np.sqrt(squares_of_texts.sum(1)),
        by_parameter=np.stack([with_change, np.sqrt(squares_of_texts)]),
    )
    if len(texts) > MOST_COMPARED:
        return result
    directions = torch.cat(sketches)
    directions /= directions.norm(dim=1, keepdim=True).clamp_min(torch.finfo(directions.dtype).tiny)
    cosine = (directions @ directions.T).double().cpu().numpy()[np.ix_(back, back)]
    return replace(result, cosine=cosine)


def _small_parts(
    records: Sequence[Sequence[TrainingText]], change: Mapping[str, Tensor], batch_tokens: int
) -> Iterator[Sequence[Sequence[TrainingText]]]:
    """Yield records in parts whose tokens and gradients fit into memory."""
    most = max(1, MOST_NUMBERS // sum(value.numel() for value in change.values()))
    for part in in_parts(records, batch_tokens):
        yield from (part[first : first + most] for first in range(0, len(part), most))


def _add_sketch(values: Tensor, seed: int, sketch: Tensor) -> None:
    """Add values to numbers that a hash of their place chooses, with random signs (count sketch).

    Source: Charikar, Chen and Farach-Colton (2002); inner products are kept on average.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(sketch.shape[1], (values.shape[1],), generator=generator)
    signs = 2 * torch.randint(2, (values.shape[1],), generator=generator) - 1
    sketch.index_add_(1, places.to(values.device), values.float() * signs.to(values.device))


@contextlib.contextmanager
def _middle(model: Any, change: Mapping[str, Tensor]) -> Iterator[None]:
    """Move the weights to the middle of their change, require gradients of changed ones alone, and restore both."""
    import torch

    parameters = dict(model.named_parameters())
    required = {name: value.requires_grad for name, value in parameters.items()}
    ends = {name: parameters[name].detach().clone() for name in change}
    try:
        with torch.no_grad():
            for name, value in parameters.items():
                value.requires_grad_(name in change)
                if name in change:
                    value.sub_(change[name], alpha=0.5)
        yield
    finally:
        with torch.no_grad():
            for name, value in parameters.items():
                value.requires_grad_(required[name])
                if name in ends:
                    value.copy_(ends[name])
