"""Features scaled to mean 0 and variance 1 over a model's own training examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scaling:
    """What turns features into the network's inputs: (x - mean) / deviation, missing numbers becoming 0."""

    mean: NDArray[np.float32]  # of each feature, shape of one example
    deviation: NDArray[np.float32]  # of each feature, > 0 (1 where the feature does not vary)


def scaling_of(features: NDArray[np.float32]) -> Scaling:
    """The scaling to mean 0 and variance 1 over training features of shape (n, *shape), NaN left out."""
    wide = features.astype(np.float64)
    known = np.isfinite(wide)
    counts = np.maximum(known.sum(0), 1)
    mean = np.where(known, wide, 0.0).sum(0) / counts
    deviation = np.sqrt((np.where(known, wide - mean, 0.0) ** 2).sum(0) / counts)
    deviation[deviation <= 1e-6 * np.maximum(np.abs(mean), 1.0)] = 1.0  # does not vary: left as it is
    return Scaling(mean.astype(np.float32), deviation.astype(np.float32))


def stack_scaling(scalings: Sequence[Scaling | None], device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Means and deviations of a stack, each of shape (models, 1, *shape), or None when nothing is scaled."""
    present = [scaling for scaling in scalings if scaling is not None]
    if not present:
        return None
    mean = torch.from_numpy(np.stack([scaling.mean for scaling in present])).to(device)
    deviation = torch.from_numpy(np.stack([scaling.deviation for scaling in present])).to(device)
    return mean[:, None], deviation[:, None]


def scaled(inputs: torch.Tensor, scaling: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    """Inputs (A, b, *shape) under the scaling of the first A models."""
    if scaling is None:
        return inputs
    mean, deviation = (part[: len(inputs)] for part in scaling)
    return ((inputs - mean) / deviation).nan_to_num_(nan=0.0)
