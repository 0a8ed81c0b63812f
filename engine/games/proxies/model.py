"""Proxies: where the counterfactual labels and the adversary's reference come from.

A proxy offers `predictor(*, reference, data, seed, compute)`, a function from examples to class probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, own_features
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.mechanisms.protocols import Trainer
from dpaudit.registry import register

Predictor = Callable[[Examples], NDArray[np.float64]]


@register("proxy", "model", source="arXiv:2511.14084, section 6.2")
@dataclass(frozen=True)
class ModelProxy:
    """A model M' trained without privacy on the reference part: random halves, or the previous day of a time split.

    Attributes:
        model: How M' is trained.
    """

    model: Trainer = field(default=LogisticRegression(), metadata={"kind": "model"})

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Trains M'.

        Raises: SpecError when the reference part is empty.
        """
        if reference is None:
            raise SpecError("a model proxy is trained on the reference part; give `split.reference` a share above 0")
        model = self.model.fit(reference, seed=seed, compute=compute)
        return lambda examples: model.probabilities(own_features(examples.features))


class KnownLaw:
    """A proxy that is the truth itself: derive from it to say so, and the audit takes nothing on trust."""


@register("proxy", "true-posterior", source="arXiv:2511.14084, appendix 11")
@dataclass(frozen=True)
class TruePosterior(KnownLaw):
    """The true distribution of the label given the features, for generated data that knows it."""

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """The data set's `posterior`.

        Raises: SpecError when the data set does not know its distribution.
        """
        if not hasattr(data, "posterior"):
            raise SpecError(
                "the true posterior is known for generated data only (gaussian-mixture); use `proxy: model`"
            )
        return lambda examples: data.posterior(examples.features)
