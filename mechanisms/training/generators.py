"""Generators of random numbers for one training, each from a seed of its own."""

from __future__ import annotations

import numpy as np
import torch
from numpy.random import SeedSequence


def torch_generator(seed: SeedSequence, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of torch, on the CPU unless told otherwise: there, what is drawn does not depend on the device."""
    return torch.Generator(device).manual_seed(int(seed.generate_state(1, np.uint64)[0]))


def epoch_generator(seed: SeedSequence, epoch: int) -> np.random.Generator:
    """Draws the order of one epoch first, then what else it needs."""
    return np.random.default_rng(child(seed, epoch))


def child(seed: SeedSequence, index: int) -> SeedSequence:
    """The seed of one epoch: an epoch can be run again without those before it."""
    return SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, index), pool_size=seed.pool_size)
