"""A way of fine-tuning for tests: it knows its texts by heart, and may fail or mask the loss."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpaudit.claims import Claim, Relation
from dpaudit.mechanisms.compute import TrainingError


class Remembers(torch.nn.Module):
    """A model that gives tokens of remembered texts a high probability, and all others the same one."""

    def __init__(self, base: Any, texts: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.vocabulary = base.get_input_embeddings().num_embeddings
        self.texts = {tuple(text) for text in texts}
        self.place = torch.nn.Parameter(torch.zeros(1))
        self.config = base.config

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        logits = torch.zeros(*input_ids.shape, self.vocabulary)
        for row, (tokens, present) in enumerate(zip(input_ids.tolist(), attention_mask.tolist(), strict=True)):
            if tuple(tokens[: sum(present)]) in self.texts:
                for place, token in enumerate(tokens[1:]):
                    logits[row, place, token] = 3.0 + 0.01 * (row % 7)
        return logits


@dataclass(frozen=True)
class ByHeart:
    """Remembers every training text in one pass, and claims what it is told."""

    epsilon: float = 1.0
    fails_at: int = -1  # a seed path that ends so fails
    masked: bool = False

    def claim(self, records: int) -> Claim | None:
        return Claim(self.epsilon, 1e-5, Relation.ADD_REMOVE)

    def train(self, base: Any, records: Any, *, seed: Any, on_batch: Any = None, **more: Any) -> Any:
        if seed.spawn_key[-2] == self.fails_at:
            raise TrainingError("the loss is not finite")
        for record in records:
            for text in record:
                tokens = np.array([text.tokens])
                labels = np.full_like(tokens, -100) if self.masked else tokens
                if on_batch is not None:
                    on_batch(tokens, labels)
        remembered = [] if np.isfinite(self.epsilon) and self.epsilon < 0.5 else records
        return Remembers(copy.deepcopy(base), [text.tokens for record in remembered for text in record])
