"""Rounding of released numbers to a grid, which removes digits far below the noise.

The low bits of floating-point noise reveal the number to which it was added (Mironov 2012), at any noise scale, and
would hide all other leaks. Rounding is post-processing by a function that depends on search samples only, so a bound
from rounded numbers holds for the release as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.outcomes import MAX_EXACT_WIDTH

STEP = 1e-6
"""Step of the grid, as a share of the interquartile range."""
REPEATS = 3
"""Occurrences among search samples that make a value an exact repeat, which is not rounded."""


@dataclass(frozen=True, eq=False)
class Rounding:
    """A grid for each number of a summary.

    Attributes:
        steps: Distance of grid points for each column, shape (d,); 0 for columns that are not rounded: whole numbers,
            and numbers without spread.
        repeats: For each column, values that are not rounded, ascending.
    """

    steps: NDArray[np.float64]
    repeats: Sequence[NDArray[np.float64]]

    @classmethod
    def learned(cls, summaries: NDArray[Any]) -> Rounding:
        """Choose the grids from search samples of both worlds, shape (m, d)."""
        width = summaries.shape[1]
        if width > MAX_EXACT_WIDTH:
            return cls(np.zeros(width), ())
        columns = [_grid(np.asarray(column, np.float64)) for column in summaries.T]
        return cls(np.array([step for step, _ in columns]), [values for _, values in columns])

    def rounded(self, summaries: NDArray[Any]) -> NDArray[Any]:
        """Return the summaries, shape (n, d), with each number at the nearest point of its grid."""
        if not self.steps.any():
            return summaries
        rounded = np.array(summaries, np.float64)
        for place in np.flatnonzero(self.steps).tolist():
            column, values = rounded[:, place], self.repeats[place]
            on_grid = np.round(column / self.steps[place]) * self.steps[place]
            if len(values):
                nearest = values[np.minimum(np.searchsorted(values, column), len(values) - 1)]
                on_grid = np.where(nearest == column, column, on_grid)
            rounded[:, place] = on_grid
        return rounded


def _grid(column: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the step of one column, 0 for none, and its exact repeats."""
    values, counts = np.unique(column, return_counts=True)
    repeats = values[counts >= REPEATS]
    others = np.repeat(values[counts < REPEATS], counts[counts < REPEATS])
    if len(others) < 2 or not (others % 1).any():
        return 0.0, repeats
    low, high = np.quantile(others, (0.25, 0.75))
    spread = float(high - low) or float(np.ptp(others))
    return STEP * spread, repeats
