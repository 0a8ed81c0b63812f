"""Training records of language models: texts in tokens, and batches of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpaudit.errors import require

if TYPE_CHECKING:
    from torch import Tensor

NO_LOSS = -100
"""Label of a token that receives no loss, in transformers and torch."""


@dataclass(frozen=True)
class TrainingText:
    """A text in tokens, and the tokens that receive loss.

    Attributes:
        tokens: All tokens of the text, at least two.
        has_loss: True for each token that receives loss; None for all tokens. The first token never receives loss.
    """

    tokens: tuple[int, ...]
    has_loss: tuple[bool, ...] | None = None

    def __post_init__(self) -> None:
        require(len(self.tokens) >= 2, "a training text must have at least two tokens", tokens=len(self.tokens))
        require(
            self.has_loss is None or len(self.has_loss) == len(self.tokens),
            "has_loss must have one value for each token",
            tokens=len(self.tokens),
            values=len(self.has_loss or ()),
        )

    @property
    def targets(self) -> tuple[bool, ...]:
        """True for each token that receives loss."""
        return (False, *(self.has_loss or (True,) * len(self.tokens))[1:])


Record = Sequence[TrainingText]
"""All texts of the record, or of the user, that the claim protects."""


@dataclass(frozen=True, eq=False)
class RecordBatch:
    """Texts of several records as tensors, padded on the right.

    Attributes:
        tokens: Shape (texts, width); 0 at padding.
        present: 1 for tokens and 0 for padding, shape (texts, width).
        weights: Weight of the loss of each token: 1 over the number of tokens with loss of its record, or 0; shape
            (texts, width).
        places: Numbers of the texts of each record, shape (records, most texts); -1 where a record has fewer texts.
    """

    tokens: Tensor
    present: Tensor
    weights: Tensor
    places: Tensor

    @property
    def labels(self) -> Tensor:
        """Tokens that receive loss, -100 elsewhere; shape (texts, width)."""
        return self.tokens.masked_fill(self.weights == 0, NO_LOSS)


def make_batch(records: Sequence[Record], device: str) -> RecordBatch:
    """Return records as a batch on a device."""
    import torch

    texts = [text for record in records for text in record]
    width = max(len(text.tokens) for text in texts)
    tokens, present = (np.zeros((len(texts), width), np.int64) for _ in range(2))
    weights = np.zeros((len(texts), width), np.float32)
    places = np.full((len(records), max(map(len, records))), -1, np.int64)
    first = 0
    for row, record in enumerate(records):
        total = max(1, sum(sum(text.targets) for text in record))
        for number, text in enumerate(record, first):
            length = len(text.tokens)
            tokens[number, :length], present[number, :length] = text.tokens, 1
            weights[number, :length] = np.asarray(text.targets) / total
        places[row, : len(record)] = np.arange(first, first + len(record))
        first += len(record)
    return RecordBatch(*(torch.from_numpy(values).to(device) for values in (tokens, present, weights, places)))


def in_parts(records: Sequence[Record], batch_tokens: int) -> Iterator[list[Record]]:
    """Yield records in parts of similar length with at most `batch_tokens` tokens each, padding included.

    A record is never divided: a part of one record may have more tokens.
    """
    part: list[Record] = []
    texts = 0
    for record in sorted(records, key=longest):
        if part and (texts + len(record)) * longest(record) > batch_tokens:
            yield part
            part, texts = [], 0
        part.append(record)
        texts += len(record)
    if part:
        yield part


def longest(record: Record) -> int:
    """Return the number of tokens of a record's longest text."""
    return max(len(text.tokens) for text in record)


def digest(records: Sequence[Record]) -> str:
    """Return a hash of records."""
    hasher = hashlib.sha256()
    for record in records:
        for text in record:
            hasher.update(np.array([len(text.tokens), *text.tokens, *text.targets], np.int64).tobytes())
        hasher.update(b"|")
    return hasher.hexdigest()
