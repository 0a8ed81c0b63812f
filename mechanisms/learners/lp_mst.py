"""LP-MST: releases labels by randomised response in one stage (LP-1ST) or more, then trains without privacy.

Each later stage restricts randomised response to the most likely labels under the model of the earlier stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.labels.rr_with_prior import best_k, rr_with_prior
from dpaudit.mechanisms.models.tables import CatBoost
from dpaudit.mechanisms.protocols import LabelMechanism, Model, Trainer
from dpaudit.mechanisms.ranges import require_epsilon, require_positive
from dpaudit.registry import register

UNLABELLED = -1  # label of an example whose stage is still to come, or that was dropped


@register("mechanism", "lp-1st", source="Ghazi et al. (2021), arXiv:2102.06062, LP-1ST with a uniform prior")
@dataclass(frozen=True)
class LP1ST:
    """Trains on labels released once by randomised response.

    Attributes:
        epsilon: Privacy loss in nats, > 0.
        model: Trains the model on the released labels.
    """

    epsilon: float
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP: post-processing of randomised response."""
        return Claim(self.epsilon)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        learner = ReleasedLabels(RandomizedResponse(self.epsilon), self.model)
        return learner.fit(train, seed=seed, compute=compute, validation=validation)


@register("mechanism", "lp-1st-noise-correction", source="arXiv:2511.14084, section 6.4; Wu et al. (2023)")
class LP1STNoiseCorrection(LP1ST):
    """LP-1ST with predictions corrected for the noise in the training labels."""

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Train as LP-1ST and correct its predictions, which is post-processing."""
        noisy = super().fit(train, seed=seed, compute=compute, validation=validation)
        return NoiseCorrectedModel(noisy, self.epsilon)


@dataclass(frozen=True, eq=False)
class NoiseCorrectedModel:
    """Predicts true labels from a model of labels released by randomised response."""

    noisy: Model  # model trained on the released labels
    epsilon: float  # privacy loss of the randomised response, > 0

    def probabilities(self, features: Features) -> NDArray[np.float64]:
        return correct_for_noise(self.noisy.probabilities(features), self.epsilon)


def correct_for_noise(noisy: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """Return probabilities of true labels from those of labels released by randomised response; both (n, K).

    Computes p T^-1 with the (K, K) transition matrix T, clips to [0, 1] and scales rows to sum to 1.
    """
    flip_odds = math.exp(-epsilon)
    classes = noisy.shape[1]
    inverted = (noisy * (1 + (classes - 1) * flip_odds) - flip_odds) / -math.expm1(-epsilon)
    clipped: NDArray[np.float64] = np.clip(inverted, 0.0, 1.0)
    clipped /= clipped.sum(axis=1, keepdims=True)
    return clipped


@register("mechanism", "released-labels", source="post-processing; arXiv:2102.06062 with any label mechanism")
@dataclass(frozen=True)
class ReleasedLabels:
    """Trains on labels released once by a label mechanism; has the claim of that mechanism.

    Attributes:
        labels: The mechanism that releases the labels.
        model: Trains the model on the released labels.
    """

    labels: LabelMechanism = field(default=RandomizedResponse(1.0), metadata={"kind": "mechanism"})
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def claim(self) -> Claim:
        """Return the claim of the label mechanism; training is post-processing."""
        return self.labels.claim()

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        noise, training = spawned(seed, 2)
        released = self.labels.release(train.labels, classes=train.classes, rng=np.random.default_rng(noise))
        return self.model.fit(train.with_(labels=released), seed=training, compute=compute, validation=validation)


@register("mechanism", "lp-2st", source="Ghazi et al. (2021), arXiv:2102.06062, LP-MST; Wu et al. (2023) for Criteo")
@dataclass(frozen=True)
class LP2ST:
    """Multi-stage training. The defaults are the Criteo version: two halves, the stage-1 model as prior.

    The examples are split at random. The first part is released by randomised response. Each later part is released by
    RRWithPrior, with the predictions of a model trained on all released labels as prior. Each label is released once,
    so all stages together cost epsilon.

    The image version of Ghazi et al. uses, for epsilon 1, 2, 4 and 8, shares (.8, .2), (.7, .3), (.6, .4), (.6, .4),
    temperature .6, .5, .5, .5, and `drop_unlikely`.

    Attributes:
        epsilon: Privacy loss in nats, > 0.
        shares: Share of the examples in each stage, each > 0, summing to 1.
        temperature: T > 0; the prior is softmax(logits / T) of the earlier model, sharper for T < 1.
        drop_unlikely: Drop examples of earlier stages if the model does not rank their released label among the
            int(mean k*) most likely ones. k* is the number of labels that RRWithPrior keeps for an example of the
            current stage.
        model: Trains the model of each stage and the final model.
    """

    epsilon: float
    shares: tuple[float, ...] = (0.5, 0.5)
    temperature: float = 1.0
    drop_unlikely: bool = False
    model: Trainer = field(default=CatBoost(), metadata={"kind": "model"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(self.shares))
        require_epsilon(self.epsilon)
        require(
            min(self.shares, default=0) > 0 and abs(sum(self.shares) - 1) < 1e-9,
            "shares must be > 0 and sum to 1",
            shares=self.shares,
        )
        require_positive(self, "temperature")

    def claim(self) -> Claim:
        """Claim (epsilon, 0)-label-DP: each label is released once, given the earlier releases."""
        return Claim(self.epsilon)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        splitting, *stages = self.stage_seeds(seed)
        released = np.full(len(train), UNLABELLED)
        model: Model | None = None
        for rows, stage in zip(self._split(len(train), splitting), stages, strict=True):
            answering, training = spawned(stage, 2)
            prior = self._prior(train.take(rows), model)
            labelled = released != UNLABELLED
            if self.drop_unlikely and model is not None and len(rows):
                likely = int(best_k(prior, self.epsilon).mean())
                released[labelled] = _without_unlikely(released[labelled], train.take(labelled), model, likely)
            rng = np.random.default_rng(answering)
            released[rows] = rr_with_prior(train.labels[rows], prior, self.epsilon, rng)
            labelled = released != UNLABELLED
            labelled = train.take(labelled).with_(labels=released[labelled])
            model = self.model.fit(labelled, seed=training, compute=compute, validation=validation)
        assert model is not None
        return model

    def stage_seeds(self, seed: SeedSequence) -> list[SeedSequence]:
        """Return the seed of the split, then that of each stage."""
        return spawned(seed, 1 + len(self.shares))

    def _split(self, examples: int, seed: SeedSequence) -> list[NDArray[np.int64]]:
        """Return the rows of each stage, ascending; a random partition by `shares`."""
        ends = np.rint(np.cumsum(self.shares[:-1]) * examples).astype(np.int64)
        order = np.random.default_rng(seed).permutation(examples)
        return [np.sort(part) for part in np.split(order, ends)]

    def _prior(self, stage: Examples, model: Model | None) -> NDArray[np.float64]:
        """Return the prior weights of a stage: uniform in the first, else from the current model; shape (n, K)."""
        if model is None:
            return np.ones((len(stage), stage.classes))
        probabilities = model.probabilities(stage.features)
        # Divide by the largest first: small temperatures would underflow whole rows to 0.
        return np.asarray((probabilities / probabilities.max(axis=1, keepdims=True)) ** (1 / self.temperature))


def _without_unlikely(released: NDArray[np.int64], examples: Examples, model: Model, likely: int) -> NDArray[np.int64]:
    """Return the labels, with `UNLABELLED` for those not among the `likely` most likely ones under the model."""
    order = np.argsort(-model.probabilities(examples.features), axis=1, kind="stable")
    return np.where((order[:, :likely] == released[:, None]).any(axis=1), released, UNLABELLED)
