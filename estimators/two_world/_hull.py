"""Compiled: the corners of a cloud of points that a line with a falling slope can touch from below."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def lower_hull(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places of the vertices of the lower convex hull, ascending.

    Args:
        x: Ascending, shape (n,), n >= 1.
        y: Shape (n,).
    """
    kept = np.empty(x.size, np.int64)
    count = 0
    for point in range(x.size):
        while count >= 2:
            first, last = kept[count - 2], kept[count - 1]
            turn = (x[last] - x[first]) * (y[point] - y[first]) - (y[last] - y[first]) * (x[point] - x[first])
            if turn > 0:
                break
            count -= 1
        kept[count] = point
        count += 1
    return kept[:count]
