"""The attack by the likelihood ratio to a reference model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.registry import register


@register("text-attack", "reference-ratio", source="Carlini et al. (2021), arXiv:2012.07805")
@dataclass(frozen=True)
class ReferenceRatio:
    """Loss of the secret under a reference model minus that under the audited model.

    A reference that was trained on the same data without any canary cancels what the domain alone teaches.
    """

    needs: ClassVar[tuple[str, ...]] = ("reference",)
    needs_moments: ClassVar[bool] = False

    def score(self, view: TextView) -> Floats:
        assert view.reference is not None
        return np.asarray(np.nansum(view.trained.log_probability - view.reference.log_probability, axis=1))
