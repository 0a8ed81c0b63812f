"""Trains many networks of one shape as stacks on one device, and lets them predict.

Each model has its own rows and labels, and draws initial weights, order and noise from its own seed. Its numbers do not
depend on the other models of the stack: bit-identical in compiled code, up to rounding of sums otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor, nn

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError, child, epoch_generator, spawned, torch_generator
from dpaudit.mechanisms.examples import Features
from dpaudit.mechanisms.gpu_memory import digest_if_shared, may_stay, on_device
from dpaudit.mechanisms.training.augment import Augment
from dpaudit.mechanisms.training.compiled_mlp import CompiledMlp
from dpaudit.mechanisms.training.divided import current_group
from dpaudit.mechanisms.training.inputs import Scaling, as_array, scale_inputs, scaling_of, stack_scaling
from dpaudit.mechanisms.training.kernels import CrossEntropy, Kernel, Looped, Loss, Vmapped, draw_weights
from dpaudit.mechanisms.training.optimizers import Optimizer, schedule_factor
from dpaudit.mechanisms.training.recipe import Recipe, StackPlan, TrainingTask

ROWS_PER_PASS = 512
MODELS_PER_PASS = 64


@dataclass(frozen=True, eq=False)
class NetworkModel:
    """A trained network with its weights as an array, so that it can be sent to another process."""

    recipe: Recipe  # the network and its training settings
    shape: tuple[int, ...]  # shape of one example
    classes: int  # number of classes K
    parameters: NDArray[np.float32]  # weights, shape (P,)
    # Running statistics of batch norm by name, usually empty
    buffers: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    scaling: Scaling | None = None  # scaling of the features, or None
    compute: Compute = field(default=Compute())  # threads and device of predictions

    def logits(self, features: Features) -> NDArray[np.float64]:
        return np.asarray(stack_logits([self], features, compute=self.compute)[0])

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return np.asarray(softmax(self.logits(features), axis=-1))


def stack_logits(models: Sequence[NetworkModel], features: Features, *, compute: Compute) -> NDArray[np.float64]:
    """Return logits of many models of one network on the same features, shape (models, n, classes)."""
    array = as_array(features)
    shape = models[0].shape
    require(
        array.shape[1:] == shape, "features must have the shape that the model was trained on", given=array.shape[1:]
    )
    torch.set_num_threads(compute.threads)
    # A model trained on a GPU may predict on a machine without one.
    compute = compute if torch.cuda.is_available() else replace(compute, device="cpu")
    data = on_device(array, compute, digest_if_shared(features)) if may_stay(array, compute) else None
    device = torch.device(compute.device) if data is None else data.device
    module = models[0].recipe.meta_module(shape, models[0].classes)
    batched = models[0].recipe.batched_kernel(module)
    group = MODELS_PER_PASS if batched else 1
    answers = np.empty((len(models), len(array), models[0].classes))
    for first in range(0, len(models), group):
        stack = models[first : first + group]
        kernel: Kernel = batched(module, loss=CrossEntropy()) if batched else _looped_kernel(stack[0], device)
        parameters = torch.from_numpy(np.stack([model.parameters for model in stack])).to(device)
        scaling = stack_scaling([model.scaling for model in stack], device)
        for row in range(0, len(array), ROWS_PER_PASS):
            rows = slice(row, row + ROWS_PER_PASS)
            inputs = torch.as_tensor(np.array(array[rows]), device=device) if data is None else data[rows]
            repeated = inputs[None].expand(len(stack), *[-1] * array.ndim)
            logits = kernel.logits(parameters, scale_inputs(repeated, scaling))
            answers[first : first + group, rows] = logits.double().cpu().numpy()
    return answers


def _looped_kernel(model: NetworkModel, device: torch.device) -> Looped:
    looped = Looped(model.recipe.meta_module(model.shape, model.classes), loss=CrossEntropy(), device=device)
    for name, buffer in looped.module.named_buffers():
        buffer.copy_(torch.from_numpy(model.buffers[name]))
    return looped


class Stack:
    """Models that are trained together, in decreasing number of rows."""

    def __init__(
        self,
        recipe: Recipe,
        features: Tensor,
        tasks: Sequence[TrainingTask],
        *,
        classes: int,
        loss: Loss,
        plan: StackPlan,
        first: int = 0,
    ) -> None:
        """`first` is the position of the first task in the list of all tasks."""
        recipe.check(features)
        self.recipe, self.features, self.classes = recipe, features, classes
        self.device = features.device
        self.order = sorted(range(len(tasks)), key=lambda task: -len(tasks[task].rows))
        self.places = np.asarray(self.order) + first
        self.tasks = [tasks[task] for task in self.order]
        self.seeds = [spawned(task.seed, 3) for task in self.tasks]  # initial weights, order, augmentation
        self.counts = np.array([len(task.rows) for task in self.tasks])
        shape = tuple(features.shape[1:])
        module = recipe.meta_module(shape, classes)
        initial_weights = [
            draw_weights(module, torch_generator(weights)) if task.initial is None else torch.from_numpy(task.initial)
            for task, (weights, _, _) in zip(self.tasks, self.seeds, strict=True)
        ]
        self.parameters = torch.stack(initial_weights).to(self.device)
        self.gradient = torch.empty_like(self.parameters)
        self.optimizer = Optimizer(recipe, self.parameters)
        self.losses = torch.zeros(len(tasks), device=self.device)
        self.kernel = make_kernel(recipe, module, loss=loss, plan=plan, device=self.device)
        self.augment = Augment(recipe.augment, shape)
        self.scalings = [scaling_of(features, task.rows) if recipe.standardise else None for task in self.tasks]
        self._scales = stack_scaling(self.scalings, self.device)
        self._rows = self._padded([torch.from_numpy(task.rows.astype(np.int32)) for task in self.tasks])
        self.relabel([torch.from_numpy(np.array(task.labels)) for task in self.tasks])
        self._one_hot = torch.eye(classes, device=self.device)
        self._counts = torch.from_numpy(self.counts)[:, None].to(self.device)
        self.group = current_group()
        self.steps_done = 0  # steps of the current epoch that were done before an interruption
        # Called after each step that may be the last of an attempt.
        self.after_step: Callable[[], object] = lambda: None

    def relabel(self, labels: list[Tensor]) -> None:
        self._labels = self._padded(labels)

    def run_epoch(self, epoch: int) -> None:
        orders = [epoch_generator(order, epoch) for _, order, _ in self.seeds]
        permutations = [rng.permutation(n) for rng, n in zip(orders, self.counts, strict=True)]
        whole_epochs = not (self.augment.draws or self.recipe.mixup or self.group)
        if isinstance(self.kernel, CompiledMlp) and whole_epochs:
            self._run_compiled(self.kernel, epoch, permutations)
            return
        size = self.recipe.batch_size
        positions = self._padded([torch.from_numpy(permutation) for permutation in permutations])
        draws = self._draws(epoch)
        mixing = self._mixing(orders)
        if not self.steps_done:
            self.losses.zero_()
        for step, begin in enumerate(range(0, int(self.counts[0]), size)):
            active = int(np.count_nonzero(self.counts > begin))
            end = min(begin + size, int(self.counts[0]))
            if step < self.steps_done:
                if mixing is not None:
                    self._partners(orders, self.counts[:active] - begin, end - begin)  # for the generators to move on
                continue
            picked = positions[:active, begin:end]
            inputs = self._inputs(picked)
            if draws is not None:
                flat = self.augment(inputs.flatten(0, 1), draws[:active, begin:end].flatten(0, 1))
                inputs = flat.unflatten(0, inputs.shape[:2])
            inputs = scale_inputs(inputs, self._scales)
            targets = self._targets(picked)
            # 1 / batch size for each example, 0 for padding in a model's last, shorter batch.
            counts = (self._counts[:active] - begin).clamp(max=picked.shape[1])
            coefficients = (torch.arange(picked.shape[1], device=self.device) < counts) / counts
            if mixing is not None:
                share = torch.from_numpy(mixing[:active, step]).to(self.device)[:, None]
                partners = self._partners(orders, self.counts[:active] - begin, end - begin)
                inputs, targets = mix_up(inputs, targets, share, partners)
            parameters, gradient = self.parameters[:active], self.gradient[:active]
            self.losses[:active] += self._gradient(parameters, inputs, targets, coefficients, gradient)
            self.optimizer.step(parameters, gradient, self._rate(epoch, step, active))
            self.steps_done = step + 1
            self.after_step()
        self.steps_done = 0

    def _gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, coefficients: Tensor, out: Tensor
    ) -> Tensor:
        """Return `Kernel.gradient` of a batch, which the processes of the training divide."""
        if self.group is None:
            return self.kernel.gradient(parameters, inputs, targets, coefficients, out)
        inputs, targets, coefficients = (part[:, self.group.share] for part in (inputs, targets, coefficients))
        if inputs.shape[1]:
            losses = self.kernel.gradient(parameters, inputs, targets, coefficients, out)
        else:
            losses = out.zero_().new_zeros(len(out))
        self.group.add(out, losses)
        return losses

    def _run_compiled(self, kernel: CompiledMlp, epoch: int, permutations: list[NDArray[np.int64]]) -> None:
        """Run the epoch model by model, which needs no padding and keeps a model's weights in the CPU cache."""

        def run(model: int) -> float:
            order = permutations[model]
            rows, targets = self.examples_at(model, order)
            return kernel.train_epoch(
                self.recipe,
                self.parameters,
                self.optimizer,
                model,
                features=self.features,
                rows=rows,
                targets=targets,
                scaling=self.scalings[model],
                rates=self._rates(epoch, -(-len(order) // self.recipe.batch_size)),
            )

        models, threads = range(len(permutations)), torch.get_num_threads()
        if threads == 1 or len(models) == 1:
            losses = list(map(run, models))
        else:
            with ThreadPoolExecutor(threads) as pool:  # compiled code releases the GIL
                losses = list(pool.map(run, models))
        self.losses[:] = torch.tensor(losses)

    def examples_at(
        self, models: int | NDArray[np.int64], picked: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return rows and targets (picked, classes) at positions `picked` of one model, or of a model per position."""
        rows, labels = self._rows.numpy()[models, picked], self._labels.numpy()[models, picked]
        return rows.astype(np.int64), labels.astype(np.float32) if labels.ndim == 2 else self._one_hot.numpy()[labels]

    def _rates(self, epoch: int, steps: int) -> NDArray[np.float32]:
        if self.recipe.schedule == "constant":
            return np.full(steps, self.recipe.learning_rate, np.float32)
        total = self.recipe.epochs * steps
        return np.array([self._rate_at((epoch * steps + step) / total) for step in range(steps)], np.float32)

    def _inputs(self, picked: Tensor) -> Tensor:
        rows = self._rows[: len(picked)].take_along_dim(picked, 1)
        flat = self.features.index_select(0, rows.flatten())  # faster than indexing by a matrix
        return flat.view(*rows.shape, *self.features.shape[1:])

    def _targets(self, picked: Tensor) -> Tensor:
        labels = self._labels[: len(picked)]
        if labels.dim() == 3:
            return labels.take_along_dim(picked[..., None], 1)
        return self._one_hot[torch.take_along_dim(labels, picked, 1)]

    def _rate(self, epoch: int, step: int, active: int) -> Tensor | float:
        """Return the learning rate of each model; progress depends on its number of steps."""
        if self.recipe.schedule == "constant":
            return self.recipe.learning_rate
        steps = -(-self.counts[:active] // self.recipe.batch_size)
        progress: list[float] = ((epoch * steps + step) / (self.recipe.epochs * steps)).tolist()
        rates = {u: self._rate_at(u) for u in set(progress)}
        if len(rates) == 1:
            return rates[progress[0]]
        return torch.tensor([rates[u] for u in progress], device=self.device)[:, None]

    def _rate_at(self, progress: float) -> float:
        return self.recipe.learning_rate * schedule_factor(self.recipe.schedule, progress)

    def _draws(self, epoch: int) -> Tensor | None:
        """Draw uniforms for the augmentation of each position of the epoch, shape (models, n, draws)."""
        if not self.augment.draws:
            return None
        draws = [
            torch.rand(n, self.augment.draws, generator=torch_generator(child(seed, epoch)))
            for (_, _, seed), n in zip(self.seeds, self.counts.tolist(), strict=True)
        ]
        return self._padded(draws)

    def _mixing(self, orders: list[np.random.Generator]) -> NDArray[np.float32] | None:
        """Draw the weight of the first example of a mixup pair for each model and step, shape (models, steps)."""
        if not self.recipe.mixup:
            return None
        alpha, steps = self.recipe.mixup, -(-int(self.counts[0]) // self.recipe.batch_size)
        shares = np.zeros((len(orders), steps), np.float32)
        for model, (rng, n) in enumerate(zip(orders, self.counts, strict=True)):
            batches = -(-int(n) // self.recipe.batch_size)
            shares[model, :batches] = rng.beta(alpha, alpha, batches)
        return shares

    def _partners(self, orders: list[np.random.Generator], remaining: NDArray[np.int64], width: int) -> Tensor:
        """Permute each model's batch of at most `remaining` examples; padding stays in place; (A, width)."""
        partners = np.tile(np.arange(width), (len(remaining), 1))
        for model, (rng, n) in enumerate(zip(orders, np.minimum(remaining, width).tolist(), strict=False)):
            partners[model, :n] = rng.permutation(n)
        return torch.from_numpy(partners).to(self.device)

    def _padded(self, values: list[Tensor]) -> Tensor:
        """Stack values of all models on the device, padded with zeros to the longest."""
        return nn.utils.rnn.pad_sequence(values, batch_first=True).to(self.device)

    def outcomes(self, compute: Compute) -> list[NetworkModel | TrainingError]:
        """Return each task's model or error, in the order of the tasks."""
        recipe, shape, classes = self.recipe, tuple(self.features.shape[1:]), self.classes
        buffers = {name: value.cpu().numpy() for name, value in self._buffers.items()}
        message = "the loss is no longer finite. Lower learning_rate or check the features for NaN."
        outcomes: list[NetworkModel | TrainingError] = [TrainingError(message) for _ in self.tasks]
        finite = (torch.isfinite(self.losses) & torch.isfinite(self.parameters).all(1)).tolist()
        parameters = self.parameters.cpu().numpy()
        for place, is_finite, values, scaling in zip(self.order, finite, parameters, self.scalings, strict=True):
            if is_finite:
                outcomes[place] = NetworkModel(recipe, shape, classes, values.copy(), buffers, scaling, compute)
        return outcomes

    @property
    def _buffers(self) -> dict[str, Tensor]:
        return dict(self.kernel.module.named_buffers()) if isinstance(self.kernel, Looped) else {}

    def state(self) -> dict[str, Any]:
        """Return weights, buffers, losses, the optimiser's state and the steps of this epoch that are done."""
        return {
            "parameters": self.parameters,
            "moments": self.optimizer.moments,
            "steps": self.optimizer.steps,
            "buffers": self._buffers,
            "losses": self.losses,
            "steps_done": self.steps_done,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.parameters.copy_(state["parameters"])
        self.optimizer.restore(state["moments"], state["steps"])
        for name, buffer in self._buffers.items():
            buffer.copy_(state["buffers"][name])
        self.losses.copy_(state["losses"])
        self.steps_done = state["steps_done"]


def make_kernel(recipe: Recipe, module: nn.Module, *, loss: Loss, plan: StackPlan, device: torch.device) -> Kernel:
    bfloat16 = recipe.precision == "bfloat16"
    if plan.method == "batched":
        batched = recipe.batched_kernel(module)
        require(batched is not None, "a batched plan needs perceptrons or bags of embeddings", plan=plan)
        assert batched is not None
        if CompiledMlp.fits(batched, module, loss, device):
            return CompiledMlp(module, loss=loss)
        return batched(module, loss=loss)
    if plan.method == "vmapped":
        compiled = recipe.compile and device.type == "cuda"
        return Vmapped(module, loss=loss, bfloat16=bfloat16, compiled=compiled)
    return Looped(module, loss=loss, device=device, bfloat16=bfloat16)


def mix_up(inputs: Tensor, targets: Tensor, share: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
    """Mix each example with its partner, inputs and targets alike (mixup)."""
    models = torch.arange(len(inputs), device=inputs.device)[:, None]
    wide = share.view(-1, *[1] * (inputs.dim() - 1))
    inputs = wide * inputs + (1 - wide) * inputs[models, partners]
    return inputs, share[..., None] * targets + (1 - share[..., None]) * targets[models, partners]
