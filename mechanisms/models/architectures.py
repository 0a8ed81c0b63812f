"""Torch modules of residual networks and text networks, and a batched kernel for bags of embeddings.

Examples of a batch are independent unless the norm is "batch". `training.parameters` draws the weights, not the
constructors. A text is a row of word numbers with 0 for padding. They are float32, as all features are, which is exact
below 2^24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpaudit.errors import require
from dpaudit.mechanisms.training.kernels import BatchedMlp, clip_factors

GROUPS = 16


class ResNet(nn.Module):
    """ResNet for small images: a 3x3 stem and stages of basic blocks, normalisation after each convolution."""

    def __init__(self, channels: int, classes: int, *, blocks: Sequence[int], width: int, norm: str) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv3x3(channels, width, norm=norm), normalisation(norm, width), nn.ReLU())
        stages: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(blocks):
            outputs = width * 2**stage
            for block in range(depth):
                stages.append(BasicBlock(inputs, outputs, stride=2 if stage and not block else 1, norm=norm))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean((2, 3)))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv3x3(inputs, outputs, stride=stride, norm=norm),
            normalisation(norm, outputs),
            nn.ReLU(),
            conv3x3(outputs, outputs, norm=norm),
            normalisation(norm, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=norm == "none")
            self.shortcut = nn.Sequential(projection, normalisation(norm, outputs))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


class WideResNet(nn.Module):
    """Wide ResNet: three stages of pre-activation blocks, 16, 32 and 64 channels times `widen`."""

    def __init__(self, channels: int, classes: int, *, depth: int, widen: int, norm: str) -> None:
        super().__init__()
        self.stem = conv3x3(channels, 16, norm=norm)
        blocks: list[nn.Module] = []
        inputs = 16
        for stage in range(3):
            outputs = 16 * widen * 2**stage
            for block in range((depth - 4) // 6):
                blocks.append(PreActivationBlock(inputs, outputs, stride=2 if stage and not block else 1, norm=norm))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(normalisation(norm, inputs), nn.ReLU())
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.last(self.blocks(self.stem(images))).mean((2, 3)))  # type: ignore[no-any-return]


class PreActivationBlock(nn.Module):
    """Normalisation, ReLU and 3x3 convolution, twice, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: str) -> None:
        super().__init__()
        self.first = nn.Sequential(normalisation(norm, inputs), nn.ReLU())
        self.body = nn.Sequential(
            conv3x3(inputs, outputs, stride=stride, norm=norm),
            normalisation(norm, outputs),
            nn.ReLU(),
            conv3x3(outputs, outputs, norm=norm),
        )
        keeps_shape = stride == 1 and inputs == outputs
        self.shortcut = None if keeps_shape else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        activated = self.first(images)
        # A projection sees the activated input, the identity the raw one (Zagoruyko and Komodakis, 2016).
        skipped = images if self.shortcut is None else self.shortcut(activated)
        return skipped + self.body(activated)  # type: ignore[no-any-return]


def conv3x3(inputs: int, outputs: int, *, stride: int = 1, norm: str) -> nn.Conv2d:
    """Return a 3x3 convolution, without bias if a normalisation follows."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=norm == "none")


def normalisation(norm: str, channels: int) -> nn.Module:
    """Return a group norm (of at most 16 groups), a batch norm or the identity."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(min(GROUPS, channels), channels) if norm == "group" else nn.Identity()


