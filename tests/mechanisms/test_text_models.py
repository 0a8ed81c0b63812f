"""Text networks: the batched kernel against autograd, stacks against single trainings, rejected inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.models.architectures import BatchedBag
from dpaudit.mechanisms.models.networks import BagOfEmbeddings, SmallTransformer, TextNetwork
from dpaudit.mechanisms.protocols import Trainer
from dpaudit.mechanisms.training.kernels import CrossEntropy, Vmapped, draw_weights, layout_of
from dpaudit.mechanisms.training.private.private_stack import train_private_stack
from dpaudit.mechanisms.training.private.private_steps import PrivateSteps
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel, stack_logits
from dpaudit.mechanisms.training.train import single_plan, train_stack

CPU = Compute()
VOCABULARY, LENGTH, CLASSES = 40, 7, 3
BAG = BagOfEmbeddings(vocabulary=VOCABULARY, width=5, epochs=2, batch_size=8, learning_rate=0.5)
TRANSFORMER = SmallTransformer(
    vocabulary=VOCABULARY, width=8, heads=2, layers=1, epochs=2, batch_size=8, learning_rate=0.05
)
networks = pytest.mark.parametrize("network", [BAG, TRANSFORMER], ids=lambda network: network.registered_name)


def texts(rows: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Texts of 0 to 6 words, small numbers often repeated; the label follows from the words."""
    rng = np.random.default_rng(seed)
    words = rng.integers(1, VOCABULARY, (rows, LENGTH))
    words[:, 1] = words[:, 0]
    words[np.arange(LENGTH) >= rng.integers(0, LENGTH, rows)[:, None]] = 0
    labels = (np.where(words > 0, words, 0).sum(1) // 20) % CLASSES
    return words.astype(np.float32), labels.astype(np.int64)


FEATURES, LABELS = texts(60)


def tasks_of(models: int) -> list[TrainingTask]:
    return [
        TrainingTask(np.arange(k, 50 - k), LABELS[k : 50 - k], seed)
        for k, seed in enumerate(SeedSequence(3).spawn(models))
    ]


def weights(outcomes: object) -> NDArray[np.float32]:
    assert isinstance(outcomes, list)
    assert all(isinstance(outcome, NetworkModel) for outcome in outcomes)
    return np.stack([outcome.parameters for outcome in outcomes])


def stacked(models: int, network: TextNetwork) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A module, and the parameters, inputs and targets of a stack of it."""
    module = network.module((LENGTH,), CLASSES)
    parameters = torch.stack([draw_weights(module, torch.Generator().manual_seed(seed)) for seed in range(models)])
    rows = torch.from_numpy(np.random.default_rng(1).integers(0, len(LABELS), (models, 9)))
    targets = torch.eye(CLASSES)[torch.from_numpy(LABELS)[rows]]
    return module, parameters, torch.from_numpy(FEATURES)[rows], targets


def test_the_batched_kernel_is_autograd() -> None:
    """Sums of fewer than 100 float32 terms of size at most 1: rounding far below 1e-5."""
    module, parameters, inputs, targets = stacked(4, BAG)
    ours, twin = BatchedBag(module, loss=CrossEntropy()), Vmapped(module, loss=CrossEntropy())
    torch.testing.assert_close(ours.logits(parameters, inputs), twin.logits(parameters, inputs), rtol=0, atol=1e-5)
    coefficients = torch.rand(inputs.shape[:2], generator=torch.Generator().manual_seed(0))
    gradient, expected = torch.full_like(parameters, 7.0), torch.zeros_like(parameters)
    losses = ours.gradient(parameters, inputs, targets, coefficients, gradient)
    torch.testing.assert_close(losses, twin.gradient(parameters, inputs, targets, coefficients, expected))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("clip", [0.05, 0.5, 50.0])
def test_the_batched_kernel_clips_each_text(clip: float) -> None:
    """Repeated words count as one vector: a norm over places would be smaller than the true one."""
    module, parameters, inputs, targets = stacked(4, BAG)
    present = (torch.arange(9) < 7).float().expand(4, 9)
    gradient, expected = torch.full_like(parameters, 7.0), torch.zeros_like(parameters)
    BatchedBag(module, loss=CrossEntropy()).clipped_gradient(parameters, inputs, targets, present, clip, gradient)
    Vmapped(module, loss=CrossEntropy()).clipped_gradient(parameters, inputs, targets, present, clip, expected)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5)


def test_a_bag_is_stacked_and_a_transformer_is_not() -> None:
    assert single_plan(BAG, (LENGTH,), CLASSES).method == "batched"
    assert single_plan(TRANSFORMER, (LENGTH,), CLASSES).method == "looped"


@networks
def test_a_stack_is_many_trainings(network: TextNetwork) -> None:
    """Some ten float32 steps, summed in another order."""
    method = "batched" if network is BAG else "vmapped"
    tasks = tasks_of(3)

    def trained(plan: StackPlan) -> NDArray[np.float32]:
        return weights(train_stack(network, FEATURES, tasks, classes=CLASSES, compute=CPU, plan=plan))

    together, alone = trained(StackPlan(method, 3)), trained(StackPlan("looped"))
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 0.01


@networks
def test_dp_sgd_is_the_same_by_either_kernel(network: TextNetwork) -> None:
    steps = PrivateSteps(clip=0.3, noise_multiplier=0.5, sample_rate=0.3)

    def trained(plan: StackPlan | None) -> NDArray[np.float32]:
        return weights(
            train_private_stack(network, steps, FEATURES, tasks_of(2), classes=CLASSES, compute=CPU, plan=plan)
        )

    np.testing.assert_allclose(trained(None), trained(StackPlan("vmapped", 2)), rtol=0, atol=1e-5)


@networks
def test_padding_changes_nothing(network: TextNetwork) -> None:
    """Longer rows hold the same texts; the position embeddings of the padding keep their initial values."""
    module = network.module((LENGTH,), CLASSES)
    nn.utils.vector_to_parameters(draw_weights(module, torch.Generator().manual_seed(0)), module.parameters())
    short = torch.from_numpy(FEATURES[:, : LENGTH - 1])  # the last place is never filled
    with torch.no_grad():
        torch.testing.assert_close(module(short), module(torch.from_numpy(FEATURES)), rtol=0, atol=1e-6)
        assert torch.isfinite(module(torch.zeros(2, LENGTH))).all()


@networks
def test_text_networks_learn(network: TextNetwork) -> None:
    """A single word determines the label; training is not private."""
    rng = np.random.default_rng(5)
    words, labels = rng.integers(3, VOCABULARY, (300, LENGTH)), rng.integers(0, 2, 300)
    words[np.arange(300), rng.integers(0, LENGTH, 300)] = 1 + labels
    data = Examples(words.astype(np.float32), labels, 2)
    assert isinstance(network, Trainer)
    trainer = replace(network, epochs=25, optimizer="adam", learning_rate=0.03)
    model = trainer.fit(data.take(np.arange(200)), seed=SeedSequence(0), compute=CPU)
    guesses = model.probabilities(data.features).argmax(1)
    assert (guesses == labels)[200:].mean() > 0.9


def test_dp_sgd_trains_a_bag() -> None:
    learner = DpSgd(8.0, sample_rate=0.2, model=replace(BAG, momentum=0.0))
    model = learner.fit(Examples(FEATURES, LABELS, CLASSES), seed=SeedSequence(0), compute=CPU)
    np.testing.assert_allclose(model.probabilities(FEATURES).sum(1), 1)


def test_many_models_predict_together() -> None:
    models = [
        model
        for model in train_stack(BAG, FEATURES, tasks_of(3), classes=CLASSES, compute=CPU)
        if isinstance(model, NetworkModel)
    ]
    together = stack_logits(models, FEATURES, compute=CPU)
    np.testing.assert_allclose(together, [model.logits(FEATURES) for model in models], atol=1e-5)


def test_first_vectors_have_a_norm_of_about_one() -> None:
    """False failure < 1e-6: the mean of 4,000 squares of variance 2 / 1000^2, within 6 deviations."""
    network = BagOfEmbeddings(vocabulary=4, width=1000)
    module = network.module((LENGTH,), CLASSES)
    table = layout_of(module).views(draw_weights(module, torch.Generator().manual_seed(0)))["embedding.weight"]
    assert abs(float((table**2).sum()) / 4 - 1) < 6 * np.sqrt(2 / 4000)


def test_invalid_word_numbers_are_rejected() -> None:
    data = Examples(FEATURES, LABELS, CLASSES)
    with pytest.raises(InputError, match=r"word numbers must be integers in 0\.\.9, got .*highest = 39"):
        replace(BAG, vocabulary=10).fit(data, seed=SeedSequence(0), compute=CPU)
    with pytest.raises(InputError, match="word numbers must be integers"):
        BAG.fit(data.with_(features=FEATURES + np.float32(0.5)), seed=SeedSequence(0), compute=CPU)
    images = data.with_(features=np.zeros((60, 1, 8, 8), np.float32))
    with pytest.raises(InputError, match="a text network takes word numbers of shape"):
        BAG.fit(images, seed=SeedSequence(0), compute=CPU)
    with pytest.raises(InputError, match="word numbers cannot be scaled, mixed or augmented"):
        BagOfEmbeddings(standardise=True)
    with pytest.raises(InputError, match="width must be a multiple of heads"):
        SmallTransformer(width=5, heads=2)
