"""Trainings per second: stacks of small networks against sequential trainings.

CPU seconds of one thread, because wall time depends on other processes.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from benchmarks import Measured, least_seconds
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.training.private.private_stack import train_private_stack
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.train import train_stack

ROWS = 20_000
MODELS = 64
cpu_seconds = partial(least_seconds, clock=time.process_time)
TRAINER = Mlp(hidden=(64, 64), epochs=1, batch_size=32, learning_rate=0.05)


def run() -> list[Measured]:
    """Return (name, figure, unit) of each measurement."""
    torch.set_num_threads(1)
    return [*perceptrons(), *shadow_models()]


def perceptrons() -> list[Measured]:
    """Measure 64 perceptrons on 20,000 rows, the figure with a stated goal."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS, 64)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int64)
    tasks = [TrainingTask(np.arange(ROWS), labels, seed) for seed in SeedSequence(0).spawn(MODELS)]
    plain = cpu_seconds(lambda: ordinary_training(features, labels), 2)
    alone = cpu_seconds(lambda: stacked(features, tasks[:1], 1), 2)
    together = cpu_seconds(lambda: stacked(features, tasks, MODELS), 2) / MODELS
    return [
        ("64-64-64-2 MLP, 20,000 rows, batch 32: torch.nn and torch.optim, one after another", plain, "CPU s a model"),
        ("the same, our engine, one after another", alone, "CPU s a model"),
        ("the same, our engine, a stack of 64", together, "CPU s a model"),
        ("speed-up of the stack over torch.nn and torch.optim", plain / together, "x"),
        ("speed-up of the stack over our engine one after another", alone / together, "x"),
    ]


def shadow_models() -> list[Measured]:
    """Measure shadow models of digits on random halves, ordinary and by DP-SGD."""
    data = load_digits()
    features, labels = (data.data / 16).astype(np.float32), data.target.astype(np.int64)
    rng = np.random.default_rng(0)
    halves = [np.sort(rng.permutation(len(labels))[: len(labels) // 2]) for _ in range(MODELS)]
    seeds = SeedSequence(0).spawn(MODELS)
    tasks = [TrainingTask(half, labels[half], seed) for half, seed in zip(halves, seeds, strict=True)]
    trainer = Mlp(epochs=20, batch_size=32, learning_rate=0.05)
    plan = StackPlan("batched", MODELS)

    def ordinary() -> None:
        train_stack(trainer, features, tasks, classes=10, compute=Compute(), plan=plan)

    def private() -> None:
        steps = PrivateSteps(clip=1.0, noise_multiplier=1.0, sample_rate=32 / 898)
        train_private_stack(trainer, steps, features, tasks, classes=10, compute=Compute(), plan=plan)

    title = "64-64-64-10 MLP on half of digits, 20 epochs, batch 32, a stack of 64"
    return [
        (title, cpu_seconds(ordinary, 2) / MODELS, "CPU s a model"),
        (f"{title}, DP-SGD", cpu_seconds(private, 1) / MODELS, "CPU s a model"),
    ]


def stacked(features: NDArray[np.float32], tasks: list[TrainingTask], size: int) -> None:
    """Train the tasks in stacks of `size`."""
    train_stack(TRAINER, features, tasks, classes=2, compute=Compute(), plan=StackPlan("batched", size))


def ordinary_training(features: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
    """Train in the usual way: a module, an optimiser, a loop over shuffled batches."""
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(module.parameters(), lr=TRAINER.learning_rate, momentum=TRAINER.momentum)
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    for batch in torch.randperm(ROWS).split(TRAINER.batch_size):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()
