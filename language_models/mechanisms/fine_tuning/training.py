"""The steps of a fine-tuning: Poisson sampling, clipped sums, noise, and an optimizer on the noisy mean.

Seeds of sampling and noise are those of the step's number, so a resumed training needs no state of a generator.

Source: Abadi et al. (2016), arXiv:1607.00133, with the sum divided by a public constant.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.errors import InputError, require
from dpaudit.language_models.mechanisms.fine_tuning.record_gradients import (
    SHORT_TOLERANCE,
    TOLERANCE,
    RecordGradients,
    flat,
)
from dpaudit.language_models.mechanisms.fine_tuning.records import (
    Record,
    RecordBatch,
    digest,
    in_parts,
    longest,
    make_batch,
)
from dpaudit.language_models.mechanisms.fine_tuning.settings import BatchListener, FineTuningSettings, Progress
from dpaudit.language_models.mechanisms.token_statistics import logits_of
from dpaudit.mechanisms.compute import Compute, TrainingError, child, spawned, torch_generator
from dpaudit.mechanisms.training.checkpoint import TrainingCheckpoint
from dpaudit.mechanisms.training.kernels import clip_factors
from dpaudit.mechanisms.training.private.private_steps import StepCanary

SEEDS = 3
"""Independent seeds of a training: initial adapters, sampling, noise."""
CHECKED = 2
"""Records of the first batch whose gradients are compared with those of torch."""


def run(training: FineTuning, compute: Compute, progress: Progress | None) -> None:
    """Run all steps of a training, from its checkpoint if there is one.

    Raises: TrainingError if the weights are no longer finite numbers.
    """
    if training.canary is not None:
        compute = replace(compute, scratch=None)  # a resumed training would show a canary its later steps alone
    checkpoint = TrainingCheckpoint(compute, training.digest() if compute.scratch else "")
    for step in range(checkpoint.restore(training), training.steps.count):
        training.step(step)
        checkpoint.keep(training, step + 1)
        if progress is not None:
            progress(step + 1, training.steps.count)
    training.require_finite()


@contextlib.contextmanager
def global_generators(seed: SeedSequence, device: str) -> Iterator[None]:
    """Seed torch's global generators, from which adapters are drawn, and restore their state afterwards."""
    devices = [torch.device(device)] if device != "cpu" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]) % 2**63)
        yield


