"""Training shadow models: the mechanism on random halves of the pool, asked about every point of it.

A model's membership follows from its own seed, so every unit and every attack agrees on it.

Source: Shokri et al. (2017), arXiv:1610.05820; Carlini et al. (2022), arXiv:2112.03570, section V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.unit import Inputs
from dpaudit.engine.games.confidence import confidences
from dpaudit.engine.games.stacks import TrainingRun, train_runs
from dpaudit.engine.spec.partition import required_part
from dpaudit.engine.views.challenges import Challenges, challenges_of, with_crafted
from dpaudit.engine.views.shadows import Shadows, shadow_table
from dpaudit.mechanisms.protocols import Compute, TrainingError


@dataclass(frozen=True)
class TrainShadows:
    """Trains shadow models `first` to `last` - 1 and asks them about every point.

    Attributes:
        mechanism: What is trained.
        seed: Pair i draws its half from `seed.child(i)`, its models train with `seed.child(i, 0)` and `(i, 1)`.
        first: First model, even.
        last: One past the last model.
        queries: Augmented queries of each point, >= 1.
        challenges: Key of the unit that made challenge points, which stand behind the pool; None = the pool alone.
    """

    mechanism: Any
    seed: Seed
    first: int
    last: int
    queries: int = 1
    challenges: str | None = None

    def run(self, inputs: Inputs, compute: Compute) -> pa.Table:
        """A shadow table.

        Raises: TrainingError when no model could be trained.
        """
        pool = required_part(inputs, "target")
        crafted = None if self.challenges is None else challenges_of(inputs.tables[self.challenges], pool)
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
