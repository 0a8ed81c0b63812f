"""One class for each row of probabilities."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def drawn_classes(cumulative: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first class whose cumulative probability exceeds the row's uniform number.

    Args:
        cumulative: Cumulative class probabilities, shape (m, classes); the last column is not looked at.
        uniform: Independent uniform numbers in [0, 1), shape (m,).
    Returns: Classes, shape (m,).
    """
    rows, classes = cumulative.shape
    drawn = np.empty(rows, np.int64)
    for row in range(rows):
        chosen = 0
        while chosen < classes - 1 and uniform[row] >= cumulative[row, chosen]:
            chosen += 1
        drawn[row] = chosen
    return drawn
