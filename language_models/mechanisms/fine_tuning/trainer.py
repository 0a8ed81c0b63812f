"""Ways to fine-tune a causal language model: their interface, and what those of dpaudit share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from numpy.random import SeedSequence

from dpaudit.claims import Claim
from dpaudit.language_models.mechanisms.fine_tuning.records import Record
from dpaudit.language_models.mechanisms.fine_tuning.settings import BatchListener, FineTuningSettings, Progress
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.training.private.private_steps import StepCanary

if TYPE_CHECKING:
    from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning


@runtime_checkable
class TextTrainer(Protocol):
    """A way to fine-tune a causal language model, registered as "text-trainer".

    One that has `claimed_steps(records)`, and whose `train` takes a `canary`, shows its steps to the game dp-sgd-steps.
    A step calls `canary.gradient(step, weights)`, clips the result like the gradient of a record, adds it to the sum
    unless it is None, adds the noise, and calls `canary.observe(step, sum / divisor)` with the divisor of
    `ClaimedSteps`.
    """

    def claim(self, records: int) -> Claim | None:
        """Return the claim for a training set of the public size `records`; None if there is no privacy."""

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
    ) -> Any:
        """Return the fine-tuned model, a torch module; `base` stays as it was.

        Args:
            base: Folder that `save_pretrained` wrote, path of a GGUF file, or a causal language model of torch.
            records: The training data. A record is one text, or all texts of a user.
            seed: Decides the result, together with device and precision.
            compute: Threads, device, and a folder for checkpoints.
            size: Public number of records, from which the sampling rate follows. Default: the number of records.
            progress: Receives the steps.
            on_batch: Receives each batch.
        Raises: TrainingError if the weights are no longer finite numbers.
        """


@dataclass(frozen=True, kw_only=True)
class FineTuner(FineTuningSettings, ABC):
    """DP-SGD on the trained parameters of a model; subclasses say which these are."""

    @abstractmethod
    def trainable(self, base: Any, *, device: str) -> Any:
        """Return a model on the device whose trained parameters require a gradient; `base` stays as it was.

        New parameters are drawn from torch's global generators, which are seeded. `base` as in `TextTrainer.train`.
        """

    def training_type(self) -> type[FineTuning]:
        """Return the class that runs the steps."""
        from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning

        return FineTuning

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
        """Return the fine-tuned model; arguments as in `TextTrainer.train`.

        With a `canary`, its gradient takes part in each step like that of a record, and it observes the noisy sum.
        """
        import torch

        from dpaudit.language_models.mechanisms.fine_tuning.training import SEEDS, global_generators, run

        torch.set_num_threads(compute.threads)
        begin = spawned(seed, SEEDS)[0]
        with global_generators(begin, compute.device):
            module = self.trainable(base, device=compute.device)
            training = self.training_type()(
                self,
                module,
                records,
                size=len(records) if size is None else size,
                seed=seed,
                on_batch=on_batch,
                canary=canary,
            )
            run(training, compute, progress)
        return module.eval()
