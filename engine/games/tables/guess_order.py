"""One order of guesses from all attacks: the most confident pairs first, learning from the coins revealed on the way.

The guess band needs a *predictable* order: which pair comes next, and the guess about it, may depend on everything that
is shown and on the coins of pairs that came before, but not on its own coin or on those of later pairs.

Why that suffices. Let o be everything shown: the synthetic table and the unordered pairs. Given o and the coins
revealed so far, the next pair i and its guess are fixed numbers. Under epsilon-DP for a replaced record, the odds of
coin i given o and *any* values of the other coins lie within e^-epsilon and e^epsilon, so the guess is right with
conditional probability at most p = e^epsilon / (1 + e^epsilon), for every past. Hence the numbers of right
guesses S_1, S_2, ... are jointly dominated by a Bernoulli(p) walk, and the band holds for all of them at once. Nothing
in this argument asks how the order was found: a model fitted on revealed coins is as good as a fixed score.

Some pairs are given up: their coins are revealed without a guess, to learn from. They count as wrong guesses at the end
of the order, which only lowers S_k, so that the number of guesses does not depend on coins.

Cross-fitting in both directions is *not* predictable: if half A is guessed by a model fitted on the coins of half B
and B by one fitted on A, each half is a valid test alone, but their sum is not. Let two pairs be guessed by "the same
as the other one's coin". Each guess is right with probability 1/2, but both are right or both are wrong: right twice
with probability 1/2 instead of 1/4.

Source: ours; the domination is that of the one-run proof of Steinke et al. (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import rankdata

from dpaudit.engine.games.tables.pairs import PairedTables
from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.scores import Scores

BULK, SHOULDER = 0.5, 0.9
"""Quantiles of a feature whose distance is its unit: outliers do not widen it."""
LARGEST_OUTLIER, POWER = 30.0, 3.0
"""Largest distance of a feature from its median in its units, and the power that makes few large distances count more
than many small ones when the attacks are added up.
"""
HINGES = (0.0, 2.0, 4.0)
"""Knots of the learned features, in -log of the share of rows with a larger feature."""
FIRST_GUESSES = 10
"""Smallest number of guesses made between two looks at the coins."""
NEXT_GUESSES = 0.25
"""Number of guesses until the model is fitted again, as a share of the coins revealed."""
CLEARLY_RIGHT = 0.85
"""Share of right guesses at which the order of outliers is followed further, before anything is learned."""
GIVEN_UP = 0.2
"""Share of the remaining pairs that are given up when outliers are no longer clearly right."""
RIDGE, OUTLIER_WEIGHT = 30.0, 0.3
"""Strength of the ridge penalty, and the weight of the order of outliers towards which it shrinks."""


@dataclass(frozen=True, eq=False)
class PairFeatures:
    """Features of pairs that change their sign if the two canaries of a pair are exchanged.

    Attributes:
        outlying: How much more the first canary stands out than the second one in all attacks together, as a signed
            -log of its rank among the pairs, shape (pairs,).
        learned: Differences of tail ranks, for the model, shape (pairs, k).
    """

    outlying: Floats
    learned: Floats

    @classmethod
    def of(cls, paired: PairedTables, attacks: Sequence[Floats]) -> PairFeatures:
        """Return the features of all pairs.

        Args:
            attacks: Features of the real rows by each attack, shapes (rows, k of the attack); the first column is the
                attack's own score. Larger values mean that a row is more likely trained on.
        """
        scores = np.column_stack([features[:, 0] for features in attacks])
        largest, mean = paired.of_canaries(
            np.concatenate([outliers(scores), tails(np.concatenate(attacks, axis=1))], 1)
        )
        count = scores.shape[1]
        standing_out = (largest[0] - largest[1])[:, :count].sum(axis=1)
        differences = [largest[0] - largest[1], *([] if mean is largest else [mean[0] - mean[1]])]
        learned = np.concatenate([difference[:, count:] for difference in differences], axis=1)
        return cls(_signed_tail_rank(standing_out), learned[:, learned.any(axis=0)])


def outliers(scores: Floats) -> Floats:
    """Return how far each value lies above the median of its column, in robust units to the power `POWER`."""
    bulk, shoulder = np.quantile(scores, (BULK, SHOULDER), axis=0)
    unit = np.maximum(shoulder - bulk, np.finfo(np.float64).tiny)
    above = np.maximum(scores - bulk, 0.0)
    with np.errstate(over="ignore"):
        distances: Floats = np.minimum(above / unit, LARGEST_OUTLIER)
    return distances**POWER


def tails(features: Floats) -> Floats:
    """Return hinges of -log of the upper tail rank and one of the lower tail rank of each column, shape (rows, 4 k)."""
    ranks = (rankdata(features, axis=0) - 0.5) / features.shape[0]
    upper, lower = -np.log1p(-ranks), np.log(ranks)
    return np.concatenate([*(np.maximum(upper - knot, 0.0) for knot in HINGES), np.minimum(lower + HINGES[1], 0.0)], 1)


def learned_order(
    features: PairFeatures,
    first_trained: NDArray[np.bool_],
    *,
    seed: int,
    guessed: NDArray[np.bool_] | None = None,
) -> Scores:
    """Return signed scores whose order by |score| is a predictable order of guesses, one score for each guessed pair.

    First the pairs in which one canary stands out are guessed, as long as the guesses are clearly right. Then some of
    the remaining pairs are given up, a logistic model without intercept is fitted on all revealed coins, the pairs that
    it is most confident of are guessed, and so on until none is left.

    Args:
        features: Features of all pairs.
        first_trained: Coins of all pairs, shape (pairs,).
        seed: Seed of the pairs that are given up.
        guessed: Mask of the pairs to guess, shape (pairs,), which must not depend on coins. The coins of the others are
            revealed in advance. None for all pairs.
    Returns: Score > 0 for the guess that the first canary was trained on; canary numbers are numbers of pairs.
    """
    coins = _Coins(first_trained)
    open_pairs = np.ones(first_trained.size, bool) if guessed is None else guessed.copy()
    require(bool(open_pairs.any()), "at least one pair must be guessed", pairs=first_trained.size)
    order = _Order(coins, open_pairs)
    if guessed is not None and not guessed.all():
        coins.reveal(np.flatnonzero(~guessed))
    else:
        _guess_outliers(order, features.outlying)
        unseen = np.flatnonzero(order.open_pairs)
        order.give_up(unseen[np.random.default_rng(seed).random(unseen.size) < GIVEN_UP])
    _guess_learned(order, features)
    return order.scores()


class _Coins:
    """The coins of the pairs; one can be read once it was revealed."""

    def __init__(self, first_trained: NDArray[np.bool_]) -> None:
        self._first_trained = first_trained
        self._is_revealed = np.zeros(first_trained.size, bool)

    def reveal(self, pairs: Ints) -> NDArray[np.bool_]:
        self._is_revealed[pairs] = True
        return self._first_trained[pairs]

    @property
    def revealed(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Pairs whose coins are revealed, and these coins."""
        pairs = np.flatnonzero(self._is_revealed)
        return pairs, self._first_trained[pairs]


