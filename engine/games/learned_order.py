"""A predictable order of guesses that learns from the coins revealed on the way.

The guess band needs a *predictable* order: which coin is guessed next, and the guess, may depend on everything that is
shown and on coins that were revealed before, but not on the coin itself or on later ones.

Why that suffices. Let o be everything shown. Given o and the coins revealed so far, the next coin and its guess are
fixed. Under epsilon-DP for one canary, the odds of its coin given o and *any* values of the other coins lie within
e^-epsilon and e^epsilon. So the guess is right with conditional probability at most p = e^epsilon / (1 + e^epsilon),
for every past. Hence the numbers of right guesses are jointly dominated by a Bernoulli(p) walk, and the band
holds for all of them at once. At delta > 0 the argument of `OneTraining` fixes the other coins, so it holds as well.
Nothing in it asks how the order was found.

Some coins are given up: they are revealed without a guess, to learn from. They count as wrong guesses at the end of the
order, which only lowers the counts, so that the number of guesses does not depend on coins.

Source: ours; the domination is that of the one-run proof of Steinke et al. (2023).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.scores import Scores

FIRST_GUESSES = 10
"""Smallest number of guesses made between two fits."""
NEXT_GUESSES = 0.25
"""Number of guesses until the model is fitted again, as a share of the coins revealed."""
CLEARLY_RIGHT = 0.85
"""Share of right guesses at which the fixed order is followed further, before anything is learned."""
GIVEN_UP = 0.2
"""Share of the remaining coins that are given up when the fixed order is no longer clearly right."""
RIDGE, FIXED_WEIGHT = 30.0, 0.3
"""Strength of the ridge penalty, and the weight of the fixed order towards which it shrinks."""


def learned_order(fixed: Floats, features: Floats, coins: NDArray[np.bool_], *, seed: int) -> Scores:
    """Return signed scores whose order by |score| is a predictable order of guesses, one score for each canary.

    First the coins with the largest |fixed| are guessed, as long as the guesses are clearly right. Then some of the
    remaining coins are given up, a logistic model is fitted on all revealed coins, those that it is most confident of
    are guessed, and so on until none is left.

    Args:
        fixed: Score that is chosen without coins, centred at 0, > 0 for a guess of heads; shape (canaries,).
        features: Features of the model, shape (canaries, k); a constant column is an intercept. Pairs of exchangeable
            canaries need features that change their sign with the pair, and no intercept.
        coins: The coins, shape (canaries,); True for heads.
        seed: Seed of the coins that are given up.
    Returns: Scores for guesses of the rule "signed"; a score > 0 guesses heads.
    """
    require(
        fixed.shape == coins.shape == features.shape[:1] and coins.size > 0,
        "there must be one fixed score and one row of features for each coin",
        fixed=fixed.shape,
        features=features.shape,
        coins=coins.shape,
    )
    order = _Order(coins)
    _guess_fixed(order, fixed)
    waiting = np.flatnonzero(order.open_canaries)
    order.give_up(waiting[np.random.default_rng(seed).random(waiting.size) < GIVEN_UP])
    _guess_learned(order, fixed, features)
    return order.scores()


class _Order:
    """Guesses in their order. A guess is fixed before its coin is revealed, and only revealed coins can be read."""

    def __init__(self, coins: NDArray[np.bool_]) -> None:
        self.open_canaries = np.ones(coins.size, bool)  # canaries that were neither guessed nor given up
        self._coins = coins
        self._guessed: list[Ints] = []
        self._guesses: list[NDArray[np.bool_]] = []
        self._given_up: list[Ints] = []

    @property
    def revealed(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Canaries whose coins are revealed, and these coins."""
        canaries = np.flatnonzero(~self.open_canaries)
        return canaries, self._coins[canaries]

    def guess(self, confidence: Floats, count: int) -> float:
        """Guess the `count` canaries left with the largest |confidence|; return the share of right guesses."""
        waiting = np.flatnonzero(self.open_canaries)
        chosen = waiting[np.argsort(-np.abs(confidence[waiting]), kind="stable")[:count]]
        guesses = confidence[chosen] > 0
        self.open_canaries[chosen] = False
        self._guessed.append(chosen)
        self._guesses.append(guesses)
        return float((guesses == self._coins[chosen]).mean())

    def give_up(self, canaries: Ints) -> None:
        """Reveal coins without a guess."""
        self.open_canaries[canaries] = False
        self._given_up.append(canaries)

    def scores(self) -> Scores:
        """Return the guesses as signed scores, the first guess with the largest |score|."""
        canaries = np.concatenate([*self._guessed, *self._given_up])
        wrong = [~self._coins[part] for part in self._given_up]
        guesses = np.concatenate([*self._guesses, *wrong])
        size = np.arange(canaries.size, 0, -1, dtype=np.float64)
        return Scores(np.where(guesses, size, -size), self._coins[canaries], canary=canaries)


def _guess_fixed(order: _Order, fixed: Floats) -> None:
    """Guess by the fixed score until the guesses are no longer clearly right."""
    count, last_share = 0, 1.0
    while order.open_canaries.any() and (last_share >= CLEARLY_RIGHT or count < 2 * FIRST_GUESSES):
        batch = max(FIRST_GUESSES, int(NEXT_GUESSES * count))
        last_share, count = order.guess(fixed, batch), count + batch


def _guess_learned(order: _Order, fixed: Floats, features: Floats) -> None:
    """Guess the canaries left, by a model that is fitted again whenever a quarter more coins are revealed."""
    spread = np.sqrt(np.mean(features**2, axis=0))
    inputs = np.column_stack([fixed, features / np.where(spread > 0, spread, 1.0)])
    prior = np.zeros(inputs.shape[1])
    prior[0] = FIXED_WEIGHT
    weights = prior
    while order.open_canaries.any():
        canaries, coins = order.revealed
        weights = _fitted(inputs[canaries], coins, prior, weights)
        order.guess(inputs @ weights, max(FIRST_GUESSES, int(NEXT_GUESSES * canaries.size)))


def _fitted(inputs: Floats, coins: NDArray[np.bool_], prior: Floats, weights: Floats) -> Floats:
    """Return the weights of a logistic model, shrunk towards `prior`, by Newton's method."""
    signed = inputs * np.where(coins, 1.0, -1.0)[:, None]
    for _ in range(8):
        wrong = expit(-(signed @ weights))
        gradient = signed.T @ wrong - RIDGE * (weights - prior)
        curvature = (signed * (wrong * (1 - wrong))[:, None]).T @ signed
        curvature[np.diag_indices_from(curvature)] += RIDGE
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-3:
            break
    return weights
