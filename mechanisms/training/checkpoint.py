"""Checkpoints of long trainings: an interrupted training resumes from its last one and gives the same numbers.

A checkpoint holds only numbers and strings and is loaded as such: write access to a run folder must not allow code
execution.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.errors import printable, shortened
from dpaudit.mechanisms.compute import Compute, TrainingError, leave_note
from dpaudit.mechanisms.training.divided import current_group
from dpaudit.mechanisms.training.inputs import Scaling
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel
from dpaudit.plain_files import open_sealed, write_sealed

CHECKPOINT_EVERY_S = 60.0

ModelBuilder: TypeAlias = Callable[[NDArray[np.float32], dict[str, NDArray[np.float32]], Scaling | None], NetworkModel]
"""Builds a model from weights, buffers and scaling."""


class Resumable(Protocol):
    """A training that can resume from a state of numbers, strings and tensors."""

    def state(self) -> dict[str, Any]:
        """Return all that the rest of the training depends on and its arguments do not determine."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state, whose tensors are on the CPU."""


class TrainingCheckpoint:
    """A file with the state of the current training and the models finished before it; does nothing without a path.

    A damaged file (with a note) and a file with another digest are ignored, and training starts from scratch.
    """

    def __init__(self, compute: Compute, digest: str, build_model: ModelBuilder | None = None) -> None:
        """`digest` identifies the training; `build_model` is needed for finished models alone."""
        self._path = compute.scratch and compute.scratch / f"{digest}.pt"
        self._digest = digest
        self.finished: list[NetworkModel | TrainingError] = []
        self._running: dict[str, Any] | None = None
        self._saved_at = time.monotonic()
        if self._path is not None and self._path.exists():
            try:
                with open_sealed(self._path) as file:
                    state = torch.load(file, map_location="cpu", weights_only=True)
                if state["digest"] == digest:  # otherwise it belongs to another training
                    self.finished = [_unpack_outcome(outcome, build_model) for outcome in state["finished"]]
                    self._running = state["running"]
            except Exception as err:  # a damaged file may raise anything
                self.finished = []
                reason = shortened(str(err).partition("\n")[0])
                leave_note(f"cannot use a checkpoint, so its training started from scratch: {printable(reason)}")

    @property
    def stack_size(self) -> int | None:
        """Number of models in the interrupted stack; None if no stack was interrupted."""
        return None if self._running is None else len(self._running["state"]["parameters"])

    def discard_state(self) -> None:
        """Forget the state of the interrupted stack, whose models will be trained in other stacks."""
        self._running = None

    def restore(self, training: Resumable) -> int:
        """Restore the state of a training and return how many of its epochs, or of its steps, it has finished."""
        if self._running is None:
            return 0
        training.restore(self._running["state"])
        position: int = self._running["position"]
        self._running = None  # a later stack starts from the beginning
        return position

    def keep(self, training: Resumable, position: int) -> None:
        """Save the state after `position` epochs or steps if the last save is at least CHECKPOINT_EVERY_S ago."""
        if self._path is not None and time.monotonic() - self._saved_at >= CHECKPOINT_EVERY_S:
            self._write({"position": position, "state": training.state()})

    def finish(self, outcomes: list[NetworkModel | TrainingError]) -> None:
        """Save the models that are finished."""
        self.finished = list(outcomes)
        self._write(None)

    def _write(self, running: dict[str, Any] | None) -> None:
        if self._path is None or ((group := current_group()) is not None and group.rank):
            return
        finished = [_pack_outcome(outcome) for outcome in self.finished]
        state = {"digest": self._digest, "finished": finished, "running": running}
        write_sealed(self._path, lambda file: torch.save(state, file))
        self._saved_at = time.monotonic()


def training_digest(settings: tuple[object, ...], tasks: Sequence[TrainingTask]) -> str:
    """Return a hash that identifies a training, by its settings with a hash of its features, and by its tasks."""
    hasher = hashlib.sha256(repr(settings).encode())
    for task in tasks:
        hasher.update(repr((task.seed.entropy, task.seed.spawn_key)).encode())
        for values in (task.rows, task.labels, *(() if task.initial is None else (task.initial,))):
            hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()


def generator_state(rng: np.random.Generator) -> str:
    """Return the state of a NumPy generator as text."""
    return json.dumps(rng.bit_generator.state)


def restore_generator(rng: np.random.Generator, state: str) -> None:
    rng.bit_generator.state = json.loads(state)


def _pack_outcome(outcome: NetworkModel | TrainingError) -> dict[str, Any]:
    if isinstance(outcome, TrainingError):
        return {"error": str(outcome)}
    scaling = outcome.scaling
    return {
        "parameters": torch.from_numpy(outcome.parameters),
        "buffers": {name: torch.as_tensor(values) for name, values in outcome.buffers.items()},
        "scaling": None if scaling is None else list(map(torch.from_numpy, (scaling.mean, scaling.deviation))),
    }


def _unpack_outcome(packed: dict[str, Any], build_model: ModelBuilder | None) -> NetworkModel | TrainingError:
    if "error" in packed:
        return TrainingError(packed["error"])
    assert build_model is not None
    buffers = {name: values.numpy() for name, values in packed["buffers"].items()}
    scaling = None if packed["scaling"] is None else Scaling(*(part.numpy() for part in packed["scaling"]))
    return build_model(packed["parameters"].numpy(), buffers, scaling)
