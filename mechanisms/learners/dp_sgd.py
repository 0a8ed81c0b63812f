"""DP-SGD: records are protected by clipping each one's gradient and adding noise to every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim, Relation
from dpaudit.errors import require
from dpaudit.mechanisms.accounting.subsampled_gaussian import ACCOUNTANTS, dp_sgd_epsilon, dp_sgd_noise_multiplier
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.networks import Mlp, Network, one_of, stack_of_one
from dpaudit.mechanisms.protocols import Compute, Model, TrainingError
from dpaudit.registry import register

if TYPE_CHECKING:
    from dpaudit.mechanisms.models.network_model import NetworkModel
    from dpaudit.mechanisms.training.dp_sgd import Observer, PrivateSteps
    from dpaudit.mechanisms.training.plan import StackPlan
    from dpaudit.mechanisms.training.stack import TrainingTask


@register("mechanism", "dp-sgd", source="Abadi et al. (2016), arXiv:1607.00133; accounting of arXiv:1908.10530")
@dataclass(frozen=True)
class DpSgd:
    """DP-SGD with Poisson sampling, the noise being what epsilon asks for.

    A step takes each example with probability `sample_rate`, clips its gradient, adds noise to the sum and divides by
    the model's batch_size, which is a public constant. The model's epochs are expected passes.

    Attributes:
        epsilon: Privacy loss in nats, > 0; `inf` adds no noise (and still clips).
        delta: In (0, 1).
        clip: Largest norm of one example's gradient, > 0.
        sample_rate: In (0, 1].
        accountant: "rdp", or "pld" with the package dp-accounting.
        model: The network and its step sizes; without standardise, mixup, augment and batch norm.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0
    sample_rate: float = 0.05
    accountant: str = "rdp"
    model: Network = field(default=Mlp(learning_rate=0.5, momentum=0.0), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require(self.epsilon > 0, "epsilon must be > 0", epsilon=self.epsilon)
        require(0 < self.delta < 1, "delta must be in (0, 1)", delta=self.delta)
        require(self.clip > 0, "clip must be > 0", clip=self.clip)
        require(0 < self.sample_rate <= 1, "sample_rate must be in (0, 1]", sample_rate=self.sample_rate)
        one_of("accountant", self.accountant, ACCOUNTANTS)
        require(
            isinstance(self.model, Network), "the model of dp-sgd must be a network", model=type(self.model).__name__
        )

    def claim(self) -> Claim:
        """(epsilon, delta)-DP under adding or removing one record."""
        return Claim(self.epsilon, 0.0 if math.isinf(self.epsilon) else self.delta, Relation.ADD_REMOVE)

    def steps(self) -> int:
        """Number of steps."""
        return max(1, round(self.model.epochs / self.sample_rate))

    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over `clip`: the least that costs no more than epsilon."""
        return dp_sgd_noise_multiplier(
            self.epsilon,
            sample_rate=self.sample_rate,
            steps=self.steps(),
            delta=self.delta,
            accountant=self.accountant,
        )

    def spent(self) -> float:
        """Epsilon the accountant gives for the noise used; at most epsilon."""
        return self.epsilon_at(self.delta)

    def epsilon_at(self, delta: float) -> float:
        """Epsilon the accountant gives for the noise used at another delta in (0, 1)."""
        noise = self.noise_multiplier()
        if not noise:
            return math.inf
        return dp_sgd_epsilon(
            noise_multiplier=noise,
            sample_rate=self.sample_rate,
            steps=self.steps(),
            delta=delta,
            accountant=self.accountant,
        )

    def private_steps(self) -> PrivateSteps:
        """Sampling, clipping and noise."""
        from dpaudit.mechanisms.training.dp_sgd import PrivateSteps

        return PrivateSteps(self.clip, self.noise_multiplier(), self.sample_rate)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains by DP-SGD; `validation` is not used.

        Raises: TrainingError when the weights stop being numbers.
        """
        return stack_of_one(self, train, seed=seed, compute=compute)

    def fit_stack(
        self,
        features: Features,
        tasks: Sequence[TrainingTask],
        *,
        classes: int,
        compute: Compute,
        plan: StackPlan | None = None,
        checkpoint: Path | None = None,
        canaries: Sequence[NDArray[np.float32] | None] | None = None,
        observer: Observer | None = None,
    ) -> list[NetworkModel | TrainingError]:
        """Trains one model for each task; arguments as in `train_private_stack`."""
        from dpaudit.mechanisms.training.dp_sgd import train_private_stack

        return train_private_stack(
            self.model,
            self.private_steps(),
            features,
            tasks,
            classes=classes,
            compute=compute,
            plan=plan,
            checkpoint=checkpoint,
            canaries=canaries,
            observer=observer,
        )


@register("mechanism", "dp-sgd-defective", source="planted defects, as found in published code")
@dataclass(frozen=True)
class DefectiveDpSgd(DpSgd):
    """DEFECT ON PURPOSE: DP-SGD with one of four known bugs, its claim unchanged.

    Attributes:
        defect: "noise-over-batch", "clip-batch-mean", "no-noise-in-last-step" or "shuffled-batches"; see
            `mechanisms.training.dp_sgd.Defect`.
    """

    defect: str = "noise-over-batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(
            "defect",
            self.defect,
            ("noise-over-batch", "clip-batch-mean", "no-noise-in-last-step", "shuffled-batches"),
        )

    def private_steps(self) -> PrivateSteps:
        """The honest ones with the bug."""
        from dataclasses import replace

        from dpaudit.mechanisms.training.dp_sgd import Defect

        return replace(super().private_steps(), defect=Defect(self.defect))
