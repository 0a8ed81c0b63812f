"""Conversion of `Features` to the float32 array that a network reads, and its scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Features

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def as_array(features: Features) -> NDArray[np.float32]:
    """Return the features as a float32 array (n, ...), with missing numbers as NaN; rejects other types."""
    if isinstance(features, pa.Table):
        return np.stack([_column(features, name) for name in features.column_names], axis=1)
    require(features.dtype == np.float32, "a network needs float32 features", dtype=features.dtype)
    return features


def example_shape(features: Features) -> tuple[int, ...]:
    """Return the shape of one example in the result of `as_array`, without converting all rows."""
    return tuple(as_array(features[:1] if isinstance(features, np.ndarray) else features.slice(0, 1)).shape[1:])


def _column(table: pa.Table, name: str) -> NDArray[np.float32]:
    kind = table.schema.field(name).type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    require(
        numeric,
        f"a network needs numeric columns, but column {name!r} has type {kind}",
        do="use catboost or logistic-regression, or leave the column out",
    )
    column: NDArray[np.float32] = np.asarray(table[name].cast(pa.float32()).to_numpy(zero_copy_only=False), np.float32)
    return column


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaling of network inputs: (x - mean) / deviation, with 0 for missing numbers."""

    mean: NDArray[np.float32]  # shape of one example
    deviation: NDArray[np.float32]  # > 0; 1 for constant features


def scaling_of(features: NDArray[np.float32]) -> Scaling:
    """Return the scaling to mean 0 and variance 1 over training features (n, *shape), ignoring NaN."""
    wide = features.astype(np.float64)
    finite = np.isfinite(wide)
    counts = np.maximum(finite.sum(0), 1)
    mean = np.where(finite, wide, 0.0).sum(0) / counts
    deviation = np.sqrt((np.where(finite, wide - mean, 0.0) ** 2).sum(0) / counts)
    deviation[deviation <= 1e-6 * np.maximum(np.abs(mean), 1.0)] = 1.0  # constant features are only centred
    return Scaling(mean.astype(np.float32), deviation.astype(np.float32))


def stack_scaling(scalings: Sequence[Scaling | None], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return means and deviations of a stack, each (models, 1, *shape); None without scaling."""
    import torch

    present = [scaling for scaling in scalings if scaling is not None]
    if not present:
        return None
    mean = torch.from_numpy(np.stack([scaling.mean for scaling in present])).to(device)
    deviation = torch.from_numpy(np.stack([scaling.deviation for scaling in present])).to(device)
    return mean[:, None], deviation[:, None]


def scale_inputs(inputs: Tensor, scaling: tuple[Tensor, Tensor] | None) -> Tensor:
    """Scale inputs (A, b, *shape) by the scaling of the first A models."""
    if scaling is None:
        return inputs
    mean, deviation = (part[: len(inputs)] for part in scaling)
    return ((inputs - mean) / deviation).nan_to_num_(nan=0.0)
