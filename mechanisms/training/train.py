"""Trains one model for each task, stack by stack, on one device; a call that was cut off goes on from its checkpoint.

A checkpoint holds numbers and words only, and is read as such: whoever can write in a run folder must not be able to
have code run by it.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.errors import printable
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.training.inputs import Scaling, as_array, example_shape
from dpaudit.mechanisms.training.losses import CrossEntropy, Loss
from dpaudit.mechanisms.training.network_model import NetworkModel
from dpaudit.mechanisms.training.plan import single_plan, whole_plan
from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import Stack
from dpaudit.plain_files import created

CHECKPOINT_EVERY_S = 60.0

Trained: TypeAlias = Callable[[NDArray[np.float32], dict[str, NDArray[np.float32]], Scaling | None], NetworkModel]
"""The model with these weights, buffers and scaling; what else it is, the call that trains it knows."""


def train_stack(
    recipe: Recipe,
    features: Features,
    tasks: Sequence[TrainingTask],
    *,
    classes: int,
    compute: Compute,
    loss: Loss | None = None,
    plan: StackPlan | None = None,
    checkpoint: Path | None = None,
    stack_type: Callable[..., Stack] | None = None,
    told: tuple[object, ...] = (),
) -> list[NetworkModel | TrainingError]:
    """Trains one model for each task: its model, or the error when its loss stopped being a number.

    `told` decides the numbers, for the digest of checkpoints, where `stack_type` does not say it itself.

    Raises: TrainingError when the GPU has not enough memory for the plan.
    """
    loss, kind = loss or CrossEntropy(), stack_type or Stack
    if plan is None:
        shape = example_shape(features)
        if len(tasks) == 1:
            plan = single_plan(recipe, shape, classes)
        else:
            plan = whole_plan(recipe, shape, classes=classes, models=len(tasks), compute=compute)
    torch.set_num_threads(compute.threads)
    array = as_array(features)
    # Arrays from an object store are read-only, which torch cannot wrap: those are copied.
    writeable = np.ascontiguousarray(array) if array.flags.writeable else np.array(array)
    torch.backends.cudnn.deterministic = True  # else a GPU may choose another algorithm, and other rounding, each time
    resident = torch.from_numpy(writeable).to(torch.device(compute.device))
    settings = told or (recipe, plan, loss, kind)
    digest = _training_digest(settings, array, tasks) if checkpoint or compute.scratch else ""
    trained = partial(NetworkModel, recipe, tuple(array.shape[1:]), classes, compute=compute)
    saved = Checkpoint(checkpoint or (compute.scratch and compute.scratch / f"{digest}.pt"), digest, trained)
    outcomes: list[NetworkModel | TrainingError] = list(saved.finished)
    for first in range(len(outcomes), len(tasks), plan.size):
        group = tasks[first : first + plan.size]
        try:
            stack = kind(recipe, resident, group, classes=classes, loss=loss, plan=plan, first=first)
            outcomes += _trained(stack, saved, compute)
        except torch.cuda.OutOfMemoryError as error:
            raise TrainingError(f"the GPU has no memory for a stack of {plan.size}; use a smaller plan") from error
        if len(outcomes) < len(tasks):
            saved.finish(outcomes)
    return outcomes


def _trained(stack: Stack, saved: Checkpoint, compute: Compute) -> list[NetworkModel | TrainingError]:
    """Runs all epochs of a stack, from the last one saved; each task's outcome in the order of the tasks."""
    for epoch in range(saved.restore(stack), stack.recipe.epochs):
        stack.run_epoch(epoch)
        if not stack.healthy().any():
            break  # every model is lost: no need to go on
        saved.keep(stack, epoch + 1)
    return stack.outcomes(compute)


class Checkpoint:
    """A file with the finished models and the state of the stack in training; does nothing without a path.

    One that cannot be read is left aside, with a warning, and one of another digest too: the training begins anew.
    """

    def __init__(self, path: Path | None, digest: str, trained: Trained) -> None:
        self._path, self._digest = path, digest
        self.finished: list[NetworkModel | TrainingError] = []
        self._running: dict[str, Any] | None = None
        self._saved_at = time.monotonic()
        if path is not None and path.exists():
            try:
                kept = torch.load(path, map_location="cpu", weights_only=True)
                if kept["digest"] == digest:  # else it belongs to another training
                    self.finished = [_unpacked(outcome, trained) for outcome in kept["finished"]]
                    self._running = kept["running"]
            except Exception as err:  # a damaged file may raise anything
                self.finished = []
                why = str(err).partition("\n")[0]
                said = printable(f"{path} is no readable checkpoint and is not used: {why}")
                warnings.warn(said, RuntimeWarning, stacklevel=2)

    def restore(self, stack: Stack) -> int:
        if self._running is None:
            return 0
        stack.restore(self._running["state"])
        epoch: int = self._running["epoch"]
        return epoch

    def keep(self, stack: Stack, epoch: int) -> None:
        """Saves the stack before `epoch`, unless the last save was a moment ago."""
        if self._path is not None and time.monotonic() - self._saved_at >= CHECKPOINT_EVERY_S:
            self._running = {"epoch": epoch, "state": stack.state()}
            self._write()

    def finish(self, outcomes: list[NetworkModel | TrainingError]) -> None:
        self.finished, self._running = list(outcomes), None
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        finished = [_packed(outcome) for outcome in self.finished]
        try:
            with created(part) as file:
                torch.save({"digest": self._digest, "finished": finished, "running": self._running}, file)
            os.replace(part, self._path)  # a reader sees the old file or the new one, never half of it
        finally:
            part.unlink(missing_ok=True)
        self._saved_at = time.monotonic()


def _packed(outcome: NetworkModel | TrainingError) -> dict[str, Any]:
    if isinstance(outcome, TrainingError):
        return {"error": str(outcome)}
    scaling = outcome.scaling
    return {
        "parameters": torch.from_numpy(outcome.parameters),
        "buffers": {name: torch.as_tensor(values) for name, values in outcome.buffers.items()},
        "scaling": None if scaling is None else list(map(torch.from_numpy, (scaling.mean, scaling.deviation))),
    }


def _unpacked(packed: dict[str, Any], trained: Trained) -> NetworkModel | TrainingError:
    if "error" in packed:
        return TrainingError(packed["error"])
    buffers = {name: values.numpy() for name, values in packed["buffers"].items()}
    scaling = None if packed["scaling"] is None else Scaling(*(part.numpy() for part in packed["scaling"]))
    return trained(packed["parameters"].numpy(), buffers, scaling)


def _training_digest(settings: tuple[object, ...], features: NDArray[np.float32], tasks: Sequence[TrainingTask]) -> str:
    """Tells a checkpoint of this training from that of another."""
    hasher = hashlib.sha256(repr(settings).encode())
    hasher.update(np.ascontiguousarray(features).data)
    for task in tasks:
        hasher.update(repr((task.seed.entropy, task.seed.spawn_key)).encode())
        for values in (task.rows, task.labels):
            hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()
