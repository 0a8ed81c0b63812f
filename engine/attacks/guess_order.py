"""One predictable order of guesses from all attacks, which learns from the coins revealed on the way.

The guess band needs a *predictable* order. The choice of the next coin, and the guess about it, may depend on all that
is shown and on the coins revealed before. They must not depend on the coin itself or on later ones.

Why that suffices. Let o be everything shown. Given o and the coins revealed so far, the next coin and its guess are
fixed. Under epsilon-DP for what the coin decides, the odds of the coin given o and *any* values of the other coins lie
within e^-epsilon and e^epsilon. So for every past, the guess is right with conditional probability at most
p = e^epsilon / (1 + e^epsilon). Hence the numbers of right guesses S_1, S_2, ... are jointly dominated by a
Bernoulli(p) walk, and the band holds for all of them at once. The argument does not depend on how the order was found:
a model fitted on revealed coins is as valid as a fixed score. At delta > 0 the argument of `OneTraining` fixes the
other coins, so it holds as well.

The order follows the expert with the best record. Experts are single scores of attacks, all attacks together, and a
model that learns from all features. Each revealed coin is credited to every expert that had an opinion about it, the
more the earlier it would have guessed that coin. So a few guesses suffice to find the attack that works, and an attack
that finds nothing costs at most a few wrong guesses.

Cross-fitting in both directions is *not* predictable. Let a model fitted on the coins of half B guess half A, and one
fitted on A guess B. Each half is a valid test alone, but their sum is not. Let two coins be guessed by "the same
as the other one". Each guess is right with probability 1/2, but both are right or both are wrong: right twice
with probability 1/2 instead of 1/4.

Source: ours; the domination is that of the one-run proof of Steinke et al. (2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import rankdata

from dpaudit.errors import require
from dpaudit.estimators.arguments import Floats, Ints
from dpaudit.estimators.scores import Scores, SharedOrders

RIGHT_BEFORE, WRONG_BEFORE = 2.0, 1.0
"""Right and wrong guesses with which each expert starts."""
DECAY, FLOOR = 0.97, 0.02
"""Share of an expert's record that remains after each coin, and the number of right and wrong guesses added to it: the
record is that of the last few dozen guesses.
"""
SLACK = 5
"""Number of places by which an expert may rank a pair below the number of guesses so far and get full credit for it."""
MARGIN = 1e-6
"""Advance of the leader's record: equal records, up to rounding, keep the leader."""
IN_ADVANCE = 20.0
"""Largest number of guesses for which coins that are revealed in advance count in an expert's record."""
REVEALED = 0.05
"""Share of the canaries whose coins are revealed before the learned order begins."""
FIRST_FIT, NEXT_FIT = 200, 1.3
"""Number of revealed coins at which the model is first fitted, and their growth until it is fitted again."""
RIDGE, TOGETHER_WEIGHT = 30.0, 0.3
"""Strength of the model's ridge penalty, and the weight of all attacks together towards which it shrinks."""


def signed_tail_rank(values: Floats) -> Floats:
    """Return sign(value) * -log of the share of a column that is larger in size, shape as `values`.

    The share is a mid-rank, so that a value keeps its sign if it is the smallest in size.
    """
    ranks: Floats = (rankdata(-np.abs(values), method="average", axis=0) - 0.5) / values.shape[0]
    return np.sign(values) * -np.log(ranks)


def signed_places(values: Floats) -> Floats:
    """Return the signs of values times 1, 2, ... in the order of their sizes, shape (n,); equal sizes have one number.

    They are exact in single precision, in which scores are stored.
    """
    return np.sign(values) * (1 + np.unique(np.abs(values), return_inverse=True)[1])


def learned_order(
    experts: Floats, features: Floats, coins: NDArray[np.bool_], *, guessed: NDArray[np.bool_] | None = None
) -> Scores:
    """Return signed scores whose order by |score| is a predictable order of guesses, one score for each guessed canary.

    Each guess is that of the expert with the best record so far, about the open canary of which it is most confident.

    Args:
        experts: Opinion of each expert about each canary, chosen without coins, shape (canaries, experts): the sign is
            the guess, > 0 for heads, and the size the confidence; `signed_tail_rank` makes such opinions from scores.
            The first expert is followed before any coin is revealed. The last one is all attacks together, towards
            which the model shrinks.
        features: Features of the model, shape (canaries, k); a constant column is an intercept. Pairs of exchangeable
            canaries need features that change their sign with the pair, and no intercept.
        coins: The coins, shape (canaries,); True for heads.
        guessed: Mask of the canaries to guess, shape (canaries,), which must not depend on coins. The coins of the
            others are revealed in advance. None for all canaries.
    Returns: Scores for guesses of the rule "signed"; a score > 0 guesses heads.
    """
    require(
        experts.shape[:1] == coins.shape == features.shape[:1],
        "there must be one row of experts and one of features for each coin",
        experts=experts.shape,
        features=features.shape,
        coins=coins.shape,
    )
    hidden = _Coins(coins)
    is_open = np.ones(coins.size, np.bool_) if guessed is None else guessed.copy()
    count = int(is_open.sum())
    require(count > 0, "at least one canary must be guessed", canaries=coins.size)
    records, model = _Experts(experts, is_open), _Model(experts[:, -1:], features)
    in_advance = np.flatnonzero(~is_open)
    if in_advance.size:
        records.credit_in_advance(in_advance, hidden.reveal(in_advance))
    canaries, right = np.empty(count, np.int64), np.empty(count, np.bool_)
    for guesses in range(count):
        if model.is_due(hidden):
            records.replace_model(model.fitted(hidden))
        canaries[guesses], guess = records.next_guess()
        coin = bool(hidden.reveal(canaries[guesses : guesses + 1])[0])
        right[guesses] = guess == coin
        records.credit(canaries[guesses], coin, guesses)
    size = np.arange(count, 0, -1, dtype=np.float64)
    truth = coins[canaries]
    return Scores(np.where(truth == right, size, -size), truth, canary=canaries)


