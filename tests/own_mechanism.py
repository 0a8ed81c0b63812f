"""A user's own mechanism: a class anywhere, named in a spec by where it is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass(frozen=True)
class ReadsAFile(KeepsEverything):
    """Needs a file, and names it in its error when it is not there."""

    settings: dict[str, str] = field(default_factory=dict)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        path = os.path.expandvars(self.settings["path"])
        try:
            Path(path).read_bytes()
        except OSError as err:
            raise ValueError(f"the token in {path!r} opens nothing") from err
        return labels


@dataclass(frozen=True)
class KeepsSomeRecords(KeepsEverything):
    """Randomised response of two labels, but that of the first five records, which it releases as they are."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        released = labels ^ (rng.random(labels.size) >= 1 / (1 + np.exp(-self.epsilon)))
        released[:5] = labels[:5]
        return released
