"""Residuals of the steps of one training, and the features of the next one that they give.

A step is fully observed: the gradients of its batch, as in the worst case, and the noisy sum. The residual, which is
the sum without the batch, is noise and, in half of the steps, a canary. If the noise is too regular, a feature tells
both apart: noise that is reused, lies in few directions, is equal in two coordinates, or misses some. What a loop
keeps of gradients before the clip shows in the size of this step or the next one. Noise that is too small on some
weights, or linear in that of earlier steps, is for the game of many coins (`dp_sgd_coins.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.steps.aggregation import clipped_sum
from dpaudit.engine.games.steps.noise import Recurrence

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_STORED_NUMBERS = 2_000_000
"""Largest number of floats stored of earlier residuals."""
MAX_PAIRED_WEIGHTS = 512
"""Largest number of weights that are compared in pairs."""
MIN_STEPS = 8
"""Number of earlier steps from which the noise of a weight is estimated."""
NO_NOISE = 1e-4
"""Absolute value, in clips, below which a weight has no noise."""
NEXT_TO_NONE = 0.2
"""Share of the claimed norm below which a residual has next to no noise."""
LEAST_VARIANCE = 1e-6
"""Smallest variance that is assumed, in clips squared."""
LEAST_SIZE = 1e-100
"""Smallest square of which a logarithm is taken."""
MAX_COMPARED_ROWS = 64
"""Largest number of rows of a batch that are compared with those of the step before."""
FEATURES, NEXT_FEATURES = 19, 11
"""Numbers of features of a step, and of those that see the next step too."""
BARE, RUN = 10, 12
"""Indices of the features that count weights without noise, and the evidence in nats of a run of stored noise."""


@dataclass(frozen=True, eq=False)
class ObservedStep:
    """One step as it was observed; all in clips."""

    released: Floats  # the noisy sum, shape (weights,)
    residual: Floats  # without the batch
    effect: Floats  # what the canary adds to the sum
    direction: Floats  # the canary's direction, of norm 1
    norm: float  # the canary's norm before clipping
    batch: Floats  # gradients before clipping, shape (batch, weights)


class Residuals:
    """Residuals of one training so far, and the features of the next one that they give.

    A feature compares the residual with itself after the canary is subtracted, by the regularities of earlier ones.
    """

    def __init__(self, weights: int, noise: float, earlier: NDArray[np.float32] | None = None) -> None:
        none = np.zeros((0, weights), np.float32)
        self._earlier = none if earlier is None or earlier.shape[1] != weights else earlier  # of earlier trainings
        self._noise = noise
        self._recurrence = Recurrence(np.asarray(self._earlier, np.float64), noise)
        self._earlier_squares = np.square(self._earlier, dtype=np.float64).sum(1)
        self._latest = np.empty((max(2, MAX_STORED_NUMBERS // weights), weights))  # a ring buffer
        self._norm_squares = np.empty(len(self._latest))
        self._directions = np.empty((min(weights // 2, MAX_STORED_NUMBERS // weights), weights))
        self._rank = 0
        self._squares, self._count = np.zeros(weights), 0
        self._products = np.zeros((weights, weights)) if weights <= MAX_PAIRED_WEIGHTS else None
        self._before: ObservedStep | None = None
        self._partner: tuple[Ints, Floats, Floats] | None = None

    @property
    def stored(self) -> Floats:
        """The latest residuals, shape (steps, weights)."""
        return self._latest[: self._count]

    @property
    def _basis(self) -> Floats:
        """Orthonormal basis of the span of earlier residuals."""
        return self._directions[: self._rank]

    def quietest(self) -> int:
        """Return the weight with the least noise so far; the last one at first."""
        return int(np.argmin(self._squares)) if self._count >= MIN_STEPS else len(self._squares) - 1

    def features(self, step: ObservedStep) -> Floats:
        """Return the features of a step; the canary changes the mean of each."""
        residual, canary, released = step.residual, step.effect, step.released
        without = residual - canary
        typical = float(np.median(np.linalg.norm(step.batch, axis=1))) + 1e-6 if len(step.batch) else 1.0
        scaled = released / typical - clipped_sum(step.batch / typical)
        norms = float(np.linalg.norm(residual)), float(np.linalg.norm(without))
        size = _log_size(residual)
        return np.array(
            [
                residual @ canary / max(float(canary @ canary), LEAST_VARIANCE),
                released @ canary,
                self._nearest(residual, canary, norms),
                self._outside_span(residual, canary, norms),
                self._typical_norm(norms),
                size,
                size + 2 * np.log(max(len(step.batch), 1)),
                _log_size(scaled),
                scaled @ canary,
                np.log(np.abs(residual).max() + LEAST_SIZE),
                self._bare_weights(residual, without, norms),
                self._by_pair(residual, canary),
                self._recurrence.nats(without) - self._recurrence.nats(residual),
                released @ step.direction / step.norm,
                _log_size(released),
                *self._changes(step),
            ]
        )

    def _changes(self, step: ObservedStep) -> tuple[float, ...]:
        """Return how a step differs in size from the one before, and what it has along the canary at that size."""
        before = self._before
        if before is None:
            return 0.0, 0.0, 0.0, 0.0
        return (
            _log_size(step.released) - _log_size(before.released),
            _log_size(step.released * step.direction) - _log_size(before.released * step.direction),
            _log_size(step.residual) - _log_size(before.residual),
            float(step.released @ step.direction / np.sqrt(np.mean(before.released**2) + LEAST_SIZE)),
        )

    def next_features(self, step: ObservedStep, following: ObservedStep) -> Floats:
        """Return features of a step by the next one, whose coin is not known."""
        residual = min(following.residual, following.residual - following.effect, key=_log_size)
        distance = _log_distance(following.batch, step.batch)
        before = 0.0 if self._before is None else _log_distance(step.batch, self._before.batch)
        return np.array(
            [
                _log_size(following.released),
                _log_size(following.released) - _log_size(step.released),
                _log_size(following.released * step.direction) - _log_size(step.released * step.direction),
                _log_size(residual),
                _log_size(residual) - _log_size(step.residual),
                residual @ step.direction,
                residual @ step.direction / step.norm,
                following.released @ step.direction,
                np.log(_typical_length(following.batch) / _typical_length(step.batch)),
                distance,
                distance - before,
            ]
        )

    def add(self, step: ObservedStep, joined: bool) -> None:
        """Append a step whose coin is known; its residual is stored without the canary."""
        residual = step.residual - joined * step.effect
        self._before = step
        if self._rank < len(self._directions):
            outside = residual - (self._basis @ residual) @ self._basis
            length = np.linalg.norm(outside)
            if length > 1e-6 * np.linalg.norm(residual):
                self._directions[self._rank] = outside / length
                self._rank += 1
        place = self._count % len(self._latest)
        self._latest[place], self._norm_squares[place] = residual, residual @ residual
        self._squares += residual**2
        self._count += 1
        self._recurrence.add(residual)
        if self._products is not None:
            self._products += np.outer(residual, residual)
            self._pair()

    def _nearest(self, residual: Floats, canary: Floats, norms: tuple[float, float]) -> float:
        """Return the decrease of the distance to the nearest earlier residual or its negative."""
        if not self._count + len(self._earlier):
            return 0.0
        dots, moved = (np.concatenate([self.stored @ row, self._earlier @ row]) for row in (residual, canary))
        squares = np.concatenate([self._norm_squares[: self._count], self._earlier_squares])
        near = (squares - 2 * np.abs([dots, dots - moved])).min(1) + np.square(norms)
        return float(np.sqrt(max(near[0], 0)) - np.sqrt(max(near[1], 0)))

    def _outside_span(self, residual: Floats, canary: Floats, norms: tuple[float, float]) -> float:
        """Return the decrease of the part outside the span of earlier residuals."""
        inside, moved = self._basis @ residual, self._basis @ canary
        out = norms[0] ** 2 - (inside**2).sum(), norms[1] ** 2 - ((inside - moved) ** 2).sum()
        return float(np.sqrt(max(out[0], 0)) - np.sqrt(max(out[1], 0)))

    def _typical_norm(self, norms: tuple[float, float]) -> float:
        """Return the decrease of the distance to the typical norm."""
        if not self._count:
            return 0.0
        squares = self._norm_squares[: self._count]
        typical = np.sqrt(np.partition(squares, len(squares) // 2)[len(squares) // 2])
        return float(abs(norms[0] - typical) - abs(norms[1] - typical))

    def _bare_weights(self, residual: Floats, without: Floats, norms: tuple[float, float]) -> float:
        """Return the increase of the number of weights without noise; all of them if next to no noise remains."""
        if min(norms) < NEXT_TO_NONE * self._noise * np.sqrt(len(residual)):
            return float(np.sign(norms[0] - norms[1]) * len(residual))
        return float((np.abs(without) < NO_NOISE).sum()) - float((np.abs(residual) < NO_NOISE).sum())

    def _by_pair(self, residual: Floats, canary: Floats) -> float:
        """Return the log-likelihood ratio by the differences between each weight and the most similar one."""
        if self._partner is None:
            return 0.0
        partner, factor, variance = self._partner
        return _log_ratio(residual - factor * residual[partner], canary - factor * canary[partner], variance)

    def _pair(self) -> None:
        if self._products is None or self._count < MIN_STEPS or (self._count & (self._count - 1) and self._count % 16):
            return
        power = np.maximum(self._squares, LEAST_VARIANCE)
        alike = np.abs(self._products) / np.sqrt(np.outer(power, power))
        np.fill_diagonal(alike, 0)
        partner = alike.argmax(1)
        each = np.arange(len(partner))
        factor = self._products[each, partner] / power[partner]
        variance = (self._squares - factor * self._products[each, partner]) / self._count
        self._partner = partner, factor, variance


def _log_ratio(residual: Floats, canary: Floats, variance: Floats) -> float:
    return float(((residual - canary / 2) * canary / np.maximum(variance, LEAST_VARIANCE)).sum())


def _log_size(row: Floats) -> float:
    return float(np.log(row @ row + LEAST_SIZE))


def _typical_length(batch: Floats) -> float:
    return float(np.median(np.linalg.norm(batch, axis=1))) + LEAST_SIZE if len(batch) else LEAST_SIZE


def _log_distance(batch: Floats, before: Floats) -> float:
    """Return the logarithm of the mean distance of rows of a batch to the nearest one of the step before."""
    batch, before = batch[:MAX_COMPARED_ROWS], before[:MAX_COMPARED_ROWS]
    if not len(batch) or not len(before):
        return 0.0
    squares = (batch**2).sum(1)[:, None] - 2 * batch @ before.T + (before**2).sum(1)
    return float(np.log(np.sqrt(np.maximum(squares.min(1), 0)).mean() + LEAST_SIZE))
