"""Defects on purpose in learners: an audit that does not find them is not looking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.randomized_response import RandomizedResponse
from dpaudit.mechanisms.learners.domain_prior import LP1STDomainPrior
from dpaudit.mechanisms.learners.lp_1st import LP1ST
from dpaudit.mechanisms.learners.lp_2st import LP2ST
from dpaudit.mechanisms.learners.pate import PATE
from dpaudit.mechanisms.planted.labels import redrawn_labels
from dpaudit.mechanisms.protocols import Model
from dpaudit.mechanisms.seeds import spawned
from dpaudit.registry import register


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
        require(self.draws >= 1, "draws must be >= 1", draws=self.draws)

    def fit(
        self, train: Examples, *, seed: SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Trains on `draws` copies of the examples, each with labels of its own."""
        noise, training = spawned(seed, 2)
        labels = redrawn_labels(RandomizedResponse(self.epsilon), train.labels, classes=train.classes, seed=noise)
        copies = train.take(np.tile(np.arange(len(train)), self.draws))
        released = np.concatenate([labels(draw) for draw in range(self.draws)])
        return self.model.fit(copies.with_(labels=released), seed=training, compute=compute, validation=validation)


@register(
    "mechanism",
    "planted-lp-1st-domain-prior-uncharged",
    source="planted defect, as in published code for arXiv:2102.06062",
)
@dataclass(frozen=True)
class LP1STDomainPriorUncharged(LP1STDomainPrior):
    """DEFECT ON PURPOSE: the prior's cost is not subtracted, so the truth is epsilon + prior_epsilon."""

    @property
    def labels_epsilon(self) -> float:
        """All of epsilon, as if the prior had cost nothing."""
        return self.epsilon


@register("mechanism", "planted-lp-2st-reused-randomness", source="planted defect")
@dataclass(frozen=True)
class LP2STReusedRandomness(LP2ST):
    """DEFECT ON PURPOSE: every stage draws its answers from the first one's seed, so their noise is the same."""

    def stage_seeds(self, seed: SeedSequence) -> list[SeedSequence]:
        """The split's, then the first stage's for all."""
        splitting, first, *others = super().stage_seeds(seed)
        return [splitting, first, *(first for _ in others)]


@register("mechanism", "planted-pate-without-noise", source="planted defect")
@dataclass(frozen=True)
class PATEWithoutNoise(PATE):
    """DEFECT ON PURPOSE: the teachers' most voted class is released as it is, whatever is claimed."""

    def answers(self, votes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """The most voted class of each row."""
        return np.asarray(votes.argmax(axis=1), dtype=np.int64)
