"""A user's own mechanism: a class anywhere, named in a spec by where it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim


@dataclass(frozen=True)
class KeepsEverything:
    """Claims privacy and releases the labels as they are."""

    epsilon: float = 1.0

    def claim(self) -> Claim:
        return Claim(self.epsilon)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return labels


@dataclass(frozen=True)
class Raises(KeepsEverything):
    """Has a bug."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        raise ZeroDivisionError("a bug in somebody's mechanism")
