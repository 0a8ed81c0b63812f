"""Conversion of `Features` to the float32 array that a network reads, and its scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Numbers that are converted to 64 bits at once for means and deviations: a CPU's cache holds 2 MB, and a GPU needs
# large blocks.
BLOCK_NUMBERS = 2**18
GPU_BLOCK_NUMBERS = 2**22


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


class NumericFeaturesLearner:
    """A learner of arrays or of tables with numeric columns."""

    def require_features(self, train: Examples) -> None:
        """Raise InputError for columns that are not numeric."""
        example_shape(train.features)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaling of network inputs: (x - mean) / deviation, with 0 for missing numbers."""

    mean: NDArray[np.float32]  # shape of one example
    deviation: NDArray[np.float32]  # > 0; 1 for constant features


def scaling_of(features: Tensor, rows: NDArray[np.integer[Any]]) -> Scaling:
    """Return the scaling to mean 0 and variance 1 over `rows` of the features (N, *shape), ignoring NaN.

    It is computed where the features are, from blocks of rows, so the rows are not copied. On a CPU the sums have the
    order of numpy's; on a GPU they may differ in the last bits of 64.
    """
    import torch

    numbers = BLOCK_NUMBERS if features.device.type == "cpu" else GPU_BLOCK_NUMBERS
    size = max(1, numbers // max(1, features[0].numel()))
    blocks = torch.from_numpy(rows.astype(np.int64)).to(features.device).split(size)

    def sums(values_of: Callable[[Tensor], Tensor]) -> Tensor:
        total: Tensor | None = None
        for block in blocks:
            total = _added(total, values_of(features.index_select(0, block).double()))
        assert total is not None
        return total

    total, counts = sums(lambda wide: wide), torch.tensor(len(rows))
    is_complete = bool(total.isfinite().all())
    if not is_complete:
        total = sums(lambda wide: wide.where(wide.isfinite(), 0.0))
        counts = sums(lambda wide: wide.isfinite().long()).clamp(min=1)
    mean = total / counts

    def squares(wide: Tensor) -> Tensor:
        difference = wide - mean
        return (difference if is_complete else difference.where(wide.isfinite(), 0.0)).square()

    deviation = (sums(squares) / counts).sqrt()
    deviation[deviation <= 1e-6 * mean.abs().clamp(min=1.0)] = 1.0  # constant features are only centred
    return Scaling(mean.float().cpu().numpy(), deviation.float().cpu().numpy())


def _added(total: Tensor | None, rows: Tensor) -> Tensor:
    """Return `total`, shape (*shape), plus the sum of `rows`, shape (n, *shape); on a CPU row by row, as numpy adds."""
    import torch

    if rows.device.type != "cpu":
        return rows.sum(0) if total is None else total + rows.sum(0)
    return torch.from_numpy((rows if total is None else torch.cat([total[None], rows])).numpy().sum(0))


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
