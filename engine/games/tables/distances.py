"""Distances between rows of mixed columns, and exact nearest neighbours.

The distance is Gower's: the sum over columns of a difference in [0, 1]. Numbers differ by the difference of their ranks
among all rows, real and synthetic, so that no unit and no outlier dominates. Words differ by 0 or 1.

Source: Gower (1971), "A general coefficient of similarity and some of its properties".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpaudit.engine.games.tables.view import TableView

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MISSING_RANK = -0.5
"""Rank of a missing number. It differs from all other numbers by 0.5 to 1.5, and from another missing one by 0."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """Rows whose columns contribute at most about 1 each to a distance.

    Attributes:
        ranks: Columns of numbers as ranks in [0, 1], shape (rows, p), float32.
        words: Codes, shape (rows, q), int32.
    """

    ranks: NDArray[np.float32]
    words: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.ranks.shape[0])


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest rows of each row of a query, nearest first.

    Attributes:
        distances: Shape (rows, k), infinite where there are fewer than k rows.
        rows: Positions in the searched rows, shape (rows, k), -1 where there are fewer than k rows.
    """

    distances: Floats
    rows: Ints


def scaled(view: TableView) -> tuple[Scaled, Scaled]:
    """Return the synthetic and the real rows of a view on common scales."""
    ranks = ranks_in(view.real.numbers, view.synthetic.numbers), ranks_in(view.synthetic.numbers, view.real.numbers)
    words = view.synthetic.words.astype(np.int32), view.real.words.astype(np.int32)
    return Scaled(ranks[1], words[0]), Scaled(ranks[0], words[1])


def ranks_in(numbers: Floats, others: Floats) -> NDArray[np.float32]:
    """Return the ranks of numbers among themselves and others, in [0, 1], ties in the middle; both (rows, columns)."""
    ranks = np.full(numbers.shape, MISSING_RANK, np.float32)
    for place in range(numbers.shape[1]):
        together = np.concatenate([numbers[:, place], others[:, place]])
        together = np.sort(together[~np.isnan(together)])
        present = ~np.isnan(numbers[:, place])
        values = numbers[present, place]
        below, up_to = np.searchsorted(together, values, "left"), np.searchsorted(together, values, "right")
        ranks[present, place] = (below + up_to) / (2 * max(together.size, 1))
    return ranks


def nearest_synthetic(synthetic: Scaled, real: Scaled, k: int) -> Neighbours:
    """Return the k nearest synthetic rows of each real row."""
    return nearest(real, synthetic, k)


def nearest_real(real: Scaled, pair: Ints, k: int) -> Neighbours:
    """Return the k nearest real rows of each real row, of both files, without the rows of its own pair.

    The whole pair is left out, not the row alone: which row of a pair is asked must not change what is searched.
    """
    groups = _groups(pair)
    return nearest(real, real, k, groups=(groups, groups))


def _groups(pair: Ints) -> Ints:
    """Return the pair of each row, and a group of its own for each row outside all pairs."""
    lone = np.flatnonzero(pair < 0)
    groups = pair.copy()
    groups[lone] = -2 - lone
    return groups


def nearest(
    query: Scaled,
    searched: Scaled,
    k: int,
    *,
    weights: Floats | None = None,
    groups: tuple[Ints, Ints] | None = None,
) -> Neighbours:
    """Return the k nearest of the searched rows for each row of the query, by exhaustive search.

    Args:
        weights: Cost of a word that differs from the query's, shape (query rows, q); 1 by default.
        groups: Groups of the rows of the query and of the searched rows. Rows of one group are not neighbours.
    """
    costs = np.ones(query.words.shape, np.float32) if weights is None else weights.astype(np.float32)
    query_group, group = groups or (np.zeros(len(query), np.int64), np.ones(len(searched), np.int64))
    distances, rows = _nearest(query.ranks, query.words, costs, query_group, searched.ranks, searched.words, group, k)
    return Neighbours(distances.astype(np.float64), rows)


@njit(cache=True, nogil=True)
def _nearest(
    ranks: NDArray[np.float32],
    words: NDArray[np.int32],
    costs: NDArray[np.float32],
    groups: Ints,
    searched_ranks: NDArray[np.float32],
    searched_words: NDArray[np.int32],
    searched_groups: Ints,
    k: int,
) -> tuple[NDArray[np.float32], Ints]:
    """Return distances and positions of the k nearest rows; a sum ends where it exceeds the k-th smallest one."""
    rows, numbers_count, words_count = ranks.shape[0], ranks.shape[1], words.shape[1]
    best = np.full((rows, k), np.inf, np.float32)
    places = np.full((rows, k), -1, np.int64)
    for row in range(rows):
        for other in range(searched_ranks.shape[0]):
            limit = best[row, k - 1]
            total = np.float32(0)
            for column in range(words_count):
                if words[row, column] != searched_words[other, column]:
                    total += costs[row, column]
                    if total >= limit:
                        break
            if total >= limit:
                continue
            for column in range(numbers_count):
                total += abs(ranks[row, column] - searched_ranks[other, column])
                if total >= limit:
                    break
            if total >= limit or groups[row] == searched_groups[other]:
                continue
            place = k - 1
            while place > 0 and best[row, place - 1] > total:
                best[row, place], places[row, place] = best[row, place - 1], places[row, place - 1]
                place -= 1
            best[row, place], places[row, place] = total, other
    return best, places
