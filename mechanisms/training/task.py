"""What one model of a stack is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.errors import require


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """One model to train on some rows of shared features."""

    rows: NDArray[np.int64]  # positions of its examples in the features, shape (n,), n >= 1
    # Of those examples: int64 of shape (n,), or one number for each class, float of shape (n, classes)
    labels: NDArray[np.int64] | NDArray[np.float32]
    seed: SeedSequence  # decides everything that is drawn
    weights: NDArray[np.float32] | None = None  # of the examples' losses, shape (n,), >= 0; 1 each by default

    def __post_init__(self) -> None:
        require(len(self.rows) >= 1, "a training needs at least one example", rows=len(self.rows))
        require(
            len(self.rows) == len(self.labels),
            "a task needs one label for each row",
            rows=len(self.rows),
            labels=len(self.labels),
        )
