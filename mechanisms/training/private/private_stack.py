"""DP-SGD on stacks: Poisson sampling, per-example clipping and Gaussian noise, independent for each model.

Source: Abadi et al. (2016), arXiv:1607.00133, with the sum divided by a public constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError, child, epoch_generator, spawned, torch_generator
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.training.compiled_mlp import CompiledMlp
from dpaudit.mechanisms.training.inputs import example_shape
from dpaudit.mechanisms.training.kernels import clip_factors
from dpaudit.mechanisms.training.private.private_steps import Observer, PrivateSteps, StepCanary
from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel, Stack
from dpaudit.mechanisms.training.train import private_plan, train_stack


def train_private_stack(
    recipe: Recipe,
    steps: PrivateSteps,
    features: Features,
    tasks: Sequence[TrainingTask],
    *,
    classes: int,
    compute: Compute,
    plan: StackPlan | None = None,
    canaries: Sequence[NDArray[np.float32] | None] | None = None,
    weight_records: Sequence[NDArray[np.float32]] | None = None,
    observer: Observer | None = None,
    step_canary: StepCanary | None = None,
    stack_type: type[PrivateStack] | None = None,
) -> list[NetworkModel | TrainingError]:
    """Train one model for each task by DP-SGD.

    The sum of a step is divided by `recipe.batch_size`, a public constant that need not equal q n. There are
    `recipe.epochs` / q steps, including those with an empty batch.

    Args:
        plan: Grouping of the models. Default: stacks of 64 for perceptrons and on a GPU, else single models.
        canaries: For each task, a gradient of shape (P,) that takes part like that of an example, or None.
        weight_records: For each task, further records of its data, as a vector of shape (P,): each number other than 0
            is the gradient, before clipping, of a record that has no gradient on other weights. The training samples
            them with its rows. The observer then gets each noisy sum less the part of the rows.
    Raises: InputError for a recipe that couples examples or uses the data before training.
    """
    require(not recipe.standardise, "DP-SGD cannot use feature statistics", do="set standardise: false")
    require(not recipe.mixup, "mixup couples examples, which DP-SGD cannot clip", mixup=recipe.mixup)
    require(recipe.augment == "none", "DP-SGD does not support augmentation", augment=recipe.augment)
    stack_class = stack_type or PrivateStack
    require(canaries is None or weight_records is None, "canaries and weight_records exclude each other")
    if observer is not None or step_canary is not None:
        compute = replace(compute, scratch=None)  # a resumed training would show its later steps alone
    plan = plan or private_plan(
        recipe,
        example_shape(features),
        classes=classes,
        models=len(tasks),
        rows=len(features),
        compute=compute,
    )

    gradients = canaries or weight_records or []
    canary_bytes = [None if canary is None else canary.tobytes() for canary in gradients]
    build_stack = partial(
        stack_class, steps=steps, canaries=canaries or weight_records, on_weights=bool(weight_records)
    )
    return train_stack(
        recipe,
        features,
        tasks,
        classes=classes,
        compute=compute,
        plan=plan,
        stack_type=partial(build_stack, observer=observer, step_canary=step_canary),
        others_type=partial(build_stack, observer=None, step_canary=None),
        key_parts=(recipe, steps, stack_class, plan, canary_bytes),
    )


class PrivateStack(Stack):
    """Models trained by DP-SGD together."""

    def __init__(
        self,
        *arguments: Any,
        steps: PrivateSteps,
        canaries: Sequence[NDArray[np.float32] | None] | None,
        observer: Observer | None,
        step_canary: StepCanary | None,
        on_weights: bool = False,
        **settings: Any,
    ) -> None:
        """Arguments as in `Stack` and `train_private_stack`; `canaries` are those of all tasks.

        With `on_weights`, they are the records on single weights.
        """
        super().__init__(*arguments, **settings)
        self._noises: list[torch.Generator] = []  # generators of the noise of this epoch
        self._noise_states: list[Tensor] = []  # states of these at a checkpoint within the epoch
        self.private, self.observer, self.step_canary = steps, observer, step_canary
        self.canaries: Tensor | None = None
        rows = [canaries[place] for place in self.places] if canaries else []
        if any(row is not None for row in rows):
            zero = np.zeros(self.kernel.layout.total, np.float32)
            self.canaries = torch.from_numpy(np.stack([zero if row is None else row for row in rows])).to(self.device)
        # weights of the records on single weights, by model; their positions in a batch follow those of the rows
        self.record_weights = [np.flatnonzero(row) for row in rows if row is not None] if on_weights else []

    def run_epoch(self, epoch: int) -> None:
        # Noise has the size of the model, so it is drawn on the model's device.
        noises = [torch_generator(spawned(child(seed, epoch), 1)[0], self.device) for _, _, seed in self.seeds]
        for noise, noise_state in zip(noises, self._noise_states, strict=False):
            noise.set_state(noise_state)
        self._noises, self._noise_states = noises, []
        draws = [epoch_generator(order, epoch) for _, order, _ in self.seeds]
        begin, end = (self.private.steps(passes) if passes else 0 for passes in (epoch, epoch + 1))
        batches = self.batches(draws, end - begin)
        sampled_canary = self.step_canary is not None and self.step_canary.sampled
        has_canaries = (self.canaries is not None and not self.record_weights) or sampled_canary
        shape = (end - begin, len(self.tasks))
        sampled_steps = self.canary_steps(draws, end - begin) if has_canaries else np.ones(shape, np.bool_)
        total = self.private.steps(self.recipe.epochs)
        for step, batch, sampled in zip(range(begin, end), batches, sampled_steps, strict=True):
            if step - begin < self.steps_done:
                continue
            rows_sum, canaries = None, self._canaries_at(step, sampled)
            if self.record_weights:
                batch, canaries = self._without_records(batch)
                self.sum_gradients(batch, None)
                rows_sum = self.gradient / self.recipe.batch_size
            self.sum_gradients(batch, canaries)
            if deviation := self.noise_deviation(last=step == total - 1):
                self.add_noise(noises, deviation)
            if self.group is not None:  # the unit's process alone has the observer and the canary of an attack
                self.group.follow_first(self.gradient)
            rate = self._rate_at(step / total)
            if isinstance(self.kernel, CompiledMlp):  # torch would start its threads
                np.divide(self.gradient.numpy(), np.float32(self.recipe.batch_size), out=self.gradient.numpy())
            else:
                self.gradient /= self.recipe.batch_size
            if self.observer is not None:
                without_rows = self.gradient if rows_sum is None else self.gradient - rows_sum
                self.observer(self.places, step, self.parameters, without_rows)
            if self.step_canary is not None:
                self.step_canary.observe(step, self.gradient[0])
            if isinstance(self.kernel, CompiledMlp):
                self.kernel.step(self.recipe, self.parameters, self.gradient, self.optimizer, rate)
            else:
                self.optimizer.step(self.parameters, self.gradient, rate)
            self.steps_done = step - begin + 1
            self.after_step()
        self.steps_done = 0

    def state(self) -> dict[str, Any]:
        """Return the state of a stack and of the noise of this epoch."""
        noises = [noise.get_state() for noise in self._noises] if self.steps_done else []
        return super().state() | {"noises": noises}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._noise_states = state["noises"]

    def batches(self, draws: list[np.random.Generator], steps: int) -> list[list[NDArray[np.int64]]]:
        """Positions of each model's examples, for each step of an epoch, from each model's generator."""
        return [
            [poisson_sample(rng, int(n), self.private.sample_rate) for rng, n in zip(draws, self.records, strict=True)]
            for _ in range(steps)
        ]

    @property
    def records(self) -> NDArray[np.int64]:
        """Number of records from which each model's batches are sampled, shape (models,)."""
        counts: NDArray[np.int64] = self.counts + np.array([len(weights) for weights in self.record_weights] or 0)
        return counts

    def _without_records(self, batch: list[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], Tensor]:
        """Return the positions of rows, and the gradients of sampled records on single weights, shape (models, P)."""
        assert self.canaries is not None
        sampled = torch.zeros(self.canaries.shape, dtype=torch.bool)
        for model, (positions, count) in enumerate(zip(batch, self.counts, strict=True)):
            sampled[model, self.record_weights[model][positions[positions >= count] - count]] = True
        rows = [positions[positions < count] for positions, count in zip(batch, self.counts, strict=True)]
        return rows, self.canaries * sampled.to(self.canaries)

    def canary_steps(self, draws: list[np.random.Generator], steps: int) -> NDArray[np.bool_]:
        """In which steps of an epoch each model's canary takes part, as an example would; shape (steps, models)."""
        return np.stack([rng.random(steps) < self.private.sample_rate for rng in draws], 1)

    def sum_gradients(self, batch: list[NDArray[np.int64]], canaries: Tensor | None) -> None:
        """Writes each model's sum of clipped gradients to `gradient`; canaries (models, P) may be zeros."""
        clip = self.private.clip
        if self.group is not None:
            batch = [positions[self.group.share] for positions in batch]
        if isinstance(self.kernel, CompiledMlp):
            sizes = [len(positions) for positions in batch]
            models, picked = np.repeat(np.arange(len(batch)), sizes), np.concatenate(batch)
            rows, targets = self.examples_at(models, picked)
            self.kernel.clipped_sums(
                self.parameters, self.features, rows, targets, np.cumsum(sizes), clip, self.gradient
            )
        elif any(len(positions) for positions in batch):
            self.kernel.clipped_gradient(self.parameters, *self.examples_of(batch), clip, self.gradient)
        else:
            self.gradient.zero_()
        if self.group is not None:
            self.group.add(self.gradient)
        if canaries is not None:
            norms = canaries.abs() if self.record_weights else canaries.norm(dim=1, keepdim=True)
            self.add_canaries(canaries * clip_factors(norms, clip))

    def add_canaries(self, clipped: Tensor) -> None:
        """Add each model's canary to its sum; a single model may have several canaries."""
        self.gradient += clipped.sum(0, keepdim=True) if len(self.gradient) == 1 else clipped

    def noise_deviation(self, *, last: bool) -> float:
        """Return the standard deviation of the noise on the sum; `last` is True in the last step."""
        return self.private.noise_multiplier * self.private.clip

    def add_noise(self, noises: list[torch.Generator], deviation: float) -> None:
        """Add each model's Gaussian noise to its sum of gradients, drawn from its generator."""
        for row, noise in zip(self.gradient, noises, strict=True):
            row.add_(torch.randn(row.shape, generator=noise, device=self.device), alpha=deviation)

    def examples_of(self, batch: list[NDArray[np.int64]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets and a mask without padding, for a batch that is not empty."""
        picked = self._padded([torch.from_numpy(positions) for positions in batch])
        sizes = torch.tensor([len(positions) for positions in batch], device=self.device)[:, None]
        present = (torch.arange(picked.shape[1], device=self.device) < sizes).float()
        return self._inputs(picked), self._targets(picked), present

    def _canaries_at(self, step: int, sampled: NDArray[np.bool_]) -> Tensor | None:
        """Return each model's canary in a step, zeros if not sampled, or all of one model; None if there are none."""
        if self.canaries is not None and not self.record_weights:
            return self.canaries * torch.from_numpy(sampled).to(self.canaries)[:, None]
        if self.step_canary is None:
            return None
        gradients = self.step_canary.gradients(step, self.kernel.layout.total)
        return torch.from_numpy(gradients).to(self.device) if len(gradients) and sampled[0] else None


def poisson_sample(rng: np.random.Generator, records: int, rate: float) -> NDArray[np.int64]:
    """Draw positions of `records` independently with probability `rate`, in no particular order."""
    return rng.choice(records, rng.binomial(records, rate), replace=False, shuffle=False)
