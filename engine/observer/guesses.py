"""Guesses about the coins of a step, by a model of the noise that is learned from earlier steps.

The residual of a step is its release minus the data, decoded to the claimed white noise. On the weights of its
direction, a canary that joined adds its effect. The coins of earlier steps are known by then. So their noise shows
how large the noise of each tensor is, and how the noise of a step follows from that of other steps.

A guess uses the residual of its step, and what was fixed before its coin was tossed. If noise is claimed to be
independent, it also uses the residual of the next step on the same weights, where that step has no canary. It never
uses another coin of its step. So if the claim holds, it is right with probability at most (1 + total variation) / 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.observer.directions import Directions

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LAGS = 8
"""Number of earlier steps from which the noise of a step is predicted."""
STORED_NUMBERS = 4_000_000
"""Largest number of residuals that are stored to find noise that repeats."""
PRIOR_NUMBERS = 50.0
"""Weight of the claimed variance, in numbers, next to those observed of a tensor."""
PRIOR_COINS = 4.0
"""Weight of the claimed effect of a canary, in coins, next to those observed."""
LIKENESS = 0.6
"""Correlation of a step's noise with that of an earlier one from which it counts as repeated."""
RIDGE = 1e-3
"""Share of the claimed variance that is added to the variances of a regression."""
STEPS_OF_BARE, BARE_SHARE = 8, 0.05
"""Number of steps from which a weight may count as one without noise, and its largest share of the variance."""
LEAST_SHARE = 1e-9
"""Smallest variance of a tensor's noise, as a share of the claimed one."""
SWITCH_COINS = 6.0
"""Lead in right guesses, beyond chance, that the learned noise needs over the claimed noise."""


