"""Counts as evidence: how often each answer was given in two worlds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import require


@dataclass(frozen=True, eq=False)
class AnswerCounts:
    """The answers to one query: independent draws of a private predictor on each of two neighbouring data sets.

    Attributes:
        world_1: How often each class was answered with the first data set, shape (classes,), classes >= 2; at least one
            answer.
        world_0: The same with its neighbour, shape (classes,).
        query: Which query this is.
    """

    words: ClassVar[str] = "counts of answers"

    world_1: NDArray[np.int64]
    world_0: NDArray[np.int64]
    query: int = 0

    def __post_init__(self) -> None:
        for name in ("world_1", "world_0"):
            counts = np.asarray(getattr(self, name))
            require(
                counts.ndim == 1 and counts.size >= 2, f"{name} must count at least two classes", shape=counts.shape
            )
            whole = counts.astype(np.int64)
            require(bool((whole == counts).all() and (whole >= 0).all()), f"{name} must hold whole numbers >= 0")
            require(int(whole.sum()) > 0, f"{name} must hold at least one answer", do="draw some in both worlds")
            object.__setattr__(self, name, whole)
        require(
            self.world_1.shape == self.world_0.shape,
            "both worlds must count the same classes",
            world_1=self.world_1.shape,
            world_0=self.world_0.shape,
        )
