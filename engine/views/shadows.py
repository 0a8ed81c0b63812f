"""What shadow models say of every point of the pool, and who was trained on it.

Shadow models come in pairs, trained on a random half of the pool and on the other half, so that each point is in
exactly half of them. Their confidences are units' results: written once, read for selecting challenge points and by
every attack.

Source: Shokri et al. (2017), arXiv:1610.05820; Carlini et al. (2022), arXiv:2112.03570, section V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.errors import RunError, require

SCHEMA = pa.schema(
    [
        pa.field("model", pa.int16(), metadata={"is": "number of the shadow model, from 0; 2i and 2i + 1 are a pair"}),
        pa.field("query", pa.int8(), metadata={"is": "0 = the point as it is, others are augmented"}),
        pa.field("point", pa.int32(), metadata={"is": "row of the pool; crafted challenge points stand behind it"}),
        pa.field("member", pa.bool_(), metadata={"is": "the model was trained on the point"}),
        pa.field("confidence", pa.float32(), metadata={"is": "log p_y - log(sum of the others), NaN = no model"}),
    ]
)
MOST_SHADOWS = 2**15 - 1
"""Model numbers are 16-bit."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """What the shadow models say of every point, and who was trained on it.

    Attributes:
        confidence: phi, float32 of shape (models, queries, points).
        member: Shape (models, points).
    """

    confidence: NDArray[np.float32]
    member: NDArray[np.bool_]

    def __post_init__(self) -> None:
        models, _, points = self.confidence.shape
        require(self.member.shape == (models, points), "member must have one bit a model and point")

    @cached_property
    def phi(self) -> NDArray[np.float64]:
        """Mean over the queries, shape (models, points); for many points take those needed first."""
        mean: NDArray[np.float64] = self.confidence.mean(1, dtype=np.float64)
        return mean

    def at(self, points: NDArray[np.int64]) -> Shadows:
        """The same models at some points, in that order."""
        return Shadows(self.confidence[:, :, points], self.member[:, points])

    def of(self, models: NDArray[np.int64] | slice) -> Shadows:
        """Some of the models."""
        return Shadows(self.confidence[models], self.member[models])


def shadow_table(shadows: Shadows, first: int = 0) -> pa.Table:
    """One row for each model, query and point, in that order."""
    models, queries, points = shadows.confidence.shape
    shape = shadows.confidence.shape
    model = np.arange(first, first + models, dtype=np.int16)[:, None, None]
    query, point = np.arange(queries, dtype=np.int8)[:, None], np.arange(points, dtype=np.int32)
    spread = [np.broadcast_to(values, shape).ravel() for values in (model, query, point, shadows.member[:, None])]
    arrays = [*(pa.array(values) for values in spread), pa.array(shadows.confidence.ravel())]
    return pa.table(arrays, schema=SCHEMA).replace_schema_metadata({"queries": str(queries), "points": str(points)})


def shadows_of(tables: Sequence[pa.Table]) -> Shadows:
    """The shadow models of several units; those whose training failed are left out.

    Raises: RunError when fewer than two are left.
    """
    parts, members = [], []
    for table in tables:
        queries, points = (int(table.schema.metadata[name]) for name in (b"queries", b"points"))
        shape = (-1, queries, points)
        parts.append(table["confidence"].to_numpy().reshape(shape))
        members.append(table["member"].to_numpy().reshape(shape)[:, 0])
    confidence = parts[0] if len(parts) == 1 else np.concatenate(parts)
    member = np.concatenate(members)
    trained = ~np.isnan(confidence[:, 0, 0])
    if trained.sum() < 2:
        raise RunError("at least two shadow models must have been trained")
    # No copy when all is well: a large table stays where it is.
    return Shadows(confidence, member) if trained.all() else Shadows(confidence[trained], member[trained])
