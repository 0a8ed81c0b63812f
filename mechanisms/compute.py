"""Resources of a training run (threads, device, seeds), the error it raises and the notes it leaves."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.random import SeedSequence

from dpaudit.errors import AuditError, require

if TYPE_CHECKING:
    import torch


class TrainingError(AuditError):
    """Training failed with this seed (NaN loss, library error, out of memory). A retry may succeed."""


@dataclass(frozen=True)
class Compute:
    """Resources available to one unit of work."""

    threads: int = 1  # CPU threads, >= 1
    device: str = "cpu"  # name of a torch device ("cpu", "cuda:0")
    # Folder for the checkpoints of this unit, which do not change the result; None for no checkpoints
    scratch: Path | None = None
    device_share: float = 1.0  # share of the GPU's memory available to this unit, in (0, 1]
    # Processes that divide each batch of a training, >= 1; on GPUs, each has one of its own, from "cuda:0" on
    processes: int = 1

    def __post_init__(self) -> None:
        require(self.threads >= 1, "threads must be >= 1", threads=self.threads)
        require(0 < self.device_share <= 1, "device_share must be in (0, 1]", device_share=self.device_share)
        require(self.processes >= 1, "processes must be >= 1", processes=self.processes)


_notes: ContextVar[list[str] | None] = ContextVar("notes of the running unit", default=None)


def leave_note(sentence: str) -> None:
    """Add a sentence to the notes of the running unit, which the report shows; outside a unit, warn with it."""
    notes = _notes.get()
    if notes is None:
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    elif sentence not in notes:
        notes.append(sentence)


@contextmanager
def collected_notes() -> Iterator[list[str]]:
    """Yield a list that receives the notes of the block."""
    notes: list[str] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def spawned(seed: SeedSequence, parts: int) -> list[SeedSequence]:
    """Return `parts` independent seeds, the same at every call (`SeedSequence.spawn` counts its children)."""
    return SeedSequence(seed.entropy, spawn_key=seed.spawn_key, pool_size=seed.pool_size).spawn(parts)


def child(seed: SeedSequence, index: int) -> SeedSequence:
    """Return the seed of one epoch, so that an epoch can be rerun without the earlier ones."""
    return SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, index), pool_size=seed.pool_size)


def epoch_generator(seed: SeedSequence, epoch: int) -> np.random.Generator:
    """Return the generator of one epoch, which draws the order of the examples first."""
    return np.random.default_rng(child(seed, epoch))


def torch_generator(seed: SeedSequence, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator. By default it is on the CPU, so that its draws do not depend on the device."""
    import torch

    return torch.Generator(device).manual_seed(int(seed.generate_state(1, np.uint64)[0]))


def limited_threads(threads: int) -> AbstractContextManager[object]:
    """Return a context manager that limits BLAS and OpenMP to `threads` threads."""
    # Finding the libraries takes as long as a small training, so repeat it only after further modules were imported.
    return cast(AbstractContextManager[object], _libraries(len(sys.modules)).limit(limits=threads))


@lru_cache(maxsize=1)
def _libraries(modules: int) -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()
