"""FixMatch: learning from few labelled and many unlabelled images by confident pseudo-labels.

Source: Sohn et al. (2020), arXiv:2001.07685.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.seeds import spawned, torch_generator
from dpaudit.mechanisms.training.augment import Augment, RandAugment
from dpaudit.mechanisms.training.compute.kernels import Kernel, Looped, couples_examples
from dpaudit.mechanisms.training.losses import CrossEntropy
from dpaudit.mechanisms.training.network_model import NetworkModel
from dpaudit.mechanisms.training.optimizers import Optimizer, scheduled
from dpaudit.mechanisms.training.parameters import initial
from dpaudit.mechanisms.training.recipe import Recipe

AVERAGE = 0.999
"""Decay of the averaged weights that are the result."""


@dataclass(frozen=True)
class FixMatch:
    """Settings of FixMatch."""

    # Network, step sizes, batch size of labelled images, and the weak augmentation; its epochs are not used. Weight
    # decay acts on weights, not on biases or normalisation
    network: Recipe
    steps: int  # training steps, >= 1
    ratio: int = 7  # unlabelled images for each labelled one in a batch, >= 1
    threshold: float = 0.95  # least confidence of a pseudo-label, in [0, 1]

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps must be >= 1", steps=self.steps)
        require(self.ratio >= 1, "ratio must be >= 1", ratio=self.ratio)
        require(0 <= self.threshold <= 1, "threshold must be in [0, 1]", threshold=self.threshold)

    def fit(
        self,
        images: NDArray[np.float32],
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        seed: SeedSequence,
        compute: Compute,
    ) -> NetworkModel:
        """Trains one network on all images (n, channels, height, width), of which `rows` (m,), m >= 1, have `labels`.

        Raises: TrainingError when the weights stop being numbers; InputError for a network with batch norm.
        """
        require(len(rows) >= 1, "FixMatch needs at least one labelled image", rows=len(rows))
        torch.set_num_threads(compute.threads)
        run = _Run(self, images, rows, labels, classes=classes, seed=seed, device=torch.device(compute.device))
        for step in range(self.steps):
            run.step(step)
        parameters = run.averaged[0].cpu().numpy()
        if not np.isfinite(parameters).all():
            raise TrainingError("FixMatch's loss is no longer a finite number; lower learning_rate")
        return NetworkModel(self.network, tuple(images.shape[1:]), classes, parameters, compute=compute)


class _Run:
    """One training in progress."""

    def __init__(
        self,
        settings: FixMatch,
        images: NDArray[np.float32],
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        seed: SeedSequence,
        device: torch.device,
    ) -> None:
        self.settings, self.device, self.classes = settings, device, classes
        first, order, changes = spawned(seed, 3)
        network, shape = settings.network, tuple(images.shape[1:])
        module = network.meta_module(shape, classes)
        require(not couples_examples(module), "FixMatch is without batch norm here", do="use group")
        self.kernel: Kernel = Looped(
            module, loss=CrossEntropy(), device=device, bfloat16=network.precision == "bfloat16"
        )
        self.parameters = initial(module, torch_generator(first))[None].to(device)
        self.averaged = self.parameters.clone()
        self.gradient = torch.empty_like(self.parameters)
        self.optimizer = Optimizer(network, self.parameters, decayed=self.kernel.layout.matrices())
        self.images = torch.from_numpy(np.array(images)).to(device)
        self.rows, self.labels = rows, labels
        self.one_hot = torch.eye(classes, device=device)
        rng = np.random.default_rng(order)
        self._labelled = _Shuffled(len(rows), rng)
        self._unlabelled = _Shuffled(len(images), rng)
        self._changes = torch_generator(changes)
        self._weak, self._strong = Augment(network.augment, shape), RandAugment()

    def step(self, step: int) -> None:
        """One batch."""
        settings, size = self.settings, self.settings.network.batch_size
        known = self._labelled.take(size)
        unknown = self._unlabelled.take(settings.ratio * size)
        inputs = self._changed(self.rows[known], strongly=False)
        guesses, confident = self._pseudo_labels(self._changed(unknown, strongly=False))
        targets = torch.cat([self.one_hot[torch.from_numpy(self.labels[known]).to(self.device)], self.one_hot[guesses]])
        known_weight = torch.full((size,), 1 / size, device=self.device)
        coefficients = torch.cat([known_weight, confident * (1 / len(unknown))])
        batch = torch.cat([inputs, self._changed(unknown, strongly=True)])
        self.kernel.gradient(self.parameters, batch[None], targets[None], coefficients[None], self.gradient)
        network = settings.network
        rate = network.learning_rate * scheduled(network.schedule, step / settings.steps)
        self.optimizer.step(self.parameters, self.gradient, rate)
        # Early on a slow average would still be the first weights.
        self.averaged.lerp_(self.parameters, 1 - min(AVERAGE, (1 + step) / (10 + step)))

    def _changed(self, rows: NDArray[np.int64], *, strongly: bool) -> Tensor:
        images = self.images[torch.from_numpy(rows).to(self.device)]
        for augment in (self._weak, self._strong) if strongly else (self._weak,):
            draws = torch.rand(len(images), augment.draws, generator=self._changes).to(self.device)
            images = augment(images, draws)
        return images

    def _pseudo_labels(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely class of each image, and 1 where it is likely enough."""
        logits = self.kernel.logits(self.parameters, images[None])[0]
        confidence, guesses = torch.softmax(logits, -1).max(-1)
        return guesses, (confidence >= self.settings.threshold).float()


class _Shuffled:
    """Endless positions 0 .. n - 1, shuffled anew each time they run out."""

    def __init__(self, positions: int, rng: np.random.Generator) -> None:
        self._positions, self._rng = positions, rng
        self._left = rng.permutation(positions)

    def take(self, count: int) -> NDArray[np.int64]:
        """The next `count` positions."""
        while len(self._left) < count:
            self._left = np.concatenate([self._left, self._rng.permutation(self._positions)])
        taken, self._left = self._left[:count], self._left[count:]
        return taken
