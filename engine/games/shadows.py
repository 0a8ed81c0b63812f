"""Shadow models: the mechanism trained on random halves of the pool, and asked about every point of it.

They come in pairs, a random half and the other half, so that each point is in exactly half of them and a model's
membership follows from its own seed. Their confidences are units' results: written once, read for selecting challenge
points and by every attack.

Source: Shokri et al. (2017), arXiv:1610.05820; Carlini et al. (2022), arXiv:2112.03570, section V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.games.challenges import Challenges, challenges_of, with_crafted
from dpaudit.engine.games.confidence import confidences
from dpaudit.engine.games.stacks import TrainingRun, train_runs
from dpaudit.errors import RunError, require
from dpaudit.mechanisms.protocols import Compute, TrainingError

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


@dataclass(frozen=True)
class TrainShadows:
    """Trains shadow models `first` to `last` - 1 and asks them about every point.

    Attributes:
        mechanism: What is trained.
        seed: Pair i draws its half from `seed.child(i)`, its models train with `seed.child(i, 0)` and `(i, 1)`.
        first: First model, even.
        last: One past the last model.
        queries: Augmented queries of each point, >= 1.
    """

    mechanism: Any
    seed: Seed
    first: int
    last: int
    queries: int = 1

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A shadow table; takes the pool, and crafted challenge points when there is a table of them.

        Raises: TrainingError when no model could be trained.
        """
        pool = next(value for name, value in inputs.shared.items() if name.startswith("target:"))
        crafted = challenges_of(inputs.tables[0], pool) if inputs.tables else None
        points = with_crafted(pool, crafted)
        member = np.array([self.members(model, len(pool), crafted) for model in range(self.first, self.last)])
        runs = [
            TrainingRun(np.flatnonzero(row), self.seed.child(model // 2, model % 2))
            for model, row in zip(range(self.first, self.last), member, strict=True)
        ]
        models = train_runs(self.mechanism, points, runs, compute=compute)
        errors = [model for model in models if isinstance(model, TrainingError)]
        if len(errors) == len(models):
            raise errors[0]
        return shadow_table(
            Shadows(confidences(models, points, queries=self.queries, compute=compute), member), self.first
        )

    def members(self, model: int, pool: int, crafted: Challenges | None = None) -> NDArray[np.bool_]:
        """Which points a model is trained on, shape (points,); never the rows that crafted points are made from."""
        points = pool + (len(crafted.rows) if crafted is not None else 0)
        half = np.zeros(points, np.bool_)
        half[self.seed.child(model // 2).rng().permutation(points)[: points // 2]] = True
        half ^= bool(model % 2)
        if crafted is not None:
            half[crafted.rows[crafted.rows >= 0]] = False
        return half


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
