"""DP-SGD with planted defects, some from published code, and an unchanged claim.

`mechanisms/planted/dp_sgd.py` has more of them, which specs name.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.planted.dp_sgd import Batch, OtherClip, PlantedDpSgd
from dpaudit.mechanisms.training.private.private_steps import dp_sgd_noise_multiplier

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dpaudit.mechanisms.training.private.private_stack import PrivateStack
else:
    PrivateStack = object


class NoNoiseInLastStepDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD without noise in its last step."""

    class Stack(PrivateStack):
        def noise_deviation(self, *, last: bool) -> float:
            return 0.0 if last else super().noise_deviation(last=last)


class ShuffledBatchesDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD on shuffled batches, accounted for as Poisson sampling."""

    class Stack(PrivateStack):
        def batches(self, draws: list[np.random.Generator], steps: int) -> list[Batch]:
            shuffled = [rng.permutation(n) for rng, n in zip(draws, self.records, strict=True)]
            cut = [np.array_split(order, steps) for order in shuffled]
            return [[parts[step] for parts in cut] for step in range(steps)]

        def canary_steps(self, draws: list[np.random.Generator], steps: int) -> NDArray[np.bool_]:
            return np.stack([np.arange(steps) == rng.integers(steps) for rng in draws], 1)


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
                self.add_canaries(canaries.clamp(-clip, clip))


class NoiseSeededEachStepDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that adds the same noise in every step of an epoch."""

    class Stack(PrivateStack):
        def add_noise(self, noises: list[Generator], deviation: float) -> None:
            super().add_noise([noise.manual_seed(noise.initial_seed()) for noise in noises], deviation)


class FixedBatchesDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD on batches of one size, accounted for as Poisson sampling."""

    class Stack(PrivateStack):
        def batches(self, draws: list[np.random.Generator], steps: int) -> list[Batch]:
            sizes = [max(1, round(int(n) * self.private.sample_rate)) for n in self.records]
            return [
                [rng.choice(n, size, replace=False) for rng, n, size in zip(draws, self.records, sizes, strict=True)]
                for _ in range(steps)
            ]


class ClipDoubledDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips at twice the stated norm, with noise for the stated one."""

    class Stack(OtherClip):
        def clip(self) -> float:
            return 2 * self.private.clip


class SampledTwiceAsOftenDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that samples records at twice the rate it accounts for."""

    class Stack(PrivateStack):
        def batches(self, draws: list[np.random.Generator], steps: int) -> list[Batch]:
            honest = self.private
            self.private = replace(honest, sample_rate=2 * honest.sample_rate)
            batches = super().batches(draws, steps)
            self.private = honest
            return batches


class AccountedForOneEpochDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD whose accountant counts the steps of one epoch."""

    def claim(self) -> Claim:
        curve = SubsampledGaussian(self.noise_multiplier(), self.sample_rate, self.private_epoch())
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE, curve)

    def noise_multiplier(self) -> float:
        return dp_sgd_noise_multiplier(
            self.epsilon,
            sample_rate=self.sample_rate,
            steps=self.private_epoch(),
            delta=self.delta,
            accountant=self.accountant,
        )

    def private_epoch(self) -> int:
        return self._sampling().steps(1)


class ClipDoubledAfterWarmUpDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that doubles the clip but not the noise after a tenth of the training."""

    class Stack(OtherClip):
        def run_epoch(self, epoch: int) -> None:
            self.doubled = 10 * epoch >= self.recipe.epochs
            super().run_epoch(epoch)

        def clip(self) -> float:
            return 2 * self.private.clip if self.doubled else self.private.clip
