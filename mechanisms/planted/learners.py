"""Label mechanisms and learners with planted defects, which an audit must detect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.gaussian_naive_bayes import ClassSums, GaussianNaiveBayes, NoisySums
from dpaudit.mechanisms.learners.lp_mst import LP1ST
from dpaudit.mechanisms.protocols import LabelMechanism, Model
from dpaudit.mechanisms.ranges import require_at_least, require_epsilon
from dpaudit.registry import register


@register("mechanism", "rr-leaky", source="planted defect")
@dataclass(frozen=True)
class LeakyRandomizedResponse:
    """DEFECT ON PURPOSE: claims epsilon, but keeps labels as for 3 epsilon.

    Attributes:
        epsilon: The claim in nats, > 0. The truth is 3 epsilon.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)

    def claim(self) -> Claim:
        return Claim(self.epsilon)

    def transition(self, classes: int) -> NDArray[np.float64]:
        return self._truth.transition(classes)

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return self._truth.release(labels, classes=classes, rng=rng)

    @property
    def _truth(self) -> RandomizedResponse:
        return RandomizedResponse(3.0 * self.epsilon)


def redraw_labels(
    mechanism: LabelMechanism, labels: NDArray[np.int64], epoch: int, *, classes: int, seed: SeedSequence
) -> NDArray[np.int64]:
    """Release new labels for epoch >= 0; every epoch costs the mechanism's full epsilon."""
    rng = np.random.default_rng(spawned(seed, epoch + 1)[epoch])
    return mechanism.release(labels, classes=classes, rng=rng)


@register("mechanism", "planted-lp-1st-drawn-again", source="planted defect")
@dataclass(frozen=True)
class LP1STDrawnAgain(LP1ST):
    """DEFECT ON PURPOSE: releases each noisy label `draws` times and trains on all releases.

    The training data repeat every example once per release. Two draws average the noise. With as many draws as epochs,
    and a model that trains for one epoch, the noise is redrawn in each epoch.

    Attributes:
        draws: Independent releases of each label, >= 1; the truth is draws times epsilon.
    """

    draws: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, self, "draws")

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Train on `draws` copies of the examples, each with its own noisy labels."""
        noise, training = spawned(seed, 2)
        copies, mechanism = train.take(np.tile(np.arange(len(train)), self.draws)), RandomizedResponse(self.epsilon)
        draws = [
            redraw_labels(mechanism, train.labels, draw, classes=train.classes, seed=noise)
            for draw in range(self.draws)
        ]
        released = np.concatenate(draws)
        return self.model.fit(copies.with_(labels=released), seed=training, compute=compute, validation=validation)


@register("mechanism", "planted-naive-bayes-exposed-size", source="planted defect, as in diffprivlib 0.6.6")
class NaiveBayesExposedSize(GaussianNaiveBayes):
    """DEFECT ON PURPOSE: adjusts noisy counts to sum to the number of records, which reveals it."""

    def noisy(self, sums: ClassSums, classes: int, trainings: int, rng: np.random.Generator) -> NoisySums:
        """Correct the largest count to fix the sum, down to 1 at least, then the next largest."""
        released = super().noisy(sums, classes, trainings, rng)
        count, trainings_index = released.count.copy(), np.arange(trainings)
        for _ in range(classes):
            largest = count.argmax(1)
            moved = count[trainings_index, largest] + sums.count.sum() - count.sum(1)
            count[trainings_index, largest] = np.maximum(moved, 1.0)
        return NoisySums(count, released.mean, released.variance)
