"""Ways in which a loop may make one vector of a batch's gradients, and the one that explains the steps so far best.

The claim clips each gradient and sums them. Loops that clip an average, a sum or groups of gradients give another
vector. A canary may move such a vector by more than one clip: far beyond the clip and against the batch, by two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_GROUPED_NUMBERS = 200_000
"""Largest size of a batch, in numbers, whose gradients are also clipped in groups."""
LEAD_NATS = 10.0
"""Lead in nats, on earlier steps, that another way needs to replace the claimed one."""
MOST_UNEXPLAINED, FACTOR_MARGIN = 1.1, 0.25
"""Largest unexplained variance, as a share of the stated one, and distance of a factor from 1, of a way in words."""
LEAST_POWER = 1e-12
"""Smallest sum of squares that is assumed."""


def clipped_sum(rows: Floats) -> Floats:
    """Return the sum of rows clipped to norm 1."""
    norms = np.linalg.norm(rows, axis=1)
    return np.asarray((rows / np.maximum(norms, 1)[:, None]).sum(0))


def _clipped(row: Floats) -> Floats:
    return np.asarray(row / max(float(np.linalg.norm(row)), 1.0))


def _average(rows: Floats, total: Floats) -> Floats:
    return _clipped(total / max(len(rows), 1))


def _whole(rows: Floats, total: Floats) -> Floats:
    return _clipped(total)


def _scaled(rows: Floats, total: Floats) -> Floats:
    norm = float(np.linalg.norm(total))
    return total / norm if norm else total


def _raw(rows: Floats, total: Floats) -> Floats:
    return total


def _each(rows: Floats, total: Floats) -> Floats:
    return clipped_sum(rows)


def _groups(rows: Floats, total: Floats, *, size: int, averaged: bool) -> Floats:
    """Clip groups of `size` neighbouring rows, each the average or the sum of its rows."""
    return _clipped_parts(rows, np.arange(0, len(rows), size), averaged)


def _shares(rows: Floats, total: Floats, *, count: int) -> Floats:
    """Clip the averages of `count` equal parts of the batch."""
    sizes = [len(part) for part in np.array_split(np.arange(len(rows)), count)]
    firsts = np.cumsum([0, *sizes[:-1]])
    return _clipped_parts(rows, firsts[np.array(sizes) > 0], True)


def _clipped_parts(rows: Floats, firsts: NDArray[np.int64], averaged: bool) -> Floats:
    if not len(rows):
        return np.zeros(rows.shape[1])
    sums = np.add.reduceat(rows, firsts, axis=0)
    return clipped_sum(sums / np.diff([*firsts, len(rows)])[:, None] if averaged else sums)


Aggregate = Callable[[Floats, Floats], Floats]
"""Function of the gradients, shape (batch, weights), and their sum."""
CLAIMED = 0
OF_BATCHES: dict[str, Aggregate] = {
    "each gradient is clipped": _each,
    "each gradient is clipped, with another clip or divisor than stated": _each,
    "the average of the batch is clipped, and not each gradient": _average,
    "the sum of the batch is clipped, and not each gradient": _whole,
    "the sum of the batch is scaled to the clip": _scaled,
    "gradients are not clipped": _raw,
}
"""The claimed way, the claimed way with another factor, and those that see the sum of the batch alone, in words."""
OF_GROUPS: dict[str, Aggregate] = {
    **{f"sums of {size} gradients are clipped": partial(_groups, size=size, averaged=False) for size in (2, 4, 8)},
    **{f"averages of {size} gradients are clipped": partial(_groups, size=size, averaged=True) for size in (2, 4, 8)},
    **{f"averages of {count} parts of the batch are clipped": partial(_shares, count=count) for count in (2, 4)},
}
LIKE_CLAIMED = 2
"""Number of ways that clip each gradient."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Expected sums of one step in every way, shape (ways, weights), without the canary and with it."""

    out: Floats
    joined: Floats


