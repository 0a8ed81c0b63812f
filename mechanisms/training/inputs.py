"""What a network takes of `Features`: one float32 array."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Features


def as_array(features: Features) -> NDArray[np.float32]:
    """Features as one float32 array of shape (n, ...), missing numbers as NaN.

    Raises: InputError when a table has a column that is not of numbers, or an array is not float32.
    """
    if isinstance(features, pa.Table):
        return np.stack([_column(features, name) for name in features.column_names], axis=1)
    require(features.dtype == np.float32, "features of a network must be float32", dtype=features.dtype)
    return features


def example_shape(features: Features) -> tuple[int, ...]:
    """Shape of one example in the array of `as_array`, without making it.

    Raises: InputError as `as_array` does.
    """
    return tuple(as_array(features[:1] if isinstance(features, np.ndarray) else features.slice(0, 1)).shape[1:])


def _column(table: pa.Table, name: str) -> NDArray[np.float32]:
    kind = table.schema.field(name).type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    require(
        numeric,
        f"a network takes columns of numbers only, column {name!r} holds {kind}",
        do="use catboost or logistic-regression, or leave the column out",
    )
    column: NDArray[np.float32] = np.asarray(table[name].cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32)
    return column
