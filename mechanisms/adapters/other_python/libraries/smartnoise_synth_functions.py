"""SmartNoise Synth, tested with 1.0.6 and 1.0.8. Rows: "frame" with numbers in `x` and `y`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from snsynth.models.dp_covariance import DPcovariance


def covariance(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """Variances and covariance of two columns in [0, 1]."""
    np.random.seed(int(rng.integers(2**31)))
    ends = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0]})
    return DPcovariance(len(rows), ["x", "y"], ends, epsilon).release(rows[["x", "y"]].copy())
