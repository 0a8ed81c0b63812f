"""Seeds as frozen values: a NumPy `SeedSequence` that can be compared, hashed, printed and sent to workers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Seed:
    """Seed of one piece of work: the audit's seed and the path to this piece."""

    entropy: int  # the audit's seed, >= 0
    path: tuple[int, ...] = ()  # position in the plan; different paths give independent streams

    def child(self, *steps: int | str) -> Seed:
        """Return the seed of a part of this piece. Named steps do not shift when parts are added."""
        numbers = (step if isinstance(step, int) else zlib.crc32(step.encode()) for step in steps)
        return Seed(self.entropy, (*self.path, *numbers))

    def sequence(self) -> np.random.SeedSequence:
        """Return a new `SeedSequence`, independent of what other copies have spawned."""
        return np.random.SeedSequence(self.entropy, spawn_key=self.path)

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.sequence())

    def __str__(self) -> str:
        return ".".join(map(str, (self.entropy, *self.path)))
