"""The kernel that trains a whole stack of bags of embeddings in batched products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit.mechanisms.models.text_architectures import word_shares
from dpaudit.mechanisms.training.compute.batched import BatchedMlp
from dpaudit.mechanisms.training.compute.kernels import Kernel, clip_factors
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
