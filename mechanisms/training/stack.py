"""Trains many networks of one shape as stacks on one device.

Each model has its own rows, labels, first weights, order and noise, all drawn from its own seed, so its numbers do not
depend on who shares the stack (up to the rounding of differently grouped sums).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.models.inputs import as_array
from dpaudit.mechanisms.models.network_model import NetworkModel, Scaling, scaled, stack_scaling
from dpaudit.mechanisms.models.networks import Network
from dpaudit.mechanisms.protocols import Compute, TrainingError
from dpaudit.mechanisms.seeds import spawned
from dpaudit.mechanisms.training.augment import Augment
from dpaudit.mechanisms.training.batched import batched_kernel
from dpaudit.mechanisms.training.kernels import Kernel, Looped, Vmapped
from dpaudit.mechanisms.training.losses import CrossEntropy, Loss
from dpaudit.mechanisms.training.optimizers import Optimizer, scheduled
from dpaudit.mechanisms.training.parameters import initial
from dpaudit.mechanisms.training.plan import StackPlan, single_plan

CHECKPOINT_EVERY_S = 60.0


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """One model to train on some rows of shared features.

    Attributes:
        rows: Positions of its examples in the features, shape (n,), n >= 1.
        labels: Of those examples: int64 of shape (n,), or one number for each class, float of shape (n, classes).
        seed: Decides everything that is drawn.
        weights: Of the examples' losses, shape (n,), >= 0; 1 each by default.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64] | NDArray[np.float32]
    seed: SeedSequence
    weights: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        require(len(self.rows) >= 1, "a training needs at least one example", rows=len(self.rows))
        require(
            len(self.rows) == len(self.labels),
            "a task needs one label for each row",
            rows=len(self.rows),
            labels=len(self.labels),
        )


def train_stack(
    trainer: Network,
    features: Features,
    tasks: Sequence[TrainingTask],
    *,
    classes: int,
    compute: Compute,
    loss: Loss | None = None,
    plan: StackPlan | None = None,
    checkpoint: Path | None = None,
) -> list[NetworkModel | TrainingError]:
    """Trains one model for each task.

    Args:
        trainer: How.
        features: Shared by all tasks, n rows.
        tasks: What each model is trained on.
        classes: Number of classes K.
        compute: Threads and device.
        loss: Of one example; cross-entropy by default.
        plan: How to group the models; found by a short calibration when there are several and none is given.
        checkpoint: A file that keeps finished stacks and the epoch of the current one, so that the same call goes on
            where it was cut off; removed by nobody but the caller. Left out: one in `compute.scratch`, if there is any.
    Returns: For each task its model, or the error when its loss stopped being a number.
    Raises: TrainingError when the GPU has not enough memory for the plan.
    """
    loss = loss or CrossEntropy()
    plan = plan or planned(trainer, features, classes=classes, models=len(tasks), compute=compute)

    def make(resident: Tensor, some: Sequence[TrainingTask], first: int) -> Stack:
        return Stack(trainer, resident, some, classes=classes, loss=loss, plan=plan)

    settings = (trainer, plan, loss)
    return run_stacks(make, features, tasks, size=plan.size, settings=settings, compute=compute, checkpoint=checkpoint)


def run_stacks(
    make: Callable[[Tensor, Sequence[TrainingTask], int], Stack],
    features: Features,
    tasks: Sequence[TrainingTask],
    *,
    size: int,
    settings: tuple[object, ...],
    compute: Compute,
    checkpoint: Path | None,
) -> list[NetworkModel | TrainingError]:
    """Trains the tasks in stacks of `size`.

    Args:
        make: Gives the stack of some tasks, from the features on the device, the tasks, and the place of the first.
        features: Shared by all tasks.
        tasks: What each model is trained on.
        size: Models in a stack.
        settings: Whatever else decides the numbers, with a repr that says it all; guards the checkpoint.
        compute: Threads and device.
        checkpoint: See `train_stack`.
    """
    torch.set_num_threads(compute.threads)
    array = as_array(features)
    # Arrays from an object store are read-only, which torch cannot wrap: those are copied.
    own = np.ascontiguousarray(array) if array.flags.writeable else np.array(array)
    torch.backends.cudnn.deterministic = True  # else a GPU may choose another algorithm, and other rounding, each time
    resident = torch.from_numpy(own).to(torch.device(compute.device))
    digest = _digest(settings, array, tasks) if checkpoint or compute.scratch else ""
    saved = Checkpoint(checkpoint or (compute.scratch and compute.scratch / f"{digest}.pt"), digest)
    outcomes: list[NetworkModel | TrainingError] = list(saved.finished)
    for first in range(len(outcomes), len(tasks), size):
        try:
            outcomes += make(resident, tasks[first : first + size], first).train(saved, compute)
        except torch.cuda.OutOfMemoryError as error:
            raise TrainingError(f"the GPU has no memory for a stack of {size}; use a smaller plan") from error
        if len(outcomes) < len(tasks):
            saved.finish(outcomes)
    return outcomes


