"""Slices of the pairs in which a generator is most likely to leak: outliers, and rows with rare words.

Slices are chosen by the values of both files together, never by coins. Each is guessed in an order of its own, and all
share the error with the whole.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpaudit.estimators.arguments import Floats
from dpaudit.synthetic_tables.games.distances import nearest_real, scaled
from dpaudit.synthetic_tables.games.pairs import PairedTables
from dpaudit.synthetic_tables.games.view import MISSING, TableView

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
