"""Guesses about the coins of a step, by a model of the noise that is learned from earlier steps.

The residual of a step is its release minus the data, decoded to the claimed white noise. On the weights of its
direction, a canary that joined adds its effect. The coins of earlier steps are known by then. So their noise shows
how large the noise of each tensor is, and how the noise of a step follows from that of other steps.

A guess uses the residual of its step, and what was fixed before its coin was tossed. If noise is claimed to be
independent, it also uses the residuals of the next steps on the same weights, where these steps have no canary. It
never uses another coin of its step. So if the claim holds, it is right with probability at most
(1 + total variation) / 2.

The residual of a step and those of the next steps are weighted as in a linear discriminant: by the covariance of the
noise, and by what a canary was seen to add to each of them. So noise that is linear in that of other steps cancels out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.games.steps.directions import SETS, Directions

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LAGS, AHEAD = 8, SETS - 1
"""Numbers of earlier and of later steps from which the noise of a step is predicted."""
STORED_NUMBERS = 4_000_000
"""Largest number of residuals that are stored to find noise that repeats."""
PRIOR_NUMBERS = 50.0
"""Weight of the claimed variance, in numbers, next to those observed of a tensor."""
PRIOR_COINS, PRIOR_LATER = 10.0, 50.0
"""Weight of the claimed effect of a canary, and of none on later steps, in coins, next to those observed."""
LIKENESS = 0.6
"""Correlation of a step's noise with that of an earlier one from which it counts as repeated."""
RIDGE = 1e-3
"""Share of the claimed variance that is added to the variances of a regression."""
STEPS_OF_BARE, BARE_SHARE = 12, 0.05
"""Number of steps from which a weight may count as one without noise, and its largest share of the variance."""
LEAST_SHARE = 1e-9
"""Smallest variance of a tensor's noise, as a share of the claimed one."""
SWITCH_COINS = 6.0
"""Lead in right guesses, beyond chance, that the learned noise needs over the claimed noise."""


@dataclass(frozen=True, eq=False)
class WaitingStep:
    """A step that waits for its guesses.

    Attributes:
        turn: Number of its set of directions.
        residual: Its residual on all weights, rotated, shape (sets, coins, weights).
        coins: True for each canary that joined, shape (coins,).
        size: Claimed effect of its canaries, as a multiple of that in the first step.
    """

    turn: int
    residual: Floats
    coins: Flags
    size: float = 1.0


