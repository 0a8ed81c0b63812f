"""Two small libraries on plain floats: eeprivacy, tested with 0.0.5, and diffpriv-pure, with 0.1.0. Rows: "list"."""

from __future__ import annotations

import random
from typing import Any

import diffpriv_pure
import numpy as np
from eeprivacy import operations


def energy_mean(rows: Any, rng: Any, epsilon: float = 1.0, clip: bool = False) -> float:
    """eeprivacy's clamped mean in [0, 1]; `clip` clips values beforehand and leaves no low bits to read."""
    np.random.seed(int(rng.integers(2**31)))
    values = np.clip(np.nan_to_num(np.asarray(rows, float)), 0.0, 1.0) if clip else rows
    shown = operations.PrivateClampedMean(lower_bound=0.0, upper_bound=1.0).execute(values=values, epsilon=epsilon)
    return round(float(shown), 6 if clip else 30)


def energy_sum(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    """eeprivacy's clamped sum in [0, 1]."""
    np.random.seed(int(rng.integers(2**31)))
    return float(operations.PrivateClampedSum(lower_bound=0.0, upper_bound=1.0).execute(values=rows, epsilon=epsilon))


def count(rows: Any, rng: Any, epsilon: float = 1.0, two_sided: bool = False) -> int:
    """diffpriv-pure's count of values above one half; `two_sided` takes the difference of two of its noises."""
    random.seed(int(rng.integers(2**31)))
    shown: int = diffpriv_pure.private_count(sum(value is not None and value > 0.5 for value in rows), epsilon)
    return shown - int(two_sided and diffpriv_pure.geometric_noise(epsilon))
