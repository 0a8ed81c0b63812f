"""The attack by the token that gained most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.estimators.arguments import Floats
from dpaudit.language_models.canary_texts.view import TextView
from dpaudit.registry import register


@register("text-attack", "largest-token", source="the largest term of the loss difference")
@dataclass(frozen=True)
class LargestToken:
    """Largest loss difference to the base model of one token of the secret: a leak may show in a single token."""

    needs: ClassVar[tuple[str, ...]] = ("base",)
    needs_moments: ClassVar[bool] = False

    def score(self, view: TextView) -> Floats:
        assert view.base is not None
        return np.asarray(np.nanmax(view.trained.log_probability - view.base.log_probability, axis=1))
