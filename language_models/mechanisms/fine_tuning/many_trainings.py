"""Many trainings of one base model, of which only the log-probabilities of some texts are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpaudit.language_models.mechanisms.fine_tuning.adapter_stack import AdapterTask, TrainedAdapter, train_adapters
from dpaudit.language_models.mechanisms.fine_tuning.adapter_statistics import adapter_statistics
from dpaudit.language_models.mechanisms.fine_tuning.lora import LoraSettings
from dpaudit.language_models.mechanisms.fine_tuning.records import Record
from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning
from dpaudit.language_models.mechanisms.token_statistics import TokenSpan, TokenStatistics
from dpaudit.mechanisms.compute import Compute, TrainingError


def is_stackable(trainer: Any) -> bool:
    """True if a stack of adapters gives the same numbers as trainings one by one.

    That is LoRA without trained tokens whose steps are our own: code that overrides them must run as it is.
    """
    is_lora = isinstance(trainer, LoraSettings) and not trainer.trained_tokens
    return is_lora and type(trainer).train is LoraSettings.train and trainer.training_type() is FineTuning


def statistics_of_stack(
    trainer: LoraSettings,
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
