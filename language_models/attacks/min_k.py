"""The attack Min-K%++, which needs no base model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.registry import register

SMALLEST_DEVIATION = 1e-3  # nats; a distribution that is all but certain has no scale


@register("text-attack", "min-k-plus-plus", source="Zhang et al. (2024), arXiv:2404.02936")
@dataclass(frozen=True)
class MinKPlusPlus:
    """Mean of the smallest standardised log-probabilities of the secret's tokens.

    A log-probability is standardised by its mean and deviation over the vocabulary at the same place.

    Attributes:
        share: Share of the tokens that count, in (0, 1]; at least one counts.
    """

    share: float = 0.2
    needs: ClassVar[tuple[str, ...]] = ()
    needs_moments: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "share must be in (0, 1]", share=self.share)

    def score(self, view: TextView) -> Floats:
        trained = view.trained
        deviation = np.maximum(trained.deviation, SMALLEST_DEVIATION)
        standardised = np.sort((trained.log_probability - trained.mean) / deviation, axis=1)  # NaN last
        counts = np.isfinite(standardised).sum(axis=1)
        smallest = [row[: math.ceil(self.share * count)] for row, count in zip(standardised, counts, strict=True)]
        return np.array([row.mean() for row in smallest])
