"""Canaries drawn for a tokenizer: texts, coins and copies, each from a stream of its own; and their stored form."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.language_models.canary_texts.canaries import Canaries, Unit
from dpaudit.language_models.canary_texts.planting import POSITIONS
from dpaudit.language_models.canary_texts.source import CanaryKind, TextSource


def drawn_canaries(
    kind: CanaryKind,
    source: TextSource,
    *,
    canaries: int | None,
    repeat: Sequence[int],
    records: int,
    unit: Unit,
    rate: float,
    seed: int,
) -> Canaries:
    """Return canaries of a kind with their coins; `dpaudit.canaries` describes the arguments."""
    text_seed, coin_seed, _ = np.random.SeedSequence(seed).spawn(POSITIONS + 1)
    texts = kind.draw(source, canaries=canaries, records=records, rng=np.random.default_rng(text_seed))
    coins = np.random.default_rng(coin_seed).random(len(texts)) < rate
    name = str(getattr(kind, "registered_name", type(kind).__name__))
    repeats = np.resize(np.asarray(repeat), len(texts))
    return Canaries(tuple(texts), coins, repeats, unit, seed, rate=rate, kinds=(name,), chat=source.chat)


@dataclass(frozen=True)
class StoredCanaries:
    """Canaries as a result of a unit.

    Attributes:
        content: The lines of `Canaries.save`.
    """

    content: str

    @classmethod
    def of(cls, canaries: Canaries) -> StoredCanaries:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "canaries.jsonl"
            canaries.save(path)
            return cls(path.read_text(encoding="utf-8"))

    def load(self) -> Canaries:
        """Return the canaries, which are checked again."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "canaries.jsonl"
            path.write_text(self.content, encoding="utf-8")
            return Canaries.load(path)


def new_tokens(canaries: Canaries, tokenizer: Any) -> dict[int, str]:
    """Return names of the tokens of the canaries that the tokenizer does not know, by ascending number."""
    vocabulary = len(tokenizer)
    names = {
        text.tokens[text.start]: text.secret
        for _, text in canaries.all_texts
        if text.stop == text.start + 1 and text.tokens[text.start] >= vocabulary
    }
    return dict(sorted(names.items()))
