"""Losses of one example each, from logits and whatever was released about its label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Loss(Protocol):
    """A loss of each example; must not couple the examples of a batch."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Losses of shape (...) from logits and targets of shape (..., classes)."""


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy with one probability for each class as target (one-hot for a hard label)."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return -(targets * torch.log_softmax(logits, -1)).sum(-1)


@dataclass(frozen=True)
class Alibi:
    """Cross-entropy with the posterior of the label under the model's own current prediction as prior.

    Targets are the evidence of the noisy label, its log-likelihood for each class. The posterior is a constant of the
    step: no gradient goes through it.

    Source: Malek et al. (2021), arXiv:2106.03408, ALIBI.
    """

    floor: float = 1e-10

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        posterior = torch.softmax(torch.log_softmax(logits.detach(), -1) + targets, -1)
        return -(posterior * (torch.softmax(logits, -1) + self.floor).log()).sum(-1)


def slope(loss: Loss, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (...) and their derivatives by the logits (..., classes)."""
    if isinstance(loss, CrossEntropy):  # by far the commonest: spare it the autograd
        logs = torch.log_softmax(logits, -1)
        return -(targets * logs).sum(-1), logs.exp_().mul_(targets.sum(-1, keepdim=True)).sub_(targets)
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        losses = loss(leaf, targets)
        (derivative,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), derivative
