"""Proxies: sources of counterfactual labels and of the attacker's reference model.

A proxy has a method `predictor(*, reference, data, seed, compute)`, a function from examples to class probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.errors import SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, writable_features
from dpaudit.mechanisms.models.tables import LogisticRegression
from dpaudit.mechanisms.protocols import Trainer
from dpaudit.registry import register

Predictor = Callable[[Examples], NDArray[np.float64]]


@register("proxy", "model", source="arXiv:2511.14084, section 6.2")
@dataclass(frozen=True)
class ModelProxy:
    """A model M' trained without privacy on the reference part, such as a random half or the previous day.

    Attributes:
        model: Training method of M'.
    """

    model: Trainer = field(default=LogisticRegression(), metadata={"kind": "model"})

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Train M' and return its predictor.

        Raises: SpecError if the reference part is empty.
        """
        if reference is None:
            raise SpecError(
                "a model proxy is trained on the reference part, which is empty. Give `split.reference` a share above 0"
            )
        model = self.model.fit(reference, seed=seed, compute=compute)
        return lambda examples: model.probabilities(writable_features(examples.features))


class KnownLaw:
    """Base class of proxies that are the true law, so that the bound does not rely on a proxy."""

    trains: ClassVar[bool] = False
    """Other proxies train a model, so their unit may hold a GPU."""


@register("proxy", "true-posterior", source="arXiv:2511.14084, appendix 11")
@dataclass(frozen=True)
class TruePosterior(KnownLaw):
    """The true distribution of the label given the features, for generated data with a known law."""

    def predictor(
        self, *, reference: Examples | None, data: Any, seed: np.random.SeedSequence, compute: Compute
    ) -> Predictor:
        """Return the data set's `posterior`.

        Raises: SpecError if the data set has none.
        """
        if not hasattr(data, "posterior"):
            raise SpecError(
                "the data must have a method `posterior`, as generated data do (gaussian-mixture). Use `proxy: model`"
            )
        return lambda examples: data.posterior(examples.features)
