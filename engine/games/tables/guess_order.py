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
"""Quantiles of a score whose distance is its unit, so that outliers do not widen it."""
LARGEST_OUTLIER = 5.0
"""Largest distance of a score from its median, in its units: one attack alone must not outvote several that agree."""
HINGES = (0.0, 2.0, 4.0)
"""Knots of the learned features, in -log of the share of rows with a larger feature."""
FEWEST_GUESSES, FEWEST_LEARNED = 5, 10
"""Smallest number of guesses between two choices of a leader, and between two fits of the model."""
NEXT_GUESSES = 0.25
"""Number of guesses until the next choice or fit, as a share of the coins revealed."""
GOOD_LEADER = 0.75
"""Expected share of right guesses from which a leader is followed."""
OPTIMISM = (4.0, 1.0), (0.5, 0.5)
"""Right and wrong guesses that are added to those seen, for all attacks together and for one attack."""
RECENT = 25
"""Number of revealed pairs by which a leader is judged."""
TRIED = 6
"""Number of pairs given up to judge each attack once no leader is good."""
GIVEN_UP = 0.2
"""Share of the remaining pairs that are given up to learn from."""
RIDGE, LEADER_WEIGHT = 30.0, 0.15
"""Strength of the ridge penalty, and the weight of each leader towards which it shrinks."""


@dataclass(frozen=True, eq=False)
class PairFeatures:
    """Features of pairs that change their sign if the two canaries of a pair are exchanged.

    Attributes:
        leaders: How much more the first canary stands out than the second one, as a signed -log of the rank among the
            pairs: in all attacks together, then in each attack, shape (pairs, 1 + attacks).
        learned: Differences of tail ranks, for the model, shape (pairs, k).
    """

    leaders: Floats
    learned: Floats

    @classmethod
    def of(cls, paired: PairedTables, attacks: Sequence[Floats]) -> PairFeatures:
        """Return the features of all pairs.

        Args:
            attacks: Features of the real rows by each attack, shapes (rows, k of the attack); the first column is the
                attack's own score. Larger values mean that a row is more likely trained on.
        """
        scores = np.column_stack([features[:, 0] for features in attacks])
        together = differences(paired, outliers(scores)).sum(axis=1, keepdims=True)
        count = scores.shape[1]
        stand_out = np.concatenate([together[:, :1], differences(paired, outliers(scores, np.inf))[:, :count]], axis=1)
        learned = differences(paired, tails(np.concatenate(attacks, axis=1)))
        return cls(_signed_tail_rank(stand_out), learned[:, learned.any(axis=0)])


def differences(paired: PairedTables, row_values: Floats) -> Floats:
    """Return the value of the first canary of each pair minus that of the second one, shape (pairs, k).

    For persons of several rows, these are the differences of maxima, and to the right of them those of means.
    """
    largest, mean = paired.of_canaries(row_values)
    return np.concatenate([each[0] - each[1] for each in ((largest,) if mean is largest else (largest, mean))], axis=1)


