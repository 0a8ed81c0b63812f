"""A law against what was drawn: draws are sorted into cells whose chances are known, and counted.

What is counted: each cell; each pair of cells in neighbouring draws of one release; each pair in the same place of two
releases. So a law is checked with its shape, and with it that draws are independent of each other and of other
releases. Each count is binomial if the law holds. It fails outside limits that it leaves with probability 1e-6 divided
by the number of counts, so all of them hold together except once in 10^6: no approximation, no tuning. The power
against other chances is at least that of the cell that shows them best, a binomial probability too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

FALSE_FAILURE = 1e-6
"""Probability of a false failure of one law, and of missing a defect."""

Cells = NDArray[np.int64]
"""Cell of each draw, shape (releases, draws)."""


def departures(cells: Cells, chances: Sequence[float]) -> list[str]:
    """Describe the counts that the law does not allow; empty for draws that follow the law.

    Args:
        cells: 0 .. C - 1, shape (releases, draws), two of each at least; releases are independent.
        chances: Probability of each cell, shape (C,).
    """
    law = np.asarray(chances)
    assert abs(law.sum() - 1) < 1e-12
    pairs = np.outer(law, law).ravel()
    counted = {
        "draws": (cells, law),
        "neighbouring draws": (_paired(cells[:, :-1:2], cells[:, 1::2], len(law)), pairs),
        "two releases": (_paired(cells[:-1:2], cells[1::2], len(law)), pairs),
    }
    differences = []
    for name, (count, expected) in counted.items():
        counts = np.bincount(count.ravel(), minlength=len(expected))
        low, high = _limits(count.size, expected, len(law))
        differences += [
            f"{name}, cell {cell}: {counts[cell]} of {count.size}, expected {low[cell]:.0f} to {high[cell]:.0f}"
            for cell in np.flatnonzero((counts < low) | (counts > high))
        ]
    return differences


def miss(draws: int, chances: Sequence[float], others: Sequence[float]) -> float:
    """Return an upper bound on the probability that draws with chances `others` pass as draws of the law."""
    low, high = _limits(draws, np.asarray(chances), len(chances))
    inside = binom.cdf(high, draws, others) - binom.cdf(low - 1, draws, others)
    return float(inside.min())


def _paired(first: Cells, second: Cells, cells: int) -> Cells:
    return np.asarray(first * cells + second, dtype=np.int64)


def _limits(draws: int, chances: NDArray[np.float64], cells: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return limits that a binomial count leaves with the error probability of one of all counts of a law."""
    each = FALSE_FAILURE / (cells + 2 * cells**2)
    sure = (chances == 0) | (chances == 1)
    inner = np.where(sure, 0.5, chances)
    low = np.where(sure, draws * chances, binom.ppf(each / 2, draws, inner))
    high = np.where(sure, draws * chances, binom.isf(each / 2, draws, inner))
    return low, high
