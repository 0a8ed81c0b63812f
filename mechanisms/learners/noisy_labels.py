"""ALIBI's release by itself: what its noisy labels say before a model is trained on them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dpaudit.claims import Claim
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.labels.one_hot_laplace import OneHotLaplace, laplace_posterior
from dpaudit.mechanisms.models.recall import recalling
from dpaudit.mechanisms.protocols import Model
from dpaudit.registry import register


@register(
    "mechanism", "noisy-one-hot-labels", source="Malek et al. (2021), arXiv:2106.03408, ALIBI without its training"
)
@dataclass(frozen=True)
class NoisyOneHotLabels:
    """Recalls the posterior of every training label given its noisy one-hot row, under a flat prior.

    All that ALIBI's training ever sees is in these rows. The posterior is at its extreme, odds of e^eps, for a quarter
    of the examples of two classes, so an audit can be tight.

    Attributes:
        labels: What releases the noisy rows.
    """

    labels: OneHotLaplace = field(default=OneHotLaplace(1.0), metadata={"kind": "mechanism"})

    def claim(self) -> Claim:
        """The claim of the release; tight."""
        return self.labels.claim()

    def fit(
        self, train: Examples, *, seed: np.random.SeedSequence, compute: Compute, validation: Examples | None = None
    ) -> Model:
        """Draws the noisy rows once and keeps their posteriors; `validation` changes nothing."""
        observed = self.labels.observe(train.labels, classes=train.classes, rng=np.random.default_rng(seed))
        return recalling(train.features, laplace_posterior(observed, np.zeros(train.classes), self.labels.scale()))
