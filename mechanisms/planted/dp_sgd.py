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
    from torch import Tensor

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
                self.add_canaries(canaries)
            norms = self.gradient.norm(dim=1, keepdim=True)
            self.gradient *= clip_factors(norms, self.private.clip * self.recipe.batch_size)


@register("mechanism", "planted-half-the-noise", source="planted defect")
class HalfTheNoiseDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD with half the noise it accounts for."""

    class Stack(PrivateStack):
        def noise_deviation(self, *, last: bool) -> float:
            return super().noise_deviation(last=last) / 2


class OtherClip(PrivateStack):
    """Sums gradients clipped at `clip()`, with noise for the claimed clip."""

    def clip(self) -> float:
        return math.inf

    def sum_gradients(self, batch: Batch, canaries: Tensor | None) -> None:
        honest = self.private
        self.private = replace(honest, clip=self.clip())
        super().sum_gradients(batch, canaries)
        self.private = honest


@register("mechanism", "planted-no-clipping", source="planted defect, as found in published code")
class NoClippingDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD without clipping."""

    Stack = OtherClip
