"""DP-SGD: protects records by clipping the gradient of each and adding noise to every step.

Each step samples every record with probability q and adds N(0, (m C)^2) to a sum of vectors of norm at most C. This is
the Poisson-subsampled Gaussian mechanism under adding or removing a record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.networks import Mlp, Network, StackTrainer, require_network
from dpaudit.mechanisms.protocols import Learner, Model
from dpaudit.mechanisms.ranges import NoiseByEpsilon, require_delta, require_epsilon
from dpaudit.mechanisms.training.private.private_steps import (
    ACCOUNTANTS,
    ClaimedSteps,
    Observer,
    PrivateSteps,
    StepCanary,
    dp_sgd_noise_multiplier,
)
from dpaudit.mechanisms.training.recipe import StackPlan, TrainingTask, require_one_of
from dpaudit.registry import register

if TYPE_CHECKING:
    from torch import nn

    from dpaudit.mechanisms.training.private.private_stack import PrivateStack
    from dpaudit.mechanisms.training.stack import NetworkModel


@register("mechanism", "dp-sgd", source="Abadi et al. (2016), arXiv:1607.00133; accounting of arXiv:1908.10530")
@dataclass(frozen=True)
class DpSgd(StackTrainer, NoiseByEpsilon):
    """DP-SGD with Poisson sampling and noise calibrated to epsilon.

    A step samples each example with probability `sample_rate`, clips its gradient, adds noise to the sum and divides by
    the model's batch_size, a public constant. The model's epochs are expected passes.

    Attributes:
        epsilon: Privacy loss in nats, > 0; `inf` adds no noise (and still clips).
        delta: In (0, 1).
        clip: Maximum norm of one example's gradient, > 0.
        sample_rate: Probability that a step includes an example, in (0, 1].
        accountant: Calibrates the noise: "rdp", or the tighter "pld". The claim's curve is always the tight one.
        model: The network and its training settings; without standardise, mixup, augment and batch norm.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    sample_rate: float = 0.05
    accountant: str = "rdp"
    model: Network = field(default=Mlp(learning_rate=0.5, momentum=0.0), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)
        self._sampling()
        require_one_of("accountant", self.accountant, ACCOUNTANTS)
        require_network(self.model, of="dp-sgd")

    def claim(self) -> Claim:
        """Claim (epsilon, delta)-DP under adding or removing one record, with the privacy curve of the added noise."""
        if math.isinf(self.epsilon):
            return Claim(self.epsilon, relation=Relation.ADD_REMOVE)
        curve = SubsampledGaussian(self.noise_multiplier(), self.sample_rate, self.steps())
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE, curve)

    def steps(self) -> int:
        return self._sampling().steps(self.model.epochs)

    def noise_multiplier(self) -> float:
        """Return the standard deviation of the noise divided by `clip`: the smallest that keeps to epsilon."""
        steps, accountant = self.steps(), self.accountant
        return dp_sgd_noise_multiplier(
            self.epsilon, sample_rate=self.sample_rate, steps=steps, delta=self.delta, accountant=accountant
        )

    def _sampling(self) -> PrivateSteps:
        """Return the steps without noise; rejects an invalid clip or sampling rate."""
        return PrivateSteps(self.clip, 0.0, self.sample_rate)

    def private_steps(self) -> PrivateSteps:
        return PrivateSteps(self.clip, self.noise_multiplier(), self.sample_rate)

    def claimed_steps(self, rows: int) -> ClaimedSteps:
        return ClaimedSteps(self.private_steps(), self.steps(), float(self.model.batch_size))

    def show_steps(
        self, train: Examples, canary: StepCanary, *, seed: np.random.SeedSequence, compute: Compute
    ) -> None:
        """Train one model together with the canary."""
        task = TrainingTask(np.arange(len(train)), train.labels, seed)
        self.fit_stack(train.features, [task], classes=train.classes, compute=compute, step_canary=canary)

    def watch(
        self, features: Features, tasks: Sequence[TrainingTask], *, classes: int, compute: Compute, observer: Observer
    ) -> Sequence[NetworkModel | TrainingError]:
        return self.fit_stack(features, tasks, classes=classes, compute=compute, observer=observer)

    def initial_network(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the network with torch's initial weights."""
        return self.model.module(shape, classes)

    def stack_type(self) -> type[PrivateStack]:
        from dpaudit.mechanisms.training.private.private_stack import PrivateStack

        return PrivateStack

    def stack_plan(
        self, shape: tuple[int, ...], *, classes: int, models: int, rows: int, compute: Compute
    ) -> StackPlan:
        """Return the plan; stacks are smaller than without privacy, because each example's gradient is in memory."""
        from dpaudit.mechanisms.training.train import private_plan

        return private_plan(self.model, shape, classes=classes, models=models, rows=rows, compute=compute)

    def fit_stack(
        self, features: Features, tasks: Sequence[TrainingTask], **settings: Any
    ) -> list[NetworkModel | TrainingError]:
        """Return a model or its error for each task; `settings` as in `train_private_stack`."""
        from dpaudit.mechanisms.training.private.private_stack import train_private_stack

        steps, stack_class = self.private_steps(), self.stack_type()
        return train_private_stack(self.model, steps, features, tasks, stack_type=stack_class, **settings)


@register("mechanism", "released-model", source="Lu et al. (2022), section 4.1: ClipBKD with more in the summary")
@dataclass(frozen=True)
class ReleasedModel:
    """A learner of networks (`opacus-dp-sgd`, `dp-sgd`, `non-private`), summarised for the game `neighbours`.

    The vector holds all trained weights, and the logits at the points of the poisoning: for `clip-bkd`, the inserted
    point, zero and some rows of the data.

    Attributes:
        learner: The learner, whose claim is audited.
    """

    learner: Learner = field(default=DpSgd(1.0), metadata={"kind": "mechanism"})

    def __post_init__(self) -> None:
        require(isinstance(self.learner, Learner), "learner must train models", learner=type(self.learner).__name__)

    def claim(self) -> Claim:
        return self.learner.claim()

    def without_noise(self) -> ReleasedModel | None:
        """Return the mechanism without noise, or None if the learner has no such version."""
        noiseless = getattr(self.learner, "without_noise", lambda: None)()
        return None if noiseless is None else replace(self, learner=noiseless)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        return self.learner.fit(train, seed=seed, compute=compute, validation=validation)

    def summarise(
        self, train: Examples, points: NDArray[np.float32], *, seed: SeedSequence, compute: Compute
    ) -> NDArray[np.float64]:
        """Return weights and logits, shape (P + m K,). Raises: InputError if the learner trains no network."""
        from dpaudit.mechanisms.training.stack import NetworkModel

        model = self.learner.fit(train, seed=seed, compute=compute)
        require(isinstance(model, NetworkModel), "learner must train a network", model=type(model).__name__)
        assert isinstance(model, NetworkModel)
        return np.concatenate([model.parameters.astype(np.float64), model.logits(points).ravel()])
