"""dpart (Hazy), tested with 0.1.2. Rows: "frame" with numbers in [0, 1] in `value` and `other`.

Answers are values of a synthetic table.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from dpart.engines import Independent, PrivBayes

warnings.simplefilter("ignore")
BINS = 4


def private_bayes(rows: Any, rng: Any, epsilon: float = 1.0, count: int = 20) -> Any:
    ends = {"min": 0.0, "max": 1.0}
    return _synthetic(PrivBayes, rows[["value", "other"]], rng, epsilon, {"value": ends, "other": ends}, count)


def independent(rows: Any, rng: Any, epsilon: float = 1.0, count: int = 20) -> Any:
    return _synthetic(Independent, rows[["value"]], rng, epsilon, {"value": {"min": 0.0, "max": 1.0}}, count)


def independent_of_public_bins(rows: Any, rng: Any, epsilon: float = 1.0, count: int = 20) -> Any:
    """How many values in each bin. Nothing is left to the data: bins are public, and a public row of each is added."""
    names = [f"bin {place}" for place in range(BINS)]
    places = (np.clip(np.nan_to_num(rows["value"]), 0.0, 0.999) * BINS).astype(int)
    frame = pd.DataFrame({"value": [*names, *(names[place] for place in places)]})
    shown = _synthetic(Independent, frame, rng, epsilon, {"value": {"categories": names}}, count)
    return [int((shown == name).sum()) for name in names]


def _synthetic(engine: Any, frame: Any, rng: Any, epsilon: float, bounds: Any, count: int) -> Any:
    np.random.seed(int(rng.integers(2**31)))
    made = engine(epsilon=epsilon, bounds=bounds)
    made.fit(frame)
    return made.sample(count)["value"].to_numpy()
