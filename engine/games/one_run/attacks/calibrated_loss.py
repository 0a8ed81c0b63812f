"""Difficulty calibration: how much smaller the target's loss is than the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.one_run.canary_view import CanaryView
from dpaudit.registry import register

SMALLEST_PROBABILITY = 1e-30


@register("attack", "calibrated-loss", source="Watson et al. (2022), arXiv:2111.08440; arXiv:2511.14084, section 6.5")
@dataclass(frozen=True)
class CalibratedLoss:
    """Reference loss minus target loss on the shown label: larger = the target knows the point too well."""

    view: ClassVar[type[CanaryView]] = CanaryView

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """log M(x)[y] - log M'(x)[y], probabilities cut at 1e-30; shape (m,), in nats."""
        rows = np.arange(len(view.labels))
        target = np.log(np.maximum(view.target[rows, view.labels].astype(np.float64), SMALLEST_PROBABILITY))
        reference = np.log(np.maximum(view.reference[rows, view.labels].astype(np.float64), SMALLEST_PROBABILITY))
        scores: NDArray[np.float64] = target - reference
        return scores
