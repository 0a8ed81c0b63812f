"""Features of pairs of one training and one holdout row, for the order of guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from dpaudit.engine.attacks.guess_order import signed_tail_rank
from dpaudit.estimators.arguments import Floats
from dpaudit.synthetic_tables.games.pairs import PairedTables

BULK, SHOULDER = 0.5, 0.9
"""Quantiles of a feature whose distance is its unit, so that outliers do not widen it."""
LARGEST_OUTLIER, POWER = 30.0, 3.0
"""Largest distance of a feature from its median in its units, and the power that makes few large distances count more
than many small ones when the attacks are added up.
"""
HINGES = (0.0, 2.0, 4.0)
"""Knots of the learned features, in -log of the share of rows with a larger feature."""


@dataclass(frozen=True, eq=False)
class PairFeatures:
    """Features of pairs that change their sign if the two canaries of a pair are exchanged.

    Attributes:
        experts: How much more the first canary stands out than the second one, as a signed -log of the rank among the
            pairs, in each feature of the attacks, then in all attacks together, shape (pairs, features + 1).
        learned: Differences of tail ranks, for the model, shape (pairs, k).
    """

    experts: Floats
    learned: Floats

    @classmethod
    def of(cls, paired: PairedTables, attacks: Sequence[Floats]) -> PairFeatures:
        """Return the features of all pairs.

        Args:
            attacks: Features of the real rows by each attack, shapes (rows, k of the attack); the first column is the
                attack's own score. Larger values mean that a row is more likely trained on. The first attack is
                followed before any coin is revealed.
        """
        features = np.concatenate(attacks, axis=1)
        count = features.shape[1]
        own_scores = np.cumsum([0, *(attack.shape[1] for attack in attacks[:-1])])
        standing_out = outliers(features)
        together = differences(paired, standing_out[:, own_scores])[:, : own_scores.size].sum(axis=1, keepdims=True)
        experts = np.concatenate([differences(paired, standing_out)[:, :count], together], axis=1)
        learned = differences(paired, tails(features))
        return cls(signed_tail_rank(experts), learned[:, learned.any(axis=0)])


def differences(paired: PairedTables, row_values: Floats) -> Floats:
    """Return the value of the first canary of each pair minus that of the second one, shape (pairs, k).

    For persons of several rows, these are the differences of maxima, and to the right of them those of means.
    """
    largest, mean = paired.of_canaries(row_values)
    return np.concatenate([each[0] - each[1] for each in ((largest,) if mean is largest else (largest, mean))], axis=1)


def outliers(features: Floats) -> Floats:
    """Return how far each value lies above the median of its column, in robust units to the power `POWER`."""
    bulk, shoulder = np.quantile(features, (BULK, SHOULDER), axis=0)
    highest = (features.max(axis=0) - bulk) / LARGEST_OUTLIER
    unit = np.where(shoulder > bulk, shoulder - bulk, np.maximum(highest, np.finfo(np.float64).tiny))
    distances: Floats = np.minimum(np.maximum(features - bulk, 0.0) / unit, LARGEST_OUTLIER)
    return distances**POWER


def tails(features: Floats) -> Floats:
    """Return hinges of -log of the upper tail rank and one of the lower tail rank of each column, shape (rows, 4 k)."""
    ranks = (rankdata(features, axis=0) - 0.5) / features.shape[0]
    upper, lower = -np.log1p(-ranks), np.log(ranks)
    return np.concatenate([*(np.maximum(upper - knot, 0.0) for knot in HINGES), np.minimum(lower + HINGES[1], 0.0)], 1)
