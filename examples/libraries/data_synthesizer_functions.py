"""DataSynthesizer, tested with 0.1.4 and 0.1.13. Rows: "frame". Answers are what it says of the data, no samples."""

from __future__ import annotations

import contextlib
import io
import tempfile
from typing import Any

import numpy as np
import pandas as pd
from DataSynthesizer.DataDescriber import DataDescriber
from DataSynthesizer.lib.PrivBayes import construct_noisy_conditional_distributions


def _described(rows: Any, epsilon: float, seed: int, **settings: Any) -> Any:
    describer = DataDescriber(category_threshold=5)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file, contextlib.redirect_stdout(io.StringIO()):
        rows.to_csv(file.name, index=False)
        describer.describe_dataset_in_independent_attribute_mode(file.name, epsilon=epsilon, seed=seed, **settings)
    return describer.data_description["attribute_description"]


def description(rows: Any, rng: Any, epsilon: float = 1.0, fixed_seed: bool = True, ends: bool = False) -> Any:
    """Distribution, share of missing values and ends of `value`, in [0, 1]; `fixed_seed` leaves the seed as it is."""
    seed = 0 if fixed_seed else int(rng.integers(2**31))
    given = {} if ends else {"numerical_attribute_ranges": {"value": [0.0, 1.0]}}
    kinds = {"attribute_to_datatype": {"value": "Float"}, "attribute_to_is_categorical": {"value": False}}
    shown = _described(rows[["value"]], epsilon, seed, **_kinds(kinds), **given)["value"]
    names = ("distribution_probabilities", "missing_rate", *(("min", "max") if ends else ()))
    return {name: shown[name] for name in names}


def distribution(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """The distribution alone, with a seed of its own, of values that are never missing."""
    whole = rows.assign(value=np.clip(np.nan_to_num(rows["value"].astype(float), nan=0.5), 0.0, 1.0))
    return np.round(description(whole, rng, epsilon, fixed_seed=False)["distribution_probabilities"], 6)


def _kinds(given: dict[str, Any]) -> dict[str, Any]:
    from DataSynthesizer.datatypes.utils.DataType import DataType

    return {**given, "attribute_to_datatype": {"value": DataType.FLOAT}}


def conditional(rows: Any, rng: Any, epsilon: float = 1.0, public_rows: bool = False, digits: int = 30) -> Any:
    """Shares of `y` (0 or 1) given `x` (0 or 1), as its Bayesian network holds them.

    `public_rows` adds a row of each kind, so that nothing is left to the data, and mends what is neither 0 nor 1.
    """
    np.random.seed(int(rng.integers(2**31)))
    frame = rows[["x", "y"]]
    if public_rows:
        mended = (np.nan_to_num(frame.to_numpy(float)) >= 0.5).astype(int)
        frame = pd.DataFrame([*mended.tolist(), [0, 0], [0, 1], [1, 0], [1, 1]], columns=["x", "y"])
    found = construct_noisy_conditional_distributions([("y", ["x"])], frame.astype(int), epsilon)
    return [np.round(shares, digits) for shares in (found["x"], *found["y"].values())]
