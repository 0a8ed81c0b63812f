"""OpenDP, tested with 0.15.1 and 0.16.0. Rows: "array", of which the first column is used. It cannot be seeded."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import opendp.prelude as dp

dp.enable_features("contrib")


def total(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    """A sum of values in [0, 1]; NaN becomes 0.5."""
    return _noisy("total", epsilon)(rows[:, 0].tolist())


def mean(rows: Any, rng: Any, epsilon: float = 1.0, size: int = 50) -> Any:
    """A mean of values in [0, 1] over a public number of them: rows are added or left out to reach it."""
    return _noisy("mean", epsilon, size)(rows[:, 0].tolist())


def count(rows: Any, rng: Any, epsilon: float = 1.0) -> Any:
    return _noisy("count", epsilon)(rows[:, 0].tolist())


@lru_cache
def _noisy(what: str, epsilon: float, size: int = 0) -> Any:
    """With the least noise of which the library says that adding or removing one row costs epsilon."""
    rows = dp.vector_domain(dp.atom_domain(T=float, nan=True)), dp.symmetric_distance()
    clamped = rows >> dp.t.then_impute_constant(0.5) >> dp.t.then_clamp((0.0, 1.0))
    if what == "count":
        made = rows >> dp.t.then_count()
    elif what == "total":
        made = clamped >> dp.t.then_sum()
    else:
        made = clamped >> dp.t.then_resize(size, 0.5) >> dp.t.then_mean()
    return made >> dp.m.then_laplace(dp.binary_search_param(lambda scale: made >> dp.m.then_laplace(scale), 1, epsilon))
