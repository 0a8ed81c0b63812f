"""Fine-tuning of adapters by unchanged Opacus: sampling, clipping, noise and accountant are the library's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.random import SeedSequence

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.language_models.mechanisms.fine_tuning.records import Record
from dpaudit.language_models.mechanisms.fine_tuning.settings import BatchListener, Progress
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning
from dpaudit.locations import Packages
from dpaudit.mechanisms.adapters.opacus_dp_sgd import ACCOUNTANTS, noise_multiplier, privacy_engine, steps_of_opacus
from dpaudit.mechanisms.compute import Compute, TrainingError, spawned, torch_generator
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, PrivateSteps, StepCanary
from dpaudit.registry import register


@register("text-trainer", "opacus-lora", source="Yousefpour et al. (2021), arXiv:2109.12298; the packages opacus, peft")
@dataclass(frozen=True, kw_only=True)
class OpacusLora(LoraFineTuning):
    """Fine-tunes the adapters of the trainer `lora` by Opacus's PrivacyEngine with Poisson sampling (extra `opacus`).

    Opacus takes its sample rate from the number of records, 1 / ceil(n / batch_size), and divides by its expected batch
    size. Both depend on n, which adding or removing a record changes. A record is one text. There are no checkpoints.
    With an infinite epsilon, the adapters are trained as by `lora`.

    Attributes:
        accountant: Opacus's accountant, "prv" or "rdp".
    """

    packages: ClassVar[Packages] = {**LoraFineTuning.packages, "opacus": "opacus"}
    accountants: ClassVar[tuple[str, ...]] = ACCOUNTANTS
    accountant: str = "prv"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.trained_tokens, "Opacus cannot clip PEFT's trained tokens", do="choose the trainer lora")
        require(self.precision == "float32", "opacus-lora trains in float32", precision=self.precision)

    def claim(self, records: int) -> Claim | None:
        """Return (epsilon, delta)-DP for adding or removing one record, as Opacus's accountant computes it."""
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE) if self.is_private else None

    def claimed_steps(self, records: int) -> ClaimedSteps:
        """Return Opacus's steps on `records` records. Raises: InputError if Opacus is not installed."""
        if not self.is_private:
            return super().claimed_steps(records)
        privacy_engine()
        batches = math.ceil(records / self.batch_size)
        noise = noise_multiplier(self.epsilon, self.delta, 1 / batches, self.epochs, self.accountant)
        return ClaimedSteps(PrivateSteps(self.clip, noise, 1 / batches), batches * self.epochs)

    def train(
        self,
        base: Any,
        records: Sequence[Record],
        *,
        seed: SeedSequence,
        compute: Compute,
        size: int | None = None,
        progress: Progress | None = None,
        on_batch: BatchListener | None = None,
        canary: StepCanary | None = None,
    ) -> Any:
        """Return the fine-tuned model; arguments as in `TextTrainer.train`. Opacus ignores the public `size`."""
        if not self.is_private:
            settings: dict[str, Any] = {"seed": seed, "compute": compute, "size": size, "progress": progress}
            return super().train(base, records, **settings, on_batch=on_batch, canary=canary)
        engine_class = privacy_engine()
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        from dpaudit.language_models.mechanisms.fine_tuning.training import SEEDS, global_generators, make_optimizer

        require(all(len(record) == 1 for record in records), "a record of opacus-lora must be one text")
        torch.set_num_threads(compute.threads)
        begin, order, noise = spawned(seed, SEEDS)
        watched = contextlib.nullcontext() if canary is None else steps_of_opacus(canary)
        with global_generators(begin, compute.device), watched:
            module = self.trainable(base, device=compute.device).train()
            trained = [value for value in module.parameters() if value.requires_grad]
            loader = DataLoader(
                TensorDataset(torch.arange(len(records))),
                batch_size=self.batch_size,
                generator=torch_generator(order),
            )
            private, optimizer, batches = engine_class(accountant=self.accountant).make_private(
                module=module,
                optimizer=make_optimizer(self, trained),
                data_loader=loader,
                noise_multiplier=self.claimed_steps(len(records)).private.noise_multiplier,
                max_grad_norm=self.clip,
                noise_generator=torch_generator(noise, compute.device),
            )
            steps = 0
            for _ in range(self.epochs):
                for (rows,) in batches:
                    self._step(module, optimizer, [records[row] for row in rows.tolist()], compute.device, on_batch)
                    steps += 1
                    if progress is not None:
                        progress(steps, len(batches) * self.epochs)
            trained_module = private.to_standard_module()
        if not all(bool(torch.isfinite(value).all()) for value in trained):
            raise TrainingError("the weights are no longer finite numbers. Lower learning_rate.")
        return trained_module.eval()

    @staticmethod
    def _step(
        module: Any, optimizer: Any, records: Sequence[Record], device: str, on_batch: BatchListener | None
    ) -> None:
        """Run one step; Opacus's hooks are on the layers of the module."""
        import torch

        from dpaudit.language_models.mechanisms.fine_tuning.records import make_batch
        from dpaudit.language_models.mechanisms.fine_tuning.training import summed_loss

        optimizer.zero_grad()
        if records:
            batch = make_batch(records, device)
            if on_batch is not None:
                on_batch(batch.tokens.cpu(), batch.labels.cpu())
            (summed_loss(module, batch) / len(records)).backward()  # Opacus expects the mean over the batch
        else:
            for value in optimizer.params:  # a batch without records, as Opacus's own empty batches have it
                value.grad_sample = torch.zeros((0, *value.shape), device=value.device, dtype=value.dtype)
        optimizer.step()
