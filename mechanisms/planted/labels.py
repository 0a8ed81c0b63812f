"""Defects on purpose in label mechanisms: an audit that does not find them is not looking."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.labels.one_hot_laplace import OneHotLaplace
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.ranges import require_epsilon
from dpaudit.registry import register


@register("mechanism", "planted-one-hot-laplace-sigma-for-b", source="planted defect")
class OneHotLaplaceSigmaForB(OneHotLaplace):
    """DEFECT ON PURPOSE: 2 / eps is taken for the noise's standard deviation, so it costs sqrt(2) times the claim."""

    def scale(self) -> float:
        """Scale whose standard deviation is 2 / eps: too small by sqrt(2)."""
        return 2 / self.epsilon / math.sqrt(2)


@register("mechanism", "planted-one-hot-laplace-half-scale", source="planted defect")
class OneHotLaplaceHalfScale(OneHotLaplace):
    """DEFECT ON PURPOSE: the change of one coordinate is paid for, not that of two; it costs twice the claim."""

    def scale(self) -> float:
        return super().scale() / 2


@register("mechanism", "planted-rr-binary-formula", source="planted defect")
class BinaryFormulaResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: keeps a label as of two classes, however many there are; the truth is eps + log(K - 1)."""

    def keep(self, classes: int) -> float:
        return super().keep(2)

    def transition(self, classes: int) -> NDArray[np.float64]:
        return RandomizedResponse(self.epsilon + math.log(classes - 1)).transition(classes)


@register("mechanism", "planted-rr-one-draw-per-label", source="planted defect")
class OneDrawPerLabelResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: answers all examples of one label alike, so classes stay apart, whatever they are called."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return super().release(np.arange(classes), classes=classes, rng=rng)[labels]


@register("mechanism", "planted-rr-constant-seed", source="planted defect, as in the code for arXiv:2102.06062")
class ConstantSeedResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: draws from one seed that everyone knows, so whoever repeats the draw can undo it."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return super().release(labels, classes=classes, rng=np.random.default_rng(2020))


@register("mechanism", "rr-leaky", source="planted defect")
@dataclass(frozen=True)
class LeakyRandomizedResponse:
    """DEFECT ON PURPOSE: claims epsilon, keeps labels as if it were three times that.

    Attributes:
        epsilon: What is claimed, in nats, > 0. The truth is 3 epsilon.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        return Claim(self.epsilon)

    def transition(self, classes: int) -> NDArray[np.float64]:
        return self._truth.transition(classes)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return self._truth.release(labels, classes=classes, rng=rng)

    @property
    def _truth(self) -> RandomizedResponse:
        return RandomizedResponse(3.0 * self.epsilon)
