"""RMIA with 2,000 models and their separate answers, against one model whose population is sorted once."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.two_world.attacks.rmia import Rmia, online_marginal, probability
from dpaudit.engine.games.two_world.views import ChallengeView, Shadows

POINTS, POPULATION, MODELS, RUNS = 2_000, 5_000, 100, 5


def view_of(seed: int) -> ChallengeView:
    """Return normal confidences; every trial has a separate model and separate answers on the population."""
    rng = np.random.default_rng(seed)
    points = POINTS + POPULATION
    half = np.stack([rng.permutation(points) < points // 2 for _ in range(MODELS // 2)])
    confidence = rng.normal(1, 2, (MODELS, 1, points)).astype(np.float32)
    nothing = np.zeros((POINTS, 0))
    return ChallengeView(
        target=rng.normal(1, 2, (POINTS, 1)).astype(np.float32),
        point=np.arange(POINTS),
        population=rng.normal(1, 2, (POINTS, POPULATION)).astype(np.float32),
        population_points=np.arange(POINTS, points),
        shadows=Shadows(confidence, np.concatenate([half, ~half])),
        gradient_products=nothing,
        gradient_norms=nothing,
    )


def one_model(view: ChallengeView) -> NDArray[np.float64]:
    """Return scores as if the first trial's model answered for all trials."""
    assert view.shadows is not None
    marginal = online_marginal(view.shadows)
    ratio = probability(view.target[:, 0]) / marginal[:POINTS]
    others = np.sort(probability(view.population[0]) / marginal[POINTS:])
    return np.searchsorted(others, ratio) / POPULATION


def run() -> list[tuple[str, float, str]]:
    """Return (name, processor seconds, note) of each measurement."""
    view = view_of(0)
    shared = _best(lambda: one_model(view))
    online = _best(lambda: Rmia().score(view))
    tuned = _best(lambda: Rmia(offline=True).score(view))
    return [
        (
            "one model for all, its population sorted",
            shared,
            f"{POINTS:,} points, {POPULATION:,} others, {MODELS} models",
        ),
        ("RMIA online, a model for each trial", online, f"{online / shared:.1f} times as long (goal 2)"),
        ("RMIA offline, a tuned", tuned, f"{tuned / shared:.1f} times as long"),
    ]


def _best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)
