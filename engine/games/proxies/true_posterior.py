"""The truth itself as proxy, for generated data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.engine.games.proxies.known_law import KnownLaw
from dpaudit.engine.games.proxies.model import Predictor
from dpaudit.errors import SpecError
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register


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
