"""Trainings a second: stacks of small networks against one after another.

Run as a script, or through `run`; CPU seconds of one thread, since wall time depends on the neighbours.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.random import SeedSequence
from torch import nn

from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.protocols import Compute
from dpaudit.mechanisms.training.plan import StackPlan
from dpaudit.mechanisms.training.stack import TrainingTask, train_stack

ROWS = 20_000
MODELS = 64
TRAINER = Mlp(hidden=(64, 64), epochs=1, batch_size=32, learning_rate=0.05)


def run() -> list[tuple[str, float, str]]:
    """Measures and gives (name, figure, unit)."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS, 64)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int64)
    tasks = [TrainingTask(np.arange(ROWS), labels, seed) for seed in SeedSequence(0).spawn(MODELS)]
    plain = seconds(lambda: ordinary_training(features, labels), repeats=2)
    alone = seconds(lambda: stacked(features, tasks[:1], 1), repeats=2)
    together = seconds(lambda: stacked(features, tasks, MODELS), repeats=2) / MODELS
    return [
        ("64-64-64-2 MLP, 20,000 rows, batch 32: torch.nn and torch.optim, one after another", plain, "CPU s a model"),
        ("the same, our engine, one after another", alone, "CPU s a model"),
        ("the same, our engine, a stack of 64", together, "CPU s a model"),
        ("speed-up of the stack over torch.nn and torch.optim", plain / together, "x"),
        ("speed-up of the stack over our engine one after another", alone / together, "x"),
    ]


def stacked(features: np.ndarray, tasks: list[TrainingTask], size: int) -> None:  # type: ignore[type-arg]
    """Trains the tasks in stacks of `size`."""
    train_stack(TRAINER, features, tasks, classes=2, compute=Compute(), plan=StackPlan("batched", size))


def ordinary_training(features: np.ndarray, labels: np.ndarray) -> None:  # type: ignore[type-arg]
    """What everybody writes: a module, an optimiser, a loop over shuffled batches."""
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(module.parameters(), lr=TRAINER.learning_rate, momentum=TRAINER.momentum)
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    for batch in torch.randperm(ROWS).split(TRAINER.batch_size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()


def seconds(work: object, *, repeats: int) -> float:
    """Least CPU time of `work` in seconds, after it ran once."""
    assert callable(work)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    for name, figure, unit in run():
        print(f"{figure:10.3f} {unit:14} {name}")
