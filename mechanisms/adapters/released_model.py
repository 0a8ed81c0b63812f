"""A released network as one vector: its trained weights, and its logits at the points of a poisoning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.learners.dp_sgd import DpSgd
from dpaudit.mechanisms.protocols import Learner, Model
from dpaudit.mechanisms.training.network_model import NetworkModel
from dpaudit.registry import register


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
        model = self.learner.fit(train, seed=seed, compute=compute)
        require(isinstance(model, NetworkModel), "learner must train a network", model=type(model).__name__)
        assert isinstance(model, NetworkModel)
        return np.concatenate([model.parameters.astype(np.float64), model.logits(points).ravel()])