def order_of_attacks(
    opinions: Floats,
    summed: Sequence[int],
    features: Floats,
    coins: NDArray[np.bool_],
    *,
    alone: Sequence[int] = (),
    slots: int = 0,
    revealed: float = REVEALED,
    guessed: NDArray[np.bool_] | None = None,
) -> SharedOrders:
    """Return the orders of guesses of several attacks, which share the error: one learned from all, and some alone.

    The learned order has half of the error. The attacks of `alone` share the other half evenly: with the five standard
    attacks, each has a tenth. All further attacks enter the learned order only, however many there are, and cost
    nothing but the guesses until their records tell: put their columns into `opinions` (and `summed`, `features`), and
    leave them out of `alone`. Without `alone` the learned order has all of the error.

    Each order is a valid test at its share of the error, so that all hold together by the union bound. The learned one
    begins after the coins of a random twentieth of the canaries are revealed (`revealed_first`), about which it makes
    no guess. Orders of attacks alone use no coin, so they may guess these canaries too.

    Args:
        opinions: Scores of each canary on scales of the attacks' own, shape (canaries, k): > 0 for heads, and 0 for no
            opinion. The first column is followed before any coin is revealed.
        summed: Columns of `opinions` whose sum is the score of all attacks together.
        features, coins: As in `learned_order`.
        alone: Columns of `opinions` that also guess alone. Choose them without coins.
        slots: Number of orders alone among which half of the error is shared, if some may be missing: at delta > 0 the
            shares must not depend on what was released, so that those of missing orders are lost.
        revealed: Share of the canaries whose coins are revealed before the learned order begins, in [0, 1). It may
            depend on the opinions, never on coins.
        guessed: Mask of the canaries to guess, shape (canaries,), which must not depend on coins; the coins of the
            others are revealed in advance. None for all canaries.
    Returns: Scores of the guessed canaries in ascending order.
    """
    together = opinions[:, list(summed)].sum(axis=1, keepdims=True)
    experts = signed_tail_rank(np.concatenate([opinions, together], axis=1))
    rows = np.flatnonzero(np.ones(coins.size, np.bool_) if guessed is None else guessed)
    learned = learned_order(experts, features, coins, guessed=~revealed_first(rows, coins.size, revealed))
    score = np.zeros(coins.size)
    score[learned.canary] = learned.score
    further = np.zeros((rows.size, max(slots, len(alone))))  # a canary of value 0 is not guessed
    for place, column in enumerate(alone):
        further[:, place] = signed_places(experts[rows, column])
    return SharedOrders(score[rows], coins[rows], canary=rows, further=further if further.shape[1] else None)


def revealed_first(guessed: Ints, canaries: int, share: float) -> NDArray[np.bool_]:
    """Return True for the canaries whose coins the learned order sees before its first guess, shape (canaries,).

    They are the canaries that are not guessed anyway, and as many of the others as make up the share. These
    depend on numbers alone, never on coins, and coins are independent of each other (those of pairs too, given all
    unordered pairs). So nothing is learned of a guessed coin but what `learned_order` allows for.

    Args:
        guessed: Canaries to guess, in ascending order.
        canaries: Number of all canaries.
        share: Share of all canaries to reveal, in [0, 1).
    """
    revealed = np.ones(canaries, np.bool_)
    missing = math.floor(share * canaries) - (canaries - guessed.size)
    revealed[np.random.default_rng(canaries).permutation(guessed)[max(0, missing) :]] = False
    return revealed