class NoiseModel:
    """Noise of the steps so far, on the weights of all directions.

    Args:
        directions: The directions.
        deviation: Claimed deviation of the noise in clips.
        effect: What a canary adds along its direction in the first step by the claim, in clips.
        is_independent: True if the noise of steps is claimed to be independent.
    """

    def __init__(self, directions: Directions, deviation: float, effect: float, *, is_independent: bool) -> None:
        self.directions, self.deviation, self._claimed = directions, deviation, deviation**2
        self.claimed_effect = effect
        self._ahead = AHEAD if is_independent else 0
        kinds = 3 * (int(directions.tensor.max()) + 1)
        size = directions.place.size
        self._stored = np.zeros((max(LAGS + 1, min(STORED_NUMBERS // size, 2_000)), size), np.float32)
        self._count = 0
        rows = 1 + AHEAD + LAGS
        self._products = np.zeros((rows, rows))  # of the noise of a step, of the next ones, and of those before
        self._squares, self._numbers = np.zeros(kinds), np.zeros(kinds)
        self._of_weights = np.zeros(directions.place.shape)  # sums of squares of the noise of each weight
        later = np.arange(1 + AHEAD) > 0
        self._effect_sums = np.where(later, 0.0, PRIOR_COINS * effect)
        self.effect_counts = np.where(later, PRIOR_LATER, PRIOR_COINS)
        self._lead = -SWITCH_COINS
        self.repeats: list[int] = []
        """Number of steps since the noise that each step repeats, 0 if it repeats none."""

    def scores(self, step: WaitingStep, following: Sequence[WaitingStep]) -> Floats:
        """Return scores of the coins of a step by the claimed noise and by the learned one, shape (2, coins).

        Args:
            step: The step.
            following: The steps after it, as many as were observed; the first `AHEAD` are used.
        """
        along = step.size * self._along(step.turn)
        unexplained, moved, _ = self._unexplained(step, following)
        by_claim = ((step.residual[step.turn] - self.effect * along / 2) * self.effect * along).sum(1) / self._claimed
        learned = ((unexplained - moved * along / 2) * moved * along / self._variances(step.turn)).sum(1)
        return np.array([by_claim, learned])

    @property
    def prefers_learned(self) -> bool:
        """True if the learned noise guessed clearly better than the claimed one so far."""
        return self._lead > 0

    def add(self, step: WaitingStep, following: Sequence[WaitingStep], scores: Floats) -> None:
        """Learn from a step whose coins are known; `scores` is what `scores` returned, over all processes."""
        right = [int(((score > 0) == step.coins).sum()) for score in scores]
        self._lead += right[1] - right[0]
        along, joined, rows = self._along(step.turn), step.coins, self._rows(step, following)
        moved_by = (rows * along).sum(2) / step.size
        if 0 < joined.sum() < joined.size:  # the difference, because earlier canaries may have moved both
            effects = moved_by[:, joined].mean(1) - moved_by[:, ~joined].mean(1)
            usable = np.isfinite(effects) & (np.arange(effects.size) < 1 + len(following))
            self._effect_sums[usable] += joined.sum() * effects[usable]
            self.effect_counts[usable] += joined.sum()
        unexplained, moved, repeated = self._unexplained(step, following)
        unexplained = unexplained - moved * step.size * joined[:, None] * along
        if not np.isfinite(unexplained).all():
            return
        self.repeats.append(repeated)
        kind = self.directions.kind[step.turn].ravel()
        np.add.at(self._squares, kind, (unexplained**2).ravel())
        np.add.at(self._numbers, kind, 1.0)
        canaries = (self.effects * step.size)[:, None, None] * joined[:, None] * along
        rows = np.concatenate([rows - canaries, self._earlier(step.turn)])
        if np.isfinite(rows).all() and len(following) >= self._ahead:
            directed = (rows * self._along(step.turn)).sum(2)  # with as much weight as all others
            self._products += np.tensordot(rows, rows, ((1, 2), (1, 2))) + rows.shape[2] * directed @ directed.T
        noise = step.residual.copy()
        noise[step.turn] -= canaries[0]
        self._stored[self._count % len(self._stored)] = noise.ravel()
        self._of_weights += noise**2
        self._count += 1

    @property
    def noise(self) -> Floats:
        """Noise of the stored steps without canaries, in clips, in the order of the steps, shape (steps, weights)."""
        first = max(0, self._count - len(self._stored))
        rows: Floats = self._stored[np.arange(first, self._count) % len(self._stored)].astype(np.float64)
        return rows

    @property
    def effects(self) -> Floats:
        """Effects of a canary along its direction in its step and in those after it, in clips, shape (1 + AHEAD,)."""
        return np.asarray(self._effect_sums / self.effect_counts)

    @property
    def effect(self) -> float:
        """Effect of a canary in its step, in clips: as claimed at first, then as observed."""
        return float(self.effects[0])

    def _along(self, turn: int) -> Floats:
        return np.asarray(self.directions.along[turn] / self.directions.length)

    def _variances(self, turn: int) -> Floats:
        """Return the variance of the noise of each weight that other steps do not explain, shape (coins, weights).

        It is that of the tensor, or of differences or sums of neighbours in it, but for weights that nearly had no
        noise in all steps so far.
        """
        prior = np.where(self._numbers > 4 * PRIOR_NUMBERS, 1e-9, PRIOR_NUMBERS)
        of_kinds = (self._squares + prior * self._claimed) / (self._numbers + prior)
        variance = of_kinds[self.directions.kind[turn]]
        if self._count >= STEPS_OF_BARE:
            mean_square = self._of_weights[turn] / self._count
            variance = np.where(mean_square < BARE_SHARE * variance, mean_square, variance)
        return np.asarray(np.maximum(variance, LEAST_SHARE * self._claimed), np.float64)

    def _earlier(self, turn: int) -> Floats:
        """Return the noise of the `LAGS` steps before, the last one first, shape (lags, coins, weights)."""
        lags = np.arange(1, LAGS + 1)
        rows: Floats = self._stored[(self._count - lags) % len(self._stored)].astype(np.float64)
        rows[lags > self._count] = 0
        return rows.reshape(LAGS, *self.directions.place.shape)[:, turn]

    def _rows(self, step: WaitingStep, following: Sequence[WaitingStep]) -> Floats:
        """Return the residual of a step and those of the next ones, 0 if missing, shape (1 + ahead, coins, weights)."""
        rows = np.zeros((1 + AHEAD, *step.residual.shape[1:]))
        rows[0] = step.residual[step.turn]
        for place, later in enumerate(following[: self._ahead], 1):
            residual = later.residual[step.turn]
            rows[place] = np.where(np.isfinite(residual), residual, 0.0)
        return rows

    def _unexplained(self, step: WaitingStep, following: Sequence[WaitingStep]) -> tuple[Floats, float, int]:
        """Return the residual of a step without what other steps explain of it, shape (coins, weights).

        Returns: Also what a canary adds to it, in clips, and the number of steps since the noise that it repeats, 0
            for none.
        """
        used = 1 + min(len(following), self._ahead)
        powers = self._products.copy()
        powers[np.diag_indices_from(powers)] += RIDGE * self._claimed * max(self._count, 1) * step.residual[0].size
        by_earlier = np.linalg.solve(powers[1 + AHEAD :, 1 + AHEAD :], powers[1 + AHEAD :, :used])
        covariance = powers[:used, :used] - powers[:used, 1 + AHEAD :] @ by_earlier
        weights = np.linalg.solve(covariance, self.effects[:used])
        weights = weights / weights[0] if weights[0] > 0 and self._count else np.eye(used)[0]
        explained = np.tensordot(by_earlier, self._earlier(step.turn), (0, 0))
        unexplained = np.tensordot(weights, self._rows(step, following)[:used] - explained, 1)
        repeated, since = self._repeated(step.turn, unexplained)
        return unexplained - repeated, float(weights @ self.effects[:used]), since

    def _repeated(self, turn: int, unexplained: Floats) -> tuple[Floats, int]:
        """Return the multiple of an earlier step's noise that repeats in this step, and the number of steps since."""
        size, none = unexplained.size, (np.zeros_like(unexplained), 0)
        stored = self._stored[: self._count, turn * size : (turn + 1) * size]
        if not len(stored):
            return none
        flat = unexplained.ravel().astype(np.float32)
        products, powers = stored @ flat, np.einsum("ij,ij->i", stored, stored) + np.float32(1e-30)
        best = int(np.argmax(products**2 / powers))
        if not products[best] ** 2 >= LIKENESS**2 * powers[best] * float(flat @ flat):
            return none
        repeated = np.asarray(products[best] / powers[best] * stored[best].reshape(unexplained.shape), np.float64)
        return repeated, (self._count - best - 1) % len(self._stored) + 1
