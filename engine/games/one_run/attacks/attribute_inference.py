"""Attribute inference: which value of the attribute explains the record best?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.one_run.attacks.weighted_by_doubt import WeightedByDoubt
from dpaudit.engine.games.one_run.canary_view import CanaryView
from dpaudit.registry import register


@register("attack", "attribute-inference", source="arXiv:2511.14084, section 5, with the score of section 6.2")
@dataclass(frozen=True)
class AttributeInferenceScore(WeightedByDoubt):
    """s = s1 * s2^t with s1 = P(value | model) - P(value | proxy): how much the model speaks for the shown value.

    P(value | model) is Bayes' rule: the proxy's probability of a value times the probability that the trained model
    gives the record's label with that value, over the sum for all values. A model that fits the record better with the
    shown value than with the proxy's alternatives raises it.
    """

    def score(self, view: CanaryView) -> NDArray[np.float64]:
        """Shape (m,), in [-1, 1], positive = the record's own value is shown."""
        rows = np.arange(len(view.labels))
        prior = view.reference.astype(np.float64)
        joint = prior * view.target
        total = joint.sum(axis=1)
        # Where the model denies the label whatever the value, it says nothing of the value.
        posterior = np.where(
            total > 0, joint[rows, view.labels] / np.where(total > 0, total, 1), prior[rows, view.labels]
        )
        ours = prior[rows, view.labels]
        scores: NDArray[np.float64] = (posterior - ours) * (1 - ours) ** self.t
        return scores
