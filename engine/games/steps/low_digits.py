"""Digits far below the noise: noise in fewer bits than the sum to which it is added, or with values that recur.

The noise alone then lies on a grid or on earlier values, but the noise and a canary do not. This is a leak of numbers
in a computer, not of the claim about real numbers.
Source: Mironov (2012), "On significance of the least significant bits for differential privacy".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CLOSE = 1e-11
"""Difference, in clips, below which numbers are equal but for rounding."""
MAX_NUMBERS = 500_000
"""Largest number of stored numbers."""
THRESHOLD_NATS = 10.0
"""Evidence in nats below which numbers lie nowhere."""


class LowDigits:
    """Numbers of the residuals so far.

    Args:
        units: Factors on a residual after which its noise may have been rounded.
    """

    def __init__(self, units: tuple[float, ...]) -> None:
        self._units = tuple(dict.fromkeys(units))
        self._stored = np.zeros(0)

    def score(self, residual: Floats, without: Floats) -> float:
        """Return the evidence in nats of the canary: `without` it, the residual lies on a grid or on earlier values."""
        return max(self._nats(without), THRESHOLD_NATS) - self._nats(residual)

    def add(self, residual: Floats) -> None:
        """Store a residual."""
        if self._stored.size + residual.size <= MAX_NUMBERS:
            self._stored = np.sort(np.concatenate([self._stored, residual]))

    def _nats(self, row: Floats) -> float:
        return max(self._recurring(row), *(_on_grid(unit * row, unit * CLOSE) for unit in self._units))

    def _recurring(self, row: Floats) -> float:
        """Return the evidence that numbers of a row are among the stored ones."""
        if self._stored.size < 2:
            return 0.0
        place = np.clip(np.searchsorted(self._stored, row), 1, self._stored.size - 1)
        distance = np.minimum(np.abs(row - self._stored[place - 1]), np.abs(row - self._stored[place]))
        return float(-np.log(np.minimum(1.0, self._stored.size * np.maximum(distance, CLOSE))).sum())


def _on_grid(row: Floats, close: float) -> float:
    """Return the evidence that a row consists of numbers in single precision, which half precision is too."""
    spacing = np.spacing(np.abs(row).astype(np.float32)).astype(np.float64)
    distance = np.abs(row - row.astype(np.float32))
    nonzero = np.abs(row) > 1e-3  # finer numbers than these tell little
    return float(-np.log(np.minimum(1.0, 2 * np.maximum(distance, close) / spacing))[nonzero].sum())
