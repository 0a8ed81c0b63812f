"""Training on released proportions: gradients against autograd, unbiased targets, independence of the stack."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from torch import Tensor

from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.networks import Mlp, SmallCnn
from dpaudit.mechanisms.training.bag_stack import BagTask, bag_cross_entropy, train_on_bags

SMALL = Mlp(hidden=(4,), epochs=3, batch_size=12, optimizer="adam", standardise=True)


def slow(logits: Tensor, shares: Tensor, targets: Tensor) -> Tensor:
    mean = (torch.softmax(logits, -1) * shares[..., None]).sum(2)
    return -(targets * mean.log()).sum(-1)


def test_the_gradient_agrees_with_autograd() -> None:
    """Compare with autograd in float64; includes targets outside [0, 1] and a bag with an empty position."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    shares = torch.full((2, 3, 4), 0.25, dtype=torch.float64)
    shares[0, 0] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    targets = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    targets = targets / targets.sum(-1, keepdim=True)
    (expected,) = torch.autograd.grad(slow(logits, shares, targets).sum(), logits)
    losses, slope = bag_cross_entropy(logits.detach(), shares, targets)
    assert losses.numpy() == pytest.approx(slow(logits, shares, targets).detach().numpy())
    assert slope.numpy() == pytest.approx(expected.numpy(), abs=1e-12)


def test_the_unbiased_loss_has_the_true_mean() -> None:
    """Mean over the exact law of the released label, for every true label."""
    mechanism = RandomizedResponse(0.7)
    logits = torch.randn(1, 1, 1, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    share = torch.ones(1, 1, 1, dtype=torch.float64)
    targets = torch.from_numpy(mechanism.targets(np.eye(3)))
    by_release = torch.cat([bag_cross_entropy(logits, share, target[None, None])[0] for target in targets])[:, 0]
    by_label = -torch.log_softmax(logits[0, 0, 0], -1)
    assert mechanism.transition(3) @ by_release.numpy() == pytest.approx(by_label.numpy())


def tasks(count: int) -> tuple[np.ndarray, list[BagTask]]:  # type: ignore[type-arg]
    rng = np.random.default_rng(2)
    features = rng.standard_normal((24, 5)).astype(np.float32)
    bag_tasks = []
    for number in range(count):
        rows = np.random.default_rng(number).permutation(24).reshape(8, 3)
        positive = (features[rows, 0] > 0).mean(axis=1)
        targets = np.stack([1 - positive, positive], axis=1).astype(np.float32)
        shares = np.full((8, 3), 1 / 3, np.float32)
        bag_tasks.append(BagTask(rows, shares, targets, 0.01 * (number + 1), SeedSequence(number)))
    return features, bag_tasks


def test_a_model_does_not_depend_on_its_stack() -> None:
    features, three = tasks(3)
    together = train_on_bags(SMALL, features, three, classes=2, compute=Compute())
    alone = train_on_bags(SMALL, features, three[1:2], classes=2, compute=Compute())[0]
    assert together[1].parameters == pytest.approx(alone.parameters, rel=1e-4, abs=1e-6)  # type: ignore[union-attr]
    assert not np.allclose(together[0].parameters, together[1].parameters)  # type: ignore[union-attr]


def test_a_failed_training_does_not_stop_the_others() -> None:
    features, two = tasks(2)
    wild = BagTask(two[0].rows, two[0].shares, np.full((8, 2), np.nan, np.float32), 0.1, SeedSequence(0))
    failed, trained = train_on_bags(SMALL, features, [wild, two[1]], classes=2, compute=Compute())
    assert isinstance(failed, TrainingError)
    assert np.isfinite(trained.probabilities(features)).all()  # type: ignore[union-attr]


def test_only_perceptrons_match_proportions() -> None:
    _, single = tasks(1)
    with pytest.raises(InputError, match="needs a perceptron"):
        train_on_bags(SmallCnn(), np.zeros((24, 1, 8, 8), np.float32), single, classes=2, compute=Compute())
