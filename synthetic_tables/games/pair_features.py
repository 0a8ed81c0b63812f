"""Features of pairs of one training and one holdout canary for the order of guesses, and slices of the pairs.

Slices are pairs in which a generator is most likely to leak: outliers, and rows with rare words. They are chosen by the
values of both files together, never by coins. Each is guessed in an order of its own, and all share the error with the
whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from dpaudit.engine.attacks.guess_order import order_of_attacks
from dpaudit.estimators.arguments import Floats
from dpaudit.estimators.scores import Scores
from dpaudit.synthetic_tables.games.distances import nearest_real, scaled
from dpaudit.synthetic_tables.games.pairs import PairedTables
from dpaudit.synthetic_tables.games.view import MISSING, TableView

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
        opinions: How much more the first canary stands out than the second one, in each feature of the attacks, shape
            (pairs, features).
        own: Columns of the attacks' own scores.
        learned: Differences of tail ranks, for the model, shape (pairs, k).
    """

    opinions: Floats
    own: tuple[int, ...]
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
        own = np.cumsum([0, *(attack.shape[1] for attack in attacks[:-1])])
        learned = differences(paired, tails(features))
        opinions = differences(paired, outliers(features))[:, : features.shape[1]]
        return cls(opinions, tuple(own.tolist()), learned[:, learned.any(axis=0)])

    def order(self, coins: NDArray[np.bool_], guessed: NDArray[np.bool_]) -> Scores:
        """Return a predictable order of guesses of some pairs; the coins of the others are known."""
        return order_of_attacks(self.opinions, self.own, self.learned, coins, guessed=guessed)


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


LARGEST_SHARE = 0.1
"""Largest share of the pairs in a slice."""
RARE = 0.01
"""Share of the real rows below which a word is rare."""
NEIGHBOURS = 10
"""Rank of the neighbour whose distance measures the local density."""
FEWEST_PAIRS = 20
"""Smallest number of pairs that is looked at alone."""


def slices(paired: PairedTables) -> dict[str, NDArray[np.bool_]]:
    """Return masks of the pairs in each slice that has enough pairs, shape (pairs,), by name."""
    rarity = rarest_word(paired.view)
    named = {
        "outliers": _most(paired, distances_to_neighbours(paired.view)),
        "rare words": _most(paired, np.where(rarity < RARE, 1 - rarity, -np.inf)),
    }
    return {name: pairs for name, pairs in named.items() if pairs.sum() >= FEWEST_PAIRS}


def distances_to_neighbours(view: TableView) -> Floats:
    """Return the distance of each real row to its tenth nearest real row of another pair, shape (rows,)."""
    _, real = scaled(view)
    count = min(NEIGHBOURS, max(1, len(view.real) - 2))
    distances = nearest_real(real, view.pair, count).distances[:, -1]
    return np.where(np.isfinite(distances), distances, 0.0)


def rarest_word(view: TableView) -> Floats:
    """Return the share of real rows that carry the rarest word of each real row, shape (rows,); 1 without words."""
    words, rows = view.real.words, len(view.real)
    share = np.ones(rows)
    for place in range(words.shape[1]):
        present = words[:, place] != MISSING
        counts = np.bincount(words[present, place], minlength=1)
        share[present] = np.minimum(share[present], counts[words[present, place]] / rows)
    return share


def _most(paired: PairedTables, value: Floats) -> NDArray[np.bool_]:
    """Return the tenth of the pairs in which a row has the largest values; pairs of -inf alone are left out."""
    largest = paired.of_canaries(value[:, None])[0][:, :, 0].max(axis=0)
    count = math.ceil(LARGEST_SHARE * paired.pairs)
    chosen = np.argsort(-largest, kind="stable")[:count]
    mask = np.zeros(paired.pairs, bool)
    mask[chosen] = largest[chosen] > -np.inf
    return mask
