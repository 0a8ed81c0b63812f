"""Ways to fine-tune a causal language model: their interface, settings and claims, and what is trained by each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from numpy.random import SeedSequence

from dpaudit.claims import Claim
from dpaudit.errors import InputError, require
from dpaudit.language_models.mechanisms.base_models import frozen_copy, own_copy
from dpaudit.language_models.mechanisms.fine_tuning.records import Record
from dpaudit.language_models.mechanisms.fine_tuning.settings import BatchListener, FineTuningSettings, Progress
from dpaudit.locations import Packages, imported
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.ranges import require_at_least, require_positive
from dpaudit.mechanisms.training.private.private_steps import StepCanary
from dpaudit.registry import register

if TYPE_CHECKING:
    from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning


@runtime_checkable
class TextTrainer(Protocol):
    """A way to fine-tune a causal language model, registered as "text-trainer".

    One that has `claimed_steps(records)`, and whose `train` takes a `canary`, shows its steps to the game dp-sgd-steps.
    A step calls `canary.gradients(step, weights)`, clips each row like the gradient of a record, adds them to the sum,
    adds the noise, and calls `canary.observe(step, sum / divisor)` with the divisor of `ClaimedSteps`.
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


@register("text-trainer", "full", source="Li et al. (2022), arXiv:2110.05679; Bu et al. (2023), arXiv:2210.00038")
@dataclass(frozen=True, kw_only=True)
class FullFineTuning(FineTuner):
    """Fine-tunes all weights of a causal language model by DP-SGD with ghost clipping, or without privacy.

    The model may consist of linear layers, embeddings (tied or not) and normalisations, such as Llama and GPT-2.
    """

    learning_rate: float = 2e-4

    def trainable(self, base: Any, *, device: str) -> Any:
        return own_copy(base, device=device).requires_grad_(True)


@register("text-trainer", "lora", source="Hu et al. (2021), arXiv:2106.09685; Yu et al. (2021), arXiv:2110.06500; peft")
@dataclass(frozen=True, kw_only=True)
class LoraFineTuning(FineTuner):
    """Fine-tunes low-rank adapters of a causal language model by DP-SGD, or without privacy.

    They are adapters of PEFT on frozen weights, with some rows of the embeddings (extra `finetuning`).

    The trained model is a `PeftModel`: `estimate_text` takes it with `base=None` and switches the adapter off. It
    shares the frozen weights with a base model that was given as a module: copy it before you merge the adapter.

    Attributes:
        rank: Rank of the adapters, >= 1.
        alpha: The adapters' product is scaled by alpha / rank, > 0.
        target_modules: Ends of the names of the linear layers that get an adapter.
        trained_tokens: Tokens whose embeddings are trained too, such as the new tokens of canaries. They must not
            depend on which canaries were planted.
    """

    packages: ClassVar[Packages] = {"peft": "finetuning", "transformers": "text"}
    rank: int = 8
    alpha: float = 16.0
    target_modules: tuple[str, ...] = ("q_proj", "v_proj")
    trained_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "rank")
        require_positive(self, "alpha")
        require(len(self.target_modules) > 0, "target_modules must name at least one layer")
        require(
            len(set(self.trained_tokens)) == len(self.trained_tokens) and min(self.trained_tokens, default=0) >= 0,
            "trained_tokens must be different numbers >= 0",
        )

    def trainable(self, base: Any, *, device: str) -> Any:
        peft = imported("peft", "finetuning")
        config = peft.LoraConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            r=self.rank,
            lora_alpha=self.alpha,
            target_modules=list(self.target_modules),
            lora_dropout=0.0,
            trainable_token_indices=list(self.trained_tokens) or None,
        )
        model = frozen_copy(base, device=device)
        vocabulary = model.get_input_embeddings().num_embeddings
        require(
            max(self.trained_tokens, default=0) < vocabulary,
            f"trained_tokens must be below the {vocabulary} tokens of the base model",
            do="call resize_token_embeddings on the base model",
            largest=max(self.trained_tokens, default=0),
        )
        try:
            return peft.get_peft_model(model, config)
        except ValueError as err:
            raise InputError(f"target_modules must be linear layers of the base model: {err}") from err
