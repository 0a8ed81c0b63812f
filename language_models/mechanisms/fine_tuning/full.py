"""Fine-tuning of all weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpaudit.language_models.mechanisms.fine_tuning.base_model import own_copy
from dpaudit.language_models.mechanisms.fine_tuning.trainer import FineTuner
from dpaudit.registry import register


@register("text-trainer", "full", source="Li et al. (2022), arXiv:2110.05679; Bu et al. (2023), arXiv:2210.00038")
@dataclass(frozen=True, kw_only=True)
class FullFineTuning(FineTuner):
    """Fine-tunes all weights of a causal language model by DP-SGD with ghost clipping, or without privacy.

    The model may consist of linear layers, embeddings (tied or not) and normalisations, such as Llama and GPT-2.
    """

    learning_rate: float = 2e-4

    def trainable(self, base: Any, *, device: str) -> Any:
        return own_copy(base, device=device).requires_grad_(True)
