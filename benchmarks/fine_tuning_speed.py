"""Speed of fine-tuning with and without privacy: tokens a second of one step, by way of training.

python -m benchmarks.fine_tuning_speed MODEL [DEVICE [TEXTS LENGTH]]

MODEL is a folder of transformers or a GGUF file. Times are processor seconds on a CPU and wall seconds on a GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence

from dpaudit.language_models.mechanisms.fine_tuning.base_model import load_base
from dpaudit.language_models.mechanisms.fine_tuning.full import FullFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.lora import LoraFineTuning
from dpaudit.language_models.mechanisms.fine_tuning.records import Record, TrainingText, make_batch
from dpaudit.language_models.mechanisms.fine_tuning.trainer import FineTuner
from dpaudit.language_models.mechanisms.fine_tuning.training import FineTuning, make_optimizer

WAYS: dict[str, FineTuner] = {
    "adapters of rank 8": LoraFineTuning(epsilon=8.0),
    "adapters and 100 embeddings": LoraFineTuning(epsilon=8.0, trained_tokens=tuple(range(100))),
    "all weights": FullFineTuning(epsilon=8.0),
}


def seconds(work: Callable[[], object], device: str) -> float:
    """Return the time of a call, after one that is not timed."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    work()
    _wait(device)
    begin = clock()
    work()
    _wait(device)
    return clock() - begin


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def step_of_torch(training: FineTuning, optimizer: torch.optim.Optimizer, records: list[Record]) -> None:
    """Run a step with torch's gradient of the whole batch, without hooks."""
    training.loss(make_batch(records, str(training.device))).backward()
    optimizer.step()
    optimizer.zero_grad()


def rates(way: FineTuner, base: Any, records: list[Record], device: str) -> list[float]:
    """Return tokens a second of a plain loop, of the same training without privacy, and of a private one."""
    tokens = sum(len(text.tokens) for record in records for text in record)
    values: list[float] = []
    for epsilon in (np.inf, way.epsilon):
        settings = replace(way, epsilon=epsilon, batch_size=len(records), epochs=100, batch_tokens=tokens)
        training = FineTuning(
            settings, settings.trainable(base, device=device), records, size=len(records), seed=SeedSequence(0)
        )
        if not values:
            optimizer = make_optimizer(settings, list(training.parameters.values()))
            values.append(tokens / seconds(lambda: step_of_torch(training, optimizer, records), device))  # noqa: B023
        values.append(tokens / seconds(lambda: training.step(0), device))  # noqa: B023  # called at once
    return values


def report(model: str, device: str, texts: int, length: int) -> None:
    """Print a table with a row for each way of training."""
    base = load_base(model, device=device)
    rng = np.random.default_rng(0)
    vocabulary = base.get_input_embeddings().num_embeddings
    records = [(TrainingText(tuple(rng.integers(vocabulary, size=length).tolist())),) for _ in range(texts)]
    print("| trained | plain loop, tokens/s | without privacy, tokens/s | private, tokens/s | private / plain |")
    print("| --- | --- | --- | --- | --- |")
    for name, way in WAYS.items():
        plain, recorded, private = rates(way, base, list(records), device)
        print(f"| {name} | {plain:.0f} | {recorded:.0f} | {private:.0f} | {private / plain:.2f} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, path, *others = sys.argv
    chosen_device, chosen_texts, chosen_length = [*others, *["cpu", "16", "32"][len(others) :]]
    report(path, chosen_device, int(chosen_texts), int(chosen_length))
