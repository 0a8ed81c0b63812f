"""Any table as numbers in a known range, as private learners want them."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.mechanisms.examples import Examples

Scale = Literal["box", "ball", "none"]
MOST_CATEGORIES = 100
"""One column each; rarer ones of the same column share the last."""


def as_numbers(data: Examples, scale: Scale) -> Examples:
    """The same rows as float32 of shape (n, d): categories become columns of 0 and 1.

    The range is that of all rows, which the audit takes for public, as the paper does.

    Args:
        data: n rows.
        scale: "box": each column from 0 to 1; "ball": each column from -1 to 1, then every row divided by the largest
            length, so that none is longer than 1; "none": as they are.
    """
    features = np.column_stack(_columns(data)) if isinstance(data.features, pa.Table) else data.features
    flat = np.asarray(features, np.float64).reshape(len(data), -1)
    return Examples(_scaled(flat, scale).astype(np.float32), data.labels, data.classes, data.name)


def _scaled(flat: NDArray[np.float64], scale: Scale) -> NDArray[np.float64]:
    if scale == "none":
        return flat
    lower, upper = flat.min(0), flat.max(0)
    unit: NDArray[np.float64] = (flat - lower) / np.where(upper > lower, upper - lower, 1.0)
    if scale == "box":
        return unit
    centred: NDArray[np.float64] = 2 * unit - 1
    # A hair shorter than 1: rounding to 32 bits must not lengthen any.
    longest = float(np.linalg.norm(centred, axis=1).max()) * (1 + 1e-6)
    return centred / longest


def _columns(data: Examples) -> list[NDArray[np.float64]]:
    table = data.features
    assert isinstance(table, pa.Table)
    found: list[NDArray[np.float64]] = []
    for name in table.column_names:
        if name not in data.categorical:
            found.append(table[name].to_numpy().astype(np.float64))
            continue
        words = table[name].to_pylist()
        common = sorted(word for word, _ in Counter(words).most_common(MOST_CATEGORIES))
        code = {word: place for place, word in enumerate(common)}
        places = np.array([code.get(word, len(common)) for word in words])
        found += [(places == place).astype(np.float64) for place in range(places.max() + 1)]
    return found
