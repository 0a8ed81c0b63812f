"""Training without privacy, for comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import Model, Trainer
from dpaudit.registry import register


@register("mechanism", "non-private", source="no privacy; the column epsilon = inf of arXiv:2511.14084, tables 1 and 2")
@dataclass(frozen=True)
class NonPrivate:
    """Trains on the true labels and claims nothing (epsilon = inf).

    Attributes:
        model: Trains the model.
    """

    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def claim(self) -> Claim:
        return Claim(math.inf)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        return self.model.fit(train, seed=seed, compute=compute, validation=validation)
