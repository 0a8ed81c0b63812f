"""Causal language models before fine-tuning: from a folder, a GGUF file, or a module of torch."""

from __future__ import annotations

import copy
import os
from typing import Any

from dpaudit.errors import InputError
from dpaudit.mechanisms.models.pretrained import load_pretrained


def own_copy(base: Any, *, device: str) -> Any:
    """Return a causal language model on a device that shares no weight with `base`.

    Args:
        base: Folder that `save_pretrained` wrote, path of a GGUF file, or a module of torch.
    Raises: InputError for another kind of base model.
    """
    if isinstance(base, str | os.PathLike):
        return load_base(base, device=device)
    _require_module(base)
    return copy.deepcopy(base).to(device)


def frozen_copy(base: Any, *, device: str) -> Any:
    """Return a causal language model on a device, for adapters: it shares the weights of a module, which stay frozen.

    Arguments and errors as for `own_copy`.
    """
    if isinstance(base, str | os.PathLike):
        return load_base(base, device=device).requires_grad_(False)
    _require_module(base)
    from torch.nn import Parameter

    shared: dict[int, Any] = {id(value): Parameter(value.detach(), requires_grad=False) for value in base.parameters()}
    shared |= {id(value): value for value in base.buffers()}
    return copy.deepcopy(base, shared).to(device)


def load_base(path: str | os.PathLike[str], *, device: str = "cpu") -> Any:
    """Return the model of a folder or GGUF file in float32; a GGUF file is dequantised (package gguf)."""
    import torch

    return load_pretrained("AutoModelForCausalLM", os.fspath(path), dtype=torch.float32).to(device).eval()


def _require_module(base: Any) -> None:
    from torch.nn import Module

    if not isinstance(base, Module):
        raise InputError(
            "a base model must be the path of a folder or of a GGUF file, or a module of torch, got "
            f"{type(base).__name__}"
        )