def outliers(scores: Floats, most: float = LARGEST_OUTLIER) -> Floats:
    """Return how far each value lies above the median of its column in robust units, at most `most`."""
    bulk, shoulder = np.quantile(scores, (BULK, SHOULDER), axis=0)
    unit = np.where(shoulder > bulk, shoulder - bulk, np.maximum((scores.max(axis=0) - bulk) / LARGEST_OUTLIER, 1e-300))
    distances: Floats = np.minimum(np.maximum(scores - bulk, 0.0) / unit, most)
    return distances


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

    First the pairs in which one canary stands out are guessed, by all attacks together or by the attack that was right
    most often so far, as long as these guesses are mostly right. Then some of the remaining pairs are given up. A
    logistic model without intercept is fitted on all revealed coins, the pairs that it is most confident of are
    guessed, and so on until none remains.

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
    coins.reveal(np.flatnonzero(~open_pairs))
    _follow_leaders(order, features.leaders)
    if open_pairs.all():
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

    def among(self, pairs: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Return those of the pairs whose coins are revealed, in their order, and these coins."""
        revealed = pairs[self._is_revealed[pairs]]
        return revealed, self._first_trained[revealed]


class _Order:
    """Guesses in their order. A guess is fixed before its coin is revealed."""

    def __init__(self, coins: _Coins, open_pairs: NDArray[np.bool_]) -> None:
        self.open_pairs = open_pairs.copy()  # pairs that were neither guessed nor given up
        self.coins = coins
        self._guessed: list[Ints] = []
        self._right: list[NDArray[np.bool_]] = []
        self._given_up: list[Ints] = []

    @property
    def guesses(self) -> int:
        """Number of guesses so far."""
        return sum(part.size for part in self._guessed)

    def guess(self, confidence: Floats, count: int) -> None:
        """Guess the `count` open pairs with the largest |confidence|."""
        unseen = np.flatnonzero(self.open_pairs)
        chosen = unseen[np.argsort(-np.abs(confidence[unseen]), kind="stable")[:count]]
        guesses = confidence[chosen] > 0
        self.open_pairs[chosen] = False
        self._guessed.append(chosen)
        self._right.append(guesses == self.coins.reveal(chosen))

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


def _follow_leaders(order: _Order, leaders: Floats) -> None:
    """Guess the pairs in which one canary stands out, by the leader that is expected to be right most often.

    Once no leader is good, a few pairs at the front of each attack's order are given up to judge them again.
    """
    rankings = [np.argsort(-np.abs(leader), kind="stable") for leader in leaders.T]
    tried = False
    while order.open_pairs.any():
        batch = max(FEWEST_GUESSES, int(NEXT_GUESSES * order.guesses))
        expected = [
            _expected_right(order, leader, ranking, batch, OPTIMISM[min(place, 1)])
            for place, (leader, ranking) in enumerate(zip(leaders.T, rankings, strict=True))
        ]
        best = int(np.argmax(expected))
        if expected[best] >= GOOD_LEADER:
            order.guess(leaders[:, best], batch)
        elif tried:
            return
        else:
            tried = True
            fronts = [ranking[order.open_pairs[ranking]][:TRIED] for ranking in rankings[1:]]
            order.give_up(np.unique(np.concatenate([np.zeros(0, np.int64), *fronts])))


def _expected_right(order: _Order, leader: Floats, ranking: Ints, batch: int, optimism: tuple[float, float]) -> float:
    """Return the share of right guesses to expect in the next batch of a leader.

    It is judged by the last revealed pairs in its ranking, up to the end of the next batch.
    """
    front = int(np.argmax(order.open_pairs[ranking]))
    pairs = ranking[: front + batch]
    revealed, first_trained = order.coins.among(pairs)
    right = ((leader[revealed] > 0) == first_trained)[-max(RECENT, batch) :]
    return float((right.sum() + optimism[0]) / (right.size + sum(optimism)))


def _guess_learned(order: _Order, features: PairFeatures) -> None:
    """Guess the pairs that remain, by a model that is fitted again whenever a quarter more coins are revealed."""
    spread = np.sqrt(np.mean(features.learned**2, axis=0))
    inputs = np.concatenate([features.leaders, features.learned / np.where(spread > 0, spread, 1.0)], axis=1)
    prior = np.where(np.arange(inputs.shape[1]) < features.leaders.shape[1], LEADER_WEIGHT, 0.0)
    weights = prior
    while order.open_pairs.any():
        pairs, first_trained = order.coins.among(np.arange(inputs.shape[0]))
        weights = _fitted(inputs[pairs], first_trained, prior, weights)
        order.guess(inputs @ weights, max(FEWEST_LEARNED, int(NEXT_GUESSES * pairs.size)))


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
    """Return sign(value) * -log of the share of a column that is as large or larger in size, shape as `values`."""
    ranks: Floats = rankdata(-np.abs(values), method="average", axis=0) / values.shape[0]
    return np.sign(values) * -np.log(ranks)
