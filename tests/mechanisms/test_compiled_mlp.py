"""Compiled training of perceptrons: torch's numbers to rounding, and to the last bit the same in any stack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.training._perceptron_steps import LANES, _tanh, add_product
from dpaudit.mechanisms.training.compiled_mlp import CompiledMlp
from dpaudit.mechanisms.training.kernels import AlibiLoss, BatchedMlp, CrossEntropy
from dpaudit.mechanisms.training.private.private_stack import train_private_stack
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel, make_kernel
from dpaudit.mechanisms.training.train import train_stack

DATA = load_digits()
DIGITS = (DATA.data / 16).astype(np.float32)
LABELS = DATA.target.astype(np.int64)
CLOSE = {"rtol": 0, "atol": 2e-5}
"""Weights are of size 0.1 to 1 and move by 100 steps: float32 rounding, a thousandth of what a defect of 1 % moves."""


def tasks_of(models: int, *, rows: int = 150) -> list[TrainingTask]:
    """Rows, their number and the kind of labels differ from model to model."""
    rng = np.random.default_rng(3)
    tasks = []
    for model, seed in enumerate(SeedSequence(11).spawn(models)):
        subset = np.sort(rng.choice(len(LABELS), rows - 7 * model, replace=False))
        tasks.append(TrainingTask(subset, LABELS[subset], seed))
    return tasks


def softened(tasks: list[TrainingTask]) -> list[TrainingTask]:
    """Return the tasks with a probability for each class as label."""
    rng = np.random.default_rng(5)
    return [
        TrainingTask(
            task.rows,
            rng.dirichlet(np.ones(10), len(task.rows)).astype(np.float32),
            task.seed,
        )
        for task in tasks
    ]


def weights(outcomes: list[Any]) -> NDArray[np.float32]:
    assert all(isinstance(outcome, NetworkModel) for outcome in outcomes)
    return np.stack([outcome.parameters for outcome in outcomes])


def plain(trainer: Mlp, tasks: list[TrainingTask], *, threads: int = 1, size: int | None = None) -> NDArray[np.float32]:
    plan, compute = StackPlan("batched", size or len(tasks)), Compute(threads=threads)
    return weights(train_stack(trainer, DIGITS[:, : 64 - 3], tasks, classes=10, compute=compute, plan=plan))


def by_alibi(
    trainer: Mlp, tasks: list[TrainingTask], *, threads: int = 1, size: int | None = None
) -> NDArray[np.float32]:
    """Train on log-likelihoods of noisy labels, from uninformative to certain."""
    rng, noisy = np.random.default_rng(6), []
    for task in tasks:
        evidence = rng.exponential(1.0, (len(task.rows), 10)) * rng.choice([0.1, 3.0, 60.0], (len(task.rows), 1))
        noisy.append(replace(task, labels=-evidence.astype(np.float32)))
    plan, compute = StackPlan("batched", size or len(tasks)), Compute(threads=threads)
    return weights(train_stack(trainer, DIGITS, noisy, classes=10, compute=compute, plan=plan, loss=AlibiLoss()))


def private(
    trainer: Mlp, tasks: list[TrainingTask], *, threads: int = 1, size: int | None = None
) -> NDArray[np.float32]:
    """Most gradients are longer than the clip, some are not."""
    steps = PrivateSteps(clip=1.5, noise_multiplier=0.3, sample_rate=0.1)
    plan = StackPlan("batched", size or len(tasks))
    compute = Compute(threads=threads)
    return weights(train_private_stack(trainer, steps, DIGITS, tasks, classes=10, compute=compute, plan=plan))


@pytest.fixture
def through_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that trains without compiled code."""

    def train(training: Any, *arguments: Any) -> NDArray[np.float32]:
        with monkeypatch.context() as patch:
            patch.setattr(CompiledMlp, "fits", lambda *_: False)
            patch.setattr(CompiledMlp, "train_epoch", None)
            patch.setattr(CompiledMlp, "clipped_sums", None)
            return np.asarray(training(*arguments))

    return train


PLAIN = Mlp(epochs=6, batch_size=20, learning_rate=0.05)
TRAINERS = [
    PLAIN,
    replace(PLAIN, hidden=(), momentum=0.0),
    replace(PLAIN, hidden=(33,), activation="tanh", nesterov=True, weight_decay=1e-3, batch_size=17),
    replace(PLAIN, hidden=(40, 24, 17), schedule="cosine", standardise=True),
    replace(PLAIN, hidden=(24,), optimizer="adam", learning_rate=1e-3, activation="tanh", weight_decay=1e-3),
]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_training_is_torchs_to_rounding(trainer: Mlp, through_torch: Any) -> None:
    tasks = tasks_of(3)
    for labelled in (tasks, softened(tasks)):
        np.testing.assert_allclose(plain(trainer, labelled), through_torch(plain, trainer, labelled), **CLOSE)


