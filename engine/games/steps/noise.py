"""Noise of training steps: its form, and noise that occurred before, by runs of stored numbers or to the last digit.

The form is checked as stated, Gaussian and independent (`form_of`); that is no verdict about privacy.

Runs are those of noise that is cut from a table, at any shift. Each number of a residual is looked up among all
earlier ones. Neighbours that lie side by side, forwards or backwards, are a run. Numbers are compared to half a
hundredth of the noise, so that digits far below it play no role.

Digits far below the noise are another leak (`LowDigits`), of numbers in a computer and not of the claim about real
numbers. Noise of fewer bits than the sum to which it is added, or with values that recur, lies on a grid or on earlier
values, but the noise and a canary do not.
Source: Mironov (2012), "On significance of the least significant bits for differential privacy".
"""

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
COARSE = 5e-3
"""Smallest difference of two numbers that counts, in deviations of the noise."""
EQUAL = 1e-9
"""Difference of two numbers below which they are copies, in clips."""
MAX_NUMBERS, MAX_LOOKED_UP = 2_000_000, 4_096
"""Largest number of stored numbers, and of numbers of one step that are looked up."""
UNSORTED_SHARE = 0.25
"""Share of stored numbers that may wait until they are sorted."""

CLOSE = 1e-11
"""Difference, in clips, below which numbers are equal but for rounding."""
MAX_EXACT_NUMBERS = 500_000
"""Largest number of stored numbers."""
THRESHOLD_NATS = 10.0
"""Evidence in nats below which numbers lie nowhere."""


class Recurrence:
    """Stored residuals, in which runs of a new one are looked up.

    Args:
        earlier: Residuals of earlier trainings, shape (steps, weights).
        noise: Deviation of the noise.
    """

    def __init__(self, earlier: Floats, noise: float) -> None:
        self._noise = noise
        self._waiting = list(earlier)
        self._values, self._sorted = np.zeros(0), np.zeros(0)
        self._order = np.zeros(0, np.int64)

    def add(self, residual: Floats) -> None:
        """Store a residual."""
        if self._values.size + residual.size * (len(self._waiting) + 1) <= MAX_NUMBERS:
            self._waiting.append(residual)

    def nats(self, residual: Floats) -> float:
        """Return the evidence in nats that a run of the residual occurred before, in itself or in a stored one."""
        self._sort()
        looked_up = residual[:MAX_LOOKED_UP]
        nats = self._in_itself(looked_up)
        if self._sorted.size < 2:
            return max(nats, 0.0)
        places = self._order[self._nearest(looked_up)]
        return max(nats, self._longest(looked_up, self._values, places, self._distance(looked_up)))

    def _sort(self) -> None:
        waiting = sum(row.size for row in self._waiting)
        if waiting > UNSORTED_SHARE * self._values.size:
            # Copies of stored numbers are left out: with several nearest places, neighbours would not lie side by side.
            self._values = np.concatenate([self._values, *(row[self._distance(row) > EQUAL] for row in self._waiting)])
            self._waiting = []
            self._order = np.argsort(np.abs(self._values))
            self._sorted = np.abs(self._values)[self._order]

    def _nearest(self, residual: Floats) -> NDArray[np.int64]:
        """Return the places of the nearest sorted numbers."""
        size = np.abs(residual)
        place = np.clip(np.searchsorted(self._sorted, size), 1, self._sorted.size - 1)
        return np.asarray(place - (size - self._sorted[place - 1] < self._sorted[place] - size))

    def _distance(self, residual: Floats) -> Floats:
        """Return the distances to the nearest sorted numbers, infinite if there are none."""
        if self._sorted.size < 2:
            return np.full(residual.size, np.inf)
        return np.abs(self._sorted[self._nearest(residual)] - np.abs(residual))

    def _in_itself(self, residual: Floats) -> float:
        if residual.size < 3:
            return 0.0
        order = np.argsort(np.abs(residual))
        gaps = np.concatenate([[np.inf], np.diff(np.abs(residual)[order]), [np.inf]])
        nearer = np.where(gaps[:-1] < gaps[1:], -1, 1)
        places, distance = np.empty_like(order), np.empty(residual.size)
        places[order] = order[np.arange(residual.size) + nearer]
        distance[order] = np.minimum(gaps[:-1], gaps[1:])
        return self._longest(residual, residual, places, distance)

    def _longest(self, residual: Floats, stored: Floats, places: NDArray[np.int64], distance: Floats) -> float:
        """Return the evidence of the most improbable run; the nearest stored numbers are at `places`."""
        nats = -np.log(np.minimum(1.0, 1.6 * np.maximum(distance / self._noise, COARSE)))
        summed = np.concatenate([[0.0], np.cumsum(nats)])
        same_sign = np.sign(residual) * np.sign(stored[places])
        steps, same = np.diff(places), same_sign[1:] == same_sign[:-1]
        best = 0.0
        for direction in (1, -1):
            ends = np.concatenate([np.flatnonzero((steps != direction) | ~same), [residual.size - 1]])
            firsts = np.concatenate([[0], ends[:-1] + 1])
            best = max(best, float((summed[ends + 1] - summed[firsts]).max()))
        return max(0.0, best - float(np.log(stored.size * residual.size)))


