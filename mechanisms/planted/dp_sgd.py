"""DP-SGD with known bugs on purpose, its claim unchanged; the bugs themselves are in `private_stacks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.registry import register

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.private.dp_sgd import PrivateStack


@register("mechanism", "planted-noise-over-batch", source="planted defect, as found in published code")
@dataclass(frozen=True)
class NoiseOverBatchDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD whose noise is that of a batch's mean, added to its sum."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import NoiseOverBatch

        return NoiseOverBatch


@register("mechanism", "planted-no-noise-in-last-step", source="planted defect, as found in published code")
@dataclass(frozen=True)
class NoNoiseInLastStepDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD that forgets the noise of its last step."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import NoNoiseInLastStep

        return NoNoiseInLastStep


@register("mechanism", "planted-clip-batch-mean", source="planted defect, as found in published code")
@dataclass(frozen=True)
class ClipBatchMeanDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips the mean gradient of a batch, not each example's."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import ClipBatchMean

        return ClipBatchMean


@register("mechanism", "planted-shuffled-batches", source="planted defect, as found in published code")
@dataclass(frozen=True)
class ShuffledBatchesDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD on shuffled batches, accounted for as Poisson sampling."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import ShuffledBatches

        return ShuffledBatches


@register("mechanism", "planted-half-the-noise", source="planted defect")
@dataclass(frozen=True)
class HalfTheNoiseDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD with half the noise it accounts for."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import HalfTheNoise

        return HalfTheNoise


@register("mechanism", "planted-clip-each-coordinate", source="planted defect")
@dataclass(frozen=True)
class ClipEachCoordinateDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips coordinates instead of norms."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import ClipEachCoordinate

        return ClipEachCoordinate


@register("mechanism", "planted-noise-seeded-each-step", source="planted defect")
@dataclass(frozen=True)
class NoiseSeededEachStepDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD that adds the same noise in every step of an epoch."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import NoiseSeededEachStep

        return NoiseSeededEachStep


@register("mechanism", "planted-fixed-batches", source="planted defect")
@dataclass(frozen=True)
class FixedBatchesDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD on batches of one size, accounted for as Poisson sampling."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import FixedBatches

        return FixedBatches


@register("mechanism", "planted-clip-doubled-after-warm-up", source="planted defect")
@dataclass(frozen=True)
class ClipDoubledAfterWarmUpDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD whose clip is doubled after a tenth of the training, and its noise is not."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import ClipDoubledAfterWarmUp

        return ClipDoubledAfterWarmUp


@register("mechanism", "planted-no-clipping", source="planted defect, as found in published code")
@dataclass(frozen=True)
class NoClippingDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips nothing."""

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.planted.private_stacks import NoClipping

        return NoClipping
