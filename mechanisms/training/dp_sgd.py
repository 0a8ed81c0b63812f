"""DP-SGD on stacks: Poisson sampling, clipping of each example's gradient, Gaussian noise; every model its own.

Source: Abadi et al. (2016), arXiv:1607.00133, with the sum divided by a public constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.models.network_model import NetworkModel
from dpaudit.mechanisms.models.networks import Network
from dpaudit.mechanisms.protocols import Compute, TrainingError
from dpaudit.mechanisms.seeds import spawned
from dpaudit.mechanisms.training.kernels import clip_factors
from dpaudit.mechanisms.training.losses import CrossEntropy
from dpaudit.mechanisms.training.plan import StackPlan, single_plan
from dpaudit.mechanisms.training.stack import Stack, TrainingTask, child, epoch_generator, run_stacks, torch_generator

TOGETHER = 64


class Defect(StrEnum):
    """Bugs that were made in DP-SGD, to be planted on purpose."""

    NONE = "none"
    NOISE_OVER_BATCH = "noise-over-batch"
    """Noise for the mean of the batch is added to the sum: too small by the batch size."""
    CLIP_BATCH_MEAN = "clip-batch-mean"
    """The mean gradient of the batch is clipped, not each example's."""
    NO_NOISE_IN_LAST_STEP = "no-noise-in-last-step"
    """The last step releases the exact clipped sum."""
    SHUFFLED_BATCHES = "shuffled-batches"
    """Each epoch is a shuffle cut into batches, accounted for as Poisson sampling."""


@dataclass(frozen=True)
class PrivateSteps:
    """What makes a training private.

    Attributes:
        clip: Largest norm C of one example's gradient, > 0.
        noise_multiplier: Standard deviation of the noise on the sum over C, >= 0.
        sample_rate: Probability q that an example is in a step, in (0, 1].
        defect: A bug to plant.
    """

    clip: float
    noise_multiplier: float
    sample_rate: float
    defect: Defect = Defect.NONE

    def __post_init__(self) -> None:
        require(self.clip > 0, "clip must be > 0", clip=self.clip)
        require(self.noise_multiplier >= 0, "noise_multiplier must be >= 0", noise_multiplier=self.noise_multiplier)
        require(0 < self.sample_rate <= 1, "sample_rate must be in (0, 1]", sample_rate=self.sample_rate)

    def steps(self, epochs: int) -> int:
        """Steps in `epochs` expected passes over the data."""
        return max(1, round(epochs / self.sample_rate))


Observer = Callable[[NDArray[np.int64], int, Tensor, Tensor], None]
"""Is shown each step: positions of the models in the list of tasks (A,), the step, the parameters before it (A, P), and
the noisy sum divided by the public batch size (A, P), all an attacker of the training itself sees."""


def train_private_stack(
    trainer: Network,
    steps: PrivateSteps,
    features: Features,
    tasks: Sequence[TrainingTask],
    *,
    classes: int,
    compute: Compute,
    plan: StackPlan | None = None,
    checkpoint: Path | None = None,
    canaries: Sequence[NDArray[np.float32] | None] | None = None,
    observer: Observer | None = None,
) -> list[NetworkModel | TrainingError]:
    """Trains one model for each task by DP-SGD.

    The sum of a step is divided by `trainer.batch_size`, a public constant that need not be q n; `trainer.epochs` / q
    steps are made, those with an empty batch too.

    Args:
        trainer: Network and step sizes.
        steps: Sampling, clipping and noise.
        features: Shared by all tasks.
        tasks: What each model is trained on.
        classes: Number of classes K.
        compute: Threads and device.
        plan: How to group the models; perceptrons in stacks of 64, others one by one (on a GPU in stacks of 64).
        checkpoint: See `train_stack`.
        canaries: For each task a gradient of shape (P,) that takes part in it as if it were an example's, or None.
        observer: Is shown every step.
    Raises: InputError for a trainer that looks at several examples at once or at the data beforehand.
    """
    require(not trainer.standardise, "DP-SGD cannot look at the features beforehand", do="set standardise: false")
    require(not trainer.mixup, "mixup couples examples, which DP-SGD cannot clip", mixup=trainer.mixup)
    require(trainer.augment == "none", "DP-SGD is without augmentation here", augment=trainer.augment)
    require(canaries is None or len(canaries) == len(tasks), "canaries must be one for each task")
    plan = plan or _private_plan(trainer, features, classes, len(tasks), compute)

    def make(resident: Tensor, some: Sequence[TrainingTask], first: int) -> PrivateStack:
        stack = PrivateStack(trainer, resident, some, classes=classes, loss=CrossEntropy(), plan=plan)
        stack.prepare(steps, canaries and canaries[first : first + len(some)], observer, first)
        return stack

    planted = [None if canary is None else canary.tobytes() for canary in canaries or []]
    settings = (trainer, steps, plan, planted)
    return run_stacks(make, features, tasks, size=plan.size, settings=settings, compute=compute, checkpoint=checkpoint)


