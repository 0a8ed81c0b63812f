"""SmartNoise Synth, tested with 1.0.5 and 1.0.8. Rows: "frame" with numbers in `x` and `y`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import sklearn.linear_model._base

# 1.0.5 asks for a module by a name that scikit-learn gave up.
sys.modules["sklearn.linear_model.base"] = sklearn.linear_model._base
from snsynth.models.dp_covariance import DPcovariance  # noqa: E402


def covariance(rows: Any, rng: Any, epsilon: float = 1.0, clean: bool = False, digits: int = 30) -> Any:
    """Variances and covariance of two columns in [0, 1]; `clean` mends what is no number."""
    np.random.seed(int(rng.integers(2**31)))
    ends = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0]})
    frame = rows[["x", "y"]].astype(float)
    frame = frame.fillna(0.5).clip(0.0, 1.0) if clean else frame
    return np.round(DPcovariance(len(rows), ["x", "y"], ends, epsilon).release(frame), digits)
