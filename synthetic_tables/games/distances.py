"""Distances between rows of mixed columns, and exact nearest neighbours.

The distance is Gower's: the sum over columns of a difference that is about in [0, 1]. Numbers differ by their
difference in units of the range that holds 98 % of all rows, real and synthetic. Numbers beyond that range are drawn
towards it by a logarithm, so that no outlier dominates. Words differ by 0 or 1.

Source: Gower (1971), "A general coefficient of similarity and some of its properties".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.synthetic_tables.games.view import TableView

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MISSING_NUMBER = -0.5
"""Place of a missing number on the scale. It differs from numbers in the range by 0.5 to 1.5."""
TAIL = 0.01
"""Share of the rows below the range of a column, and above it."""
CELLS = 250_000
"""Number of distances that are computed at once, so that they stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """Rows whose columns contribute at most about 1 each to a distance.

    Attributes:
        numbers: Columns of numbers, mostly in [0, 1], shape (rows, p), float32.
        words: Codes, shape (rows, q), int32.
    """

    numbers: NDArray[np.float32]
    words: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.numbers.shape[0])

    def without_words(self) -> Scaled:
        """Return the columns of numbers alone."""
        return Scaled(self.numbers, self.words[:, :0])


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
    numbers, count = np.concatenate([view.synthetic.numbers, view.real.numbers]), len(view.synthetic)
    scaled_numbers = np.full(numbers.shape, MISSING_NUMBER, np.float32)
    for place, column in enumerate(numbers.T):
        present = ~np.isnan(column)
        values = column[present]
        if values.size:
            low, high = np.quantile(values, [TAIL, 1 - TAIL])
            low, high = (low, high) if high > low else (values.min(), values.max())
            units = (values - low) / max(high - low, np.finfo(np.float64).tiny)
            inside = np.clip(units, 0, 1)
            outside = units - inside
            scaled_numbers[present, place] = inside + np.sign(outside) * np.log1p(np.abs(outside))
    return (
        Scaled(scaled_numbers[:count], view.synthetic.words.astype(np.int32)),
        Scaled(scaled_numbers[count:], view.real.words.astype(np.int32)),
    )


def nearest_real(real: Scaled, pair: Ints, k: int) -> Neighbours:
    """Return the k nearest real rows of each real row, of both files, without the rows of its own pair.

    The whole pair is left out, not the row alone: which row of a pair is asked must not change what is searched.
    """
    groups = pair_groups(pair)
    return nearest(real, real, k, groups=(groups, groups))


def competing_distances(near: Neighbours, claimants: Neighbours, pair: Ints) -> Floats:
    """Return how near the nearest synthetic rows of each real row are to any real row of another pair.

    A synthetic row that is a copy of one real row is far from all others.

    Args:
        near: The nearest synthetic rows of each real row, shape (rows, k).
        claimants: The nearest real rows of each synthetic row.
        pair: Pair of each real row, shape (rows,).
    Returns: Shape (rows, k); infinite where all claimants are of the row's own pair.
    """
    groups = np.append(pair_groups(pair), OUTSIDE)  # row -1 is in none
    other = groups[claimants.rows[near.rows]] != groups[:-1, None, None]
    return np.asarray(np.where(other, claimants.distances[near.rows], np.inf).min(axis=2))


OUTSIDE = np.iinfo(np.int64).max
"""A group that no row has."""


def pair_groups(pair: Ints) -> Ints:
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
    query_group, group = groups or (np.zeros(len(query), np.int64), np.ones(len(searched), np.int64))
    costs = None if weights is None else weights.astype(np.float32)
    near = Neighbours(np.full((len(query), k), np.inf), np.full((len(query), k), -1, np.int64))
    searched_numbers = np.ascontiguousarray(searched.numbers.T)
    codes = np.concatenate([query.words, searched.words])
    codes -= codes.min(initial=0)
    small = codes.astype(np.min_scalar_type(codes.max(initial=0)), order="F")  # few bytes are compared faster
    words, searched_words = small[: len(query)], small[len(query) :].T
    each = max(1, CELLS // max(1, len(searched)))
    for first in range(0, len(query), each):
        part = slice(first, first + each)
        total = _distances(
            query.numbers[part], words[part], None if costs is None else costs[part], searched_numbers, searched_words
        )
        total[query_group[part, None] == group] = np.inf
        everything = np.arange(len(total))
        for place in range(min(k, len(searched))):
            rows = total.argmin(axis=1)  # of equal distances the row with the lowest position
            distances = total[everything, rows]
            near.distances[part, place] = distances
            near.rows[part, place] = np.where(np.isinf(distances), -1, rows)
            total[everything, rows] = np.inf
    return near


def _distances(
    numbers: NDArray[np.float32],
    words: NDArray[Any],
    costs: NDArray[np.float32] | None,
    searched_numbers: NDArray[np.float32],
    searched_words: NDArray[Any],
) -> NDArray[np.float32]:
    """Return the distances of all pairs of rows, shape (rows, searched rows); the searched columns are transposed."""
    shape = len(numbers), searched_numbers.shape[1]
    total, difference, differs = np.zeros(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.bool_)
    for column, codes in enumerate(searched_words):
        np.not_equal(words[:, column, None], codes, out=differs)
        total += differs if costs is None else np.multiply(differs, costs[:, column, None], out=difference)
    for column, values in enumerate(searched_numbers):
        np.subtract(numbers[:, column, None], values, out=difference)
        total += np.abs(difference, out=difference)
    return total
