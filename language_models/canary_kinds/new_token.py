"""Canaries that end in a token which no other text has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.errors import InputError
from dpaudit.language_models.canary_texts.source import DrawnTexts, TextSource
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.registry import register


@register("text-canary", "new-token", source="Panda et al. (2025), arXiv:2503.06808")
@dataclass(frozen=True, kw_only=True)
class NewToken(DrawnTexts):
    """Beginning of a text of the domain, followed by a token of its own that is added to the tokenizer.

    Nothing else trains the new token, so its loss shows the canary alone. The tokenizer is changed: call
    `model.resize_token_embeddings(len(tokenizer))` on the model before training, keep a copy of it as the base model,
    and train the embeddings. `canaries` needs `texts`.

    Attributes:
        context: Tokens of the beginning, >= 1.
    """

    context: int = 16

    continues_texts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least(1, self, "context")

    def pieces(
        self, source: TextSource, count: int, rng: np.random.Generator
    ) -> list[tuple[Sequence[int], Sequence[int]]]:
        prefixes = source.prefixes(count, self.context, rng)
        names = [f"<canary-{rng.integers(2**48):012x}>" for _ in range(count)]
        add_tokens = getattr(source.tokenizer, "add_tokens", None)
        if add_tokens is None or add_tokens(names) != count:
            raise InputError(
                "canaries of the kind new-token need a tokenizer of transformers, to which tokens can be added; choose "
                "the kind rare-suffix"
            )
        return list(zip(prefixes, ([int(source.tokenizer.convert_tokens_to_ids(name))] for name in names), strict=True))
