"""Digits of released numbers: rounding removes those far below the noise, and residues tell of noise in steps.

The low bits of floating-point noise reveal the number to which it was added (Mironov 2012), at any noise scale, and
would hide all other leaks. Rounding is post-processing by a function that depends on search samples only, so a bound
from rounded numbers holds for the release as well.

Noise in steps hides nothing of a number that lies between two steps. A sum in cents with noise in whole units releases
the cents. If all results on one of two tables differ by multiples of a step, the residues of all results modulo that
step are compared in double precision. A step counts if it is far above the errors of floating-point numbers and the
digits that tests of a claim ignore, so continuous noise has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.attacks.output_set import separating
from dpaudit.engine.games.outcomes import MAX_EXACT_WIDTH, Outcomes

Floats = NDArray[np.float64]
STEP = 1e-6
"""Step of the grid, as a share of the interquartile range."""
REPEATS = 3
"""Occurrences among search samples that make a value an exact repeat, which is not rounded."""
MIN_DISTINCT = 4
"""Fewest different results from which a step is learned."""
ERRORS = {np.float16: 2.0**-10, np.float32: 2.0**-23, np.float64: 2.0**-44}
"""Largest error of a number as a share of the largest one, by the type that holds all results exactly."""
MIN_ERRORS = 16
"""Smallest step in units of that error."""
TOLERANCE = 1 / 16
"""Largest distance of a result from a multiple of the step, as a share of the step."""
LEVELS = 1_000
"""Largest number of residues that are told apart."""


@dataclass(frozen=True, eq=False)
class Rounding:
    """A grid for each number of a summary.

    Attributes:
        steps: Distance of grid points for each column, shape (d,); 0 for columns that are not rounded: whole numbers,
            and numbers without spread.
        repeats: For each column, values that are not rounded, ascending.
    """

    steps: NDArray[np.float64]
    repeats: Sequence[NDArray[np.float64]]

    @classmethod
    def learned(cls, summaries: NDArray[Any]) -> Rounding:
        """Choose the grids from search samples of both worlds, shape (m, d)."""
        width = summaries.shape[1]
        if width > MAX_EXACT_WIDTH:
            return cls(np.zeros(width), ())
        columns = [_steps_of(np.asarray(column, np.float64)) for column in summaries.T]
        return cls(np.array([step for step, _ in columns]), [values for _, values in columns])

    def rounded(self, summaries: NDArray[Any]) -> NDArray[Any]:
        """Return the summaries, shape (n, d), with each number at the nearest point of its grid."""
        if not self.steps.any():
            return summaries
        rounded = np.array(summaries, np.float64)
        for place in np.flatnonzero(self.steps).tolist():
            column, values = rounded[:, place], self.repeats[place]
            on_grid = np.round(column / self.steps[place]) * self.steps[place]
            if len(values):
                nearest = values[np.minimum(np.searchsorted(values, column), len(values) - 1)]
                on_grid = np.where(nearest == column, column, on_grid)
            rounded[:, place] = on_grid
        return rounded


def _steps_of(column: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the step of one column, 0 for none, and its exact repeats."""
    values, counts = np.unique(column, return_counts=True)
    repeats = values[counts >= REPEATS]
    others = np.repeat(values[counts < REPEATS], counts[counts < REPEATS])
    if len(others) < 2 or not (others % 1).any():
        return 0.0, repeats
    low, high = np.quantile(others, (0.25, 0.75))
    spread = float(high - low) or float(np.ptp(others))
    return STEP * spread, repeats


def separating_residues(exact: Floats, truth: NDArray[np.bool_]) -> Callable[[Floats], Floats] | None:
    """Return a function from numbers to log-odds of world 1 by their residues, as `separating`; None without a step.

    Args:
        exact: Numbers of search samples in double precision, shape (m, d).
        truth: Worlds of the search samples, shape (m,).
    """
    grids = [(place, *grid) for place, column in enumerate(exact.T) if (grid := _grid(column, truth)) is not None]

    def residues(numbers: Floats) -> Floats:
        return np.column_stack([_residues(numbers[:, place], *grid) for place, *grid in grids])

    rule = separating(residues(exact), truth) if grids else None
    return None if rule is None else lambda numbers: rule(residues(numbers))


def between_steps(tried: Sequence[Outcomes]) -> list[float]:
    """Return the share of changes from D to D' that lie between steps of the noise, for calls on each pair of tables.

    The calls are in pairs of one seed. A pair gets few calls, so the steps are learned from all of them together.
    """
    ending, changes, noise = Outcomes.joined(tried).usual_ending, [], [np.empty((0, 0))]
    for samples in tried:
        worlds = [samples.where(samples.truth == world) for world in (False, True)]
        both = (worlds[0].ending == ending) & (worlds[1].ending == ending)
        first, second = (world.where(both).exact() for world in worlds)
        changes.append(second - first)
        noise += [np.diff(side, axis=0) for side in (first, second) if len(side) > 1 and side.size]
    steps = [lattice_step(np.append(column, 0.0)) for column in np.concatenate(noise[1:] or noise).T]
    grids = [(place, (0.0, step, step / LEVELS)) for place, step in enumerate(steps) if step]
    return [
        max((float(np.mean(_residues(change[:, place], *grid) > 0)) for place, grid in grids if change.size), default=0)
        for change in changes
    ]


def _grid(column: Floats, truth: NDArray[np.bool_]) -> tuple[float, float, float] | None:
    """Return offset, step and resolution of a grid that holds the results of one world only; None if there is none."""
    spread = float(np.subtract(*np.quantile(column, (0.75, 0.25))))
    for results in (column[~truth], column[truth]):
        distance, step = np.abs(results - np.median(results)), lattice_step(results, spread)
        # Far from the middle, noise of few bits, such as float16, has larger steps.
        even = math.isclose(lattice_step(results[distance >= np.median(distance)]), step, rel_tol=TOLERANCE)
        grid = float(results[0]), step, max(step / LEVELS, STEP * spread)
        if step and even and _residues(column, *grid).any():
            return grid
    return None


def _residues(column: Floats, offset: float, step: float, resolution: float) -> Floats:
    """Return the distances from the grid below, in steps of the resolution; those close to the next point are 0."""
    levels = max(1, round(step / resolution))
    return np.asarray(np.round((column - offset) / step % 1 * levels) % levels)


def lattice_step(results: Floats, spread: float = 0.0) -> float:
    """Return the largest step of which all differences of results are multiples; 0 if there is none that counts.

    With the `spread` of the results, the step is also far above the digits that tests of a claim ignore.
    """
    different = np.unique(results)
    if len(different) < MIN_DISTINCT:
        return 0.0
    kinds = ERRORS if (different % 1).any() else [np.float64]  # whole numbers are exact
    with np.errstate(over="ignore"):
        error = next(ERRORS[kind] for kind in kinds if (different.astype(kind) == different).all())
    error *= float(np.abs(different).max())
    smallest, steps = max(MIN_ERRORS * error, 4 * STEP * spread), np.diff(different)
    steps = np.unique(steps[steps > error])
    step = float(steps[0]) if len(steps) else 0.0
    for difference in steps.tolist():
        rest = abs(difference - step * round(difference / step))
        while step >= smallest and rest > min(TOLERANCE * step, error * max(1.0, difference / step)):
            step, rest = rest, abs(step - rest * round(step / rest))
        if step < smallest:
            return 0.0
        step = difference / round(difference / step)  # larger differences determine it better
    multiples = steps / max(step, math.ulp(0.0))
    return step if (np.abs(multiples - np.round(multiples)) <= TOLERANCE).all() else 0.0
