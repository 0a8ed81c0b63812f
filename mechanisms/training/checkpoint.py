"""Checkpoints of a long training: the same call goes on where it was cut off."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.mechanisms.protocols import TrainingError
from dpaudit.mechanisms.training.network_model import NetworkModel
from dpaudit.mechanisms.training.task import TrainingTask

CHECKPOINT_EVERY_S = 60.0


class Resumable(Protocol):
    """A training whose state can be kept between two epochs."""

    def state(self) -> dict[str, Any]:
        """What has to be kept to go on later."""

    def restore(self, state: dict[str, Any]) -> None:
        """Takes up a kept state."""


class Checkpoint:
    """A file with the finished models and the state of the stack in training; does nothing without a path."""

    def __init__(self, path: Path | None, digest: str) -> None:
        self._path, self._digest = path, digest
        self.finished: list[NetworkModel | TrainingError] = []
        self._running: dict[str, Any] | None = None
        self._saved_at = time.monotonic()
        if path is not None and path.exists():
            kept = torch.load(path, weights_only=False)
            if kept["digest"] == digest:  # else it belongs to another training
                self.finished, self._running = kept["finished"], kept["running"]

    def restore(self, stack: Resumable) -> int:
        """The epoch to go on with."""
        if self._running is None:
            return 0
        stack.restore(self._running["state"])
        epoch: int = self._running["epoch"]
        return epoch

    def keep(self, stack: Resumable, epoch: int) -> None:
        """Saves the stack before `epoch`, unless the last save was a moment ago."""
        if self._path is not None and time.monotonic() - self._saved_at >= CHECKPOINT_EVERY_S:
            self._running = {"epoch": epoch, "state": stack.state()}
            self._write()

    def finish(self, outcomes: list[NetworkModel | TrainingError]) -> None:
        """Saves what is done."""
        self.finished, self._running = list(outcomes), None
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        torch.save({"digest": self._digest, "finished": self.finished, "running": self._running}, part)
        os.replace(part, self._path)  # a reader sees the old file or the new one, never half of it
        self._saved_at = time.monotonic()


def training_digest(settings: tuple[object, ...], features: NDArray[np.float32], tasks: Sequence[TrainingTask]) -> str:
    """Tells a checkpoint of this training from that of another."""
    hasher = hashlib.sha256(repr(settings).encode())
    hasher.update(np.ascontiguousarray(features).data)
    for task in tasks:
        hasher.update(repr((task.seed.entropy, task.seed.spawn_key)).encode())
        for values in (task.rows, task.labels, task.weights):
            if values is not None:
                hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()
