"""Malek et al.'s attack on planted labels: is the model surer of this label than of the other wrong ones?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.one_run.canary_view import CanaryView
from dpaudit.registry import register


@register("attack", "canary-confidence", source="Malek et al. (2021), arXiv:2106.03408, memorisation attack")
@dataclass(frozen=True)
class CanaryConfidence:
    """Confidence in the shown label minus the largest in any other wrong label; for the game label-canaries.

    The original compares two wrong labels of an example whose true label it knows, and abstains unless the larger
    confidence is large. Here the reference's first choice stands for the true label, and |score| says how sure to be.
    With two classes there is one other label, and no label is taken for the true one.

    The original's epsilon (normal intervals, the best of seven thresholds) errs more often than it says and is not
    offered: the bound is a one-run estimator's.
    """

    view: ClassVar[type[CanaryView]] = CanaryView

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """Shape (m,), in [-1, 1]; 0 where the label that is taken for the true one is shown."""
        rows = np.arange(len(view.labels))
        target = view.target.astype(np.float64)
        others = target.copy()
        others[rows, view.labels] = -np.inf
        silent = np.zeros(len(rows), np.bool_)
        if target.shape[1] > 2:
            true = view.reference.argmax(axis=1)
            others[rows, true] = -np.inf
            silent = view.labels == true
        scores: NDArray[np.float64] = np.where(silent, 0.0, target[rows, view.labels] - others.max(axis=1))
        return scores
