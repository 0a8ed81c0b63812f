"""Networks of word numbers, shape (batch, length): 0 is padding, whatever stands behind the end of a text.

Numbers come as float32, as all features do, which is exact below 2^24.

The kernel that trains a whole stack of bags of embeddings in batched products.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpaudit.errors import require
from dpaudit.mechanisms.training.compute.kernels import BatchedMlp, Kernel, clip_factors
from dpaudit.mechanisms.training.losses import Loss, slope


class BatchedBag(BatchedMlp):
    """Bags of embeddings, forward and backward written out; the linear layer on the mean is a perceptron's.

    Words are gone through place by place: all of them at once would need the length times the memory.
    """

    def __init__(self, module: nn.Module, *, loss: Loss) -> None:
        Kernel.__init__(self, module, loss=loss)
        self._activation = nn.Identity()

    def _table(self, flat: Tensor) -> Tensor:
        """The words' vectors, a view of shape (A, vocabulary, width)."""
        return next(iter(self.layout.views(flat).values()))

    def _layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        _, weight, bias = self.layout.views(flat).values()
        return [(weight, bias)]

    def _mean(self, flat: Tensor, words: Tensor, shares: Tensor) -> Tensor:
        """Mean vector of each text, shape (A, b, width)."""
        table, models = self._table(flat), _models(words)
        mean = torch.zeros(*words.shape[:2], table.shape[2], device=flat.device)
        for place in range(words.shape[2]):
            mean.addcmul_(table[models, words[..., place]], shares[..., place, None])
        return mean

    def _spread(self, words: Tensor, shares: Tensor, errors: Tensor, out: Tensor) -> None:
        """Writes the derivative by the words' vectors, errors being those by the means."""
        table, models = self._table(out), _models(words)
        table.zero_()
        for place in range(words.shape[2]):
            table.index_put_((models, words[..., place]), errors * shares[..., place, None], accumulate=True)

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        words, shares = _read(inputs)
        return super().logits(parameters, self._mean(parameters, words, shares))

    def gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor, out: Tensor
    ) -> Tensor:
        words, shares = _read(inputs)
        ((weight, _),) = layers = self._layers(parameters)
        seen = self._forward(layers, self._mean(parameters, words, shares))
        losses, last = slope(self.loss, seen[-1], targets)
        last *= coefficients[..., None]
        self._collect(seen, [last], out)
        self._spread(words, shares, torch.bmm(last, weight), out)
        return (losses * coefficients).sum(1)

    def clipped_gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, clip: float, out: Tensor
    ) -> None:
        words, shares = _read(inputs)
        ((weight, _),) = layers = self._layers(parameters)
        seen = self._forward(layers, self._mean(parameters, words, shares))
        last = slope(self.loss, seen[-1], targets)[1]
        by_mean = torch.bmm(last, weight)
        # A word's vector takes the error by the mean times its share of the text, repetitions of a word together.
        squares = (last * last).sum(-1) * ((seen[0] * seen[0]).sum(-1) + 1)
        squares += (by_mean * by_mean).sum(-1) * _squared_counts(words, shares)
        factors = (clip_factors(squares.sqrt(), clip) * present)[..., None]
        self._collect(seen, [last * factors], out)
        self._spread(words, shares, by_mean * factors, out)


def _read(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Words and their shares, both (A, b, places), without places no text of the batch fills."""
    words = inputs.long()
    filled = words.flatten(0, 1).amax(0).nonzero() if words.numel() else words.new_zeros(0)
    words = words[..., : int(filled.max()) + 1 if len(filled) else 0]
    return words, word_shares(words)


def _models(words: Tensor) -> Tensor:
    return torch.arange(len(words), device=words.device)[:, None]


def _squared_counts(words: Tensor, shares: Tensor) -> Tensor:
    """Sum over different words of (its occurrences / length of the text)^2, shape (A, b)."""
    total = torch.zeros(words.shape[:2], device=words.device)
    for place in range(words.shape[2]):
        same = (words == words[..., place, None]) * shares
        total += same.sum(-1) * shares[..., place]
    return total


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