class LowDigits:
    """Numbers of the residuals so far.

    Args:
        units: Factors on a residual after which its noise may have been rounded.
    """

    def __init__(self, units: tuple[float, ...]) -> None:
        self._units = tuple(dict.fromkeys(units))
        self._stored = np.zeros(0)

    def score(self, residual: Floats, without: Floats) -> float:
        """Return the evidence in nats of the canary: `without` it, the residual lies on a grid or on earlier values."""
        return max(self._nats(without), THRESHOLD_NATS) - self._nats(residual)

    def add(self, residual: Floats) -> None:
        """Store a residual."""
        if self._stored.size + residual.size <= MAX_EXACT_NUMBERS:
            self._stored = np.sort(np.concatenate([self._stored, residual]))

    def _nats(self, row: Floats) -> float:
        return max(self._recurring(row), *(_on_grid(unit * row, unit * CLOSE) for unit in self._units))

    def _recurring(self, row: Floats) -> float:
        """Return the evidence that numbers of a row are among the stored ones."""
        if self._stored.size < 2:
            return 0.0
        place = np.clip(np.searchsorted(self._stored, row), 1, self._stored.size - 1)
        distance = np.minimum(np.abs(row - self._stored[place - 1]), np.abs(row - self._stored[place]))
        return float(-np.log(np.minimum(1.0, self._stored.size * np.maximum(distance, CLOSE))).sum())


def _on_grid(row: Floats, close: float) -> float:
    """Return the evidence that a row consists of numbers in single precision, which half precision is too."""
    spacing = np.spacing(np.abs(row).astype(np.float32)).astype(np.float64)
    distance = np.abs(row - row.astype(np.float32))
    nonzero = np.abs(row) > 1e-3  # finer numbers than these tell little
    return float(-np.log(np.minimum(1.0, 2 * np.maximum(distance, close) / spacing))[nonzero].sum())


@dataclass(frozen=True, eq=False)
class NoiseForm:
    """Results of the tests of the noise of some trainings."""

    p_values: NDArray[np.float64]  # p-value of each of `LOOKS` over all trainings; NaN if not tested
    noise: float  # claimed noise multiplier
    decoded: bool = False  # True if the noise of a step was decoded by that of earlier ones, as the claim says
    points_to: tuple[str, ...] = ()  # parts of the training that may be wrong, which are hints
    off_grid: bool = False  # True if sums or noise are not on the stated grid

    @property
    def odd(self) -> tuple[str, ...]:
        """Properties in which the noise differs from the stated one; family-wise error at most `ERROR`."""
        odd = tuple(
            f"{step_count} (p {'< 1e-12' if p < 1e-12 else f'= {p:.1g}'})"
            for step_count, p in zip(LOOKS, self.p_values, strict=True)
            if p < ERROR / len(LOOKS)
        )
        return (*odd, "its values, which are not on the stated grid") if self.off_grid else odd

    @property
    def smallest_p(self) -> float:
        """p-value of all tests together (Bonferroni); 1 if the noise was not observed, 0 off the stated grid."""
        if self.off_grid:
            return 0.0
        tested = self.p_values[~np.isnan(self.p_values)]
        return float(min(1.0, len(LOOKS) * tested.min())) if tested.size else 1.0

    @property
    def line(self) -> str:
        """One-line summary; "" if the noise was not observed."""
        if np.isnan(self.p_values).all() and not self.off_grid:
            return ""
        stated = f"independent Gaussian noise with noise multiplier {self.noise:g}"
        stated += " once decoded" if self.decoded else ""
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
