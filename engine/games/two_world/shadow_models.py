"""Training shadow models: the mechanism on random halves of the pool, asked about every point of it.

A model's membership follows from its own seed, so every unit and every attack agrees on it.

Source: Shokri et al. (2017), arXiv:1610.05820; Carlini et al. (2022), arXiv:2112.03570, section V.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.actors.seed import Seed
from dpaudit.actors.work import unit
from dpaudit.engine.games.stacks import TrainingRun, train_runs
from dpaudit.engine.games.two_world.asking import confidences
from dpaudit.engine.games.two_world.views.challenges import Challenges, with_crafted
from dpaudit.engine.games.two_world.views.shadows import Shadows
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples


@unit
def train_shadows(
    mechanism: Any,
    pool: Examples,
    challenges: Challenges | None,
    compute: Compute,
    *,
    queries: int,
    first: int,
    last: int,
    seed: Seed,
) -> Shadows:
    """Trains shadow models and asks them about every point.

    Args:
        mechanism: What is trained.
        pool: What it is trained on halves of.
        challenges: Challenge points, of which crafted ones stand behind the pool; None = the pool alone.
        compute: Where it runs.
        queries: Augmented queries of each point, >= 1.
        first: First model, even.
        last: One past the last model.
        seed: Pair i draws its half from `seed.child(i)`, its models train with `seed.child(i, 0)` and `(i, 1)`.
    Raises: TrainingError when no model could be trained.
    """
    points = with_crafted(pool, challenges)
    numbers = range(first, last)
    member = np.array([members(seed, model, len(pool), challenges) for model in numbers])
    runs = [
        TrainingRun(np.flatnonzero(row), seed.child(model // 2, model % 2))
        for model, row in zip(numbers, member, strict=True)
    ]
    models = train_runs(mechanism, points, runs, compute=compute)
    errors = [model for model in models if isinstance(model, TrainingError)]
    if len(errors) == len(models):
        raise errors[0]
    return Shadows(confidences(models, points, queries=queries, compute=compute), member)


def members(seed: Seed, model: int, pool: int, crafted: Challenges | None = None) -> NDArray[np.bool_]:
    """Which points a model is trained on, shape (points,); never the rows that crafted points are made from.

    Args:
        seed: Of all shadow models.
        model: Number of the model.
        pool: Rows of the pool.
        crafted: Points behind the pool.
    """
    points = pool + (len(crafted.rows) if crafted is not None else 0)
    half = np.zeros(points, np.bool_)
    half[seed.child(model // 2).rng().permutation(points)[: points // 2]] = True
    half ^= bool(model % 2)
    if crafted is not None:
        half[crafted.rows[crafted.rows >= 0]] = False
    return half
