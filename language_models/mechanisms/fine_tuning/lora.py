"""Fine-tuning of low-rank adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dpaudit.errors import InputError, require
from dpaudit.language_models.mechanisms.fine_tuning.base_model import frozen_copy
from dpaudit.language_models.mechanisms.fine_tuning.trainer import FineTuner
from dpaudit.mechanisms.ranges import require_at_least, require_positive
from dpaudit.packages import Packages, imported
from dpaudit.registry import register


@dataclass(frozen=True, kw_only=True)
class LoraSettings(FineTuner):
    """Adapters of PEFT on frozen weights, with some rows of the embeddings (extra `finetuning`).

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


@register("text-trainer", "lora", source="Hu et al. (2021), arXiv:2106.09685; Yu et al. (2021), arXiv:2110.06500; peft")
@dataclass(frozen=True, kw_only=True)
class LoraFineTuning(LoraSettings):
    """Fine-tunes low-rank adapters of a causal language model by DP-SGD, or without privacy."""
