"""Networks of word numbers, shape (batch, length): 0 is padding, whatever stands behind the end of a text.

Numbers come as float32, as all features do, which is exact below 2^24.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpaudit.errors import require

PADDING = 0
HIDDEN = -1e9  # added to the attention of padding; finite, so that a text without words gives numbers


class BagOfEmbeddings(nn.Module):
    """The mean of the words' vectors, and a linear layer to the logits; 0 for a text without words."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, vocabulary: int, width: int) -> None:
        super().__init__()
        text_length(shape)
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        words = numbers.long()
        return self.head(mean_of_words(self.embedding(words), words))  # type: ignore[no-any-return]


class SmallTransformer(nn.Module):
    """Encoder blocks with normalisation first, learned places, and the mean of the words; without dropout."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, *, vocabulary: int, width: int, heads: int, layers: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(text_length(shape), width)
        self.blocks = nn.ModuleList([EncoderBlock(width, heads) for _ in range(layers)])
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        words = numbers.long()
        # One row of places for each text: what clips gradients one by one must see whose they are.
        places = torch.arange(words.shape[1], device=words.device).expand(words.shape)
        states = self.embedding(words) + self.places(places)
        hidden = (words == PADDING).to(states)[:, None, None, :] * HIDDEN
        for block in self.blocks:
            states = block(states, hidden)
        return self.head(mean_of_words(self.last(states), words))  # type: ignore[no-any-return]


class EncoderBlock(nn.Module):
    """Self-attention and a layer of four times the width, each after a normalisation and with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width)
        self.answered = nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: Tensor, hidden: Tensor) -> Tensor:
        states = states + self.answered(self._attention(self.before_attention(states), hidden))
        return states + self.dense(self.before_dense(states))  # type: ignore[no-any-return]

    def _attention(self, states: Tensor, hidden: Tensor) -> Tensor:
        # Written out: the fused kernels cannot be mapped over models and examples.
        parts = self.asked(states).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-2, -3)
        query, key, value = parts[0], parts[1], parts[2]
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + hidden, -1)
        return (weights @ value).transpose(-2, -3).flatten(-2)  # type: ignore[no-any-return]


def mean_of_words(vectors: Tensor, words: Tensor) -> Tensor:
    """Mean over the places that hold a word: (batch, length, width) and (batch, length) to (batch, width)."""
    return (vectors * word_shares(words)[..., None]).sum(-2)


def word_shares(words: Tensor) -> Tensor:
    """1 / number of words of its text for each word, 0 for padding; shape (..., length)."""
    present = (words != PADDING).float()
    return present / present.sum(-1, keepdim=True).clamp(min=1)


def text_length(shape: tuple[int, ...]) -> int:
    """The length of a text; refuses examples that are no rows of word numbers."""
    require(len(shape) == 1, "a text network takes word numbers of shape (n, length)", shape=shape)
    return shape[0]
