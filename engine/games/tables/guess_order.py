"""One order of guesses from all attacks: the most confident pairs first, learning from the coins revealed on the way.

The guess band needs a *predictable* order. The choice of the next pair, and the guess about it, may depend on all that
is shown and on the coins of earlier pairs. They must not depend on the pair's own coin or on later coins.

Why that suffices. Let o be everything shown: the synthetic table and the unordered pairs. Given o and the coins
revealed so far, the next pair i and its guess are fixed. Under epsilon-DP for a replaced record, the odds of coin i
given o and *any* values of the other coins lie within e^-epsilon and e^epsilon. So for every past, the guess is right
with conditional probability at most p = e^epsilon / (1 + e^epsilon). Hence the numbers of right guesses S_1, S_2, ...
are jointly dominated by a Bernoulli(p) walk, and the band holds for all of them at once. The argument does not depend
on how the order was found: a model fitted on revealed coins is as valid as a fixed score.

The order follows the expert with the best record. Experts are the features of the attacks, all attacks together, and a
model that learns from all features. Each revealed coin is credited to every expert that had an opinion about it, the
more the earlier it would have guessed that pair. So a few guesses suffice to find the attack that this table is weak
against, and an attack that finds nothing costs at most a few wrong guesses.

Cross-fitting in both directions is *not* predictable. Let a model fitted on the coins of half B guess half A, and one
fitted on A guess B. Each half is a valid test alone, but their sum is not. Let two pairs be guessed by "the same
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
"""Quantiles of a feature whose distance is its unit, so that outliers do not widen it."""
LARGEST_OUTLIER, POWER = 30.0, 3.0
"""Largest distance of a feature from its median in its units, and the power that makes few large distances count more
than many small ones when the attacks are added up.
"""
HINGES = (0.0, 2.0, 4.0)
"""Knots of the learned features, in -log of the share of rows with a larger feature."""
RIGHT_BEFORE, WRONG_BEFORE = 2.0, 1.0
"""Right and wrong guesses with which each expert starts."""
DECAY, FLOOR = 0.97, 0.02
"""Share of an expert's record that remains after each coin, and the number of right and wrong guesses added to it: the
record is that of the last few dozen guesses.
"""
SLACK = 5
"""Number of places by which an expert may rank a pair below the number of guesses so far and get full credit for it."""
IN_ADVANCE = 10.0
"""Largest number of guesses for which coins that are revealed in advance count in an expert's record."""
FIRST_FIT, NEXT_FIT = 200, 1.3
"""Number of revealed coins at which the model is first fitted, and their growth until it is fitted again."""
RIDGE, TOGETHER_WEIGHT = 30.0, 0.3
"""Strength of the model's ridge penalty, and the weight of all attacks together towards which it shrinks."""


@dataclass(frozen=True, eq=False)
class PairFeatures:
    """Features of pairs that change their sign if the two canaries of a pair are exchanged.

    Attributes:
        experts: How much more the first canary stands out than the second one, as a signed -log of the rank among the
            pairs, in each feature of the attacks, then in all attacks together, shape (pairs, features + 1).
        learned: Differences of tail ranks, for the model, shape (pairs, k).
    """

    experts: Floats
    learned: Floats

    @classmethod
    def of(cls, paired: PairedTables, attacks: Sequence[Floats]) -> PairFeatures:
        """Return the features of all pairs.

        Args:
            attacks: Features of the real rows by each attack, shapes (rows, k of the attack); the first column is the
                attack's own score. Larger values mean that a row is more likely trained on. The first attack is
                followed before any coin is revealed.
        """
        features = np.concatenate(attacks, axis=1)
        count = features.shape[1]
        own_scores = np.cumsum([0, *(attack.shape[1] for attack in attacks[:-1])])
        standing_out = outliers(features)
        together = differences(paired, standing_out[:, own_scores])[:, : own_scores.size].sum(axis=1, keepdims=True)
        experts = np.concatenate([differences(paired, standing_out)[:, :count], together], axis=1)
        learned = differences(paired, tails(features))
        return cls(_signed_tail_rank(experts), learned[:, learned.any(axis=0)])


def differences(paired: PairedTables, row_values: Floats) -> Floats:
    """Return the value of the first canary of each pair minus that of the second one, shape (pairs, k).

    For persons of several rows, these are the differences of maxima, and to the right of them those of means.
    """
    largest, mean = paired.of_canaries(row_values)
    return np.concatenate([each[0] - each[1] for each in ((largest,) if mean is largest else (largest, mean))], axis=1)


