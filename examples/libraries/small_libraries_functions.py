"""Small libraries on plain floats: eeprivacy 0.0.5, diffpriv-pure 0.1.0, diff-priv-laplace-python 1.0.5, dp-group-stats
0.1.2. Rows: "list"."""

from __future__ import annotations

import random
from typing import Any

import diffpriv_pure
import numpy as np
from diffpriv_laplace import DiffPrivStatistics
from dp_group_stats import DPGroupStatsConfig, laplace_noise
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


def statistic(rows: Any, rng: Any, epsilon: float = 1.0, name: str = "mean") -> float:
    """diff-priv-laplace-python's count (of values above one half), max, mean, proportion, sum or variance."""
    np.random.seed(int(rng.integers(2**31)))
    values = np.asarray(rows, float)
    counted = values > 0.5 if name in ("count", "proportion") else values
    return float(getattr(DiffPrivStatistics, name)(counted, epsilon))


def group_sum(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    """Sum of clipped hours of a group, as in the quick start of dp-group-stats; epsilon is for the sum."""
    bounds = DPGroupStatsConfig().bounds
    clipped = [bounds.clip_actual(hours) for hours in rows]
    noise = laplace_noise(epsilon, bounds.actual_sensitivity, random.Random(int(rng.integers(2**31))))
    return float(sum(clipped) + noise)
