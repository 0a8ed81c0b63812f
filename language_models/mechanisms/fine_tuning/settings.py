"""Settings that all ways of fine-tuning a language model share, with their claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpaudit.claims import Claim, Relation
from dpaudit.claims.composition import SubsampledGaussian
from dpaudit.errors import require
from dpaudit.mechanisms.ranges import require_at_least, require_delta, require_epsilon, require_positive
from dpaudit.mechanisms.training.private.private_steps import (
    ACCOUNTANTS,
    ClaimedSteps,
    PrivateSteps,
    dp_sgd_noise_multiplier,
)
from dpaudit.mechanisms.training.recipe import PRECISIONS, require_one_of

if TYPE_CHECKING:
    from torch import Tensor

OPTIMIZERS = ("adamw", "sgd")
Progress = Callable[[int, int], None]
"""Receives the number of finished steps and of all steps."""
BatchListener = Callable[["Tensor", "Tensor"], None]
"""Receives tokens and labels of each batch that is trained on, both (texts, tokens); a label of -100 gives no loss."""


@dataclass(frozen=True, kw_only=True)
class FineTuningSettings:
    """DP-SGD on the records of a language model, or the same training without privacy.

    A step samples each record with probability batch_size / size, clips the gradient of its mean loss, adds noise to
    the sum, divides it by the expected number of records, and updates the weights. Dropout is off.

    Attributes:
        epsilon: Privacy loss in nats for adding or removing one record, > 0; `inf` neither clips nor adds noise.
        delta: In (0, 1).
        clip: Maximum norm of one record's gradient, > 0.
        accountant: Calibrates the noise: "rdp", or the tighter "pld". The claim's curve is always the tight one.
        batch_size: Expected number of records in a step, >= 1.
        epochs: Expected passes over the records, >= 1.
        learning_rate: Step size, > 0.
        optimizer: "adamw" or "sgd".
        momentum: Momentum of sgd, in [0, 1).
        weight_decay: Weight decay, >= 0.
        batch_tokens: Tokens that are computed together, padding included, >= 1. It changes rounding alone.
        precision: "float32", or "bfloat16" for activations. Norms, sums and noise are always computed in float32.
    """

    accountants: ClassVar[tuple[str, ...]] = ACCOUNTANTS
    """Accountants to choose from."""

    epsilon: float = math.inf
    delta: float = 1e-5
    clip: float = 1.0
    accountant: str = "rdp"
    batch_size: int = 64
    epochs: int = 3
    learning_rate: float = 1e-3
    optimizer: str = "adamw"
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_tokens: int = 2048
    precision: str = "float32"

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)
        require_positive(self, "clip", "learning_rate")
        require_one_of("accountant", self.accountant, self.accountants)
        require_at_least(1, self, "batch_size", "epochs", "batch_tokens")
        require_one_of("optimizer", self.optimizer, OPTIMIZERS)
        require(0 <= self.momentum < 1, "momentum must be in [0, 1)", momentum=self.momentum)
        require_at_least(0, self, "weight_decay")
        require_one_of("precision", self.precision, PRECISIONS)

    @property
    def is_private(self) -> bool:
        """True if gradients are clipped and noise is added."""
        return math.isfinite(self.epsilon)

    def claim(self, records: int) -> Claim | None:
        """Return (epsilon, delta)-DP for adding or removing one record, with the curve of the noise; None if epsilon
        is infinite.

        Args:
            records: Public number of records, canaries included: the `size` of the training.
        """
        if not self.is_private:
            return None
        steps = self.claimed_steps(records)
        curve = SubsampledGaussian(steps.private.noise_multiplier, steps.private.sample_rate, steps.count)
        return Claim(self.epsilon, self.delta, Relation.ADD_REMOVE, curve)

    def claimed_steps(self, records: int) -> ClaimedSteps:
        """Return sampling, clipping, noise and number of the steps, for a public number of records >= 1."""
        require(records >= 1, "a training must have at least one record", records=records)
        rate = min(1.0, self.batch_size / records)
        steps = PrivateSteps(self.clip if self.is_private else math.inf, 0.0, rate)
        count = steps.steps(self.epochs)
        noise = dp_sgd_noise_multiplier(
            self.epsilon, sample_rate=rate, steps=count, delta=self.delta, accountant=self.accountant
        )
        return ClaimedSteps(PrivateSteps(steps.clip, noise, rate), count, rate * records)