class PrivateStack(Stack):
    """Models trained by DP-SGD together."""

    def prepare(
        self,
        steps: PrivateSteps,
        canaries: Sequence[NDArray[np.float32] | None] | None,
        observer: Observer | None,
        first: int,
    ) -> None:
        """Sets what a plain stack does not have; once, before the training."""
        self.private, self.observer = steps, observer
        self.places = np.asarray(self.order) + first
        self.canaries: Tensor | None = None
        if canaries is not None and any(canary is not None for canary in canaries):
            rows = [canaries[place] for place in self.order]
            zero = np.zeros(self.kernel.layout.total, np.float32)
            self.canaries = torch.from_numpy(np.stack([zero if row is None else row for row in rows])).to(self.device)

    def run_epoch(self, epoch: int) -> None:
        """The steps of one expected pass."""
        noises = [self._noise_generator(seed, epoch) for _, _, seed in self.seeds]
        draws = [epoch_generator(order, epoch) for _, order, _ in self.seeds]
        begin, end = (self.private.steps(passes) if passes else 0 for passes in (epoch, epoch + 1))
        batches = self._batches(draws, end - begin)
        planted = self._canaries_of(draws, end - begin)
        total = self.private.steps(self.trainer.epochs)
        for step, picked, canaries in zip(range(begin, end), batches, planted, strict=True):
            self._sum_gradients(picked, canaries)
            self._add_noise(noises, last=step == total - 1)
            self.gradient /= self.trainer.batch_size
            if self.observer is not None:
                self.observer(self.places, step, self.parameters, self.gradient)
            self.optimizer.step(self.parameters, self.gradient, self._rate_at(step / total))

    def _batches(self, draws: list[np.random.Generator], steps: int) -> list[list[NDArray[np.int64]]]:
        """Positions of each model's examples, for each step."""
        if self.private.defect is Defect.SHUFFLED_BATCHES:
            shuffled = [rng.permutation(n) for rng, n in zip(draws, self.counts, strict=True)]
            cut = [np.array_split(order, steps) for order in shuffled]
            return [[parts[step] for parts in cut] for step in range(steps)]
        return [
            [poisson_sample(rng, int(n), self.private.sample_rate) for rng, n in zip(draws, self.counts, strict=True)]
            for _ in range(steps)
        ]

    def _canaries_of(self, draws: list[np.random.Generator], steps: int) -> list[Tensor | None]:
        """For each step, each model's canary where it takes part, as an example would, else zeros."""
        if self.canaries is None:
            return [None] * steps
        if self.private.defect is Defect.SHUFFLED_BATCHES:
            included = np.stack([np.arange(steps) == rng.integers(steps) for rng in draws], 1)
        else:
            included = np.stack([rng.random(steps) < self.private.sample_rate for rng in draws], 1)
        taking = torch.from_numpy(included).to(self.canaries)
        return [self.canaries * row[:, None] for row in taking]

    def _sum_gradients(self, batch: list[NDArray[np.int64]], canaries: Tensor | None) -> None:
        """Writes each model's sum of clipped gradients, its canary's among them; 0 for an empty batch."""
        clip, mean = self.private.clip, self.private.defect is Defect.CLIP_BATCH_MEAN
        if any(len(positions) for positions in batch):
            picked = self._padded([torch.from_numpy(positions) for positions in batch])
            sizes = torch.tensor([len(positions) for positions in batch], device=self.device)[:, None]
            present = (torch.arange(picked.shape[1], device=self.device) < sizes).float()
            inputs, targets = self._inputs(picked), self._targets(picked)
            if mean:
                self.kernel.gradient(self.parameters, inputs, targets, present, self.gradient)
            else:
                self.kernel.clipped_gradient(self.parameters, inputs, targets, present, clip, self.gradient)
        else:
            self.gradient.zero_()
        if canaries is not None:
            norms = canaries.norm(dim=1, keepdim=True)
            self.gradient += canaries if mean else canaries * clip_factors(norms, clip)
        if mean:
            self.gradient *= clip_factors(self.gradient.norm(dim=1, keepdim=True), clip * self.trainer.batch_size)

    def _add_noise(self, noises: list[torch.Generator], *, last: bool) -> None:
        deviation = self.private.noise_multiplier * self.private.clip
        if self.private.defect is Defect.NOISE_OVER_BATCH:
            deviation /= self.trainer.batch_size
        if not deviation or (last and self.private.defect is Defect.NO_NOISE_IN_LAST_STEP):
            return
        for row, noise in zip(self.gradient, noises, strict=True):
            row.add_(torch.randn(row.shape, generator=noise, device=self.device), alpha=deviation)

    def _noise_generator(self, seed: np.random.SeedSequence, epoch: int) -> torch.Generator:
        # The noise is as large as the model at every step: drawn where the model is.
        (noise,) = spawned(child(seed, epoch), 1)
        return torch_generator(noise, self.device)


def poisson_sample(rng: np.random.Generator, records: int, rate: float) -> NDArray[np.int64]:
    """Positions of `records`, each in with probability `rate` on its own; in no particular order.

    A binomial size, then a subset of that size: the same law as a coin for each record, at the cost of the subset.
    """
    return rng.choice(records, rng.binomial(records, rate), replace=False, shuffle=False)


def _private_plan(trainer: Network, features: Features, classes: int, models: int, compute: Compute) -> StackPlan:
    shape = tuple(features.shape[1:]) if isinstance(features, np.ndarray) else (features.num_columns,)
    alone = single_plan(trainer, shape, classes)
    if alone.method == "batched":
        return StackPlan("batched", min(models, TOGETHER))
    return StackPlan("vmapped", 1 if compute.device == "cpu" else min(models, TOGETHER))