@pytest.mark.parametrize("trainer", [TRAINERS[0], TRAINERS[2]])
def test_a_training_by_alibis_loss_is_torchs_to_rounding(trainer: Mlp, through_torch: Any) -> None:
    tasks = tasks_of(3)
    np.testing.assert_allclose(by_alibi(trainer, tasks), through_torch(by_alibi, trainer, tasks), **CLOSE)


@pytest.mark.parametrize("trainer", [replace(trainer, standardise=False) for trainer in TRAINERS])
def test_a_private_training_is_torchs_to_rounding(trainer: Mlp, through_torch: Any) -> None:
    tasks = tasks_of(3)
    np.testing.assert_allclose(private(trainer, tasks), through_torch(private, trainer, tasks), **CLOSE)


def test_the_comparison_sees_a_clip_and_a_rate_that_are_off_by_a_hundredth(
    through_torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(2)
    expected = through_torch(plain, PLAIN, tasks), through_torch(private, PLAIN, tasks)
    honest_epoch, honest_sums = CompiledMlp.train_epoch, CompiledMlp.clipped_sums

    def faster(self: CompiledMlp, *arguments: Any, rates: NDArray[np.float32], **named: Any) -> float:
        return honest_epoch(self, *arguments, rates=rates * np.float32(1.01), **named)

    def looser(self: CompiledMlp, *arguments: Any) -> None:
        *first, clip, out = arguments
        honest_sums(self, *first, 1.01 * clip, out)

    monkeypatch.setattr(CompiledMlp, "train_epoch", faster)
    monkeypatch.setattr(CompiledMlp, "clipped_sums", looser)
    for off, right in zip((plain(PLAIN, tasks), private(PLAIN, tasks)), expected, strict=True):
        assert np.abs(off - right).max() > 50 * CLOSE["atol"]


@pytest.mark.parametrize("training", [plain, private])
@pytest.mark.parametrize("trainer", [PLAIN, replace(PLAIN, optimizer="adam", activation="tanh", hidden=(33,))])
def test_a_models_numbers_are_the_same_to_the_last_bit_in_any_stack_and_on_any_threads(
    training: Any, trainer: Mlp
) -> None:
    tasks = tasks_of(7)
    together = training(trainer, tasks)
    np.testing.assert_array_equal(training(trainer, tasks, threads=2), together)
    np.testing.assert_array_equal(training(trainer, tasks, size=1), together)
    np.testing.assert_array_equal(training(trainer, tasks[::-1], size=3)[::-1], together)


@dataclass(frozen=True)
class Summed:
    """A custom loss."""

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (logits * targets).sum(-1)


def test_other_losses_devices_and_networks_use_other_kernels() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    small, wide, smooth = (
        trainer.meta_module((64,), 10) for trainer in (PLAIN, Mlp(hidden=(2048, 512)), Mlp(activation="gelu"))
    )
    assert isinstance(
        make_kernel(PLAIN, small, loss=CrossEntropy(), plan=StackPlan("batched"), device=cpu), CompiledMlp
    )
    assert not CompiledMlp.fits(BatchedMlp, small, Summed(), cpu)
    assert not CompiledMlp.fits(BatchedMlp, small, CrossEntropy(), cuda)
    assert not CompiledMlp.fits(BatchedMlp, wide, CrossEntropy(), cpu)
    assert Mlp(activation="gelu").batched_kernel(smooth) is None


@pytest.mark.parametrize(("rows", "depth", "width"), [(8, 5, 32), (11, 64, 64), (1, 3, 96), (27, 1, 160), (3, 0, 32)])
def test_products_are_numpys(rows: int, depth: int, width: int) -> None:
    """Both ways to read S; each sum of `depth` products of numbers below 1 is off by depth / 2^24 at most."""
    rng = np.random.default_rng(0)
    s, v = rng.random((rows, depth), np.float32), rng.random((depth, width), np.float32)
    expected = 1 + s.astype(np.float64) @ v.astype(np.float64)
    for strides, flat in (((depth, 1), s.ravel()), ((1, rows), np.ascontiguousarray(s.T).ravel())):
        c = np.ones((rows + 1, width + LANES), np.float32)
        add_product(c, flat, *strides, v, rows, depth, width)
        np.testing.assert_allclose(c[:rows, :width], expected, atol=(depth + 1) ** 2 * 2**-24)
        assert (c[rows] == 1).all()
        assert (c[:, width:] == 1).all()


def test_tanh_is_tanh() -> None:
    values = np.concatenate([np.linspace(-12, 12, 4001), np.logspace(-30, 0, 100)]).astype(np.float32)
    ours = np.array([_tanh(value) for value in values], np.float64)
    np.testing.assert_allclose(ours, np.tanh(values.astype(np.float64)), rtol=5e-7)
    assert np.isnan(_tanh(np.float32("nan")))
