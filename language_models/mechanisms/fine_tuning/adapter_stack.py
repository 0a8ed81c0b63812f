"""Trains the adapters of many fine-tunings together, on one frozen language model.

Each training has its own texts, initial weights, order or Poisson batches, and noise, all drawn from its own seed. A
batch holds rows of all of them. The numbers of one training do not depend on the others, up to rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.errors import require
from dpaudit.language_models.mechanisms.base_models import frozen_copy
from dpaudit.language_models.mechanisms.fine_tuning.records import Record, longest, make_batch
from dpaudit.language_models.mechanisms.fine_tuning.row_adapters import (
    AdapterLayout,
    RowAdapters,
    adapter_layout,
    row_adapters,
)
from dpaudit.language_models.mechanisms.fine_tuning.token_losses import TokenLosses
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.training import SEEDS, FineTuning, make_optimizer
from dpaudit.language_models.mechanisms.token_statistics import (
    BATCH_TOKENS,
    TokenSpan,
    TokenStatistics,
    batched_statistics,
    joined_statistics,
)
from dpaudit.mechanisms.compute import Compute, TrainingError, child, leave_note, spawned, torch_generator
from dpaudit.mechanisms.gpu_memory import NO_ROOM_FOR_A_MODEL, is_out_of_memory, release_resident
from dpaudit.mechanisms.training.kernels import clip_factors

GPU_BATCH_TOKENS = 2**17
"""Fewest tokens of a pass on a GPU, padding included: small passes leave it idle. They change rounding alone."""


@dataclass(frozen=True, eq=False)
class AdapterTask:
    """Fine-tuning of one adapter on some of the shared records."""

    rows: NDArray[np.int64]  # positions of its records, in the order of the training
    seed: SeedSequence  # seed of all its randomness


class AdapterStack:
    """The adapters of several fine-tunings, and their optimizer."""

    def __init__(
        self,
        adapters: RowAdapters,
        losses: TokenLosses,
        settings: LoraFineTuning,
        records: Sequence[Record],
        tasks: Sequence[AdapterTask],
        *,
        size: int,
        device: torch.device,
        batch_tokens: int,
    ) -> None:
        """Arguments as in `train_adapters`; a pass has at most `batch_tokens`, fewer if the GPU is full."""
        self._adapters, self._losses, self._settings = adapters, losses, settings
        self._tasks, self._device = tasks, device
        self.batch_tokens, self.steps = batch_tokens, settings.claimed_steps(size)
        self._longest = np.array([longest(record) for record in records])
        self._texts = np.array([len(record) for record in records])
        self._data = make_batch(records, str(device))
        self.layout = adapters.layout
        seeds = [spawned(task.seed, SEEDS) for task in tasks]
        initial = [adapters.layout.initial(torch_generator(begin)) for begin, _, _ in seeds]
        self.weights = torch.stack(initial).to(device)
        self.failed = np.zeros(len(tasks), np.bool_)
        self._infinite = torch.zeros(len(tasks), dtype=torch.bool, device=device)  # failed in this step
        self._sums = torch.zeros_like(self.weights)
        self._optimizer = make_optimizer(settings, [self.weights])
        self._generator = torch.Generator(device)
        self._orders, self._noises = [order for _, order, _ in seeds], [noise for _, _, noise in seeds]

    def step(self, number: int) -> None:
        """Run step `number` of every training that has not failed."""
        owners, rows = self.sample(number)
        self._sums.zero_()
        self._sum_gradients(owners, rows)
        self._add_noise(number)
        self.weights.grad = self._sums.div_(self.steps.divisor)
        self._optimizer.step()
        self.failed |= (self._infinite | ~self.weights.isfinite().all(1)).cpu().numpy()

    def sample(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the records of a step, and the training that each belongs to; shapes (n,), (n,)."""
        rate, batches = self.steps.private.sample_rate, []
        for task, order, failed in zip(self._tasks, self._orders, self.failed, strict=True):
            sampled = np.random.default_rng(child(order, number)).random(len(task.rows)) < rate
            batches.append(task.rows[sampled & (not failed)])
        return np.repeat(np.arange(len(batches)), [len(batch) for batch in batches]), np.concatenate(batches)

    def _sum_gradients(self, owners: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Add the clipped gradient of each record `rows[k]` to the sum of its training `owners[k]`."""
        order = np.argsort(self._longest[rows], kind="stable")
        owners, rows = owners[order], rows[order]
        begin = 0
        while begin < len(rows):
            part = slice(begin, begin + self._fitting(rows[begin:]))
            gradients = self._gradients_if_they_fit(owners[part], rows[part])
            if gradients is None:
                self.batch_tokens //= 2
                continue
            self._add(gradients, owners[part])
            begin = part.stop

    def _fitting(self, rows: NDArray[np.int64]) -> int:
        """Return how many of the first `rows`, shortest first, make a pass: at least one.

        Passes have equal numbers of tokens, since a small one takes a GPU nearly as long as a large one.
        """
        texts, longest = self._texts[rows], self._longest[rows]
        tokens = np.cumsum(texts * longest)
        passes = -(-int(tokens[-1]) // self.batch_tokens)
        fitting = np.count_nonzero(np.cumsum(texts) * longest <= self.batch_tokens)
        return max(1, min(int(fitting), 1 + int(np.count_nonzero(tokens < tokens[-1] / passes))))

    def _gradients_if_they_fit(self, owners: NDArray[np.int64], rows: NDArray[np.int64]) -> Tensor | None:
        """Return the gradient of each record; None if the GPU has too little memory for several."""
        try:
            return self.gradients(owners, rows)
        except RuntimeError as error:
            if not is_out_of_memory(error) or len(rows) == 1:
                raise
        release_resident()  # after the block, which holds the tensors of the failed call
        return None

    def gradients(self, owners: NDArray[np.int64], rows: NDArray[np.int64]) -> Tensor:
        """Return the gradient of the mean token loss of each record, by its training's adapter; (records, total)."""
        width = int(self._longest[rows].max())
        places = self._data.places[self._on_device(rows), : int(self._texts[rows].max())]
        used = self.weights[self._on_device(owners)].to(self._adapters.dtype).requires_grad_()
        if places.shape[1] == 1:
            texts, by_text = places[:, 0], used
        else:
            record, number = (places >= 0).nonzero(as_tuple=True)
            texts, by_text = places[record, number], used.index_select(0, record)
        tokens, weights = self._data.tokens[texts, :width], self._data.weights[texts, 1:width]
        self._adapters.use(by_text)
        losses = self._losses(tokens, weights > 0)
        (gradients,) = torch.autograd.grad((losses * weights).sum(), used)
        return gradients

    def _add(self, gradients: Tensor, owners: NDArray[np.int64]) -> None:
        places = self._on_device(owners)
        norms = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float32)
        infinite = ~norms.isfinite()
        self._infinite |= torch.zeros(len(self._tasks), device=self._device).index_add_(0, places, infinite.float()) > 0
        gradients.masked_fill_(infinite[:, None], 0.0)  # 0 times NaN would reach the other trainings
        shares = torch.zeros(len(self._tasks), len(owners), device=self._device)
        factors = clip_factors(norms.masked_fill(infinite, 0.0), self.steps.private.clip)
        shares[places, torch.arange(len(owners), device=self._device)] = factors
        self._sums.addmm_(shares, gradients.float())

    def _add_noise(self, number: int) -> None:
        private = self.steps.private
        if not private.noise_multiplier:
            return
        # On a CPU the numbers are those of a single training. On a GPU thousands of small draws would take longer.
        sizes = self.layout.sizes if self._device.type == "cpu" else [self.layout.total]
        noise = torch.empty_like(self._sums)
        for row, seed in zip(noise, self._noises, strict=True):
            # As in `torch_generator`; a new generator for each training would take longer on a GPU.
            self._generator.manual_seed(int(child(seed, number).generate_state(1, np.uint64)[0]))
            for part in row.split(sizes):
                part.normal_(generator=self._generator)
        self._sums.add_(noise, alpha=private.noise_multiplier * private.clip)

    def _on_device(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)

    def outcomes(self) -> list[TrainedAdapter | TrainingError]:
        """Return each training's adapter, or its error."""
        weights, layout = self.weights.cpu().numpy(), self._adapters.layout
        message = "a gradient or weight is no longer finite. Lower learning_rate."
        return [
            TrainingError(message) if failed else TrainedAdapter(layout, row.copy())
            for failed, row in zip(self.failed, weights, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class TrainedAdapter:
    """Adapter of one training."""

    layout: AdapterLayout
    weights: NDArray[np.float32]  # shape (layout.total,)

    def state(self) -> dict[str, Tensor]:
        """Return the weights by names, for `set_peft_model_state_dict` of PEFT."""
        return self.layout.named(torch.from_numpy(self.weights))


def train_adapters(
    settings: LoraFineTuning,
    base: Any,
    records: Sequence[Record],
    tasks: Sequence[AdapterTask],
    *,
    size: int,
    compute: Compute,
    stack: int | None = None,
    compiled: bool = False,
) -> list[TrainedAdapter | TrainingError]:
    """Fine-tune one adapter for each task, as `settings.train` does on the task's records with its seed.

    Args:
        settings: Those of each training; `trained_tokens` must be empty.
        base: As in `TextTrainer.train`. Weights in bfloat16 are computed with as they are, which is fast on a GPU.
        records: Records that the tasks share.
        size: Public number of records of each training, from which the sampling rate follows.
        stack: Trainings in a stack; None for all.
        compiled: Compile the blocks of the model, which takes a minute and pays for long trainings on a GPU.
    Returns: The adapter, or an error if a number is not finite, in the order of the tasks.
    Raises: TrainingError if the GPU has too little memory for one training with one record at a time.

    On a GPU a pass has 131,072 tokens or more. If it does not fit in the GPU's memory, smaller passes are used. If a
    stack does not fit, it is trained as stacks of half its size, and a note says so.
    """
    require(
        not settings.trained_tokens,
        "stacked adapters cannot train embeddings of tokens",
        do="leave trained_tokens empty",
        trained_tokens=settings.trained_tokens,
    )
    require(all(records), "each record must have at least one text", records=len(records))
    torch.set_num_threads(compute.threads)
    device = torch.device(compute.device)
    planned = size_now = min(stack or len(tasks), max(1, len(tasks)))
    module = frozen_copy(base, device=compute.device).eval()
    layout = adapter_layout(module, settings.target_modules, rank=settings.rank, alpha=settings.alpha)
    losses = TokenLosses(module, compiled=compiled)
    adapters = row_adapters(module, layout, compiled=compiled)
    outcomes: list[TrainedAdapter | TrainingError] = []
    while len(outcomes) < len(tasks):
        group = tasks[len(outcomes) : len(outcomes) + size_now]
        build = partial(
            AdapterStack,
            adapters,
            losses,
            settings,
            records,
            group,
            size=size,
            device=device,
            batch_tokens=max(settings.batch_tokens, GPU_BATCH_TOKENS if device.type == "cuda" else 0),
        )
        trained = _trained_if_it_fits(build)
        if trained is not None:
            outcomes += trained
        elif not release_resident():
            if len(group) == 1:
                raise TrainingError(NO_ROOM_FOR_A_MODEL)
            size_now = -(-len(group) // 2)
    if size_now < planned:
        leave_note(
            f"stacks of {planned} adapters did not fit in the GPU's memory, so adapters were trained in stacks of "
            f"{size_now}. This changes results by rounding only"
        )
    return outcomes


def _trained_if_it_fits(
    build: Callable[[], AdapterStack],
) -> list[TrainedAdapter | TrainingError] | None:
    """Train one stack; returns its outcomes, or None if the GPU has too little memory for it."""
    try:
        stack = build()
        for step in range(stack.steps.count):
            stack.step(step)
            if stack.failed.all():
                break
        return stack.outcomes()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None


def adapter_statistics(
    base: Any,
    adapters: Sequence[TrainedAdapter],
    spans: Sequence[TokenSpan],
    *,
    compute: Compute,
    batch_tokens: int = BATCH_TOKENS,
) -> list[TokenStatistics]:
    """Return the statistics of the spans under each adapter, as `token_statistics` of its model does.

    A batch holds texts of similar length under several adapters. `token_statistics(base, spans)` returns those of the
    base model, once for all adapters.

    Args:
        base: The base model, as in `TextTrainer.train`.
        adapters: Adapters of one layout.
        batch_tokens: Tokens in a batch, padding included.
    Raises: InputError for adapters of several layouts, or log-probabilities that are not finite.
    """
    if not adapters:
        return []
    layout = adapters[0].layout
    require(all(adapter.layout == layout for adapter in adapters), "stacked adapters must have one layout")
    torch.set_num_threads(compute.threads)
    module = frozen_copy(base, device=compute.device).eval()
    changes = row_adapters(module, layout)
    weights = torch.from_numpy(np.stack([adapter.weights for adapter in adapters])).to(compute.device, changes.dtype)

    def before(rows: list[int]) -> None:
        changes.use(weights[torch.tensor(rows, device=weights.device) // len(spans)])

    moments = batched_statistics(module, list(spans) * len(adapters), batch_tokens, before=before)
    by_row = dict(moments)
    rows = range(len(spans))
    return [
        joined_statistics(spans, ((row, by_row[place * len(spans) + row]) for row in rows))
        for place in range(len(adapters))
    ]


def is_stackable(trainer: Any) -> bool:
    """True if a stack of adapters gives the same numbers as trainings one by one.

    That is LoRA without trained tokens whose steps are our own: code that overrides them must run as it is.
    """
    is_lora = isinstance(trainer, LoraFineTuning) and not trainer.trained_tokens
    return is_lora and type(trainer).train is LoraFineTuning.train and trainer.training_type() is FineTuning


def statistics_of_stack(
    trainer: LoraFineTuning,
    base: Any,
    records: Sequence[Record],
    tasks: Sequence[AdapterTask],
    spans: Sequence[TokenSpan],
    *,
    size: int,
    compute: Compute,
) -> list[TokenStatistics | TrainingError]:
    """Return the log-probabilities of the spans under the model of each task, or the error of its training.

    Arguments as in `train_adapters`. Raises: TrainingError if the GPU has too little memory.
    """
    outcomes = train_adapters(trainer, base, records, tasks, size=size, compute=compute)
    trained = [outcome for outcome in outcomes if isinstance(outcome, TrainedAdapter)]
    statistics = iter(adapter_statistics(base, trained, spans, compute=compute))
    return [outcome if isinstance(outcome, TrainingError) else next(statistics) for outcome in outcomes]