def planned(trainer: Network, features: Features, *, classes: int, models: int, compute: Compute) -> StackPlan:
    """The plan when none is given: a rule for one model, a calibration for several."""
    shape = tuple(as_array(features[:1] if isinstance(features, np.ndarray) else features.slice(0, 1)).shape[1:])
    if models == 1:
        return single_plan(trainer, shape, classes)
    from dpaudit.mechanisms.training.calibrate import calibrate  # it times stacks, so it imports this module

    return calibrate(trainer, shape, classes=classes, models=models, compute=compute)


class Stack:
    """Models that are trained together, those with most rows first."""

    def __init__(
        self,
        trainer: Network,
        features: Tensor,
        tasks: Sequence[TrainingTask],
        *,
        classes: int,
        loss: Loss,
        plan: StackPlan,
    ) -> None:
        trainer.check(features)
        self.trainer, self.features, self.classes = trainer, features, classes
        self.device = features.device
        self.order = sorted(range(len(tasks)), key=lambda task: -len(tasks[task].rows))
        self.tasks = [tasks[task] for task in self.order]
        self.seeds = [spawned(task.seed, 3) for task in self.tasks]  # first weights, order, augmentation
        self.counts = np.array([len(task.rows) for task in self.tasks])
        shape = tuple(features.shape[1:])
        with torch.device("meta"):
            module = trainer.module(shape, classes)
        drawn = [initial(module, torch_generator(weights)) for weights, _, _ in self.seeds]
        self.parameters = torch.stack(drawn).to(self.device)
        self.gradient = torch.empty_like(self.parameters)
        self.optimizer = Optimizer(trainer, self.parameters)
        self.losses = torch.zeros(len(tasks), device=self.device)
        self.kernel = make_kernel(trainer, module, loss=loss, plan=plan, device=self.device)
        self.augment = Augment(trainer.augment, shape)
        self.scalings = [self._scaling(task) for task in self.tasks]
        self._scales = stack_scaling(self.scalings, self.device)
        self._rows = self._padded([torch.from_numpy(task.rows.astype(np.int32)) for task in self.tasks])
        self.relabel([torch.from_numpy(np.array(task.labels)) for task in self.tasks])
        self._weights: Tensor | None = None
        if any(task.weights is not None for task in self.tasks):
            weights = [np.ones(len(t.rows), np.float32) if t.weights is None else t.weights for t in self.tasks]
            self._weights = self._padded([torch.from_numpy(np.asarray(one, np.float32)) for one in weights])
        self._one_hot = torch.eye(classes, device=self.device)
        self._counts = torch.from_numpy(self.counts)[:, None].to(self.device)

    def relabel(self, labels: list[Tensor]) -> None:
        """Sets each model's labels, one for each of its rows."""
        self._labels = self._padded(labels)

    def train(self, saved: Checkpoint, compute: Compute) -> list[NetworkModel | TrainingError]:
        """Runs all epochs, from the last one saved, and gives each task's outcome in the order of the tasks."""
        start = saved.restore(self)
        for epoch in range(start, self.trainer.epochs):
            self.run_epoch(epoch)
            if not self._healthy().any():
                break  # every model is lost: no need to go on
            saved.keep(self, epoch + 1)
        return self._outcomes(compute)

    def run_epoch(self, epoch: int) -> None:
        """One pass of each model over its examples."""
        size = self.trainer.batch_size
        orders = [epoch_generator(order, epoch) for _, order, _ in self.seeds]
        positions = self._padded(
            [torch.from_numpy(rng.permutation(n)) for rng, n in zip(orders, self.counts, strict=True)]
        )
        draws = self._draws(epoch)
        mixing = self._mixing(orders)
        self.losses.zero_()
        for step, begin in enumerate(range(0, int(self.counts[0]), size)):
            active = int(np.count_nonzero(self.counts > begin))
            end = min(begin + size, int(self.counts[0]))
            picked = positions[:active, begin:end]
            inputs = self._inputs(picked)
            if draws is not None:
                flat = self.augment(inputs.flatten(0, 1), draws[:active, begin:end].flatten(0, 1))
                inputs = flat.unflatten(0, inputs.shape[:2])
            inputs = scaled(inputs, self._scales)
            targets = self._targets(picked)
            coefficients = self._coefficients(picked, begin)
            if mixing is not None:
                share = torch.from_numpy(mixing[:active, step]).to(self.device)[:, None]
                inputs, targets = mixed(
                    inputs, targets, share, self._partners(orders, self.counts[:active] - begin, end - begin)
                )
            gradient = self.gradient[:active]
            self.losses[:active] += self.kernel.gradient(
                self.parameters[:active], inputs, targets, coefficients, gradient
            )
            self.optimizer.step(self.parameters[:active], gradient, self._rate(epoch, step, active))

    def _inputs(self, picked: Tensor) -> Tensor:
        rows = self._rows[: len(picked)].take_along_dim(picked, 1)
        flat = self.features.index_select(0, rows.flatten())  # faster than indexing by a matrix
        return flat.view(*rows.shape, *self.features.shape[1:])

    def _targets(self, picked: Tensor) -> Tensor:
        labels = self._labels[: len(picked)]
        if labels.dim() == 3:
            return labels.take_along_dim(picked[..., None], 1)
        return self._one_hot[torch.take_along_dim(labels, picked, 1)]

    def _coefficients(self, picked: Tensor, begin: int) -> Tensor:
        """Weight over batch size for each example, 0 for the padding of a model's last, shorter batch."""
        counts = (self._counts[: len(picked)] - begin).clamp(max=picked.shape[1])
        present = torch.arange(picked.shape[1], device=self.device) < counts
        coefficients = present / counts
        if self._weights is None:
            return coefficients
        return coefficients * torch.take_along_dim(self._weights[: len(picked)], picked, 1)

    def _rate(self, epoch: int, step: int, active: int) -> Tensor | float:
        """Learning rate of each model, which are as far as their own number of steps says."""
        if self.trainer.schedule == "constant":
            return self.trainer.learning_rate
        steps = -(-self.counts[:active] // self.trainer.batch_size)
        progress: list[float] = ((epoch * steps + step) / (self.trainer.epochs * steps)).tolist()
        rates = {u: self._rate_at(u) for u in set(progress)}
        if len(rates) == 1:
            return rates[progress[0]]
        return torch.tensor([rates[u] for u in progress], device=self.device)[:, None]

    def _rate_at(self, progress: float) -> float:
        return self.trainer.learning_rate * scheduled(self.trainer.schedule, progress)

    def _draws(self, epoch: int) -> Tensor | None:
        """Uniforms that decide the augmentation of each position of the epoch, shape (models, n, draws)."""
        if not self.augment.draws:
            return None
        drawn = [
            torch.rand(n, self.augment.draws, generator=torch_generator(child(seed, epoch)))
            for (_, _, seed), n in zip(self.seeds, self.counts.tolist(), strict=True)
        ]
        return self._padded(drawn)

    def _mixing(self, orders: list[np.random.Generator]) -> NDArray[np.float32] | None:
        """Share of the first partner for each model and step, shape (models, steps)."""
        if not self.trainer.mixup:
            return None
        alpha, steps = self.trainer.mixup, -(-int(self.counts[0]) // self.trainer.batch_size)
        shares = np.zeros((len(orders), steps), np.float32)
        for model, (rng, n) in enumerate(zip(orders, self.counts, strict=True)):
            own = -(-int(n) // self.trainer.batch_size)
            shares[model, :own] = rng.beta(alpha, alpha, own)
        return shares

    def _partners(self, orders: list[np.random.Generator], left: NDArray[np.int64], width: int) -> Tensor:
        """A permutation of each model's batch, of `left` examples or `width`, padding kept in place; (A, width)."""
        partners = np.tile(np.arange(width), (len(left), 1))
        for model, (rng, n) in enumerate(zip(orders, np.minimum(left, width).tolist(), strict=False)):
            partners[model, :n] = rng.permutation(n)
        return torch.from_numpy(partners).to(self.device)

    def _padded(self, values: list[Tensor]) -> Tensor:
        """One row for each model, shape (models, most, ...), zeros behind the shorter ones; on the device."""
        return nn.utils.rnn.pad_sequence(values, batch_first=True).to(self.device)

    def _scaling(self, task: TrainingTask) -> Scaling | None:
        if not self.trainer.standardise:
            return None
        own = self.features.cpu().numpy()[task.rows].astype(np.float64)
        known = np.isfinite(own)
        counts = np.maximum(known.sum(0), 1)
        mean = np.where(known, own, 0.0).sum(0) / counts
        deviation = np.sqrt((np.where(known, own - mean, 0.0) ** 2).sum(0) / counts)
        deviation[deviation <= 1e-6 * np.maximum(np.abs(mean), 1.0)] = 1.0  # does not vary: left as it is
        return Scaling(mean.astype(np.float32), deviation.astype(np.float32))

    def _healthy(self) -> Tensor:
        return torch.isfinite(self.losses) & torch.isfinite(self.parameters).all(1)

    def _outcomes(self, compute: Compute) -> list[NetworkModel | TrainingError]:
        outcomes: list[NetworkModel | TrainingError] = [TrainingError()] * len(self.tasks)
        buffers: dict[str, NDArray[Any]] = {}
        if isinstance(self.kernel, Looped):
            buffers = {name: value.cpu().numpy() for name, value in self.kernel.module.named_buffers()}
        for place, healthy, values, scaling in zip(
            self.order, self._healthy().tolist(), self.parameters.cpu().numpy(), self.scalings, strict=True
        ):
            if healthy:
                shape = tuple(self.features.shape[1:])
                outcomes[place] = NetworkModel(
                    self.trainer, shape, self.classes, values.copy(), buffers, scaling, compute
                )
            else:
                outcomes[place] = TrainingError(
                    "the loss is no longer a finite number; lower learning_rate or check the features for NaN"
                )
        return outcomes

    def state(self) -> dict[str, Any]:
        """What has to be kept to go on later."""
        buffers = dict(self.kernel.module.named_buffers()) if isinstance(self.kernel, Looped) else {}
        return {
            "parameters": self.parameters,
            "moments": self.optimizer.moments,
            "steps": self.optimizer.steps,
            "buffers": buffers,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes up a kept state."""
        self.parameters.copy_(state["parameters"])
        for moment, kept in zip(self.optimizer.moments, state["moments"], strict=True):
            moment.copy_(kept)
        self.optimizer.steps.copy_(state["steps"])
        if isinstance(self.kernel, Looped):
            for name, buffer in self.kernel.module.named_buffers():
                buffer.copy_(state["buffers"][name])


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

    def restore(self, stack: Stack) -> int:
        """The epoch to go on with."""
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


def make_kernel(trainer: Network, module: nn.Module, *, loss: Loss, plan: StackPlan, device: torch.device) -> Kernel:
    """The kernel a plan names."""
    bfloat16 = trainer.precision == "bfloat16"
    if plan.method == "batched":
        batched = batched_kernel(module)
        require(batched is not None, "the plan batched is for perceptrons and bags of embeddings", plan=plan)
        assert batched is not None
        return batched(module, loss=loss)
    if plan.method == "vmapped":
        compiled = trainer.compile and device.type == "cuda"
        return Vmapped(module, loss=loss, bfloat16=bfloat16, compiled=compiled)
    return Looped(module, loss=loss, device=device, bfloat16=bfloat16)


def mixed(inputs: Tensor, targets: Tensor, share: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
    """Mixup: each example with its partner, inputs and targets alike (Zhang et al., 2018)."""
    models = torch.arange(len(inputs), device=inputs.device)[:, None]
    wide = share.view(-1, *[1] * (inputs.dim() - 1))
    inputs = wide * inputs + (1 - wide) * inputs[models, partners]
    return inputs, share[..., None] * targets + (1 - share[..., None]) * targets[models, partners]


def torch_generator(seed: SeedSequence, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of torch, on the CPU unless told otherwise: there, what is drawn does not depend on the device."""
    return torch.Generator(device).manual_seed(int(seed.generate_state(1, np.uint64)[0]))


def epoch_generator(seed: SeedSequence, epoch: int) -> np.random.Generator:
    """Draws the order of one epoch first, then what else it needs."""
    return np.random.default_rng(child(seed, epoch))


def child(seed: SeedSequence, index: int) -> SeedSequence:
    """The seed of one epoch: an epoch can be run again without those before it."""
    return SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, index), pool_size=seed.pool_size)


def _digest(settings: tuple[object, ...], features: NDArray[np.float32], tasks: Sequence[TrainingTask]) -> str:
    """Tells a checkpoint of this training from that of another."""
    hasher = hashlib.sha256(repr(settings).encode())
    hasher.update(np.ascontiguousarray(features).data)
    for task in tasks:
        hasher.update(repr((task.seed.entropy, task.seed.spawn_key)).encode())
        for values in (task.rows, task.labels, task.weights):
            if values is not None:
                hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()
