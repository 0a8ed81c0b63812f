"""Labels drawn apart from the data: how much surer of the shown label is the target than features alone explain?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.one_run.attacks.weighted_by_doubt import WeightedByDoubt
from dpaudit.engine.games.one_run.canary_view import CanaryView
from dpaudit.registry import register

Floats = NDArray[np.float64]


@register("attack", "planted-label", source="Ours, after arXiv:2511.14084, section 6.2")
@dataclass(frozen=True)
class PlantedLabel(WeightedByDoubt):
    """The score of `label-inference`, with what the target would say of a row that was not planted as its baseline.

    A planted label has nothing to do with the features. A target that learned from planted labels alone knows nothing
    of them but the labels: the baseline is 1 / K. One that learned from other rows too, says of a row what the
    reference says. The baseline is so much of the reference as the target's answers clearly show (least squares), and
    1 / K for the rest; it takes answers alone, neither truth nor shown labels.
    """

    def score(self, view: CanaryView) -> Floats:
        """(M(x)[y] - b) (1 - b)^t with the baseline b; shape (m,), in [-1, 1], positive = the training label."""
        rows, even = np.arange(len(view.labels)), 1 / view.target.shape[1]
        ours = view.reference[rows, view.labels].astype(np.float64)
        baseline = even + known_share(view.target, view.reference) * (ours - even)
        return np.asarray((view.target[rows, view.labels] - baseline) * (1 - baseline) ** self.t)


def known_share(target: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """How much of what the reference says beyond 1 / K the target says too.

    Args:
        target, reference: As in `CanaryView`, shape (m, K).
    Returns: In [0, 1]; 0 where it is not clear that it says any of it.
    """
    even = 1 / target.shape[1]
    beyond, ours = target.astype(np.float64) - even, reference.astype(np.float64) - even
    weight = max(float(np.sum(ours**2)), 1e-12)
    share = float(np.sum(beyond * ours)) / weight
    error = float(np.sqrt(np.sum((beyond - share * ours) ** 2 * ours**2))) / weight
    return min(share, 1.0) if share > CLEARLY * error else 0.0


CLEARLY = 4.0
"""Standard errors."""
