"""The steps of a training as the audit sees them: canaries that may join each step, and guesses of their coins.

Each step has several coins, each with its own canary. Only numbers at the weights of the directions are needed. The
caller tosses the coins, adds the canaries, and shows what was released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.claims.step_noise import LaplaceNoise, StepNoise
from dpaudit.engine.games.steps.directions import SETS, WEIGHTS, Directions
from dpaudit.engine.games.steps.guesses import AHEAD, NoiseModel, WaitingStep
from dpaudit.engine.games.steps.noise import NoiseForm, form_of
from dpaudit.estimators.scores import StepScores
from dpaudit.registry import register

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

BEYOND_CLIP = 10.0
"""Norm of a canary that is clipped by the training, in clips, so that it shows whether the training clips."""
COARSEST = 0.25
"""Coarsest grid, in shares of what a canary adds to each of its weights, at which it keeps most of its norm."""
ROUNDED = 1e-9
"""Share by which a number may be rounded."""


@dataclass(frozen=True, eq=False)
class CoinView:
    """Log-likelihood ratios of the coins of a step, each by its own direction."""

    by_claim: Floats  # by the claimed noise, shape (coins,)
    by_learned: Floats  # by the noise learned from earlier steps, shape (coins,)
    prefers_learned: bool  # True if the learned noise guessed clearly better so far
    shows: ClassVar[str] = "the steps of one training, with several coins each"


@register("attack", "learned-noise", source="Ours: a linear discriminant by the noise of earlier steps")
@dataclass(frozen=True)
class LearnedNoise:
    """Attack that guesses by the claimed noise, and by the learned noise once that is clearly better."""

    view: ClassVar[type[CoinView]] = CoinView

    def score(self, view: CoinView) -> Floats:
        """Return the log-likelihood ratio of each coin of a step, in nats, shape (coins,)."""
        return view.by_learned if view.prefers_learned else view.by_claim


class StepObserver:
    """Steps of one training, with several coins each.

    Args:
        noise: Claimed noise of the steps.
        shapes: Shapes of the tensors of the model.
        coins: Number of coins of a step; fewer in a model with fewer than `SETS` weights for each.
        rng: Source of the directions.
        attack: The attack, which guesses the coins of a step.
        shares: Number of processes that each have a part of the weights.
        summed: Returns the sum of numbers over these processes.
    """

    def __init__(
        self,
        noise: StepNoise,
        shapes: Sequence[tuple[int, ...]],
        coins: int,
        rng: np.random.Generator,
        *,
        attack: Any = None,
        shares: int = 1,
        summed: Callable[[Floats], Floats] = np.asarray,
    ) -> None:
        self._noise, self._attack, self._summed = noise, attack or LearnedNoise(), summed
        coins = max(1, min(coins, sum(map(math.prod, shapes)) // SETS))
        # If the clip is in the 1-norm, a canary on one weight reveals most. On a grid it needs steps of the grid.
        pushed = 1 if isinstance(noise, LaplaceNoise) else None
        if noise.grid:
            pushed = max(1, min(WEIGHTS, int((COARSEST / noise.grid) ** 2)))
        self.directions = Directions.draw(shapes, coins, rng, weights=pushed)
        self._on_weight = 1 / (self.directions.length * math.sqrt(shares))  # a canary has one clip over all shares
        if noise.grid:
            self._on_weight = noise.grid * max(1, math.floor(self._on_weight / noise.grid * (1 + ROUNDED)))
        effect = float(noise.weights(0)[0]) * self._on_weight * self.directions.length
        self._is_independent = noise.is_independent
        self.model = NoiseModel(self.directions, noise.deviation, effect, is_independent=self._is_independent)
        self._current = np.zeros(0)  # noise and canaries of the last step, as released
        self._released: list[Floats] = []  # noise of earlier steps, as released, that later ones are decoded with
        self._waiting: list[WaitingStep] = []
        self._off_grid = False
        self._scores: list[Floats] = []
        self._truths: list[Flags] = []
        self.step = 0
        """Number of steps so far."""
        self.skipped = 0
        """Number of those that were not observed."""

    def effects(self, coins: Flags) -> Floats:
        """Return what the canaries of the next step add by the claim, in clips, in the shape of the places."""
        effects = np.zeros(self.directions.place.shape)
        effects[self._turn] = coins[:, None] * self.directions.sign[self._turn] * self._on_weight
        return effects

    def rows(self, weights: int) -> Floats:
        """Return the canaries of the next step as gradients beyond the clip, in clips, shape (coins, weights)."""
        rows = np.zeros((self.directions.coins, weights))
        far = BEYOND_CLIP / self.directions.length * self.directions.sign[self._turn]
        np.put_along_axis(rows, self.directions.place[self._turn], far, axis=1)
        return rows

    def clipped_sum(self, gradients: NDArray[np.floating]) -> Floats:
        """Return the sum of gradients clipped to norm 1 at the places, for gradients of shape (examples, weights)."""
        order = 1 if isinstance(self._noise, LaplaceNoise) else 2
        norms = np.linalg.norm(gradients, ord=order, axis=1).astype(np.float64)
        entries = gradients[:, self.directions.place.ravel()].astype(np.float64)
        summed = (entries / np.maximum(norms, 1)[:, None]).sum(0)
        return np.asarray(summed.reshape(self.directions.place.shape))

    def see(self, released: Floats, coins: Flags, *, is_on_grid: bool = True) -> None:
        """Observe noise and canaries of a step at the places, in clips, and if the sum was on the stated grid."""
        self._off_grid |= not is_on_grid
        released = self.directions.rotated(released)
        size = float(self._noise.weights(self.step)[0] / self._noise.weights(0)[0])
        self._waiting.append(WaitingStep(self._turn, self._decoded(released), coins, size))
        self.step += 1
        self._finish(AHEAD if self._is_independent else 0)

    def skip(self, coins: Flags) -> None:
        """Count the coins of a step that is never observed as guessed wrong."""
        self._finish(0)
        self._scores.append(np.zeros(coins.size))
        self._truths.append(coins)
        if not self._is_independent:  # later steps cannot be decoded without this one, so their guesses are wrong too
            self._released.append(np.full(self.directions.place.shape, np.nan))
        self.step, self.skipped = self.step + 1, self.skipped + 1

    def evidence(self) -> StepScores:
        """Return the scores of all coins so far; it guesses the last steps without waiting for the next ones."""
        self._finish(0)
        scores = np.nan_to_num(np.concatenate(self._scores), nan=0.0)
        return StepScores.in_single_precision(np.concatenate(self._truths), scores, self.directions.coins)

    @property
    def form(self) -> NoiseForm:
        """Form of the noise so far, decoded if it is claimed to be correlated."""
        p_values = form_of(self.model.noise, self._noise.deviation)
        decoded = not self._is_independent
        return NoiseForm(p_values, self._noise.deviation, decoded=decoded, off_grid=self._off_grid)

    @property
    def _turn(self) -> int:
        return self.step % len(self.directions.place)

    def _decoded(self, released: Floats) -> Floats:
        """Return the white noise of a step with its canaries, by the noise of earlier steps."""
        now, *before = self._noise.weights(self.step)
        self._released = self._released[-len(before) :] if before else []
        self._current = released
        return np.asarray(
            now * released + sum(w * noise for w, noise in zip(before, reversed(self._released), strict=False))
        )

    def _finish(self, waiting: int) -> None:
        """Guess the coins of steps until so many wait, each with those after it, and learn from them."""
        while len(self._waiting) > waiting:
            step, *following = self._waiting
            del self._waiting[0]
            by_claim, by_learned = both = self._summed(self.model.scores(step, following))
            self._scores.append(self._attack.score(CoinView(by_claim, by_learned, self.model.prefers_learned)))
            self._truths.append(step.coins)
            self.model.add(step, following, both)
            if not self._is_independent:
                noise = self._current.copy()
                effect = self.model.effect / self._noise.weights(0)[0]  # as released, not decoded
                along = self.directions.along[step.turn] / self.directions.length
                noise[step.turn] -= step.coins[:, None] * along * effect
                self._released.append(noise)
