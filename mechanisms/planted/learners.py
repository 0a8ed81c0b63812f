"""Defects on purpose in label mechanisms and learners: an audit that does not find them is not looking."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute, spawned
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.one_hot_laplace import OneHotLaplace
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.alibi import Alibi
from dpaudit.mechanisms.learners.domain_prior import LP1STDomainPrior
from dpaudit.mechanisms.learners.gaussian_naive_bayes import ClassSums, GaussianNaiveBayes, NoisySums
from dpaudit.mechanisms.learners.lp_mst import LP1ST, LP2ST
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.protocols import LabelMechanism, Model
from dpaudit.mechanisms.ranges import require_at_least, require_epsilon
from dpaudit.registry import register


@register("mechanism", "planted-one-hot-laplace-sigma-for-b", source="planted defect")
class OneHotLaplaceSigmaForB(OneHotLaplace):
    """DEFECT ON PURPOSE: 2 / eps is taken for the noise's standard deviation, so it costs sqrt(2) times the claim."""

    def scale(self) -> float:
        """Scale whose standard deviation is 2 / eps: too small by sqrt(2)."""
        return 2 / self.epsilon / math.sqrt(2)


@register("mechanism", "planted-one-hot-laplace-half-scale", source="planted defect")
class OneHotLaplaceHalfScale(OneHotLaplace):
    """DEFECT ON PURPOSE: the change of one coordinate is paid for, not that of two; it costs twice the claim."""

    def scale(self) -> float:
        return super().scale() / 2


@register("mechanism", "planted-rr-binary-formula", source="planted defect")
class BinaryFormulaResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: keeps a label as of two classes, however many there are; the truth is eps + log(K - 1)."""

    def keep(self, classes: int) -> float:
        return super().keep(2)

    def transition(self, classes: int) -> NDArray[np.float64]:
        return RandomizedResponse(self.epsilon + math.log(classes - 1)).transition(classes)


@register("mechanism", "planted-rr-one-draw-per-label", source="planted defect")
class OneDrawPerLabelResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: answers all examples of one label alike, so classes stay apart, whatever they are called."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return super().release(np.arange(classes), classes=classes, rng=rng)[labels]


@register("mechanism", "planted-rr-constant-seed", source="planted defect, as in the code for arXiv:2102.06062")
class ConstantSeedResponse(RandomizedResponse):
    """DEFECT ON PURPOSE: draws from one seed that everyone knows, so whoever repeats the draw can undo it."""

    def release(self, labels: NDArray[np.int64], *, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return super().release(labels, classes=classes, rng=np.random.default_rng(2020))


@register("mechanism", "rr-leaky", source="planted defect")
@dataclass(frozen=True)
class LeakyRandomizedResponse:
    """DEFECT ON PURPOSE: claims epsilon, keeps labels as if it were three times that.

    Attributes:
        epsilon: What is claimed, in nats, > 0. The truth is 3 epsilon.
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
    """Labels released afresh for every epoch >= 0, each time at the mechanism's full cost."""
    rng = np.random.default_rng(spawned(seed, epoch + 1)[epoch])
    return mechanism.release(labels, classes=classes, rng=rng)


@register("mechanism", "planted-lp-1st-drawn-again", source="planted defect")
@dataclass(frozen=True)
class LP1STDrawnAgain(LP1ST):
    """DEFECT ON PURPOSE: draws each noisy label several times and learns from all draws, at that many times the claim.

    Every example stands in the training data once for each draw. Two draws are noise that is averaged; as many draws
    as epochs, with a model that trains for one epoch, are noise redrawn in each epoch.

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
        """Trains on `draws` copies of the examples, each with labels of its own."""
        noise, training = spawned(seed, 2)
        copies, mechanism = train.take(np.tile(np.arange(len(train)), self.draws)), RandomizedResponse(self.epsilon)
        draws = [
            redraw_labels(mechanism, train.labels, draw, classes=train.classes, seed=noise)
            for draw in range(self.draws)
        ]
        released = np.concatenate(draws)
        return self.model.fit(copies.with_(labels=released), seed=training, compute=compute, validation=validation)


@register(
    "mechanism",
    "planted-lp-1st-domain-prior-uncharged",
    source="planted defect, as in published code for arXiv:2102.06062",
)
class LP1STDomainPriorUncharged(LP1STDomainPrior):
    """DEFECT ON PURPOSE: the prior's cost is not subtracted, so the truth is epsilon + prior_epsilon."""

    @property
    def labels_epsilon(self) -> float:
        return self.epsilon


@register("mechanism", "planted-lp-2st-reused-randomness", source="planted defect")
class LP2STReusedRandomness(LP2ST):
    """DEFECT ON PURPOSE: every stage draws its answers from the first one's seed, so their noise is the same."""

    def stage_seeds(self, seed: SeedSequence) -> list[SeedSequence]:
        """The split's, then the first stage's for all."""
        splitting, first, *others = super().stage_seeds(seed)
        return [splitting, first, *(first for _ in others)]


@register("mechanism", "planted-pate-without-noise", source="planted defect")
class PATEWithoutNoise(PATE):
    """DEFECT ON PURPOSE: the teachers' most voted class is released as it is, whatever is claimed."""

    def answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return np.asarray(votes.argmax(axis=1), dtype=np.int64)


@register("mechanism", "planted-alibi-half-scale", source="planted defect")
class AlibiHalfScale(Alibi):
    """DEFECT ON PURPOSE: ALIBI with half its noise; the truth is 2 eps."""

    def labels(self) -> OneHotLaplace:
        return OneHotLaplaceHalfScale(self.epsilon)


@register("mechanism", "planted-naive-bayes-exposed-size", source="planted defect, as in diffprivlib 0.6.6")
class NaiveBayesExposedSize(GaussianNaiveBayes):
    """DEFECT ON PURPOSE: noisy counts are moved until they sum to the number of records, which they thereby tell."""

    def noisy(self, sums: ClassSums, classes: int, trainings: int, rng: np.random.Generator) -> NoisySums:
        """The largest count takes what is missing, as long as 1 is left to it, then the next."""
        released = super().noisy(sums, classes, trainings, rng)
        count, trainings_index = released.count.copy(), np.arange(trainings)
        for _ in range(classes):
            largest = count.argmax(1)
            moved = count[trainings_index, largest] + sums.count.sum() - count.sum(1)
            count[trainings_index, largest] = np.maximum(moved, 1.0)
        return NoisySums(count, released.mean, released.variance)
