"""Log-probabilities of texts under many adapters of one language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dpaudit.errors import require
from dpaudit.language_models.mechanisms.fine_tuning.adapter_stack import TrainedAdapter
from dpaudit.language_models.mechanisms.fine_tuning.base_model import frozen_copy
from dpaudit.language_models.mechanisms.fine_tuning.row_adapters import row_adapters
from dpaudit.language_models.mechanisms.token_statistics import (
    BATCH_TOKENS,
    TokenSpan,
    TokenStatistics,
    batched_statistics,
    joined_statistics,
)
from dpaudit.mechanisms.compute import Compute


def adapter_statistics(
    base: Any,
    adapters: Sequence[TrainedAdapter],
    spans: Sequence[TokenSpan],
    *,
    compute: Compute,
    batch_tokens: int = BATCH_TOKENS,
) -> list[TokenStatistics]:
    """Return the statistics of the spans under each adapter, as `token_statistics` of its model does.

    A batch holds texts of similar length under several adapters. `token_statistics(base, spans)` returns those of the
    base model, once for all adapters.

    Args:
        base: The base model, as in `TextTrainer.train`.
        adapters: Adapters of one layout.
        batch_tokens: Tokens in a batch, padding included.
    Raises: InputError for adapters of several layouts, or log-probabilities that are not finite.
    """
    if not adapters:
        return []
    layout = adapters[0].layout
    require(all(adapter.layout == layout for adapter in adapters), "stacked adapters must have one layout")
    torch.set_num_threads(compute.threads)
    module = frozen_copy(base, device=compute.device).eval()
    changes = row_adapters(module, layout)
    weights = torch.from_numpy(np.stack([adapter.weights for adapter in adapters])).to(compute.device, changes.dtype)

    def before(rows: list[int]) -> None:
        changes.use(weights[torch.tensor(rows, device=weights.device) // len(spans)])

    moments = batched_statistics(module, list(spans) * len(adapters), batch_tokens, before=before)
    by_row = dict(moments)
    rows = range(len(spans))
    return [
        joined_statistics(spans, ((row, by_row[place * len(spans) + row]) for row in rows))
        for place in range(len(adapters))
    ]
