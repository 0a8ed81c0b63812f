"""Google's differential privacy library by PyDP (`python-dp`), tested with 1.1.5. Rows: "array"; cannot be seeded."""

from __future__ import annotations

from typing import Any

from pydp.algorithms import laplacian


def _of(algorithm: Any, rows: Any, epsilon: float, low: float = 0.0, high: float = 1.0) -> float:
    made = algorithm(epsilon=epsilon, lower_bound=low, upper_bound=high, dtype="float")
    return float(made.quick_result([float(value) for value in rows[:, 0]]))


def total(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    return _of(laplacian.BoundedSum, rows, epsilon)


def mean(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    return _of(laplacian.BoundedMean, rows, epsilon)


def variance(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    return _of(laplacian.BoundedVariance, rows, epsilon)


def median(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    return _of(laplacian.Median, rows, epsilon)


def count(rows: Any, rng: Any, epsilon: float = 1.0) -> float:
    return float(laplacian.Count(epsilon=epsilon, dtype="float").quick_result([float(value) for value in rows[:, 0]]))
