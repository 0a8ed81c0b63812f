"""Seeds and generators of the parts of a training, all from the one seed the plan gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.random import SeedSequence

if TYPE_CHECKING:
    import torch


def spawned(seed: SeedSequence, parts: int) -> list[SeedSequence]:
    """Independent seeds for some parts, the same ones each time: `SeedSequence.spawn` alone counts its children."""
    return SeedSequence(seed.entropy, spawn_key=seed.spawn_key, pool_size=seed.pool_size).spawn(parts)


def child(seed: SeedSequence, index: int) -> SeedSequence:
    """The seed of one epoch: an epoch can be run again without those before it."""
    return SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, index), pool_size=seed.pool_size)


def epoch_generator(seed: SeedSequence, epoch: int) -> np.random.Generator:
    """Draws the order of one epoch first, then what else it needs."""
    return np.random.default_rng(child(seed, epoch))


def torch_generator(seed: SeedSequence, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of torch, on the CPU unless told otherwise: there, what is drawn does not depend on the device."""
    import torch

    return torch.Generator(device).manual_seed(int(seed.generate_state(1, np.uint64)[0]))
