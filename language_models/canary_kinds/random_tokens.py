"""Canaries of random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpaudit.language_models.canary_texts.source import DrawnTexts, TextSource
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register


@register("text-canary", "random-tokens", source="Carlini et al. (2019), arXiv:1802.08232")
@dataclass(frozen=True, kw_only=True)
class RandomTokens(DrawnTexts):
    """Uniform ordinary tokens, the first few of which are the context of the others.

    Attributes:
        length: Tokens of the secret, >= 1.
        context: Tokens before the secret, >= 1: the first token of a text receives no loss.
    """

    length: int = 16
    context: int = 4

    def __post_init__(self) -> None:
        require_at_least(1, self, "length", "context")

    def pieces(
        self, source: TextSource, count: int, rng: np.random.Generator
    ) -> list[tuple[Sequence[int], Sequence[int]]]:
        tokens = source.random_tokens(count, self.context + self.length, rng)
        return [(text[: self.context], text[self.context :]) for text in tokens]
