"""SmartNoise Synth 1.0.6, DPcovariance: values are clipped, and then the unclipped ones used (#622; fixed in 1.0.8)."""

from importlib.metadata import version

import pandas as pd
from snsynth.models.dp_covariance import DPcovariance
from two_tables import compare


def released(values):
    ends = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0]})
    frame = pd.DataFrame({"x": values, "y": values})
    return float(DPcovariance(len(frame), ["x", "y"], ends, 1.0).release(frame)[0])


low = 50 * [0.0]
beyond = [*low[1:], 100.0]
inside = [*low[1:], 1.0]
name = f"SmartNoise Synth {version('smartnoise-synth')}"
compare(f"{name}, one row of 100 where the range is [0, 1]", released, low, beyond, claim=1, runs=2_000)
compare(f"{name}, one row of 1", released, low, inside, claim=1, runs=2_000)
