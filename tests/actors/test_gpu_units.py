"""Units on a share of a GPU: the limit of their process, data that stay between them, and notes on stacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.actors.backend import Attempt, InProcess, attempt_unit
from dpaudit.actors.storage.store import decode_unit
from dpaudit.actors.unit import Inputs, Resources, Unit
from dpaudit.actors.values import decode
from dpaudit.actors.work import Work, outcome_metadata, unit
from dpaudit.mechanisms import gpu_memory
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel
from dpaudit.mechanisms.training.train import train_stack
from tests.fake_gpu import GPU, FakeGpu, out_of_memory

HALF = Resources(gpus=0.5)


@dataclass(frozen=True)
class Weights:
    """Weights of some models."""

    values: NDArray[np.float32]  # shape (models, P)


@unit
def train_models(examples: Examples, first: int, compute: Compute) -> Weights:
    """Train four models as one stack."""
    seeds = SeedSequence(first).spawn(4)
    tasks = [TrainingTask(np.arange(len(examples)), examples.labels, seed) for seed in seeds]
    plan = StackPlan("batched", 4)
    outcomes = train_stack(Mlp(hidden=(4,), epochs=1), examples.features, tasks, classes=2, compute=compute, plan=plan)
    return Weights(np.stack([outcome.parameters for outcome in outcomes if isinstance(outcome, NetworkModel)]))


def run(units: int, resources: Resources) -> tuple[list[pa.Table], list[Attempt]]:
    """Run units on the same shared examples, one after another in this process."""
    rng, work = np.random.default_rng(0), Work()
    features = rng.normal(size=(40, 3)).astype(np.float32)
    examples = Examples(features, (features[:, 0] > 0).astype(np.int64), 2)
    target = work.share("target:abc", examples)
    backend, tables, attempts = InProcess(work.shared), [], []
    for number in range(units):
        planned = work.add(train_models, target, number, label=f"models {number}", resources=resources)
        backend.submit(planned, (), needed=True)
        (completion,) = backend.wait()
        tables.append(completion.table)
        attempts.append(completion.attempt)
    return tables, attempts


def test_units_share_a_limit_and_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three units set the share once and move the data once; a whole GPU and a CPU give the same numbers."""
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_half, attempts = run(3, HALF)
    assert gpu.limits == [(0.5, "cuda:0")]
    assert gpu.moved == [40 * 3 * 4]
    assert not any(attempt.remarks for attempt in attempts)
    run(1, Resources(gpus=1))
    assert gpu.limits == [(0.5, "cuda:0"), (1.0, "cuda:0")]
    on_cpu, _ = run(3, Resources())
    assert len(gpu.limits) == 2
    for table, other in zip(on_half, on_cpu, strict=True):
        np.testing.assert_array_equal(decode(table, Weights)[0].values, decode(other, Weights)[0].values)


def test_the_note_on_smaller_stacks_is_in_the_unit_s_file(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    gpu.largest_stack = 2
    _, (attempt,) = run(1, Resources(gpus=1))
    assert not attempt.error
    (note,) = outcome_metadata(decode_unit(attempt.content).schema).notes
    assert "stacks of 4 models did not fit in the GPU's memory, so models were trained in stacks of 2" in note


@dataclass(frozen=True)
class FillsTheGpu:
    """Fails as long as data of other units are on the GPU."""

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        if gpu_memory.resident_bytes():
            raise out_of_memory()
        return pa.table({"total": [1]})


def test_a_unit_without_stacks_is_retried_on_an_empty_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch)
    gpu_memory.on_device(np.ones((2, 2), np.float32), GPU, "of an earlier unit")
    planned = Unit(FillsTheGpu(), "fills", resources=Resources(gpus=1))
    failed, _ = attempt_unit(planned, Inputs({}, {}))
    assert failed.retryable
    assert "OutOfMemoryError" in failed.error
    again, _ = attempt_unit(planned, Inputs({}, {}))
    assert not again.error
