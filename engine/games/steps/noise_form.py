"""The form of the noise that steps add: is it the Gaussian noise that is stated? No verdict about privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

LOOKS = ("its size by step", "its size by weight", "likeness of steps", "likeness of weights", "its directions")
ERROR = 1e-3
"""Probability that noise as stated is said to be another."""
LEAST, MOST = 8, 2_000
"""Steps and weights from which on noise is looked at, and how many of either are compared with each other at most."""


@dataclass(frozen=True, eq=False)
class NoiseForm:
    """What the noise of some trainings looks like."""

    p_values: NDArray[np.float64]  # of `LOOKS`, each for all trainings together; NaN where it was not looked at
    noise: float  # claimed, in clips

    @property
    def odd(self) -> tuple[str, ...]:
        """In what it is not as stated: together wrong with probability `ERROR` at most."""
        return tuple(
            f"{look} (p {'< 1e-12' if p < 1e-12 else f'= {p:.1g}'})"
            for look, p in zip(LOOKS, self.p_values, strict=True)
            if p < ERROR / len(LOOKS)
        )

    @property
    def line(self) -> str:
        """For a reader; "" where the noise could not be seen."""
        if np.isnan(self.p_values).all():
            return ""
        stated = f"independent Gaussian noise of {self.noise:g} clips in every weight and step"
        if self.odd:
            return (
                f"what steps add to gradients that are each clipped to its norm is not {stated}: {', '.join(self.odd)}"
                "; no verdict about privacy follows, since another way of clipping shows here too"
            )
        return f"what steps add to their clipped gradients has the form of {stated}"


def form_of(left: Floats, noise: float) -> Floats:
    """p-values of `LOOKS`, shape (5,), for what steps leave of their sums, in clips, shape (steps, weights)."""
    left = left[-MOST:]
    steps, weights = left.shape
    if min(steps, weights) < LEAST:
        return np.full(len(LOOKS), np.nan)
    scaled = np.asarray(left, np.float64) / noise
    by_step, by_weight = (scaled**2).sum(1), (scaled**2).sum(0)
    few = min(steps, weights) // 2
    full = np.linalg.matrix_rank(scaled[:few]) == few
    found = [
        _sizes(by_step, weights),
        _sizes(by_weight, steps),
        _alike(scaled @ scaled.T, by_step, weights),
        _alike(scaled.T @ scaled, by_weight, steps) if weights <= MOST else math.nan,
        1.0 if full else 0.0,
    ]
    return np.array(found)


def _sizes(sums: Floats, degrees: int) -> float:
    """Of the most improbable of several sums of squares, each of so many normal numbers."""
    below, above = special.chdtr(degrees, sums), special.chdtrc(degrees, sums)
    return float(min(1.0, 2 * sums.size * np.minimum(below, above).min()))


def _alike(products: Floats, squares: Floats, degrees: int) -> float:
    """Of the largest cosine between different rows: squared, it has the law Beta(1/2, (degrees - 1) / 2)."""
    lengths = np.maximum(squares, 1e-12)
    cosines = products**2 / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, 0.0)
    pairs = squares.size * (squares.size - 1) / 2
    tail = special.betaincc(0.5, (degrees - 1) / 2, min(1.0, float(cosines.max())))
    return float(min(1.0, pairs * tail))