class _Order:
    """Guesses in their order. A guess is fixed before its coin is revealed."""

    def __init__(self, coins: _Coins, open_pairs: NDArray[np.bool_]) -> None:
        self.open_pairs = open_pairs.copy()  # pairs that were neither guessed nor given up
        self.coins = coins
        self._guessed: list[Ints] = []
        self._right: list[NDArray[np.bool_]] = []
        self._given_up: list[Ints] = []

    def guess(self, confidence: Floats, count: int) -> float:
        """Guess the `count` pairs left with the largest |confidence|; return the share of right guesses."""
        unseen = np.flatnonzero(self.open_pairs)
        chosen = unseen[np.argsort(-np.abs(confidence[unseen]), kind="stable")[:count]]
        guesses = confidence[chosen] > 0
        self.open_pairs[chosen] = False
        right = guesses == self.coins.reveal(chosen)
        self._guessed.append(chosen)
        self._right.append(right)
        return float(right.mean())

    def give_up(self, pairs: Ints) -> None:
        """Reveal the coins of pairs without a guess."""
        self.open_pairs[pairs] = False
        self.coins.reveal(pairs)
        self._given_up.append(pairs)

    def scores(self) -> Scores:
        """Return the guesses as signed scores, the first guess with the largest |score|."""
        pairs = np.concatenate([*self._guessed, *self._given_up])
        right = np.concatenate([*self._right, *(np.zeros(part.size, bool) for part in self._given_up)])
        truth = self.coins.reveal(pairs)
        size = np.arange(pairs.size, 0, -1, dtype=np.float64)
        return Scores(np.where(truth == right, size, -size), truth, canary=pairs)


def _guess_outliers(order: _Order, outlying: Floats) -> None:
    """Guess the pairs in which one canary stands out most, until the guesses are no longer clearly right."""
    count, last_share = 0, 1.0
    while order.open_pairs.any() and (last_share >= CLEARLY_RIGHT or count < 2 * FIRST_GUESSES):
        batch = max(FIRST_GUESSES, int(NEXT_GUESSES * count))
        last_share, count = order.guess(outlying, batch), count + batch


def _guess_learned(order: _Order, features: PairFeatures) -> None:
    """Guess the pairs left, by a model that is fitted again whenever a quarter more coins are revealed."""
    spread = np.sqrt(np.mean(features.learned**2, axis=0))
    inputs = np.column_stack([features.outlying, features.learned / np.where(spread > 0, spread, 1.0)])
    prior = np.zeros(inputs.shape[1])
    prior[0] = OUTLIER_WEIGHT
    weights = prior
    while order.open_pairs.any():
        pairs, coins = order.coins.revealed
        weights = _fitted(inputs[pairs], coins, prior, weights)
        order.guess(inputs @ weights, max(FIRST_GUESSES, int(NEXT_GUESSES * pairs.size)))


def _fitted(inputs: Floats, coins: NDArray[np.bool_], prior: Floats, weights: Floats) -> Floats:
    """Return the weights of a logistic model without intercept, shrunk towards `prior`, by Newton's method."""
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


def _signed_tail_rank(values: Floats) -> Floats:
    """Return sign(value) * -log of the share of values that are as large or larger in size, shape as `values`."""
    ranks: Floats = rankdata(-np.abs(values), method="average") / values.size
    return np.sign(values) * -np.log(ranks)