class _Coins:
    """The coins of the canaries; one can be read once it was revealed."""

    def __init__(self, coins: NDArray[np.bool_]) -> None:
        self._coins = coins
        self._is_revealed = np.zeros(coins.size, np.bool_)
        self.number_revealed = 0

    def reveal(self, canaries: Ints) -> NDArray[np.bool_]:
        """Return the coins of canaries that were not revealed before."""
        self._is_revealed[canaries] = True
        self.number_revealed += canaries.size
        return self._coins[canaries]

    @property
    def revealed(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Canaries whose coins are revealed, and these coins."""
        canaries = np.flatnonzero(self._is_revealed)
        return canaries, self._coins[canaries]


class _Experts:
    """Experts with their rankings of the canaries and their records; the last one is the model, once it was fitted."""

    def __init__(self, opinions: Floats, is_open: NDArray[np.bool_]) -> None:
        """Take the opinions, shape (canaries, experts), and the mask of the canaries to guess."""
        canaries, count = opinions.shape
        self._is_open = is_open.copy()
        self._opinions = np.concatenate([opinions, np.zeros((canaries, 1))], axis=1)
        self._rankings = [np.argsort(-np.abs(opinion), kind="stable") for opinion in opinions.T]
        self._rankings.append(np.arange(canaries))
        self._places = np.stack([_places(ranking) for ranking in self._rankings], axis=1)
        self._first_open = np.zeros(count + 1, np.int64)
        self._right, self._wrong = np.full(count + 1, RIGHT_BEFORE), np.full(count + 1, WRONG_BEFORE)
        self._is_active = np.arange(count + 1) < count
        self._leader = 0

    def next_guess(self) -> tuple[int, bool]:
        """Return an open canary, which is open no longer, and the guess of its coin."""
        records = np.where(self._is_active, self._right / (self._right + self._wrong), -1.0)
        records[self._leader] += MARGIN
        self._leader = leader = int(np.argmax(records))
        ranking, place = self._rankings[leader], self._first_open[leader]
        while not self._is_open[ranking[place]]:
            place += 1
        self._first_open[leader] = place
        canary = int(ranking[place])
        self._is_open[canary] = False
        return canary, bool(self._opinions[canary, leader] > 0)

    def credit(self, canary: int, coin: bool, guesses: int) -> None:
        """Update all records by the coin of the canary that was guessed after `guesses` others."""
        weight = np.minimum(1.0, (guesses + 1 + SLACK) / (self._places[canary] + 1))
        weight[self._leader] = 1.0
        self._right, self._wrong = DECAY * self._right + FLOOR, DECAY * self._wrong + FLOOR
        opinion = self._opinions[canary]
        weight[(opinion == 0) | ~self._is_active] = 0.0
        is_right = (opinion > 0) == coin
        self._right += weight * is_right
        self._wrong += weight * ~is_right

    def credit_in_advance(self, canaries: Ints, coins: NDArray[np.bool_]) -> None:
        """Update all records by coins that are revealed without guesses."""
        among_these = np.argsort(np.argsort(self._places[canaries], axis=0), axis=0)
        weight = 1 / (1 + among_these / SLACK) * (self._opinions[canaries] != 0)
        weight *= np.minimum(1.0, IN_ADVANCE / np.maximum(weight.sum(axis=0), 1e-12))
        is_right = (self._opinions[canaries] > 0) == coins[:, None]
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
    """A logistic model of all features, fitted to the coins that are revealed."""

    def __init__(self, together: Floats, features: Floats) -> None:
        """Take the opinion of all attacks together, shape (canaries, 1), and the other features."""
        spread = np.sqrt(np.mean(features**2, axis=0))
        self._inputs = np.concatenate([together, features / np.where(spread > 0, spread, 1.0)], axis=1)
        self._prior = np.where(np.arange(self._inputs.shape[1]) == 0, TOGETHER_WEIGHT, 0.0)
        self._weights = self._prior
        self._next_fit = FIRST_FIT

    def is_due(self, coins: _Coins) -> bool:
        """Return True if enough coins were revealed since the last fit."""
        return coins.number_revealed >= self._next_fit

    def fitted(self, coins: _Coins) -> Floats:
        """Fit the model to all revealed coins; return its log odds of heads for all canaries."""
        canaries, heads = coins.revealed
        self._next_fit = int(NEXT_FIT * canaries.size) + 1
        signed = self._inputs[canaries] * np.where(heads, 1.0, -1.0)[:, None]
        for _ in range(8):  # Newton's method
            wrong = expit(-(signed @ self._weights))
            gradient = signed.T @ wrong - RIDGE * (self._weights - self._prior)
            curvature = (signed * (wrong * (1 - wrong))[:, None]).T @ signed
            curvature[np.diag_indices_from(curvature)] += RIDGE
            step = np.linalg.solve(curvature, gradient)
            self._weights = self._weights + step
            if np.abs(step).max() < 1e-3:
                break
        odds: Floats = self._inputs @ self._weights
        return odds


def _places(ranking: Ints) -> Ints:
    """Return the place of each canary in a ranking, shape (canaries,)."""
    places = np.empty_like(ranking)
    places[ranking] = np.arange(ranking.size)
    return places
