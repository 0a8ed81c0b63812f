"""Opacus, tested with 1.6.0. Rows: "array"."""

from __future__ import annotations

from typing import Any

import numpy as np
import opacus
import torch


def gradient_step(
    rows: Any, rng: Any, noise: float = 1.0, clip: float = 1.0, reduction: str = "sum", batch: int = 50
) -> Any:
    """Weights after one step of DP-SGD on all rows: the loss of a row is its inner product with the weights."""
    torch.manual_seed(int(rng.integers(2**31)))
    layer = opacus.GradSampleModule(torch.nn.Linear(rows.shape[1], 1, bias=False).double(), loss_reduction=reduction)
    weight = next(layer.parameters())
    torch.nn.init.zeros_(weight)
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(layer.parameters(), lr=1.0),
        noise_multiplier=noise,
        max_grad_norm=clip,
        expected_batch_size=batch,
        loss_reduction=reduction,
    )
    layer(torch.as_tensor(np.asarray(rows, float))).sum().backward()
    optimizer.step()
    return weight.detach().numpy().ravel()
