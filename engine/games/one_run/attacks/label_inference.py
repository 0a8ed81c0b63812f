"""The paper's score for label inference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.one_run.attacks.weighted_by_doubt import WeightedByDoubt
from dpaudit.engine.games.one_run.canary_view import CanaryView
from dpaudit.registry import register


@register("attack", "label-inference", source="arXiv:2511.14084, section 6.2")
@dataclass(frozen=True)
class LabelInferenceScore(WeightedByDoubt):
    """s = s1 * s2^t: how much likelier the target finds the shown label than the proxy, on labels the proxy doubts."""

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """s1 = M(x)[y] - M'(x)[y], s2 = 1 - M'(x)[y]; shape (m,), in [-1, 1], positive = the training label."""
        rows = np.arange(len(view.labels))
        ours = view.reference[rows, view.labels].astype(np.float64)
        difference = view.target[rows, view.labels] - ours
        scores: NDArray[np.float64] = difference * (1.0 - ours) ** self.t
        return scores
