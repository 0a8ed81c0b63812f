"""Tables of mixed columns, the attacker's view of a synthetic table, and the interface of attacks on it.

Training and holdout rows are paired at random, and the attacker tells which row of each pair was trained on. To keep
the guesses valid, an attack must not know which file a row of a pair came from: it sees both files unordered.

Cells of combinations of columns are counted among synthetic rows and among real rows of other pairs. The rows of a
row's own pair never count: both rows of a pair are left out of the counts of both, so that the counts do not depend on
which of them was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

MISSING = -1
"""Code of a missing word."""
SECRET, KNOWN_HOLDOUT, KNOWN_TRAINING = -1, 0, 1
"""Values of `TableView.file`."""


@dataclass(frozen=True, eq=False)
class MixedTable:
    """Rows with columns of numbers and of words.

    Attributes:
        numbers: Columns of numbers, shape (rows, p), float64; NaN where a value is missing.
        words: Codes of the words of the other columns, shape (rows, q), int64, in 0 .. levels - 1; `MISSING` for none.
            All tables of an audit share the codes, and codes do not depend on the file that a word occurs in.
        levels: Number of codes of each column of words, shape (q,).
        number_names, word_names: Names of the columns.
        vocabularies: The words of each column of words by their codes; empty where they are not known.
    """

    numbers: NDArray[np.float64]
    words: NDArray[np.int64]
    levels: NDArray[np.int64]
    number_names: tuple[str, ...]
    word_names: tuple[str, ...]
    vocabularies: tuple[Sequence[str], ...] = ()

    def __len__(self) -> int:
        return int(self.numbers.shape[0])

    def take(self, rows: NDArray[Any]) -> MixedTable:
        """Return the rows at int positions or in a boolean mask."""
        return replace(self, numbers=self.numbers[rows], words=self.words[rows])


@dataclass(frozen=True, eq=False)
class TableView:
    """Everything that an attack on a synthetic table sees.

    Attributes:
        synthetic: The synthetic rows, all columns that the real rows have.
        real: The rows of both files, in an order that does not depend on their file.
        pair: Number of the pair of each real row, shape (rows,), in 0 .. pairs - 1; -1 for rows outside all pairs. The
            rows of a person belong to one pair.
        file: `SECRET` for rows of pairs; `KNOWN_HOLDOUT` or `KNOWN_TRAINING` for the others, shape (rows,).
    """

    synthetic: MixedTable
    real: MixedTable
    pair: NDArray[np.int64]
    file: NDArray[np.int8]
    shows: ClassVar[str] = "a synthetic table, and real rows of which some were trained on"


class TableAttack(Protocol):
    """A membership attack on a synthetic table, registered as "table-attack".

    It reads the whole view, but nothing that tells which file a row of a pair came from. It is deterministic.
    """

    def features(self, view: TableView) -> NDArray[np.float64]:
        """Return features of the real rows, shape (rows, k), k >= 1, all finite; larger = more likely trained on.

        The first one is the attack's own score. The others show the same evidence on other scales, for the attack that
        combines all features.
        """
        ...


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cells:
    """Synthetic and real rows with every column as codes from 0.

    Attributes:
        synthetic: Shape (synthetic rows, columns).
        real: Shape (real rows, columns).
        sizes: Number of codes of each column.
        mates: Real rows, and for each of them another real row of its pair: all such ordered pairs of rows.
    """

    synthetic: Ints
    real: Ints
    sizes: Ints
    mates: tuple[Ints, Ints]

    @property
    def columns(self) -> int:
        """Number of columns."""
        return int(self.sizes.size)

    def counts(self, columns: Sequence[int]) -> tuple[Ints, Ints]:
        """Return for each real row the synthetic rows and the real rows of other pairs in its cell of some columns."""
        synthetic, real, size = self.combined(columns)
        in_pair = 1 + np.bincount(self.mates[0], real[self.mates[0]] == real[self.mates[1]], minlength=real.size)
        return (
            np.bincount(synthetic, minlength=size)[real],
            np.bincount(real, minlength=size)[real] - in_pair.astype(np.int64),
        )

    def discrepancy(self, columns: Sequence[int]) -> float:
        """Return chi-squared over degrees of freedom between the synthetic and the real marginal of some columns.

        It is about 1 if the synthetic rows are fresh draws of the law of the real rows, or of the empirical law of half
        of them, and larger if the marginal is distorted. Cells with fewer than 5 rows do not count.
        """
        synthetic_cell, real_cell, size = self.combined(columns)
        scale = len(self.real) / len(self.synthetic)
        synthetic = scale * np.bincount(synthetic_cell, minlength=size)
        real = np.bincount(real_cell, minlength=size)
        many = synthetic + real >= 5
        variance = (1 + scale) * (synthetic + real)[many] / 2
        freedom = max(1, np.count_nonzero(many) - 1)
        return float(((synthetic - real)[many] ** 2 / variance).sum() / freedom)

    def combined(self, columns: Sequence[int]) -> tuple[Ints, Ints, int]:
        """Return the cell of each synthetic and each real row in some columns, and the number of cells."""
        synthetic, real = np.zeros(len(self.synthetic), np.int64), np.zeros(len(self.real), np.int64)
        size, limit = 1, 4 * (len(synthetic) + len(real))
        for column in columns:
            width = int(self.sizes[column])
            synthetic, real = synthetic * width + self.synthetic[:, column], real * width + self.real[:, column]
            size *= width
            if size > limit:
                distinct, codes = np.unique(np.concatenate([synthetic, real]), return_inverse=True)
                synthetic, real, size = codes[: synthetic.size], codes[synthetic.size :], distinct.size
        return synthetic, real, size

    def log_ratio(self, columns: Sequence[int], prior: float = 1.0) -> Floats:
        """Return the smoothed log ratio of the cell's frequency in the synthetic table and among real rows.

        Args:
            prior: Real rows that the smoothing adds to each cell, > 0.
        """
        synthetic, real = self.counts(columns)
        scale = len(self.real) / len(self.synthetic)
        return np.log((synthetic * scale + prior) / (real + prior))


def exact_cells(view: TableView) -> Cells:
    """Return cells in which numbers are equal to the last digit."""
    return binned_cells(view, None)


def binned_cells(view: TableView, bins: int | None) -> Cells:
    """Return cells whose numbers are binned by quantiles of the real rows; few different numbers keep their own bins.

    Args:
        bins: Number of bins of each column of numbers, >= 2; None for a cell for each number.
    """
    columns, sizes, count = [], [], len(view.synthetic)
    for together in np.concatenate([view.synthetic.numbers, view.real.numbers]).T:
        edges = np.unique(together[~np.isnan(together)])
        if bins is not None and edges.size > bins:
            real = together[count:]
            ordered = np.sort(real[~np.isnan(real)])
            edges = np.unique(ordered[(np.arange(1, bins) * ordered.size) // bins]) if ordered.size else ordered
        columns.append(np.where(np.isnan(together), 0, 1 + np.searchsorted(edges, together, "right")))
        sizes.append(edges.size + 2)  # missing numbers have code 0, and so do missing words
    words = np.concatenate([view.synthetic.words, view.real.words]) + 1
    codes = np.column_stack([*columns, words]).astype(np.int64)
    return Cells(codes[:count], codes[count:], np.array([*sizes, *(view.real.levels + 1)], np.int64), mates(view.pair))


def mates(pair: Ints) -> tuple[Ints, Ints]:
    """Return all ordered pairs of different rows of one pair, as rows and their mates."""
    order = np.argsort(pair, kind="stable")
    order = order[pair[order] >= 0]
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    sizes = np.diff(np.append(starts, order.size))
    firsts, seconds = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for size in np.unique(sizes[sizes > 1]):
        rows = order[starts[sizes == size][:, None] + np.arange(size)]
        first, second = np.nonzero(~np.eye(size, dtype=bool))
        firsts.append(rows[:, first].ravel())
        seconds.append(rows[:, second].ravel())
    return np.concatenate(firsts), np.concatenate(seconds)
