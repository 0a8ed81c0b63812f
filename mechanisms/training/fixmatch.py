"""FixMatch: learning from few labelled and many unlabelled images by confident pseudo-labels.

Source: Sohn et al. (2020), arXiv:2001.07685.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError, spawned, torch_generator
from dpaudit.mechanisms.gpu_memory import digest_if_shared, digest_of, on_device
from dpaudit.mechanisms.training.augment import Augment, RandAugment
from dpaudit.mechanisms.training.checkpoint import (
    TrainingCheckpoint,
    generator_state,
    restore_generator,
    training_digest,
)
from dpaudit.mechanisms.training.kernels import CrossEntropy, Kernel, Looped, couples_examples, draw_weights
from dpaudit.mechanisms.training.optimizers import Optimizer, schedule_factor
from dpaudit.mechanisms.training.recipe import Recipe, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel

AVERAGE_DECAY = 0.999  # decay of the weight average, which is the result


class FixMatch:
    """One training on all images (n, channels, height, width); `rows` (m,), m >= 1, are those with `labels`.

    The network's recipe has the step sizes, the batch size of labelled images and the weak augmentation; its epochs are
    ignored. Weight decay applies to weights, not to biases or normalisation.
    """

    def __init__(
        self,
        network: Recipe,
        images: NDArray[np.float32],
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        steps: int,
        seed: SeedSequence,
        compute: Compute,
        ratio: int = 7,
        threshold: float = 0.95,
    ) -> None:
        """A batch has `ratio` unlabelled images per labelled one; pseudo-labels have confidence >= `threshold`."""
        torch.set_num_threads(compute.threads)
        self.network, self.classes, self.steps, self.compute = network, classes, steps, compute
        self.ratio, self.threshold = ratio, threshold
        self.device = device = torch.device(compute.device)
        first, order, changes = spawned(seed, 3)
        self.shape = shape = tuple(images.shape[1:])
        module = network.meta_module(shape, classes)
        require(not couples_examples(module), "FixMatch does not support batch norm", do="set norm: group")
        self.kernel: Kernel = Looped(
            module, loss=CrossEntropy(), device=device, bfloat16=network.precision == "bfloat16"
        )
        self.parameters = draw_weights(module, torch_generator(first))[None].to(device)
        self.averaged = self.parameters.clone()
        self.gradient = torch.empty_like(self.parameters)
        self.optimizer = Optimizer(network, self.parameters, decayed=self.kernel.layout.matrices())
        self.images = on_device(images, compute, digest_if_shared(images))
        self.rows, self.labels = rows, labels
        self.one_hot = torch.eye(classes, device=device)
        self._order = np.random.default_rng(order)
        self._labelled = _Shuffled(len(rows), self._order)
        self._unlabelled = _Shuffled(len(images), self._order)
        self._augmentation_generator = torch_generator(changes)
        self._weak, self._strong = Augment(network.augment, shape), RandAugment()
        self._digest = ""
        if compute.scratch:
            settings = "fixmatch", network, classes, steps, ratio, threshold, digest_of(images)
            self._digest = training_digest(settings, [TrainingTask(rows, labels, seed)])

    def train(self) -> NetworkModel:
        """Run all steps, from the last checkpoint on, and return the network. Raises: TrainingError."""
        checkpoint = TrainingCheckpoint(self.compute, self._digest)
        for step in range(checkpoint.restore(self), self.steps):
            self._step(step)
            checkpoint.keep(self, step + 1)
        parameters = self.averaged[0].cpu().numpy()
        if not np.isfinite(parameters).all():
            raise TrainingError("FixMatch's loss is no longer finite. Lower learning_rate.")
        return NetworkModel(self.network, self.shape, self.classes, parameters, compute=self.compute)

    def state(self) -> dict[str, Any]:
        """Return weights, averages, the optimiser's state and those of the order of images and of their changes."""
        return {
            "parameters": self.parameters,
            "averaged": self.averaged,
            "moments": self.optimizer.moments,
            "steps": self.optimizer.steps,
            "labelled": torch.from_numpy(self._labelled.waiting.copy()),
            "unlabelled": torch.from_numpy(self._unlabelled.waiting.copy()),
            "order": generator_state(self._order),
            "changes": self._augmentation_generator.get_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.parameters.copy_(state["parameters"])
        self.averaged.copy_(state["averaged"])
        self.optimizer.restore(state["moments"], state["steps"])
        self._labelled.waiting = state["labelled"].numpy()
        self._unlabelled.waiting = state["unlabelled"].numpy()
        restore_generator(self._order, state["order"])
        self._augmentation_generator.set_state(state["changes"])

    def _step(self, step: int) -> None:
        network, size = self.network, self.network.batch_size
        labelled = self._labelled.take(size)
        unlabelled = self._unlabelled.take(self.ratio * size)
        inputs = self._augmented(self.rows[labelled], strongly=False)
        logits = self.kernel.logits(self.parameters, self._augmented(unlabelled, strongly=False)[None])[0]
        confidence, guesses = torch.softmax(logits, -1).max(-1)  # of the pseudo-labels
        targets = torch.cat(
            [self.one_hot[torch.from_numpy(self.labels[labelled]).to(self.device)], self.one_hot[guesses]]
        )
        known_weight = torch.full((size,), 1 / size, device=self.device)
        coefficients = torch.cat([known_weight, (confidence >= self.threshold).float() * (1 / len(unlabelled))])
        batch = torch.cat([inputs, self._augmented(unlabelled, strongly=True)])
        self.kernel.gradient(self.parameters, batch[None], targets[None], coefficients[None], self.gradient)
        rate = network.learning_rate * schedule_factor(network.schedule, step / self.steps)
        self.optimizer.step(self.parameters, self.gradient, rate)
        # A slow average would stay at the initial weights in early steps.
        self.averaged.lerp_(self.parameters, 1 - min(AVERAGE_DECAY, (1 + step) / (10 + step)))

    def _augmented(self, rows: NDArray[np.int64], *, strongly: bool) -> Tensor:
        images = self.images[torch.from_numpy(rows).to(self.device)]
        for augment in (self._weak, self._strong) if strongly else (self._weak,):
            draws = torch.rand(len(images), augment.draws, generator=self._augmentation_generator).to(self.device)
            images = augment(images, draws)
        return images


class _Shuffled:
    """Endless stream of the positions 0 .. n - 1, reshuffled for each pass."""

    def __init__(self, positions: int, rng: np.random.Generator) -> None:
        self._positions, self._rng = positions, rng
        self.waiting = rng.permutation(positions)  # positions that come next

    def take(self, count: int) -> NDArray[np.int64]:
        while len(self.waiting) < count:
            self.waiting = np.concatenate([self.waiting, self._rng.permutation(self._positions)])
        batch, self.waiting = self.waiting[:count], self.waiting[count:]
        return batch
