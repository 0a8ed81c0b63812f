"""DP-SGD with planted defects, some from published code, and an unchanged claim.

The inner class `Stack` of each learner overrides the defective part. Torch is imported when a stack is trained.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dpaudit.mechanisms.training.private.private_stack import PrivateStack
else:
    PrivateStack = object

Batch = list[NDArray[np.int64]]


class PlantedDpSgd(DpSgd):
    """DP-SGD that trains with the defect of its inner class `Stack`."""

    Stack: type[PrivateStack]

    def stack_type(self) -> type[PrivateStack]:
        return _with_defect(self.Stack)  # type: ignore[arg-type]  # mypy does not accept a class as hashable


@cache
def _with_defect(defect: type) -> type[PrivateStack]:
    from dpaudit.mechanisms.training.private.private_stack import PrivateStack as Honest

    # The class name distinguishes checkpoints of different trainings.
    names = {"__module__": defect.__module__, "__qualname__": defect.__qualname__}
    return type(defect.__name__, (defect, Honest), names)


@register("mechanism", "planted-noise-over-batch", source="planted defect, as found in published code")
class NoiseOverBatchDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that adds to the sum the noise for the mean of a batch."""

    class Stack(PrivateStack):
        def noise_deviation(self, *, last: bool) -> float:
            return super().noise_deviation(last=last) / self.recipe.batch_size


@register("mechanism", "planted-no-noise-in-last-step", source="planted defect, as found in published code")
class NoNoiseInLastStepDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD without noise in its last step."""

    class Stack(PrivateStack):
        def noise_deviation(self, *, last: bool) -> float:
            return 0.0 if last else super().noise_deviation(last=last)


@register("mechanism", "planted-clip-batch-mean", source="planted defect, as found in published code")
class ClipBatchMeanDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips the mean gradient of a batch, not each example's."""

    class Stack(PrivateStack):
        def sum_gradients(self, batch: Batch, canaries: Tensor | None) -> None:
            from dpaudit.mechanisms.training.kernels import clip_factors

            if any(len(positions) for positions in batch):
                self.kernel.gradient(self.parameters, *self.examples_of(batch), self.gradient)
            else:
                self.gradient.zero_()
            if canaries is not None:
                self.gradient += canaries
            norms = self.gradient.norm(dim=1, keepdim=True)
            self.gradient *= clip_factors(norms, self.private.clip * self.recipe.batch_size)


@register("mechanism", "planted-shuffled-batches", source="planted defect, as found in published code")
class ShuffledBatchesDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD on shuffled batches, accounted for as Poisson sampling."""

    class Stack(PrivateStack):
        def batches(self, draws: list[np.random.Generator], steps: int) -> list[Batch]:
            shuffled = [rng.permutation(n) for rng, n in zip(draws, self.counts, strict=True)]
            cut = [np.array_split(order, steps) for order in shuffled]
            return [[parts[step] for parts in cut] for step in range(steps)]

        def canary_steps(self, draws: list[np.random.Generator], steps: int) -> NDArray[np.bool_]:
            return np.stack([np.arange(steps) == rng.integers(steps) for rng in draws], 1)


@register("mechanism", "planted-half-the-noise", source="planted defect")
class HalfTheNoiseDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD with half the noise it accounts for."""

    class Stack(PrivateStack):
        def noise_deviation(self, *, last: bool) -> float:
            return super().noise_deviation(last=last) / 2


@register("mechanism", "planted-clip-each-coordinate", source="planted defect")
class ClipEachCoordinateDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips coordinates instead of norms."""

    class Stack(PrivateStack):
        def sum_gradients(self, batch: Batch, canaries: Tensor | None) -> None:
            """Sum gradients whose norm may be sqrt(P) times the clip."""
            clip = self.private.clip
            self.gradient.zero_()
            if any(len(positions) for positions in batch):
                inputs, targets, present = self.examples_of(batch)
                gradient = self.gradient.new_empty(self.gradient.shape)
                for i in range(inputs.shape[1]):
                    example = slice(i, i + 1)
                    self.kernel.clipped_gradient(
                        self.parameters,
                        inputs[:, example],
                        targets[:, example],
                        present[:, example],
                        math.inf,
                        gradient,
                    )
                    self.gradient += gradient.clamp(-clip, clip)
            if canaries is not None:
                self.gradient += canaries.clamp(-clip, clip)


@register("mechanism", "planted-noise-seeded-each-step", source="planted defect")
class NoiseSeededEachStepDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that adds the same noise in every step of an epoch."""

    class Stack(PrivateStack):
        def _add_noise(self, noises: list[Generator], deviation: float) -> None:
            super()._add_noise([noise.manual_seed(noise.initial_seed()) for noise in noises], deviation)


@register("mechanism", "planted-fixed-batches", source="planted defect")
class FixedBatchesDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD on batches of one size, accounted for as Poisson sampling."""

    class Stack(PrivateStack):
        def batches(self, draws: list[np.random.Generator], steps: int) -> list[Batch]:
            sizes = [max(1, round(int(n) * self.private.sample_rate)) for n in self.counts]
            return [
                [rng.choice(n, size, replace=False) for rng, n, size in zip(draws, self.counts, sizes, strict=True)]
                for _ in range(steps)
            ]


class _OtherClip(PrivateStack):
    """Sums gradients clipped at `clip()`, with noise for the claimed clip."""

    def clip(self) -> float:
        return math.inf

    def sum_gradients(self, batch: Batch, canaries: Tensor | None) -> None:
        honest = self.private
        self.private = replace(honest, clip=self.clip())
        super().sum_gradients(batch, canaries)
        self.private = honest


@register("mechanism", "planted-clip-doubled-after-warm-up", source="planted defect")
class ClipDoubledAfterWarmUpDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that doubles the clip but not the noise after a tenth of the training."""

    class Stack(_OtherClip):
        def run_epoch(self, epoch: int) -> None:
            self.doubled = 10 * epoch >= self.recipe.epochs
            super().run_epoch(epoch)

        def clip(self) -> float:
            return 2 * self.private.clip if self.doubled else self.private.clip


@register("mechanism", "planted-no-clipping", source="planted defect, as found in published code")
class NoClippingDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD without clipping."""

    Stack = _OtherClip
