"""Losses of the next token under a causal language model, without the logits of a whole batch in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK_LOGITS = 2**28
"""Largest number of logits at a time on a GPU: 1 GiB as 32-bit floats."""
CHUNK_LOGITS_CPU = 2**22
"""Largest number of logits at a time on a CPU, where small blocks stay in its cache."""


class TokenLosses:
    """Computes the loss of each token of a batch from hidden states and the output embeddings, if a model has them.

    The output layer must be frozen: its gradient is not computed. A model that changes the logits afterwards (a soft
    cap, a factor) is run as it is.
    """

    def __init__(self, base: Any, *, compiled: bool = False) -> None:
        """`compiled` compiles the softmax over the vocabulary."""
        self._base, self._backbone, self._head = base, None, None
        self._slope = torch.compile(loss_and_slope) if compiled else loss_and_slope
        prefix = getattr(base, "base_model_prefix", "")
        backbone = getattr(base, prefix, None) if prefix else None
        head = base.get_output_embeddings() if hasattr(base, "get_output_embeddings") else None
        separate = isinstance(backbone, nn.Module) and backbone is not base and type(head) is nn.Linear
        if separate and _explains(base, backbone, head):
            self._backbone, self._head = backbone, head

    def __call__(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        """Return -log p of tokens 1, 2, ... given those before, shape (rows, width) to (rows, width - 1).

        Rows are padded on the right. Losses that are not wanted, a mask (rows, width - 1), may be 0 instead.
        """
        targets = tokens[:, 1:]
        if self._backbone is None or self._head is None or self._base.get_output_embeddings() is not self._head:
            logits = _logits(self._base(tokens, use_cache=False))[:, :-1]
            return functional.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
        hidden = self._backbone(tokens, use_cache=False).last_hidden_state[:, :-1]
        chunked_loss: Any = _ChunkedLoss.apply
        losses: Tensor = chunked_loss(hidden[wanted], self._head.weight, self._head.bias, targets[wanted], self._slope)
        return torch.zeros_like(targets, dtype=losses.dtype).masked_scatter(wanted, losses)


def _logits(output: Any) -> Any:
    return getattr(output, "logits", output)


def _explains(base: Any, backbone: Any, head: Any) -> bool:
    """True if the logits are the output layer of the hidden states, on three tokens."""
    tokens = torch.tensor([[0, 1, 2]], device=head.weight.device)
    with torch.inference_mode():
        hidden = getattr(backbone(tokens, use_cache=False), "last_hidden_state", None)
        if hidden is None or hidden.shape[-1] != head.in_features:
            return False
        logits = _logits(base(tokens, use_cache=False))
        return bool(torch.allclose(head(hidden).float(), logits.float(), rtol=1e-3, atol=1e-3))


class _ChunkedLoss(torch.autograd.Function):
    """Cross-entropy of a frozen linear layer, with the gradient of its inputs, from the same logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, loss_and_slope: Any
    ) -> Tensor:
        """Return losses of hidden states (n, width) at targets (n,), shape (n,), as 32-bit floats."""
        needs_gradient = ctx.needs_input_grad[0]
        losses = torch.empty(len(hidden), device=hidden.device)
        gradient = torch.empty_like(hidden) if needs_gradient else None
        limit = CHUNK_LOGITS if hidden.is_cuda else CHUNK_LOGITS_CPU
        size = max(1, limit // len(weight))
        for begin in range(0, len(hidden), size):
            rows = slice(begin, begin + size)
            logits = functional.linear(hidden[rows], weight, bias)
            if gradient is None:
                losses[rows] = functional.cross_entropy(logits.float(), targets[rows], reduction="none")
            else:
                losses[rows], slope = loss_and_slope(logits, targets[rows])
                gradient[rows] = torch.mm(slope, weight)
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Return the gradient of the hidden states for the slope of each loss."""
        (gradient,) = ctx.saved_tensors
        return gradient * slope[:, None].to(gradient.dtype), None, None, None, None


def loss_and_slope(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy (n,) of logits (n, vocabulary), and its derivative by the logits in their own type."""
    wide = logits.float()
    total = torch.logsumexp(wide, 1, keepdim=True)
    at_target = wide.gather(1, targets[:, None])
    slope = (wide - total).exp().to(logits.dtype)
    slope.scatter_(1, targets[:, None], ((at_target - total).exp() - 1).to(logits.dtype))
    return (total - at_target)[:, 0], slope