def outliers(features: Floats) -> Floats:
    """Return how far each value lies above the median of its column, in robust units to the power `POWER`."""
    bulk, shoulder = np.quantile(features, (BULK, SHOULDER), axis=0)
    highest = (features.max(axis=0) - bulk) / LARGEST_OUTLIER
    unit = np.where(shoulder > bulk, shoulder - bulk, np.maximum(highest, np.finfo(np.float64).tiny))
    distances: Floats = np.minimum(np.maximum(features - bulk, 0.0) / unit, LARGEST_OUTLIER)
    return distances**POWER


def tails(features: Floats) -> Floats:
    """Return hinges of -log of the upper tail rank and one of the lower tail rank of each column, shape (rows, 4 k)."""
    ranks = (rankdata(features, axis=0) - 0.5) / features.shape[0]
    upper, lower = -np.log1p(-ranks), np.log(ranks)
    return np.concatenate([*(np.maximum(upper - knot, 0.0) for knot in HINGES), np.minimum(lower + HINGES[1], 0.0)], 1)


def learned_order(
    features: PairFeatures, first_trained: NDArray[np.bool_], *, guessed: NDArray[np.bool_] | None = None
) -> Scores:
    """Return signed scores whose order by |score| is a predictable order of guesses, one score for each guessed pair.

    Each guess is that of the expert with the best record so far, about the open pair of which it is most confident.

    Args:
        features: Features of all pairs.
        first_trained: Coins of all pairs, shape (pairs,).
        guessed: Mask of the pairs to guess, shape (pairs,), which must not depend on coins. The coins of the others are
            revealed in advance. None for all pairs.
    Returns: Score > 0 for the guess that the first canary was trained on; canary numbers are numbers of pairs.
    """
    coins = _Coins(first_trained)
    is_open = np.ones(first_trained.size, np.bool_) if guessed is None else guessed.copy()
    count = int(is_open.sum())
    require(count > 0, "at least one pair must be guessed", pairs=first_trained.size)
    experts, model = _Experts(features.experts, is_open), _Model(features)
    in_advance = np.flatnonzero(~is_open)
    if in_advance.size:
        experts.credit_in_advance(in_advance, coins.reveal(in_advance))
    pairs, right = np.empty(count, np.int64), np.empty(count, np.bool_)
    for guesses in range(count):
        if model.is_due(coins):
            experts.replace_model(model.fitted(coins))
        pairs[guesses], guess = experts.next_guess()
        first = bool(coins.reveal(pairs[guesses : guesses + 1])[0])
        right[guesses] = guess == first
        experts.credit(pairs[guesses], first, guesses)
    size = np.arange(count, 0, -1, dtype=np.float64)
    truth = first_trained[pairs]
    return Scores(np.where(truth == right, size, -size), truth, canary=pairs)


