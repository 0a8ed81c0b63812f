"""Check of the noise of training steps, which is no verdict about privacy: Gaussian and independent, as stated?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

LOOKS = ("its size by step", "its size by weight", "likeness of steps", "likeness of weights", "its directions")
ERROR = 1e-3
"""Probability of a false positive in the check of the noise's form."""
FEWEST, MOST = 8, 2_000
"""Smallest number of steps and of weights whose noise is checked, and largest number that is compared in pairs."""


@dataclass(frozen=True, eq=False)
class NoiseForm:
    """Results of the tests of the noise of some trainings."""

    p_values: NDArray[np.float64]  # p-value of each of `LOOKS` over all trainings; NaN if not tested
    noise: float  # claimed noise multiplier

    @property
    def odd(self) -> tuple[str, ...]:
        """Properties in which the noise differs from the stated one; family-wise error at most `ERROR`."""
        return tuple(
            f"{step_count} (p {'< 1e-12' if p < 1e-12 else f'= {p:.1g}'})"
            for step_count, p in zip(LOOKS, self.p_values, strict=True)
            if p < ERROR / len(LOOKS)
        )

    @property
    def smallest_p(self) -> float:
        """p-value of all tests together (Bonferroni); 1 if the noise was not observed."""
        tested = self.p_values[~np.isnan(self.p_values)]
        return float(min(1.0, len(LOOKS) * tested.min())) if tested.size else 1.0

    @property
    def line(self) -> str:
        """One-line summary; "" if the noise was not observed."""
        if np.isnan(self.p_values).all():
            return ""
        stated = f"independent Gaussian noise with noise multiplier {self.noise:g}"
        if self.odd:
            return (
                f"the noise of the training steps is not the stated {stated}: {', '.join(self.odd)}. "
                "Gradients that are clipped in another way than stated also lead to this"
            )
        return f"the noise of the training steps looks like the stated {stated}"


def form_of(residuals: Floats, noise: float) -> Floats:
    """Return p-values of `LOOKS`, shape (5,), for the residuals of steps in clips, shape (steps, weights)."""
    residuals = residuals[-MOST:]
    steps, weights = residuals.shape
    if min(steps, weights) < FEWEST:
        return np.full(len(LOOKS), np.nan)
    scaled = np.asarray(residuals, np.float64) / noise
    by_step, by_weight = (scaled**2).sum(1), (scaled**2).sum(0)
    few = min(steps, weights) // 2
    has_full_rank = np.linalg.matrix_rank(scaled[:few]) == few
    return np.array(
        [
            _p_of_sizes(by_step, weights),
            _p_of_sizes(by_weight, steps),
            _p_of_cosines(scaled @ scaled.T, by_step, weights),
            _p_of_cosines(scaled.T @ scaled, by_weight, steps) if weights <= MOST else math.nan,
            1.0 if has_full_rank else 0.0,
        ]
    )


def _p_of_sizes(sums: Floats, degrees: int) -> float:
    """Return the p-value of the most improbable of several sums of `degrees` squared normal variables."""
    below, above = special.chdtr(degrees, sums), special.chdtrc(degrees, sums)
    return float(min(1.0, 2 * sums.size * np.minimum(below, above).min()))


def _p_of_cosines(products: Floats, squares: Floats, degrees: int) -> float:
    """Return the p-value of the largest cosine between rows; its square has the law Beta(1/2, (degrees - 1) / 2)."""
    lengths = np.maximum(squares, 1e-12)
    cosines = products**2 / np.outer(lengths, lengths)
    np.fill_diagonal(cosines, 0.0)
    pairs = squares.size * (squares.size - 1) / 2
    tail = special.betaincc(0.5, (degrees - 1) / 2, min(1.0, float(cosines.max())))
    return float(min(1.0, pairs * tail))