@dataclass(frozen=True, eq=False)
class StepFit:
    """Products of an observed sum with those expected, shape (2, ways): without the canary and with it."""

    dots: Floats
    squares: Floats
    power: float  # sum of squares of the observed sum
    weights: int


class Aggregation:
    """Chooses the way that explains the steps so far best; each but the claimed one has a factor that is fitted."""

    def __init__(self) -> None:
        self._ways = OF_BATCHES | OF_GROUPS
        self._dots, self._squares = np.zeros((2, len(self._ways)))
        self._power, self._numbers = 0.0, 0

    def expected(self, batch: Floats, raw: Floats) -> Expected:
        """Return the expected sums of a batch of gradients, with and without a canary before clipping; all in clips."""
        if batch.size > MAX_GROUPED_NUMBERS:
            self._ways = OF_BATCHES
            self._dots, self._squares = self._dots[: len(self._ways)], self._squares[: len(self._ways)]
        rows = np.concatenate([batch, raw[None]])
        total = batch.sum(0)
        return Expected(
            np.array([way(batch, total) for way in self._ways.values()]),
            np.array([way(rows, total + raw) for way in self._ways.values()]),
        )

    def base_and_effect(self, expected: Expected) -> tuple[Floats, Floats]:
        """Return the expected sum without the canary, and what the canary adds, each of shape (weights,)."""
        way, factor, _ = self._best()
        out, joined = expected.out[way], expected.joined[way]
        return factor * out, factor * (joined - out)

    def effect_norm(self, batch: Floats, raw: Floats) -> float | None:
        """Return the norm of what a canary adds, in clips; None if gradients are probably clipped one by one."""
        number, factor, _ = self._best()
        if number < LIKE_CLAIMED:
            return None
        way, total = list(self._ways.values())[number], batch.sum(0)
        moved = way(np.concatenate([batch, raw[None]]), total + raw) - way(batch, total)
        return factor * float(np.linalg.norm(moved))

    def points_to(self, noise: float) -> tuple[str, ...]:
        """Return in words how the steps differ from clipped gradients and noise of this deviation, if they do."""
        number, factor, unexplained = self._best()
        if unexplained > MOST_UNEXPLAINED * self._numbers * noise**2:
            return ("clip: the observed sums are not those of clipped gradients and the stated noise",)
        is_near = number < LIKE_CLAIMED or abs(factor - 1) < FACTOR_MARGIN
        return (f"clip: {list(self._ways)[number]}",) if number != CLAIMED and is_near else ()

    def fit(self, expected: Expected, released: Floats) -> StepFit:
        """Compare an observed sum with the expected ones."""
        both = np.array([expected.out, expected.joined])
        return StepFit(both @ released, (both**2).sum(2), float(released @ released), released.size)

    def add(self, step: StepFit, joined: bool) -> None:
        """Learn from a step whose coin is known."""
        count = len(self._ways)
        if not np.isfinite([step.dots, step.squares]).all() or not np.isfinite(step.power):
            return
        self._dots += step.dots[int(joined), :count]
        self._squares += step.squares[int(joined), :count]
        self._power += step.power
        self._numbers += step.weights

    def _best(self) -> tuple[int, float, float]:
        """Return the number of the best way, its factor, and the sum of squares that it does not explain."""
        if not self._numbers:
            return CLAIMED, 1.0, 0.0
        factors = np.maximum(self._dots, 0) / np.maximum(self._squares, LEAST_POWER)
        factors[CLAIMED] = 1.0
        unexplained = self._power - 2 * factors * self._dots + factors**2 * self._squares
        unexplained = np.maximum(unexplained, LEAST_POWER * max(self._power, 1.0))
        leads = self._numbers / 2 * np.log(unexplained[CLAIMED] / unexplained)
        best = int(np.argmax(np.nan_to_num(leads, nan=-np.inf)))
        best = best if leads[best] > LEAD_NATS else CLAIMED
        return best, float(factors[best]), float(unexplained[best])
