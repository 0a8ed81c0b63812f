"""Canaries sampled from the base model at a high temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpaudit.errors import require
from dpaudit.language_models.canary_texts.source import DrawnTexts, TextSource
from dpaudit.language_models.mechanisms.token_statistics import sampled_tokens
from dpaudit.mechanisms.ranges import require_at_least, require_positive
from dpaudit.registry import register


@register("text-canary", "high-temperature", source="arXiv:2606.10481; Meeus et al. (2025), arXiv:2502.14921")
@dataclass(frozen=True, kw_only=True)
class HighTemperature(DrawnTexts):
    """Samples of the base model at a high temperature: rare texts that still resemble language.

    `canaries` needs `base`, and continues `texts` if they are given, else one random token.

    Attributes:
        length: Tokens of the sample, which is the secret, >= 1.
        context: Tokens of a text of the domain before the sample, >= 1; 1 without `texts`.
        temperature: Divisor of the logits, > 0.
    """

    length: int = 16
    context: int = 8
    temperature: float = 3.0

    def __post_init__(self) -> None:
        require_at_least(1, self, "length", "context")
        require_positive(self, "temperature")

    def pieces(
        self, source: TextSource, count: int, rng: np.random.Generator
    ) -> list[tuple[Sequence[int], Sequence[int]]]:
        require(source.base is not None, "canaries of the kind high-temperature are sampled from `base`", do="pass it")
        if source.texts:
            contexts = source.prefixes(count, self.context, rng)
        else:
            contexts = source.random_tokens(count, 1, rng)
        opening = list(source.opening)
        samples = sampled_tokens(
            source.base,
            [[*opening, *context] for context in contexts],
            self.length,
            temperature=self.temperature,
            seed=int(rng.integers(2**62)),
            allowed=source.ordinary.tolist(),
        )
        return list(zip(contexts, samples, strict=True))
