"""What a training is given: threads, a device, the seeds of its parts; and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import SeedSequence

from dpaudit.errors import AuditError, require

if TYPE_CHECKING:
    import torch


class TrainingError(AuditError):
    """A training went wrong for this seed (NaN loss, a library's error, out of memory); it may be tried again."""


@dataclass(frozen=True)
class Compute:
    """What one piece of work may use."""

    threads: int = 1  # CPU threads, >= 1
    device: str = "cpu"  # A device name of torch ("cpu", "cuda:0")
    # A folder of this piece's own for checkpoints of a long training; they change no result. None keeps none
    scratch: Path | None = None
    device_share: float = 1.0  # of a GPU's memory, how much is this piece's, in (0, 1]

    def __post_init__(self) -> None:
        require(self.threads >= 1, "threads must be >= 1", threads=self.threads)
        require(0 < self.device_share <= 1, "device_share must be in (0, 1]", device_share=self.device_share)


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
