"""Defects on purpose in randomised response: an audit that does not find them is not looking."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.registry import register


@register("mechanism", "planted-rr-binary-formula", source="planted defect")
@dataclass(frozen=True)
class BinaryFormulaResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: keeps a label as of two classes, however many there are; the truth is eps + log(K - 1)."""

    def keep(self, classes: int) -> float:
        """e^eps / (e^eps + 1)."""
        return super().keep(2)

    def transition(self, classes: int) -> NDArray[np.float64]:
        """Probability of each released label (columns) given each true one (rows), shape (K, K)."""
        return RandomizedResponse(self.epsilon + math.log(classes - 1)).transition(classes)


@register("mechanism", "planted-rr-one-draw-per-label", source="planted defect")
@dataclass(frozen=True)
class OneDrawPerLabelResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: answers all examples of one label alike, so classes stay apart, whatever they are called."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """One draw for each class; shape (n,) to (n,)."""
        return super().release(np.arange(classes), classes=classes, rng=rng)[labels]


@register("mechanism", "planted-rr-constant-seed", source="planted defect, as in the code for arXiv:2102.06062")
@dataclass(frozen=True)
class ConstantSeedResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: draws from one seed that everyone knows, so whoever repeats the draw can undo it."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The same draw each time; shape (n,) to (n,)."""
        return super().release(labels, classes=classes, rng=np.random.default_rng(2020))
