"""The fine-tuning of a base language model as a mechanism: the base model, and a way to train it on texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from numpy.random import SeedSequence

from dpaudit.claims import Claim, Relation
from dpaudit.language_models.mechanisms.base_models import BaseModel, TinyTransformer
from dpaudit.language_models.mechanisms.fine_tuning.records import Record, TrainingText
from dpaudit.language_models.mechanisms.fine_tuning.settings import BatchListener
from dpaudit.language_models.mechanisms.fine_tuning.trainers import LoraFineTuning, TextTrainer
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Texts
from dpaudit.mechanisms.ranges import require_at_least
from dpaudit.mechanisms.training.private.private_steps import ClaimedSteps, StepCanary
from dpaudit.registry import register

NOMINAL_RECORDS = 1_000
"""Number of records of a claim that is stated before the size of the training data is known."""


@register("mechanism", "fine-tuning", source="the trainer's; Abadi et al. (2016), arXiv:1607.00133, for DP-SGD")
@dataclass(frozen=True, kw_only=True)
class FineTunedModel:
    """A language model that is fine-tuned on private texts, and protects each record as its trainer claims.

    Attributes:
        base: The model before training. `dpaudit list base-models` shows the kinds.
        trainer: The way of training. `dpaudit list text-trainers` shows the kinds.
        max_tokens: Tokens after which training texts and test texts are cut, >= 2.
    """

    base: Any = field(default=TinyTransformer(), metadata={"kind": "base-model"})
    trainer: Any = field(default=LoraFineTuning(), metadata={"kind": "text-trainer"})
    max_tokens: int = 256

    def __post_init__(self) -> None:
        require_at_least(2, self, "max_tokens")

    def claim(self, records: int | None = None) -> Claim:
        """Return the claim about adding or removing one of a public number of records; infinite without privacy.

        Without `records`, it is the point (epsilon, delta) of a training on 1,000 records.
        """
        trainer: TextTrainer = self.trainer
        claim = trainer.claim(NOMINAL_RECORDS if records is None else records)
        if claim is None:
            return Claim(math.inf, relation=Relation.ADD_REMOVE)
        return Claim(claim.epsilon, claim.delta, claim.relation) if records is None else claim

    def fine_tune(
        self,
        base: BaseModel,
        records: Sequence[Record],
        *,
        new_tokens: Sequence[int],
        size: int,
        seed: SeedSequence,
        compute: Compute,
        on_batch: BatchListener | None = None,
    ) -> Any:
        """Return the fine-tuned module.

        Args:
            base: The loaded base model, which stays as it was.
            records: The training data.
            new_tokens: Tokens that were added to the vocabulary, whose embeddings are trained.
            size: Public number of records, from which the sampling rate follows.
            seed: Decides the result, together with the device.
            compute: Threads, device, and a folder for checkpoints.
            on_batch: Receives each batch that is trained on.
        Raises: TrainingError if training fails with this seed.
        """
        trainer = self.trainer
        if new_tokens and any(part.name == "trained_tokens" for part in fields(trainer)):
            trainer = replace(trainer, trained_tokens=tuple(sorted({*trainer.trained_tokens, *new_tokens})))
        return trainer.train(base.module, records, size=size, seed=seed, compute=compute, on_batch=on_batch)

    def default_data(self) -> Mapping[str, Any]:
        return {"name": "made-sentences"}

    @property
    def shows_steps(self) -> bool:
        """True if the trainer has DP-SGD steps with noise."""
        return hasattr(self.trainer, "claimed_steps") and math.isfinite(getattr(self.trainer, "epsilon", 0.0))

    def claimed_steps(self, rows: int) -> ClaimedSteps | None:
        """Return the steps claimed for `rows` texts; None if the trainer has no DP-SGD, or no finite epsilon."""
        steps: ClaimedSteps | None = self.trainer.claimed_steps(rows) if self.shows_steps else None
        return steps

    def show_text_steps(self, train: Texts, canary: StepCanary, *, seed: SeedSequence, compute: Compute) -> None:
        """Fine-tune on the texts with the canary in each step; texts of fewer than two tokens are records without
        loss. A training that diverges shows fewer steps.
        """
        base = self.base.load(device=compute.device)
        longest = longest_text(base, self.max_tokens)
        records = [(text,) for text in training_texts(base, train.texts, longest)]
        records += [(TrainingText((0, 0), (False, False)),)] * (len(train) - len(records))
        with suppress(TrainingError):
            self.trainer.train(base.module, records, size=len(train), seed=seed, compute=compute, canary=canary)

    def without_noise(self) -> FineTunedModel | None:
        """Return the same training with infinite epsilon; None if the trainer has none that is finite."""
        if not math.isfinite(getattr(self.trainer, "epsilon", math.inf)):
            return None
        return replace(self, trainer=replace(self.trainer, epsilon=math.inf))


def longest_text(base: BaseModel, max_tokens: int) -> int:
    """Return the number of tokens after which texts are cut: `max_tokens`, or the positions of the model if fewer."""
    return min(max_tokens, getattr(base.module.config, "max_position_embeddings", max_tokens))


def training_texts(base: BaseModel, texts: Sequence[str], max_tokens: int) -> list[TrainingText]:
    """Return texts as tokens, each cut to `max_tokens`; texts of fewer than two tokens are left out."""
    tokens = base.tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
    return [TrainingText(tuple(row)) for row in tokens if len(row) >= 2]
