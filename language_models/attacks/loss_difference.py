"""The attack by the loss difference to the base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.registry import register


@register("text-attack", "loss-difference", source="Panda et al. (2025), arXiv:2503.06808")
@dataclass(frozen=True)
class LossDifference:
    """Loss of the secret under the base model minus that under the audited model: the log-likelihood ratio."""

    needs: ClassVar[tuple[str, ...]] = ("base",)
    needs_moments: ClassVar[bool] = False

    def score(self, view: TextView) -> Floats:
        assert view.base is not None
        return np.asarray(np.nansum(view.trained.log_probability - view.base.log_probability, axis=1))
