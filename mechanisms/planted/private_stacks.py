"""Bugs that were made in DP-SGD, planted on purpose: each overrides what it gets wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms.training.compute.kernels import clip_factors
from dpaudit.mechanisms.training.private.dp_sgd import PrivateStack


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


class HalfTheNoise(PrivateStack):
    """DEFECT ON PURPOSE: half the noise that was accounted for."""

    def noise_deviation(self, *, last: bool) -> float:
        return super().noise_deviation(last=last) / 2


class ClipEachCoordinate(PrivateStack):
    """DEFECT ON PURPOSE: each coordinate of a gradient is clipped, so its norm may be sqrt(P) times the clip."""

    def sum_gradients(self, batch: list[NDArray[np.int64]], canaries: Tensor | None) -> None:
        clip = self.private.clip
        self.gradient.zero_()
        if any(len(positions) for positions in batch):
            inputs, targets, present = self.examples_of(batch)
            one = torch.empty_like(self.gradient)
            for i in range(inputs.shape[1]):
                example = slice(i, i + 1)
                self.kernel.clipped_gradient(
                    self.parameters, inputs[:, example], targets[:, example], present[:, example], math.inf, one
                )
                self.gradient += one.clamp(-clip, clip)
        if canaries is not None:
            self.gradient += canaries.clamp(-clip, clip)


class NoiseSeededEachStep(PrivateStack):
    """DEFECT ON PURPOSE: each step of an epoch seeds its noise anew, and so adds the very same."""

    def _add_noise(self, noises: list[torch.Generator], deviation: float) -> None:
        super()._add_noise([noise.manual_seed(noise.initial_seed()) for noise in noises], deviation)


class FixedBatches(PrivateStack):
    """DEFECT ON PURPOSE: every batch has the expected size, accounted for as Poisson sampling."""

    def batches(self, draws: list[np.random.Generator], steps: int) -> list[list[NDArray[np.int64]]]:
        sizes = [max(1, round(int(n) * self.private.sample_rate)) for n in self.counts]
        return [
            [rng.choice(n, size, replace=False) for rng, n, size in zip(draws, self.counts, sizes, strict=True)]
            for _ in range(steps)
        ]


class ClipDoubledAfterWarmUp(PrivateStack):
    """DEFECT ON PURPOSE: gradients are clipped at twice the clip after the first tenth of the epochs."""

    def run_epoch(self, epoch: int) -> None:
        self.doubled = 10 * epoch >= self.recipe.epochs
        super().run_epoch(epoch)

    def sum_gradients(self, batch: list[NDArray[np.int64]], canaries: Tensor | None) -> None:
        honest = self.private
        self.private = replace(honest, clip=2 * honest.clip) if self.doubled else honest
        super().sum_gradients(batch, canaries)
        self.private = honest


class NoClipping(PrivateStack):
    """DEFECT ON PURPOSE: gradients are summed as they are; the noise is that of clipped ones."""

    def sum_gradients(self, batch: list[NDArray[np.int64]], canaries: Tensor | None) -> None:
        honest = self.private
        self.private = replace(honest, clip=math.inf)
        super().sum_gradients(batch, canaries)
        self.private = honest
