"""ALIBI: Laplace noise on one-hot labels, and training on their posterior under the current model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import spawned
from dpaudit.mechanisms.labels.randomized_response import OneHotLaplace
from dpaudit.mechanisms.models.networks import Network, SmallCnn, StackTrainer, require_network
from dpaudit.mechanisms.ranges import require_finite_epsilon
from dpaudit.mechanisms.training.recipe import TrainingTask
from dpaudit.registry import register

if TYPE_CHECKING:
    from dpaudit.mechanisms.training.kernels import Loss


@register("mechanism", "alibi", source="Malek et al. (2021), arXiv:2106.03408, ALIBI")
@dataclass(frozen=True)
class Alibi(StackTrainer):
    """Adds Laplace noise to one-hot labels once, then trains on their posterior under the model's prediction.

    The noise has scale b = 2 / eps, standard deviation 2 sqrt(2) / eps. In each step the current prediction for an
    example is the prior of its label. Everything after the noise is post-processing.

    Attributes:
        epsilon: Privacy loss in nats, > 0 and finite.
        model: The network and its training settings.
    """

    epsilon: float
    model: Network = field(
        default=SmallCnn(nesterov=True, weight_decay=1e-4, batch_size=128, schedule="warmup-fifths"),
        metadata={"kind": "model"},
    )

    def __post_init__(self) -> None:
        require_finite_epsilon(self.epsilon)
        require_network(self.model, of="alibi")

    def claim(self) -> Claim:
        return self.labels().claim()

    def labels(self) -> OneHotLaplace:
        return OneHotLaplace(self.epsilon)

    def loss(self) -> Loss:
        from dpaudit.mechanisms.training.kernels import AlibiLoss

        return AlibiLoss()

    def release_task(self, task: TrainingTask, classes: int) -> TrainingTask:
        """Return the task with labels replaced by the log-likelihoods of noisy one-hot labels."""
        noise, training = spawned(task.seed, 2)
        mechanism = self.labels()
        true = np.asarray(task.labels, np.int64)
        observed = mechanism.observe(true, classes=classes, rng=np.random.default_rng(noise))
        evidence = mechanism.evidence(observed).astype(np.float32)
        return replace(task, labels=evidence, seed=training)
