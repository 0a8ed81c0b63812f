"""Canaries with a rare suffix after the beginning of a text of the domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.language_models.canary_texts.source import DrawnTexts, TextSource
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register


@register("text-canary", "rare-suffix", source="Meeus et al. (2025), arXiv:2502.14921")
@dataclass(frozen=True, kw_only=True)
class RareSuffix(DrawnTexts):
    """Beginning of a text of the domain, continued by uniform ordinary tokens.

    The beginning makes the text look like its neighbours, the suffix has a perplexity near the size of the vocabulary.
    `canaries` needs `texts`.

    Attributes:
        length: Tokens of the suffix, which is the secret, >= 1.
        context: Tokens of the beginning, >= 1.
    """

    length: int = 8
    context: int = 16

    continues_texts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least(1, self, "length", "context")

    def pieces(
        self, source: TextSource, count: int, rng: np.random.Generator
    ) -> list[tuple[Sequence[int], Sequence[int]]]:
        prefixes = source.prefixes(count, self.context, rng)
        return list(zip(prefixes, source.random_tokens(count, self.length, rng), strict=True))
