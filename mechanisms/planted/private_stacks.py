"""Bugs that were made in DP-SGD, planted on purpose: each overrides what it gets wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms.training.dp_sgd import PrivateStack
from dpaudit.mechanisms.training.kernels import clip_factors


class NoiseOverBatch(PrivateStack):
    """DEFECT ON PURPOSE: noise for the mean of the batch is added to the sum, too small by the batch size."""

    def noise_deviation(self, *, last: bool) -> float:
        return super().noise_deviation(last=last) / self.recipe.batch_size


class NoNoiseInLastStep(PrivateStack):
    """DEFECT ON PURPOSE: the last step releases the exact clipped sum."""

    def noise_deviation(self, *, last: bool) -> float:
        return 0.0 if last else super().noise_deviation(last=last)


class ClipBatchMean(PrivateStack):
    """DEFECT ON PURPOSE: the mean gradient of the batch is clipped, not each example's."""

    def sum_gradients(self, batch: list[NDArray[np.int64]], canaries: Tensor | None) -> None:
        if any(len(positions) for positions in batch):
            self.kernel.gradient(self.parameters, *self.examples_of(batch), self.gradient)
        else:
            self.gradient.zero_()
        if canaries is not None:
            self.gradient += canaries
        norms = self.gradient.norm(dim=1, keepdim=True)
        self.gradient *= clip_factors(norms, self.private.clip * self.recipe.batch_size)


class ShuffledBatches(PrivateStack):
    """DEFECT ON PURPOSE: each epoch is a shuffle cut into batches, accounted for as Poisson sampling."""

    def batches(self, draws: list[np.random.Generator], steps: int) -> list[list[NDArray[np.int64]]]:
        shuffled = [rng.permutation(n) for rng, n in zip(draws, self.counts, strict=True)]
        cut = [np.array_split(order, steps) for order in shuffled]
        return [[parts[step] for parts in cut] for step in range(steps)]

    def canary_steps(self, draws: list[np.random.Generator], steps: int) -> NDArray[np.bool_]:
        return np.stack([np.arange(steps) == rng.integers(steps) for rng in draws], 1)