class _Coins:
    """The coins of the pairs; one can be read once it was revealed."""

    def __init__(self, first_trained: NDArray[np.bool_]) -> None:
        self._first_trained = first_trained
        self._is_revealed = np.zeros(first_trained.size, np.bool_)
        self.number_revealed = 0

    def reveal(self, pairs: Ints) -> NDArray[np.bool_]:
        """Return the coins of pairs that were not revealed before."""
        self._is_revealed[pairs] = True
        self.number_revealed += pairs.size
        return self._first_trained[pairs]

    @property
    def revealed(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Pairs whose coins are revealed, and these coins."""
        pairs = np.flatnonzero(self._is_revealed)
        return pairs, self._first_trained[pairs]


class _Experts:
    """Experts with their rankings of the pairs and their records; the last one is the model, once it was fitted."""

    def __init__(self, opinions: Floats, is_open: NDArray[np.bool_]) -> None:
        """Take the signed confidence of each expert about each pair, shape (pairs, experts), and the pairs to guess."""
        pairs, count = opinions.shape
        self._is_open = is_open.copy()
        self._opinions = np.concatenate([opinions, np.zeros((pairs, 1))], axis=1)
        self._rankings = [np.argsort(-np.abs(opinion), kind="stable") for opinion in opinions.T]
        self._rankings.append(np.arange(pairs))
        self._places = np.stack([_places(ranking) for ranking in self._rankings], axis=1)
        self._first_open = np.zeros(count + 1, np.int64)
        self._right, self._wrong = np.full(count + 1, RIGHT_BEFORE), np.full(count + 1, WRONG_BEFORE)
        self._is_active = np.arange(count + 1) < count
        self._leader = 0

    def next_guess(self) -> tuple[int, bool]:
        """Return an open pair, which is open no longer, and the guess that its first canary was trained on."""
        records = np.where(self._is_active, self._right / (self._right + self._wrong), -1.0)
        self._leader = leader = int(np.argmax(records))
        ranking, place = self._rankings[leader], self._first_open[leader]
        while not self._is_open[ranking[place]]:
            place += 1
        self._first_open[leader] = place
        pair = int(ranking[place])
        self._is_open[pair] = False
        return pair, bool(self._opinions[pair, leader] > 0)

    def credit(self, pair: int, first_trained: bool, guesses: int) -> None:
        """Update all records by the coin of the pair that was guessed after `guesses` others."""
        weight = np.minimum(1.0, (guesses + 1 + SLACK) / (self._places[pair] + 1))
        weight[self._leader] = 1.0
        self._right, self._wrong = DECAY * self._right + FLOOR, DECAY * self._wrong + FLOOR
        opinion = self._opinions[pair]
        weight[(opinion == 0) | ~self._is_active] = 0.0
        is_right = (opinion > 0) == first_trained
        self._right += weight * is_right
        self._wrong += weight * ~is_right

    def credit_in_advance(self, pairs: Ints, first_trained: NDArray[np.bool_]) -> None:
        """Update all records by coins that are revealed without guesses."""
        weight = 1 / (1 + self._places[pairs] / SLACK) * (self._opinions[pairs] != 0)
        weight *= np.minimum(1.0, IN_ADVANCE / np.maximum(weight.sum(axis=0), 1e-12))
        is_right = (self._opinions[pairs] > 0) == first_trained[:, None]
        self._right += (weight * is_right).sum(axis=0)
        self._wrong += (weight * ~is_right).sum(axis=0)

    def replace_model(self, opinion: Floats) -> None:
        """Replace the opinion of the model; a new model starts with half the record of the leader."""
        self._opinions[:, -1] = opinion
        self._rankings[-1] = np.argsort(-np.abs(opinion), kind="stable")
        self._places[:, -1] = _places(self._rankings[-1])
        self._first_open[-1] = 0
        if not self._is_active[-1]:
            self._is_active[-1] = True
            best = int(np.argmax((self._right / (self._right + self._wrong))[:-1]))
            self._right[-1], self._wrong[-1] = (self._right[best] + RIGHT_BEFORE) / 2, WRONG_BEFORE


class _Model:
    """A logistic model without intercept of all features, fitted to the coins that are revealed."""

    def __init__(self, features: PairFeatures) -> None:
        spread = np.sqrt(np.mean(features.learned**2, axis=0))
        together = features.experts[:, -1:]
        self._inputs = np.concatenate([together, features.learned / np.where(spread > 0, spread, 1.0)], axis=1)
        self._prior = np.where(np.arange(self._inputs.shape[1]) == 0, TOGETHER_WEIGHT, 0.0)
        self._weights = self._prior
        self._next_fit = FIRST_FIT

    def is_due(self, coins: _Coins) -> bool:
        """Return True if enough coins were revealed since the last fit."""
        return coins.number_revealed >= self._next_fit

    def fitted(self, coins: _Coins) -> Floats:
        """Fit the model to all revealed coins; return its log odds that the first canary was trained on, all pairs."""
        pairs, first_trained = coins.revealed
        self._next_fit = int(NEXT_FIT * pairs.size) + 1
        self._weights = _fitted_weights(self._inputs[pairs], first_trained, self._prior, self._weights)
        odds: Floats = self._inputs @ self._weights
        return odds


def _fitted_weights(inputs: Floats, coins: NDArray[np.bool_], prior: Floats, weights: Floats) -> Floats:
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


def _places(ranking: Ints) -> Ints:
    """Return the place of each pair in a ranking, shape (pairs,)."""
    places = np.empty_like(ranking)
    places[ranking] = np.arange(ranking.size)
    return places


def _signed_tail_rank(values: Floats) -> Floats:
    """Return sign(value) * -log of the share of a column that is as large or larger in size, shape as `values`."""
    ranks: Floats = rankdata(-np.abs(values), method="average", axis=0) / values.shape[0]
    return np.sign(values) * -np.log(ranks)
