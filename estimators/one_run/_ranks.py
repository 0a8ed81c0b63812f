"""How many of the first g rows of a ranking are right, for several g, without sorting all the rows."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

BITS = 20
"""Leading bits of a key that rows are counted by at most: a million counters, a handful of rows in each."""


@njit(cache=True, nogil=True)
def right_among_first(
    keys: NDArray[np.uint32], ranks: NDArray[np.int64], right: NDArray[np.bool_], firsts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Right rows among the first g in the order of (key, rank), for each g of `firsts`.

    One pass counts rows and right ones by the leading bits of the key; only the rows that share those bits with a
    g-th row are sorted.

    Args:
        keys: Shape (n,), smaller = earlier.
        ranks: Shape (n,), all different; decide between equal keys.
        right: Shape (n,).
        firsts: Numbers of rows in 0..n, ascending, shape (k,).
    Returns: Counts, shape (k,).
    """
    bits = 4
    while bits < BITS and (1 << bits) < keys.size:  # few rows need few counters
        bits += 1
    shift = np.uint32(32 - bits)
    rows = np.zeros(1 << bits, np.int64)
    rights = np.zeros(1 << bits, np.int64)
    for row in range(keys.size):
        cell = keys[row] >> shift
        rows[cell] += 1
        rights[cell] += right[row]
    cells = np.full(firsts.size, -1, np.int64)  # the cell that holds the last of the first g rows
    before = np.zeros(firsts.size, np.int64)  # rows in the cells before it
    counts = np.zeros(firsts.size, np.int64)  # right ones among those
    look, seen, good = 0, 0, 0
    for cell in range(1 << bits):
        while look < firsts.size and firsts[look] <= seen + rows[cell]:
            cells[look], before[look], counts[look] = cell, seen, good
            look += 1
        if look == firsts.size:
            break
        seen += rows[cell]
        good += rights[cell]
    starts = np.full(1 << bits, -1, np.int64)
    wanted = 0
    for look in range(firsts.size):
        if starts[cells[look]] < 0:
            starts[cells[look]] = wanted
            wanted += rows[cells[look]]
    members = np.empty(wanted, np.int64)
    filled = starts.copy()
    for row in range(keys.size):
        cell = keys[row] >> shift
        if starts[cell] >= 0:
            members[filled[cell]] = row
            filled[cell] += 1
    last = -1
    for look in range(firsts.size):
        cell = cells[look]
        inside = members[starts[cell] : starts[cell] + rows[cell]]
        if cell != last:
            # One word for each row: the key's remaining bits, then the rank.
            words = np.empty(inside.size, np.int64)
            for place in range(inside.size):
                low = np.int64(keys[inside[place]] & ((np.uint32(1) << shift) - np.uint32(1)))
                words[place] = low * np.int64(keys.size) + ranks[inside[place]]
            inside[:] = inside[np.argsort(words)]
            last = cell
        for place in range(firsts[look] - before[look]):
            counts[look] += right[inside[place]]
    return counts