class BatchedBag(BatchedMlp):
    """Bags of embeddings with explicit forward and backward passes; the linear layer on the mean is a perceptron.

    Loops over positions in the text: all positions at once would multiply memory by the text length.
    """

    def _table(self, flat: Tensor) -> Tensor:
        """Return a view of the word vectors, shape (A, vocabulary, width)."""
        return next(iter(self.layout.views(flat).values()))

    def _layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        _, weight, bias = self.layout.views(flat).values()
        return [(weight, bias)]

    def _mean(self, flat: Tensor, words: Tensor, shares: Tensor) -> Tensor:
        """Return the mean word vector of each text, shape (A, b, width)."""
        table, models = self._table(flat), _models(words)
        mean = torch.zeros(*words.shape[:2], table.shape[2], device=flat.device)
        for place in range(words.shape[2]):
            mean.addcmul_(table[models, words[..., place]], shares[..., place, None])
        return mean

    def _write_table_gradient(self, words: Tensor, shares: Tensor, errors: Tensor, out: Tensor) -> None:
        """Write the gradient of the word vectors, given `errors`, the gradient of the means."""
        table, models = self._table(out), _models(words)
        table.zero_()
        for place in range(words.shape[2]):
            table.index_put_((models, words[..., place]), errors * shares[..., place, None], accumulate=True)

    def logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        words, shares = _unpack_inputs(inputs)
        return super().logits(parameters, self._mean(parameters, words, shares))

    def gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor, out: Tensor
    ) -> Tensor:
        words, shares = _unpack_inputs(inputs)
        ((weight, _),) = self._layers(parameters)
        activations = self.forward(parameters, self._mean(parameters, words, shares))
        losses, last = self._slope(activations[-1], targets)
        last *= coefficients[..., None]
        self._collect(activations, [last], out)
        self._write_table_gradient(words, shares, torch.bmm(last, weight), out)
        return (losses * coefficients).sum(1)

    def clipped_gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, present: Tensor, clip: float, out: Tensor
    ) -> None:
        words, shares = _unpack_inputs(inputs)
        ((weight, _),) = self._layers(parameters)
        activations = self.forward(parameters, self._mean(parameters, words, shares))
        last = self._slope(activations[-1], targets)[1]
        by_mean = torch.bmm(last, weight)
        # The gradient of a word vector is the gradient of the mean times the share of that word in the text.
        squares = (last * last).sum(-1) * ((activations[0] * activations[0]).sum(-1) + 1)
        squares += (by_mean * by_mean).sum(-1) * _squared_counts(words, shares)
        factors = (clip_factors(squares.sqrt(), clip) * present)[..., None]
        self._collect(activations, [last * factors], out)
        self._write_table_gradient(words, shares, by_mean * factors, out)


def _unpack_inputs(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return word ids and word weights, trimmed to the longest text of the batch.

    Both have the shape (A models, batch, positions).
    """
    words = inputs.long()
    filled = words.flatten(0, 1).amax(0).nonzero() if words.numel() else words.new_zeros(0)
    words = words[..., : int(filled.max()) + 1 if len(filled) else 0]
    return words, word_shares(words)


def _models(words: Tensor) -> Tensor:
    return torch.arange(len(words), device=words.device)[:, None]


def _squared_counts(words: Tensor, shares: Tensor) -> Tensor:
    """Return the sum over distinct words of (occurrences / text length)^2, shape (A, b)."""
    total = torch.zeros(words.shape[:2], device=words.device)
    for place in range(words.shape[2]):
        same = (words == words[..., place, None]) * shares
        total += same.sum(-1) * shares[..., place]
    return total


PADDING = 0
MASKED = -1e9  # added to the attention logits of padding; finite, so that an empty text gives finite numbers


class EmbeddingBagModule(nn.Module):
    """A linear layer on the mean word vector, which is 0 for an empty text."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, vocabulary: int, width: int) -> None:
        super().__init__()
        text_length(shape)
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        words = numbers.long()
        return self.head(mean_word_vector(self.embedding(words), words))  # type: ignore[no-any-return]


class TransformerModule(nn.Module):
    """Pre-norm encoder blocks with learned positions and mean pooling, without dropout."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, *, vocabulary: int, width: int, heads: int, layers: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(text_length(shape), width)
        self.blocks = nn.ModuleList([EncoderBlock(width, heads) for _ in range(layers)])
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        words = numbers.long()
        # One row of positions for each text: per-example clipping must attribute gradients to texts.
        positions = torch.arange(words.shape[1], device=words.device).expand(words.shape)
        states = self.embedding(words) + self.positions(positions)
        mask = (words == PADDING).to(states)[:, None, None, :] * MASKED
        for block in self.blocks:
            states = block(states, mask)
        return self.head(mean_word_vector(self.last(states), words))  # type: ignore[no-any-return]


class EncoderBlock(nn.Module):
    """Self-attention and a dense layer of four times the width, both with pre-norm and a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        # Explicit attention, because vmap does not support the fused kernels.
        parts = self.query_key_value(self.before_attention(states)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.movedim(-3, 0).transpose(-2, -3)
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + mask, -1)
        states = states + self.projection((weights @ value).transpose(-2, -3).flatten(-2))
        return states + self.dense(self.before_dense(states))  # type: ignore[no-any-return]


def mean_word_vector(vectors: Tensor, words: Tensor) -> Tensor:
    """Return the mean over positions with a word: (batch, length, width) and (batch, length) to (batch, width)."""
    return (vectors * word_shares(words)[..., None]).sum(-2)


def word_shares(words: Tensor) -> Tensor:
    """Return 1 / number of words in the text for each word, 0 for padding; shape (..., length)."""
    present = (words != PADDING).float()
    return present / present.sum(-1, keepdim=True).clamp(min=1)


def text_length(shape: tuple[int, ...]) -> int:
    """Return the length of a text; rejects examples that are not rows of word numbers."""
    require(len(shape) == 1, "a text network takes word numbers of shape (n, length)", shape=shape)
    return shape[0]
