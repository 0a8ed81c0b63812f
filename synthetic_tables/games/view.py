"""Tables of mixed columns, the attacker's view of a synthetic table, and the interface of attacks on it.

Training and holdout rows are paired at random, and the attacker tells which row of each pair was trained on. To keep
the guesses valid, an attack must not know which file a row of a pair came from: it sees both files unordered.
"""

from __future__ import annotations

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
    """

    numbers: NDArray[np.float64]
    words: NDArray[np.int64]
    levels: NDArray[np.int64]
    number_names: tuple[str, ...]
    word_names: tuple[str, ...]

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
