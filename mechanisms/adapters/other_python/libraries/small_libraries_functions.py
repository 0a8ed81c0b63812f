"""Two small libraries on plain floats: eeprivacy, tested with 0.0.5, and diffpriv-pure, with 0.1.0. Rows: "list"."""

from __future__ import annotations

import random
from typing import Any

import diffpriv_pure
import numpy as np
from eeprivacy import operations


def energy_mean(rows: Any, rng: Any, epsilon: float = 1.0, clip: bool = False) -> float:
    """eeprivacy's clamped mean in [0, 1]; `clip` clips the values beforehand."""
    np.random.seed(int(rng.integers(2**31)))
    values = np.clip(np.nan_to_num(rows), 0.0, 1.0) if clip else rows
    return float(operations.PrivateClampedMean(lower_bound=0.0, upper_bound=1.0).execute(values=values, epsilon=epsilon))


def energy_sum(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    """eeprivacy's clamped sum in [0, 1]."""
    np.random.seed(int(rng.integers(2**31)))
    return float(operations.PrivateClampedSum(lower_bound=0.0, upper_bound=1.0).execute(values=rows, epsilon=epsilon))


def count(rows: Any, rng: Any, epsilon: float = 1.0, two_sided: bool = False) -> int:
    """diffpriv-pure's count of values above one half; `two_sided` takes the difference of two of its noises."""
    random.seed(int(rng.integers(2**31)))
    exact = sum(value > 0.5 for value in rows)
    noise = diffpriv_pure.geometric_noise(epsilon)
    return exact + noise - (diffpriv_pure.geometric_noise(epsilon) if two_sided else 0)
