"""Defects on purpose in label mechanisms: an audit that does not find them is not looking."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.mechanisms.labels.one_hot_laplace import OneHotLaplace
from dpaudit.mechanisms.protocols import LabelMechanism
from dpaudit.mechanisms.seeds import spawned
from dpaudit.registry import register


@register("mechanism", "planted-one-hot-laplace-sigma-for-b", source="planted defect")
@dataclass(frozen=True)
class OneHotLaplaceSigmaForB(OneHotLaplace):
    """DEFECT ON PURPOSE: 2 / eps is taken for the noise's standard deviation, so it costs sqrt(2) times the claim."""

    def scale(self) -> float:
        """Scale whose standard deviation is 2 / eps: too small by sqrt(2)."""
        return 2 / self.epsilon / math.sqrt(2)


@register("mechanism", "planted-one-hot-laplace-half-scale", source="planted defect")
@dataclass(frozen=True)
class OneHotLaplaceHalfScale(OneHotLaplace):
    """DEFECT ON PURPOSE: the change of one coordinate is paid for, not that of two; it costs twice the claim."""

    def scale(self) -> float:
        """1 / eps, half of what another label needs."""
        return super().scale() / 2


def redrawn_labels(
    mechanism: LabelMechanism, labels: NDArray[np.int64], *, classes: int, seed: SeedSequence
) -> Callable[[int], NDArray[np.int64]]:
    """DEFECT ON PURPOSE: labels released afresh for every epoch, each time at the mechanism's full cost.

    Args:
        mechanism: Releases the labels; its claim holds for one release.
        labels: True labels, shape (n,).
        classes: Number of classes.
        seed: Decides every epoch's draw.
    Returns: A function from the epoch's number, >= 0, to the labels that epoch trains on.
    """

    def draw(epoch: int) -> NDArray[np.int64]:
        rng = np.random.default_rng(spawned(seed, epoch + 1)[epoch])
        return mechanism.release(labels, classes=classes, rng=rng)

    return draw
