"""ALIBI: loss compared with a separate posterior, noise and claim; and redrawn label noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from sklearn.datasets import load_digits

from dpaudit.errors import InputError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.models.networks import Mlp
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import Learner
from dpaudit.mechanisms.training.kernels import AlibiLoss
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask
from dpaudit.mechanisms.training.stack import NetworkModel
from tests.bank.planted_learners import AlibiSigmaForB, RedrawnNoise

CPU = Compute()
DATA = load_digits()
DIGITS = Examples((DATA.data / 16).astype(np.float32), DATA.target.astype(np.int64), 10, "digits")
MLP = Mlp(epochs=8, batch_size=32, learning_rate=0.05, schedule="warmup-fifths")


def test_loss_is_cross_entropy_with_the_posterior_and_no_gradient_through_it() -> None:
    rng = np.random.default_rng(0)
    observed, logits = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    release = OneHotLaplace(1.5)
    shifted = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    posterior = release.posterior(observed, shifted)
    leaf = torch.tensor(logits, requires_grad=True)
    losses = AlibiLoss()(leaf, torch.tensor(release.evidence(observed)))
    np.testing.assert_allclose(losses.detach().numpy(), -(posterior * shifted).sum(1), rtol=1e-6)
    losses.sum().backward()
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), np.exp(shifted) - posterior, atol=1e-6)


def test_noise_has_the_scale_of_the_claim() -> None:
    """Standard deviation 2 sqrt(2) / eps; that of 10^6 Laplace draws is within 0.6 % of it except once in 10^6."""
    learner = Alibi(0.5)
    rng = np.random.default_rng(0)
    noise = learner.labels().observe(np.zeros(100_000, np.int64), classes=10, rng=rng) - np.eye(10)[0]
    assert noise.std() == pytest.approx(2 * math.sqrt(2) / 0.5, rel=0.006)
    assert learner.labels().scale() == 2 / 0.5
    assert AlibiSigmaForB(0.5).labels().scale() == pytest.approx(2 / 0.5 / math.sqrt(2))
    assert AlibiSigmaForB(0.5).claim() == learner.claim()


def accuracy(epsilon: float) -> float:
    learner = Alibi(epsilon, MLP)
    assert isinstance(learner, Learner)
    assert learner.claim().epsilon == epsilon
    model = learner.fit(DIGITS.take(np.arange(1300)), seed=SeedSequence(0), compute=CPU)
    test = DIGITS.take(np.arange(1300, 1797))
    return float((model.probabilities(test.features).argmax(1) == test.labels).mean())


def test_it_learns_and_privacy_costs_accuracy() -> None:
    """497 test images: 3 standard errors are 0.07 at most, and 0.04 around chance."""
    loose, middle, tight = (accuracy(epsilon) for epsilon in (20.0, 4.0, 0.05))
    assert loose > 0.85
    assert loose - 0.07 > middle > tight + 0.07
    assert tight < 0.3  # next to nothing is known of the labels


def test_almost_no_privacy_is_almost_ordinary_training() -> None:
    """eps = 1000: the evidence is +-500 and the posterior the label itself, so the losses are those of plain labels."""
    labels = DIGITS.labels[:50]
    rng = np.random.default_rng(0)
    observed = Alibi(1000.0).labels().observe(labels, classes=10, rng=rng)
    logits = torch.zeros(50, 10, dtype=torch.float64)
    losses = AlibiLoss()(logits, torch.tensor(OneHotLaplace(1000.0).evidence(observed)))
    np.testing.assert_allclose(losses.numpy(), math.log(10), rtol=1e-6)


def tasks(models: int) -> list[TrainingTask]:
    rows = np.arange(200)
    return [TrainingTask(rows, DIGITS.labels[:200], seed) for seed in SeedSequence(3).spawn(models)]


@pytest.mark.parametrize("learner", [Alibi(2.0, MLP), RedrawnNoise(2.0, MLP)])
def test_stacks_give_each_model_its_own_labels_and_numbers(learner: Alibi | RedrawnNoise) -> None:
    plan = StackPlan("batched", 5)
    together = learner.fit_stack(DIGITS.features, tasks(5), classes=10, compute=CPU, plan=plan)
    alone = [learner.fit_stack(DIGITS.features, [task], classes=10, compute=CPU)[0] for task in tasks(5)]
    for stacked, other in zip(together, alone, strict=True):
        assert isinstance(stacked, NetworkModel)
        assert isinstance(other, NetworkModel)
        np.testing.assert_allclose(stacked.parameters, other.parameters, atol=1e-4)
    assert isinstance(together[0], NetworkModel)
    assert isinstance(together[1], NetworkModel)
    assert np.abs(together[0].parameters - together[1].parameters).max() > 0.01
    again = learner.fit(DIGITS.take(np.arange(200)), seed=tasks(1)[0].seed, compute=CPU)
    assert isinstance(again, NetworkModel)
    np.testing.assert_array_equal(again.parameters, alone[0].parameters)  # type: ignore[union-attr]


def test_redrawn_noise_averages_out() -> None:
    """At eps = 1.5 of 10 classes a label survives in 1 of 3 epochs; fresh draws let the model see the true one."""
    train = DIGITS.take(np.arange(600))
    model = Mlp(epochs=40, batch_size=32, learning_rate=0.02)
    fitted = RedrawnNoise(1.5, model).fit(train, seed=SeedSequence(0), compute=CPU)
    assert (fitted.probabilities(train.features).argmax(1) == train.labels).mean() > 0.85


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="epsilon must be > 0 and finite"):
        Alibi(math.inf)
    with pytest.raises(InputError, match="must be a network"):
        Alibi(1.0, CatBoost())  # type: ignore[arg-type]
