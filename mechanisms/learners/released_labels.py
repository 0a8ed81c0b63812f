"""Training on labels that a mechanism released once: private by post-processing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.catboost import CatBoost
from dpaudit.mechanisms.protocols import LabelMechanism, Model, Trainer
from dpaudit.mechanisms.seeds import spawned
from dpaudit.registry import register


@register("mechanism", "released-labels", source="post-processing; arXiv:2102.06062 with any label mechanism")
@dataclass(frozen=True)
class ReleasedLabels:
    """Trains on the labels a label mechanism released, drawn once; claims what that mechanism claims.

    Attributes:
        labels: What releases the labels.
        model: How the model is trained on them.
    """

    labels: LabelMechanism = field(default=RandomizedResponse(1.0), metadata={"kind": "mechanism"})
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def claim(self) -> Claim:
        """The claim of the label mechanism; training is post-processing."""
        return self.labels.claim()

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Releases the labels of `train`, then trains on them; `validation` keeps its own labels."""
        noise, training = spawned(seed, 2)
        released = self.labels.release(train.labels, classes=train.classes, rng=np.random.default_rng(noise))
        return self.model.fit(train.with_(labels=released), seed=training, compute=compute, validation=validation)
