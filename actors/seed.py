"""Seeds that travel: a NumPy `SeedSequence` as a frozen value, so that it can be compared, hashed and printed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Seed:
    """The seed of one piece of work: the audit's one seed, and the path to this piece."""

    entropy: int  # the audit's seed, >= 0
    path: tuple[int, ...] = ()  # where in the plan; children of different paths are independent streams

    def child(self, *steps: int | str) -> Seed:
        """The seed of a part of this piece. A name is as good as a number, and does not shift when parts are added."""
        numbers = (step if isinstance(step, int) else zlib.crc32(step.encode()) for step in steps)
        return Seed(self.entropy, (*self.path, *numbers))

    def sequence(self) -> np.random.SeedSequence:
        """A fresh `SeedSequence`: spawning from it never depends on who spawned before."""
        return np.random.SeedSequence(self.entropy, spawn_key=self.path)

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.sequence())

    def __str__(self) -> str:
        return ".".join(map(str, (self.entropy, *self.path)))
