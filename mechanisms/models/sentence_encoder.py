"""Sentences as vectors, by a pre-trained encoder from a local folder."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import InputError
from dpaudit.mechanisms.models.transformer_fine_tune import loaded

BATCH = 32


def encoded(texts: list[str], path: str, *, length: int, device: str = "cpu") -> NDArray[np.float32]:
    """The mean of the encoder's last states over a text's tokens, scaled to length 1; shape (n, width).

    Raises: InputError when transformers or the folder is missing.
    """
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as err:
        raise InputError(
            "sentence embeddings need the package transformers; install it with `pip install dpaudit[text]`"
        ) from err
    import torch

    tokenizer = loaded(AutoTokenizer, path)
    module: Any = loaded(AutoModel, path).to(device).eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # texts of a length go together
    found = np.empty((len(texts), module.config.hidden_size), np.float32)
    with torch.inference_mode():
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            words = [texts[row] for row in rows]
            tokens = tokenizer(words, padding=True, truncation=True, max_length=length, return_tensors="pt").to(device)
            states = module(**tokens).last_hidden_state
            present = tokens["attention_mask"][..., None]
            mean = (states * present).sum(1) / present.sum(1).clamp(min=1)
            found[rows] = torch.nn.functional.normalize(mean.float(), dim=1).cpu().numpy()
    return found
