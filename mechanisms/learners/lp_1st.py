"""LP-1ST: randomised response on every label, then ordinary training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import LabelMechanism, Model, Trainer
from dpaudit.mechanisms.ranges import require_epsilon
from dpaudit.mechanisms.seeds import spawned
from dpaudit.registry import register


@register("mechanism", "lp-1st", source="Ghazi et al. (2021), arXiv:2102.06062, LP-1ST with a uniform prior")
@dataclass(frozen=True)
class LP1ST:
    """Trains on labels released once by randomised response.

    Attributes:
        epsilon: Privacy loss in nats, > 0.
        model: How the model is trained on the released labels.
    """

    epsilon: float
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """(epsilon, 0)-label-DP, by post-processing of randomised response."""
        return Claim(self.epsilon)

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Releases the labels of `train`, then trains on them."""
        learner = ReleasedLabels(RandomizedResponse(self.epsilon), self.model)
        return learner.fit(train, seed=seed, compute=compute, validation=validation)


@register("mechanism", "lp-1st-noise-correction", source="arXiv:2511.14084, section 6.4; Wu et al. (2023)")
@dataclass(frozen=True)
class LP1STNoiseCorrection(LP1ST):
    """LP-1ST whose predictions are corrected for the noise in the labels they were learned from."""

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """The model of LP-1ST, its predictions corrected: post-processing, at no cost."""
        noisy = super().fit(train, seed=seed, compute=compute, validation=validation)
        return NoiseCorrectedModel(noisy, self.epsilon)


@dataclass(frozen=True, eq=False)
class NoiseCorrectedModel:
    """Predicts true labels from a model of labels released by randomised response."""

    noisy: Model  # the model of the released labels
    epsilon: float  # privacy loss of the randomised response, > 0

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return corrected(self.noisy.probabilities(features), self.epsilon)


def corrected(noisy: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """Probabilities of true labels from those of labels released by randomised response, both of shape (n, K).

    p T^-1 with T the (K, K) matrix of randomised response, each entry cut to [0, 1]; rows of more than two classes are
    scaled to sum to 1 again.
    """
    flat = math.exp(-epsilon)
    classes = noisy.shape[1]
    inverted = (noisy * (1 + (classes - 1) * flat) - flat) / -math.expm1(-epsilon)
    cut: NDArray[np.float64] = np.clip(inverted, 0.0, 1.0)
    cut /= cut.sum(axis=1, keepdims=True)
    return cut


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
