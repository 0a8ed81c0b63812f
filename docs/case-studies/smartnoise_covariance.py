"""SmartNoise Synth 1.0.5, DPcovariance: values are clipped, and then the unclipped ones are used (its issue #622).

Run it in 1.0.6 or later for the fix.
"""

import sys
from importlib.metadata import version

import pandas as pd
import sklearn.linear_model._base

# 1.0.5 asks for a module by a name that scikit-learn gave up.
sys.modules["sklearn.linear_model.base"] = sklearn.linear_model._base
from snsynth.models.dp_covariance import DPcovariance  # noqa: E402
from two_tables import compare  # noqa: E402


def released(values):
    ends = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0]})
    frame = pd.DataFrame({"x": values, "y": values})
    return float(DPcovariance(len(frame), ["x", "y"], ends, 1.0).release(frame)[0])


low = 50 * [0.0]
name = f"SmartNoise Synth {version('smartnoise-synth')}"
compare(f"{name}, a row of 100 in [0, 1]", released, low, [*low[1:], 100.0], claim=1, runs=1_000)
compare(f"{name}, a row of 1", released, low, [*low[1:], 1.0], claim=1, runs=1_000)