class NoiseModel:
    """Noise of the steps so far, on the weights of all directions.

    Args:
        directions: The directions.
        deviation: Claimed deviation of the noise in clips.
        effect: What a canary adds along its direction by the claim, in clips.
        is_independent: True if the noise of steps is claimed to be independent.
    """

    def __init__(self, directions: Directions, deviation: float, effect: float, *, is_independent: bool) -> None:
        self._directions, self._claimed, self._is_independent = directions, deviation**2, is_independent
        self._tensors = int(directions.tensor.max()) + 1
        size = directions.place.size
        self._stored = np.zeros((max(LAGS + 1, min(STORED_NUMBERS // size, 2_000)), size), np.float32)
        self._count = 0
        self._products = np.zeros((LAGS + 2, LAGS + 2))  # of the noise of a step, the next one, and those before
        self._squares, self._numbers = np.zeros(self._tensors), np.zeros(self._tensors)
        self._of_weights = np.zeros(directions.place.shape)  # sums of squares of the noise of each weight
        self._effect_sum, self._effect_count = PRIOR_COINS * effect, PRIOR_COINS
        self._lead = -SWITCH_COINS
        self._factors: Floats = np.zeros(LAGS + 1)

    def scores(self, turn: int, residual: Floats, following: Floats | None) -> Floats:
        """Return scores of the coins of a step by the claimed noise and by the learned one, shape (2, coins).

        Args:
            turn: Number of the set of directions of the step.
            residual: Residual of the step on all weights, shape (sets, coins, weights).
            following: Residual of the next step; None if there is none.
        """
        own_noise, effect = residual[turn], self.effect * self._directions.sign[turn] / self._directions.length
        unexplained = self._without_explained(turn, residual, following)
        by_claim = ((own_noise - effect / 2) * effect).sum(1) / self._claimed
        learned = ((unexplained - effect / 2) * effect / self._variances(turn)).sum(1)
        return np.array([by_claim, learned])

    @property
    def prefers_learned(self) -> bool:
        """True if the learned noise guessed clearly better than the claimed one so far."""
        return self._lead > 0

    def add(self, turn: int, residual: Floats, following: Floats | None, coins: Flags, scores: Floats) -> None:
        """Learn from a step whose coins are known.

        Args:
            turn: As in `scores`.
            residual: As in `scores`.
            following: As in `scores`.
            coins: True for each canary that joined, shape (coins,).
            scores: What `scores` returned, over all processes.
        """
        right = [int(((score > 0) == coins).sum()) for score in scores]
        self._lead += right[1] - right[0]
        sign = self._directions.sign[turn] / self._directions.length
        along = (residual[turn] * sign).sum(1)
        if coins.any() and np.isfinite(along).all():
            self._effect_sum += float(along[coins].sum())
            self._effect_count += int(coins.sum())
        unexplained = self._without_explained(turn, residual, following) - coins[:, None] * sign * self.effect
        if not np.isfinite(unexplained).all():
            return
        tensor = self._directions.tensor[turn].ravel()
        np.add.at(self._squares, tensor, (unexplained**2).ravel())
        np.add.at(self._numbers, tensor, 1.0)
        self._remember(turn, residual, following, coins)

    @property
    def noise(self) -> Floats:
        """Noise of the stored steps without canaries, in clips, shape (steps, weights)."""
        return self._stored[: min(self._count, len(self._stored))].astype(np.float64)

    @property
    def effect(self) -> float:
        """Effect of a canary along its direction, in clips: as claimed at first, then as observed."""
        return self._effect_sum / self._effect_count

    def _variances(self, turn: int) -> Floats:
        """Return the variance of the noise of each weight that other steps do not explain, shape (coins, weights).

        It is that of the tensor, but for weights that nearly had no noise in all steps so far.
        """
        prior = np.where(self._numbers > 4 * PRIOR_NUMBERS, 1e-9, PRIOR_NUMBERS)
        of_tensors = (self._squares + prior * self._claimed) / (self._numbers + prior)
        variance = of_tensors[self._directions.tensor[turn]]
        if self._count >= STEPS_OF_BARE:
            mean_square = self._of_weights[turn] / self._count
            variance = np.where(mean_square < BARE_SHARE * variance, mean_square, variance)
        return np.asarray(np.maximum(variance, LEAST_SHARE * self._claimed), np.float64)

    def _earlier(self, turn: int) -> Floats:
        """Return the noise of the `LAGS` steps before, the last one first, shape (lags, coins, weights)."""
        lags = np.arange(1, LAGS + 1)
        rows: Floats = self._stored[(self._count - lags) % len(self._stored)].astype(np.float64)
        rows[lags > self._count] = 0
        return rows.reshape(LAGS, *self._directions.place.shape)[:, turn]

    def _without_explained(self, turn: int, residual: Floats, following: Floats | None) -> Floats:
        """Return the residual of a step without what other steps explain of it, shape (coins, weights)."""
        unexplained = residual[turn] - np.tensordot(self._factors[1:], self._earlier(turn), 1)
        if following is not None and self._is_independent and np.isfinite(following[turn]).all():
            unexplained = unexplained - self._factors[0] * following[turn]
        return np.asarray(unexplained - self._repeated(turn, unexplained), np.float64)

    def _repeated(self, turn: int, unexplained: Floats) -> Floats:
        """Return the multiple of an earlier step's noise that repeats in this step, 0 if none does."""
        stored = (
            self._stored[: self._count]
            .reshape(-1, *self._directions.place.shape)[:, turn]
            .reshape(-1, unexplained.size)
        )
        if not len(stored):
            return np.zeros_like(unexplained)
        flat = unexplained.ravel().astype(np.float32)
        products, powers = stored @ flat, np.einsum("ij,ij->i", stored, stored) + np.float32(1e-30)
        best = int(np.argmax(products**2 / powers))
        if products[best] ** 2 < LIKENESS**2 * powers[best] * float(flat @ flat):
            return np.zeros_like(unexplained)
        return np.asarray(products[best] / powers[best] * stored[best].reshape(unexplained.shape), np.float64)

    def _remember(self, turn: int, residual: Floats, following: Floats | None, coins: Flags) -> None:
        sign = self._directions.sign[turn] / self._directions.length
        noise = residual.copy()
        noise[turn] -= coins[:, None] * sign * self.effect
        next_noise = np.zeros_like(noise[turn]) if following is None or not self._is_independent else following[turn]
        rows = np.concatenate([[noise[turn]], [next_noise], self._earlier(turn)]).reshape(LAGS + 2, -1)
        if np.isfinite(rows).all():
            self._products += rows @ rows.T
        self._stored[self._count % len(self._stored)] = noise.ravel()
        self._of_weights += noise**2
        self._count += 1
        self._refit()

    def _refit(self) -> None:
        """Fit the regression of a step's noise on that of other steps."""
        powers = self._products.copy()
        powers[np.diag_indices_from(powers)] += RIDGE * self._claimed * max(self._count, 1)
        if not self._is_independent:
            powers[1, :], powers[:, 1] = 0, 0
            powers[1, 1] = 1
        self._factors = np.asarray(np.linalg.solve(powers[1:, 1:], powers[1:, 0]), np.float64)
