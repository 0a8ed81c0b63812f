"""The local level of bands for many scores: a polynomial fitted to what the recursion of `bands` gives.

The logarithm of the level is smooth in those of the number of scores and of the error, so that it need not be searched
for by a recursion over all ranks, which takes seconds. What the polynomial gives is lowered by twice its largest
distance from 110 computed levels. `benchmarks/band_levels.py` computes, fits, and tries it where it was not fitted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FROM, UP_TO = 10_000, 2_000_000
"""Scores that it is for."""
LEAST_ERROR, MOST_ERROR = 1e-5, 0.3
"""Errors that it is for."""
WEIGHT = "low"
"""The weight of ranks that it is for: the default."""
MARGIN = 0.011
"""By which the logarithm of the level is lowered."""

_DEGREE = 5
_COEFFICIENTS = (
    -14.549603,
    5.3814522,
    0.10392124,
    0.00016152731,
    0.064493911,
    0.085844934,
    -1.9467388,
    -0.0042824281,
    0.0041512401,
    0.009743924,
    -0.012320058,
    -0.020388572,
    0.0058922434,
    -0.0063566261,
    0.0044643086,
    0.032071762,
    0.012046233,
    -0.0055155249,
    0.01935858,
    -0.018753205,
    -0.060116426,
)


def terms(n: NDArray[np.int64] | int, error: Floats | float) -> Floats:
    """The terms of the polynomial, shape (..., terms)."""
    x, y = np.log(np.asarray(n, dtype=np.float64) / 1e5) / 4, np.log(np.asarray(error) / 1e-3) / 5
    powers = [(i, j) for i in range(_DEGREE + 1) for j in range(_DEGREE + 1 - i)]
    return np.stack([x**i * y**j for i, j in powers], axis=-1)


def fitted_level(n: int, error: float, weight: str) -> float | None:
    """The local level for n scores of a world.

    Args: as `bands.local_level`.
    Returns: The level; None for what it was not fitted to.
    """
    if not (FROM <= n <= UP_TO and LEAST_ERROR <= error <= MOST_ERROR and weight == WEIGHT):
        return None
    return float(np.exp(terms(n, error) @ np.array(_COEFFICIENTS) - MARGIN))
