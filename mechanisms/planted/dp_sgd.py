"""DP-SGD with known bugs on purpose, its claim unchanged; the bugs themselves are in `private_stacks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.registry import register

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.private.dp_sgd import PrivateStack


class PlantedDpSgd(DpSgd):
    """DP-SGD that trains with a class of `private_stacks`, which imports torch and so is loaded when it is needed."""

    stack: ClassVar[str]

    def stack_type(self) -> type[PrivateStack]:
        """The class with the defect."""
        from dpaudit.mechanisms.planted import private_stacks

        found: type[PrivateStack] = getattr(private_stacks, self.stack)
        return found


@register("mechanism", "planted-noise-over-batch", source="planted defect, as found in published code")
@dataclass(frozen=True)
class NoiseOverBatchDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD whose noise is that of a batch's mean, added to its sum."""

    stack: ClassVar[str] = "NoiseOverBatch"


@register("mechanism", "planted-no-noise-in-last-step", source="planted defect, as found in published code")
@dataclass(frozen=True)
class NoNoiseInLastStepDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that forgets the noise of its last step."""

    stack: ClassVar[str] = "NoNoiseInLastStep"


@register("mechanism", "planted-clip-batch-mean", source="planted defect, as found in published code")
@dataclass(frozen=True)
class ClipBatchMeanDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips the mean gradient of a batch, not each example's."""

    stack: ClassVar[str] = "ClipBatchMean"


@register("mechanism", "planted-shuffled-batches", source="planted defect, as found in published code")
@dataclass(frozen=True)
class ShuffledBatchesDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD on shuffled batches, accounted for as Poisson sampling."""

    stack: ClassVar[str] = "ShuffledBatches"


@register("mechanism", "planted-half-the-noise", source="planted defect")
@dataclass(frozen=True)
class HalfTheNoiseDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD with half the noise it accounts for."""

    stack: ClassVar[str] = "HalfTheNoise"


@register("mechanism", "planted-clip-each-coordinate", source="planted defect")
@dataclass(frozen=True)
class ClipEachCoordinateDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips coordinates instead of norms."""

    stack: ClassVar[str] = "ClipEachCoordinate"


@register("mechanism", "planted-noise-seeded-each-step", source="planted defect")
@dataclass(frozen=True)
class NoiseSeededEachStepDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that adds the same noise in every step of an epoch."""

    stack: ClassVar[str] = "NoiseSeededEachStep"


@register("mechanism", "planted-fixed-batches", source="planted defect")
@dataclass(frozen=True)
class FixedBatchesDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD on batches of one size, accounted for as Poisson sampling."""

    stack: ClassVar[str] = "FixedBatches"


@register("mechanism", "planted-clip-doubled-after-warm-up", source="planted defect")
@dataclass(frozen=True)
class ClipDoubledAfterWarmUpDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD whose clip is doubled after a tenth of the training, and its noise is not."""

    stack: ClassVar[str] = "ClipDoubledAfterWarmUp"


@register("mechanism", "planted-no-clipping", source="planted defect, as found in published code")
@dataclass(frozen=True)
class NoClippingDpSgd(PlantedDpSgd):
    """DEFECT ON PURPOSE: DP-SGD that clips nothing."""

    stack: ClassVar[str] = "NoClipping"
