"""Ways of fine-tuning for tests: one that knows its texts by heart, and DP-SGD with too little noise."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from dpaudit.claims import Claim, Relation
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning
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


class HalfNoise(FineTuning):
    """Its noise is half as large as stated."""

    def add_noise_to(self, name: str, value: torch.Tensor, generator: torch.Generator) -> None:
        before = value.clone()
        super().add_noise_to(name, value, generator)
        value -= (value - before) / 2


class NoiseOnFactorA(FineTuning):
    """Only the first factors of LoRA get noise."""

    def add_noise_to(self, name: str, value: torch.Tensor, generator: torch.Generator) -> None:
        if "lora_A" in name:
            super().add_noise_to(name, value, generator)


class NoiseOnFactorB(FineTuning):
    """Only the second factors of LoRA get noise."""

    def add_noise_to(self, name: str, value: torch.Tensor, generator: torch.Generator) -> None:
        if "lora_B" in name:
            super().add_noise_to(name, value, generator)


class NoiseOfFirstStep(FineTuning):
    """All steps have the noise of the first one."""

    def add_noise(self, sums: Mapping[str, torch.Tensor], generator: torch.Generator) -> None:
        super().add_noise(sums, torch.Generator().manual_seed(1))


class MirroredNoise(FineTuning):
    """The noise of a parameter is subtracted again in the second half of it."""

    def add_noise_to(self, name: str, value: torch.Tensor, generator: torch.Generator) -> None:
        before = value.clone().flatten()
        super().add_noise_to(name, value, generator)
        noise, half = value.flatten() - before, value.numel() // 2
        noise[half : 2 * half] = -noise[:half]
        value.copy_((before + noise).view(value.shape))


@dataclass(frozen=True, kw_only=True)
class DefectiveLora(LoraFineTuning):
    """LoRA by DP-SGD with a planted defect."""

    run_by: ClassVar[type[FineTuning]] = FineTuning

    def training_type(self) -> type[FineTuning]:
        return self.run_by


def with_defect(defect: type[FineTuning]) -> type[LoraFineTuning]:
    """Return the trainer whose steps have the defect."""
    return type(f"Lora{defect.__name__}", (DefectiveLora,), {"run_by": defect, "__module__": __name__})