class FineTuning:
    """DP-SGD on the trained parameters of a language model. Subclasses override a part of it to plant a defect."""

    def __init__(
        self,
        settings: FineTuningSettings,
        module: Any,
        records: Sequence[Record],
        *,
        size: int,
        seed: SeedSequence,
        on_batch: BatchListener | None = None,
        canary: StepCanary | None = None,
    ) -> None:
        """Arguments as in `FineTuner.train`; the trained parameters of `module` require a gradient."""
        require(all(records), "each record must have at least one text", records=len(records))
        self.settings, self.module, self.records = settings, module.eval(), list(records)
        self.steps = settings.claimed_steps(size)
        _, self._order, self._noise = spawned(seed, SEEDS)
        self._on_batch, self.canary, self._seed = on_batch, canary, seed
        self.gradients = RecordGradients(module)
        self.parameters = self.gradients.parameters
        self.device = next(iter(self.parameters.values())).device
        self._place = str(self.device)
        self._require_fitting()
        self._optimizer = make_optimizer(settings, list(self.parameters.values()))
        self._is_checked = False

    def _require_fitting(self) -> None:
        """Raise InputError for texts that are too long for the model, or have tokens that it does not know."""
        config = getattr(self.module, "config", None)
        vocabulary, most = (
            getattr(config, name, None) or math.inf for name in ("vocab_size", "max_position_embeddings")
        )
        texts = [text for record in self.records for text in record]
        tokens, length = (
            max((max(text.tokens) for text in texts), default=0),
            max(map(longest, self.records), default=0),
        )
        require(
            tokens < vocabulary,
            f"tokens must be below the {vocabulary} of the base model",
            do="call resize_token_embeddings on the base model, or use its own tokenizer",
            largest=tokens,
        )
        require(length <= most, f"a text must fit in the {most} tokens of the base model", do="cut it", tokens=length)

    def step(self, number: int) -> None:
        """Run step `number`. Raises: TrainingError if a gradient is not finite."""
        sums = self.clipped_sums([self.records[row] for row in self.sample(number)])
        if self.canary is not None:
            self._join_canary(number, sums)
        self.add_noise(sums, torch_generator(child(self._noise, number), self.device))
        for name, value in self.parameters.items():
            sums[name] /= self.steps.divisor
            value.grad = sums[name].to(value.dtype)
        if self.canary is not None:
            self.canary.observe(number, flat(list(sums.values())))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def sample(self, step: int) -> NDArray[np.int64]:
        """Return the numbers of the records in a step: each is in it with the sampling rate, independently."""
        rng = np.random.default_rng(child(self._order, step))
        return np.flatnonzero(rng.random(len(self.records)) < self.steps.private.sample_rate)

    def clipped_sums(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Return the sum of the clipped gradients of records, by parameter."""
        sums = self.gradients.zeros()
        for part in in_parts(records, self.settings.batch_tokens):
            batch = make_batch(part, self._place)
            if not self._is_checked:
                self._check(part[:CHECKED])
            if self._on_batch is not None:
                self._on_batch(batch.tokens.cpu(), batch.labels.cpu())
            self.add_part(batch, sums)
        return sums

    def _check(self, records: Sequence[Record]) -> None:
        """Raise InputError if the gradients of these records are not all that torch computes."""
        batch = make_batch(records, self._place)
        types = {value.dtype for value in self.module.parameters() if value.is_floating_point()}
        is_short = self.settings.precision != "float32" or not types <= {torch.float32, torch.float64}
        tolerance = SHORT_TOLERANCE if is_short else TOLERANCE
        self.gradients.check(lambda: self.loss(batch), batch.places, tolerance=tolerance)
        if not is_short:  # rounding of 16 bits depends on the shape of a batch
            norms = []
            for other in (make_batch(records[:1], self._place), batch):
                gradients = self.gradients.of(partial(self.loss, other), other.places)
                norm = self.gradients.add_clipped(gradients, 1.0, self.gradients.zeros())
                norms.append(0.0 if norm is None else float(norm[0]))
            alone, together = norms
            if abs(together - alone) > tolerance * alone + 1e-6:
                raise InputError(
                    "the gradient of a record must not depend on the other records of its batch, which the model "
                    "mixes, so that they cannot be clipped; train another model"
                )
        self._is_checked = True

    def add_part(self, batch: RecordBatch, sums: Mapping[str, Tensor]) -> None:
        """Add the sum of the clipped gradients of a batch to sums by parameter."""
        gradients = self.gradients.of(lambda: self.loss(batch), batch.places)
        norms = self.gradients.add_clipped(gradients, self.steps.private.clip, sums)
        if norms is not None and not bool(torch.isfinite(norms).all()):
            raise TrainingError("a gradient is no longer finite. Lower learning_rate.")

    def add_noise(self, sums: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Add the noise of a step to sums by parameter."""
        for name in sums:
            self.add_noise_to(name, sums[name], generator)

    def add_noise_to(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Add Gaussian noise to the sum of one parameter."""
        private = self.steps.private
        if private.noise_multiplier > 0:
            noise = torch.randn(value.shape, generator=generator, device=value.device, dtype=value.dtype)
            value += private.noise_multiplier * private.clip * noise

    def loss(self, batch: RecordBatch) -> Tensor:
        """Return the sum over records of the mean loss of a record's tokens."""
        return summed_loss(self.module, batch, precision=self.settings.precision)

    def _join_canary(self, step: int, sums: Mapping[str, Tensor]) -> None:
        assert self.canary is not None
        rows = torch.from_numpy(self.canary.gradients(step, sum(value.numel() for value in sums.values())))
        factors = clip_factors(rows.norm(dim=1, keepdim=True), self.steps.private.clip)
        gradient = (rows * factors).sum(0).to(self.device)
        for value, part in zip(sums.values(), gradient.split([v.numel() for v in sums.values()]), strict=True):
            value += part.view(value.shape)

    def require_finite(self) -> None:
        """Raise TrainingError if a trained weight is not a finite number."""
        if not all(bool(torch.isfinite(value).all()) for value in self.parameters.values()):
            raise TrainingError("the weights are no longer finite numbers. Lower learning_rate.")

    def digest(self) -> str:
        """Return a hash that identifies the training: settings, data, seed and all weights before the first step."""
        seed = (self._seed.entropy, self._seed.spawn_key)
        hasher = hashlib.sha256(repr((type(self), self.settings, self.steps, seed)).encode())
        hasher.update(digest(self.records).encode())
        for name, value in self.module.state_dict().items():
            hasher.update(name.encode())
            hasher.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return hasher.hexdigest()

    def state(self) -> dict[str, Any]:
        """Return trained weights and the state of the optimizer."""
        weights = {name: value.detach() for name, value in self.parameters.items()}
        return {"weights": weights, "optimizer": self._optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])


def make_optimizer(settings: FineTuningSettings, parameters: list[Any]) -> torch.optim.Optimizer:
    """Return the optimizer of the settings."""
    rates: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, **rates)
    return torch.optim.SGD(parameters, momentum=settings.momentum, **rates)


def summed_loss(module: Any, batch: RecordBatch, *, precision: str = "float32") -> Tensor:
    """Return the sum over records of the mean loss of a record's tokens.

    Args:
        module: A causal language model of torch.
        batch: Tokens and their weights.
        precision: Type of the activations, "float32" or "bfloat16"; losses are always computed in float32.
    """
    accepted = inspect.signature(module.forward).parameters
    width = batch.tokens.shape[1]
    # Logits before the first token with loss are not needed, and a vocabulary makes them large.
    has_start = "logits_to_keep" in accepted and bool((batch.weights > 0).any())
    first = int((batch.weights > 0).any(0).nonzero()[0]) - 1 if has_start else 0
    further: dict[str, Any] = {"use_cache": False} if "use_cache" in accepted else {}
    further |= {"logits_to_keep": width - first} if first else {}
    device = batch.tokens.device.type
    is_short = precision != "float32"
    with torch.autocast(device, dtype=getattr(torch, precision)) if is_short else contextlib.nullcontext():
        logits = logits_of(module, batch.tokens, batch.present, further)
    targets, weights = batch.tokens[:, first + 1 :], batch.weights[:, first + 1 :]
    has_loss = weights > 0
    after = logits[:, :-1][has_loss]
    after = after if after.dtype == torch.float64 else after.float()
    losses = torch.nn.functional.cross_entropy(after, targets[has_loss], reduction="none")
    return (losses * weights[has_loss]).sum()
